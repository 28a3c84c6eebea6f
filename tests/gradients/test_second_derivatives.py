"""Fast second derivatives equal torch's; whatever is not the layer's own operation keeps torch's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gapscope as gs
from gapscope.gradients import backward, second_derivatives
from gapscope.gradients.recording import record_calls, record_forward
from gapscope.gradients.second_derivatives import bypassed
from gapscope.gradients.verification import _second_derivative_differs
from gradients.reference import Wrapped, dense_jacobian, gradient_of

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, padding=1), (4, 5, 5)),
    "stride and dilation": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2), (4, 7, 6)),
    "groups": (lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (4, 5, 5)),
    "windows of one pixel": (lambda: nn.Conv2d(4, 6, 1, stride=2), (4, 5, 5)),
    "one dimension": (lambda: nn.Conv1d(4, 6, 3, padding="same"), (4, 7)),
    "three dimensions": (lambda: nn.Conv3d(4, 6, 2), (4, 3, 3, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 5)),
    "instance norm as groups": (lambda: nn.GroupNorm(4, 4, eps=0.1), (4, 5)),
}


def network_of(layer: nn.Module) -> Wrapped:
    torch.manual_seed(0)
    parts = {"first": nn.Conv2d(4, 4, 1), "layer": layer}

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.first(x.flatten(2).unsqueeze(3)).tanh().view(x.shape)
        return self.layer(h).tanh().flatten(2).mean(2)

    network = Wrapped(forward, **parts).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network


def used(network: nn.Module, x: Tensor) -> bool:
    """Whether the layer called `layer` has a fast derivative in a recorded pass."""
    with record_calls(network, x, twice=True) as tape:
        network(x)
    node: Any = next(call for call in tape.calls if call.name == "layer").outputs[0].edge.node
    return bypassed(node) is not node


@pytest.mark.parametrize("method", ["exact", "probe"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_the_penalty_are_exact(
    name: str, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = LAYERS[name]
    network, x = network_of(make()), torch.randn(3, *shape, dtype=torch.float64)
    assert used(network, x)
    penalty = gs.GradientSimilarityPenalty(1.0, method=method, reduction="sum")
    actual = gradient_of(penalty(network, x), network)
    if method == "exact":
        expected = gradient_of(
            dense_jacobian(network, x, create_graph=True).square().sum(), network
        )
    else:
        monkeypatch.setattr(second_derivatives, "_derivative", lambda node: None)
        expected = gradient_of(
            gs.GradientSimilarityPenalty(1.0, reduction="sum")(network, x), network
        )
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


class CubeGradient(torch.autograd.Function):
    """The derivative of a cube, with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(g, x)
        return 3 * x**2 * g

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        return 3 * x**2 * gradients[0], 6 * x * g * gradients[0]


class Cube(torch.autograd.Function):
    """x^3, by the function above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return CubeGradient.apply(gradients[0], *ctx.saved_tensors)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def cubes() -> nn.Module:
    parts = {"first": nn.Linear(5, 4), "head": nn.Linear(4, 3)}
    return Wrapped(lambda self, x: self.head(Cube.apply(self.first(x))), **parts)


WITHOUT_TRAINED_CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "group norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)), (5,)),
    "group norm of tokens": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(24, 3)),
        (6, 5),
    ),
    "frozen convolution": (
        lambda: nn.Sequential(
            nn.Linear(5, 16), nn.Unflatten(1, (1, 4, 4)), frozen(nn.Conv2d(1, 2, 3)), nn.Tanh(),
            nn.Flatten(), nn.Linear(8, 3),
        ),
        (5,),
    ),
    "function of the user": (cubes, (5,)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["trace", "logdet"])
@pytest.mark.parametrize("name", WITHOUT_TRAINED_CONVOLUTIONS)
def test_functions_are_not_vectorized_over_outputs(name: str, kind: Any) -> None:
    make, shape = WITHOUT_TRAINED_CONVOLUTIONS[name]
    torch.manual_seed(0)
    network, x = make().double(), torch.randn(4, *shape, dtype=torch.float64)
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact", kind=kind, reduction="sum")
    jacobian = dense_jacobian(network, x, create_graph=True).flatten(0, 1)
    if kind == "trace":
        expected = jacobian.square().sum()
    else:
        expected = torch.logdet(torch.eye(len(jacobian)).double() + jacobian @ jacobian.T)
    actual = penalty(network, x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient_of(actual, network), gradient_of(expected, network))


def test_the_self_check_compares_several_cotangents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "_without_batched_functions", nullcontext)
    torch.manual_seed(0)
    x = torch.randn(4, 5, dtype=torch.float64)
    recorded = record_forward(cubes().double(), x, twice=True)
    assert _second_derivative_differs(*recorded, 0, n_cotangents=2)
    assert not _second_derivative_differs(*recorded, 0, n_cotangents=1)


def test_the_gradient_of_the_loss_is_torchs() -> None:
    network, x = network_of(nn.Conv2d(4, 6, 3)), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    outputs, _ = gs.GradientSimilarityPenalty(1.0).forward_with_penalty(network, x)
    assert torch.equal(gradient_of(outputs.sum(), network), gradient_of(network(x).sum(), network))


def twice(layer: nn.Module) -> None:
    original = layer.forward
    layer.forward = lambda h: original(h) * 2  # type: ignore[method-assign]


def other_input(layer: nn.Module) -> None:
    original = layer.forward
    layer.forward = lambda h: original(h * 2)  # type: ignore[method-assign]


def other_weight(layer: Any) -> None:
    layer.forward = lambda h: F.conv2d(h, layer.weight * 2)


def circular(layer: Any) -> None:
    layer.padding_mode, layer.padding = "circular", (1, 1)
    layer._reversed_padding_repeated_twice = [1, 1, 1, 1]


@pytest.mark.parametrize(
    "change", [twice, other_input, other_weight, circular], ids=lambda change: change.__name__
)
def test_another_operation_keeps_torchs_derivative(change: Callable[[Any], None]) -> None:
    network, x = network_of(nn.Conv2d(4, 6, 3)), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    change(network.get_submodule("layer"))
    assert not used(network, x)
    actual = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")(network, x)
    expected = gradient_of(dense_jacobian(network, x, create_graph=True).square().sum(), network)
    torch.testing.assert_close(gradient_of(actual, network), expected)


def test_frozen_weights_and_inputs_without_gradients() -> None:
    network, x = network_of(nn.Conv2d(4, 6, 3)), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    network.get_submodule("layer").requires_grad_(False)
    actual = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")(network, x)
    expected = gradient_of(dense_jacobian(network, x, create_graph=True).square().sum(), network)
    torch.testing.assert_close(gradient_of(actual, network), expected)


def test_checkpoints_count_saved_tensors() -> None:
    network, x = network_of(nn.Conv2d(4, 6, 3)), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    inner = network.get_submodule("layer")
    expected = gradient_of(gs.GradientSimilarityPenalty(1.0)(network, x), network)
    parts = {"first": network.get_submodule("first"), "layer": inner}

    def forward(self: Any, x: Tensor) -> Any:
        h = self.first(x).tanh()
        return checkpoint(lambda h: self.layer(h).tanh(), h, use_reentrant=False).flatten(2).mean(2)  # type: ignore[union-attr]

    checkpointed = Wrapped(forward, **parts)
    actual = gradient_of(gs.GradientSimilarityPenalty(1.0)(checkpointed, x), checkpointed)
    torch.testing.assert_close(actual, expected)


def test_mixed_precision_keeps_torchs_derivative() -> None:
    network, x = network_of(nn.Conv2d(4, 6, 3)).float(), torch.randn(3, 4, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert not used(network, x)
        value = gs.GradientSimilarityPenalty(1.0)(network, x)
    assert gradient_of(value, network).isfinite().all()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("normalize", [gs.batch_norm.weight_normalize, torch.nn.utils.weight_norm])
def test_the_gradient_through_weight_norm_is_that_of_the_value(normalize: Any) -> None:
    torch.manual_seed(0)
    first = normalize(nn.Linear(4, 5))
    network = nn.Sequential(first, nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    for penalty in (
        gs.GradientSimilarityPenalty(1.0, method="exact"),
        gs.penalties.LossGradientPenalty(1.0),
    ):
        v = list(first.parameters())[-1]
        direction = torch.randn_like(v)
        (gradient,) = torch.autograd.grad(penalty(network, x, y), v)
        values = []
        for step in (1e-5, -2e-5):  # torch's own second derivative takes |v| as a constant
            v.data.add_(step * direction)
            values.append(float(penalty(network, x, y).detach()))
        v.data.add_(1e-5 * direction)
        expected = (values[0] - values[1]) / 2e-5
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-6)
