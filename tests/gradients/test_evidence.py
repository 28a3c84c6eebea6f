"""What the graph of a pass proves, and that nothing else counts as proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.gradients import layer_rules, verification
from gapscope.gradients.evidence import is_proven
from gapscope.gradients.recording import record_forward
from gradients.reference import Wrapped, check_traces

N = 4


def images() -> Tensor:
    return torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def proven(network: nn.Module, x: Tensor | None = None) -> bool:
    return is_proven(*record_forward(network, images() if x is None else x))


def parts() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "conv": nn.Conv2d(3, N, 3, stride=2, padding=1),
        "norm": nn.GroupNorm(2, N),
        "second": nn.Conv2d(N, N, 3, padding=1, bias=False),
        "head": nn.Linear(N, 2),
    }


def forward(
    self: Any, x: Tensor, change: Callable[[Any, Tensor], Tensor] = lambda self, h: h
) -> Tensor:
    h = change(self, F.relu(self.norm(self.conv(x))))
    return self.head((h + self.second(h)).mean((2, 3)))


def wrapped(change: Callable[[Any, Tensor], Tensor]) -> Wrapped:
    return Wrapped(lambda self, x: forward(self, x, change), **parts())


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "residual, batch norm": ("resnet18", {"width_multiplier": 0.125, "normalization": "batch"}),
    "residual, group norm": ("resnet18", {"width_multiplier": 0.125, "normalization": "group"}),
    "VGG": ("vgg13", {"width_multiplier": 0.125}),
    "LeNet": ("lenet5", {}),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_usual_networks_are_proven(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, options = NETWORKS[name]
    network = gs.build_network(family, input_shape=(3, 32, 32), n_outputs=3, **options).train(
        training
    )
    x = torch.randn(N, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert proven(network, x)
    monkeypatch.setattr(verification, "_find_routing", lambda *_, **__: pytest.fail("compared"))
    gs.GradientSimilarityPenalty(0.1)(network, x).backward()


def test_what_is_proven_is_exact() -> None:
    network = wrapped(lambda self, h: h).double().eval()
    assert proven(network, images().double())
    check_traces(network, images().double())


def hooked(self: Any, h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: gradient - gradient.mean(0))
    return h


# Changes between layers, each of which the graph or the record shows.
CHANGES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a weight outside its layer": lambda self, h: h * self.second.weight.mean(),
    "a weight as a function": lambda self, h: F.conv2d(h, self.second.weight, padding=1),
    "the mean over samples": lambda self, h: h - h.mean(0),
    "the mean over samples, negative": lambda self, h: h - h.mean(-4, keepdim=True).expand_as(h),
    "another order of samples": lambda self, h: h.flip(0),
    "one sample for all": lambda self, h: h[:1] + h,
    "a sum along the samples": lambda self, h: h.cumsum(0),
    "probabilities along the samples": lambda self, h: h.softmax(0),
    "channels as samples": lambda self, h: h.transpose(0, 1),
    "a product with other samples": lambda self, h: h * h.roll(1, 0),
    "a hook of a tensor": hooked,
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_uses_are_not_proven(name: str) -> None:
    assert not proven(wrapped(CHANGES[name]))


def double_output(module: nn.Module) -> None:
    original = module.forward
    module.forward = lambda x: original(x) * 2  # type: ignore[method-assign]


def other_input(module: nn.Module) -> None:
    original = module.forward
    module.forward = lambda x: original(x.flip(0))  # type: ignore[method-assign]


def other_weight(module: Any) -> None:
    original, weight = module.forward, module.weight

    def forward(x: Tensor) -> Tensor:
        module._parameters["weight"] = nn.Parameter(weight.detach() * 2)
        result = original(x)
        module._parameters["weight"] = weight
        return result

    module.forward = forward


@pytest.mark.parametrize("name", ["conv", "norm", "head"])
@pytest.mark.parametrize(
    "change", [double_output, other_input, other_weight], ids=lambda change: change.__name__
)
def test_layers_that_do_something_else_are_not_proven(
    change: Callable[[Any], None], name: str
) -> None:
    network = wrapped(lambda self, h: h)
    assert proven(network)
    change(network.get_submodule(name))
    assert not proven(network)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "change", [double_output, other_input, other_weight], ids=lambda change: change.__name__
)
def test_batch_norm_that_does_something_else_is_not_proven(
    change: Callable[[Any], None], training: bool
) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
    ).train(training)
    assert proven(network)
    change(network[1])
    assert not proven(network)


def test_settings_that_differ_from_the_call_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    assert proven(network)
    original = F.conv2d
    monkeypatch.setattr(
        F, "conv2d", lambda x, weight, bias, stride, *rest: original(x, weight, bias, 1, *rest)
    )
    assert not proven(network)


def test_another_rule_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layer_rules._RULES, nn.Conv2d, lambda call, gradient: [])
    assert not proven(wrapped(lambda self, h: h))


def test_layers_without_a_proof_are_compared() -> None:
    network = nn.Sequential(nn.Flatten(2), nn.LSTM(64, 2, batch_first=True))
    assert not proven(Wrapped(lambda self, x: self.inner(x)[0].flatten(1), inner=network))
    assert not proven(
        nn.Sequential(nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), nn.Flatten())
    )


def test_the_hook_of_a_tensor_is_registered_as_usual() -> None:
    register = Tensor.register_hook
    network = wrapped(hooked)
    tape, _ = record_forward(network, images())
    assert tape.has_tensor_hooks
    assert Tensor.register_hook is register
