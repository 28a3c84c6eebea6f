from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.networks.adapters import LogitsOnly
from gapscope.networks.factory import build_network, check_network_options, network_names
from support.door_networks import bert_classifier

_NARROW = {"width_multiplier": 0.125}
_VGG = (3, 32, 32), {"width_multiplier": 0.0625, "head": "paper", "head_width": 16}
# One case per network: sizes and options that keep it small.
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ((1, 28, 28), {"width_multiplier": 0.125, "head_width": 16}),
    "conv6": ((3, 8, 8), _NARROW),
    "fully_connected": ((2,), {"width": 7}),
    "lenet5": ((1, 28, 28), {}),
    "mobilenet": ((3, 32, 32), _NARROW),
    "plain_cnn": ((3, 10, 10), {"n_conv": 2}),
    "resnet18": ((3, 8, 8), _NARROW),
    "resnet20": ((1, 8, 8), {}),
    "resnet34": ((3, 8, 8), _NARROW),
    "small_cnn": ((1, 8, 8), {}),
    "vgg11": _VGG,
    "vgg13": _VGG,
    "vgg16": _VGG,
    "vgg19": _VGG,
}
# Another value of every option that any network takes.
OTHER: dict[str, Any] = {
    "activation": "tanh",
    "channels": 6,
    "depth": 4,
    "dropout": 0.25,
    "head": "linear",
    "head_width": 20,
    "hidden": 9,
    "n_conv": 3,
    "n_hidden": 3,
    "normalization": "none",
    "width": 9,
    "width_multiplier": 0.5,
}
SWITCHES = ("batch_norm", "max_pool")


def _build(name: str, seed: int = 0, n_outputs: int = 3, **changes: Any) -> nn.Module:
    input_shape, options = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    settings = {**options, **changes}
    return build_network(
        name, input_shape=input_shape, n_outputs=n_outputs, generator=generator, **settings
    )


def _inputs(name: str, n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, *CASES[name][0], generator=torch.Generator().manual_seed(1), dtype=dtype)


def _options(name: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        check_network_options(name, {"?": 1})
    return str(caught.value).partition("; options: ")[2].rstrip(".").split(", ")


OPTIONS = [(name, option) for name in network_names() for option in _options(name)]


def test_there_is_a_case_for_every_network() -> None:
    assert set(CASES) == set(network_names())
    assert network_names() == tuple(sorted(network_names()))
    assert {option for _, option in OPTIONS} == {*OTHER, *SWITCHES}


@pytest.mark.parametrize("name", network_names())
def test_forward_and_backward(name: str) -> None:
    network = _build(name)
    outputs = network(_inputs(name))
    assert outputs.shape == (4, 3)
    outputs.square().sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), parameter_name
    assert any(
        parameter.grad.abs().sum() > 0
        for parameter in network.parameters()
        if parameter.grad is not None
    )


@pytest.mark.parametrize("name", network_names())
def test_same_seed_same_weights_and_the_global_state_untouched(name: str) -> None:
    before = torch.get_rng_state()
    first, second, other = (
        _build(name, 3).state_dict(),
        _build(name, 3).state_dict(),
        _build(name, 4).state_dict(),
    )
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], second[key]) for key in first)
    random = [key for key in first if first[key].ndim > 1]
    assert random and not any(torch.equal(first[key], other[key]) for key in random)


@pytest.mark.parametrize("name", network_names())
def test_no_layer_works_in_place_and_every_activation_is_a_module(name: str) -> None:
    network = _build(name)
    assert not any(getattr(module, "inplace", False) for module in network.modules())
    calls = []
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.register_full_backward_hook(lambda *_: calls.append(1))
    network(_inputs(name)).sum().backward()
    assert len(calls) == sum(isinstance(module, nn.ReLU) for module in network.modules()) > 0


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in network.state_dict().items()}


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_changes_the_network(name: str, option: str) -> None:
    if option in SWITCHES:
        kinds = (nn.MaxPool2d,) if option == "max_pool" else (nn.BatchNorm1d, nn.BatchNorm2d)
        for switch in (True, False):
            network = _build(name, **{option: switch})
            assert network(_inputs(name)).shape == (4, 3)
            assert any(isinstance(module, kinds) for module in network.modules()) is switch
        return
    value = OTHER[option]
    default, changed = _build(name), _build(name, **{option: value})
    assert changed(_inputs(name)).shape == (4, 3)
    if option == "dropout":
        drops = [module for module in changed.modules() if isinstance(module, nn.Dropout)]
        assert drops and {drop.p for drop in drops} == {value}
        assert _shapes(default) == _shapes(changed)
    elif option == "activation":
        assert any(isinstance(module, nn.Tanh) for module in changed.modules())
        assert not any(isinstance(module, nn.ReLU) for module in changed.modules())
    else:
        assert _shapes(default) != _shapes(changed)


@pytest.mark.parametrize("name", [name for name, option in OPTIONS if option == "width_multiplier"])
def test_the_width_multiplier_scales_but_never_to_nothing(name: str) -> None:
    sizes = [
        sum(p.numel() for p in _build(name, width_multiplier=m).parameters())
        for m in (1e-6, 0.1, 0.2, 0.4)
    ]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4
    assert _build(name, width_multiplier=1e-6)(_inputs(name)).shape == (4, 3)


@pytest.mark.parametrize(
    "name", ["alexnet", "fully_connected", "lenet5", "plain_cnn", "small_cnn", "vgg16"]
)
def test_weights_do_not_depend_on_dropout_or_batch_norm(name: str) -> None:
    without = dict(_build(name, dropout=0.0, batch_norm=False).named_parameters())
    changed = dict(_build(name, dropout=0.5, batch_norm=True).named_parameters())
    assert set(without) < set(changed)
    assert all(torch.equal(without[key], changed[key]) for key in without)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "lenet",
            {},
            r"network must be one of .*'lenet5'.*; got 'lenet'\. Did you mean 'lenet5'\?$",
        ),
        (
            "lenet5",
            {"droput": 0.1},
            r"Network 'lenet5' has no option 'droput'; options: .* Did you mean 'dropout'\?$",
        ),
        (
            "lenet5",
            {"dropout": 1.0},
            r"Option 'dropout' of network 'lenet5' must lie in \[0, 1\); got 1.0\.$",
        ),
    ],
)
def test_wrong_names_and_options_are_rejected(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_network_options(name, options)
    with pytest.raises(InvalidInput, match=message):
        build_network(name, input_shape=(1, 28, 28), n_outputs=10, **options)


def test_default_dtype_is_respected() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert _build("small_cnn").get_parameter("output.weight").dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_logits_only_masks_padding_of_sequences() -> None:
    class ImageClassifier(nn.Module):
        def forward(self, pixel_values: Tensor) -> Any:
            return SimpleNamespace(logits=pixel_values.flatten(1))

    network = LogitsOnly(bert_classifier().eval(), padding=0)
    torch.testing.assert_close(
        network(torch.tensor([[5, 6, 7]])), network(torch.tensor([[5, 6, 7, 0, 0]]))
    )
    assert torch.equal(
        LogitsOnly(ImageClassifier(), padding=0)(torch.zeros(2, 1, 2)), torch.zeros(2, 2)
    )
    with pytest.raises(InvalidInput, match="`logits`; Linear returned Tensor"):
        LogitsOnly(nn.Linear(2, 2))(torch.zeros(1, 2))
