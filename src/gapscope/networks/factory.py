"""Network factory: list, validate and build networks by name."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.options import check_known, coerce
from gapscope.networks.initialization import initialize
from gapscope.networks.layers import ACTIVATIONS, NORMALIZATIONS, Layers
from gapscope.networks.resnet import resnet
from gapscope.networks.sequential import (
    HEADS,
    alexnet,
    conv6,
    fully_connected,
    lenet5,
    mobilenet,
    plain_cnn,
    small_cnn,
    vgg,
)

_FAMILIES: dict[str, Callable[..., Layers]] = {
    "alexnet": alexnet,
    "conv6": conv6,
    "fully_connected": fully_connected,
    "lenet5": lenet5,
    "mobilenet": mobilenet,
    "plain_cnn": plain_cnn,
    **{f"resnet{n}": partial(resnet, n) for n in (18, 20, 34)},
    "small_cnn": small_cnn,
    **{f"vgg{n}": partial(vgg, n) for n in (11, 13, 16, 19)},
}
_CHOICES = {"activation": tuple(ACTIVATIONS), "head": HEADS, "normalization": NORMALIZATIONS}


def network_names() -> tuple[str, ...]:
    """Return the names of all networks, sorted."""
    return tuple(sorted(_FAMILIES))


def network_options(name: str) -> dict[str, Any]:
    """Return the keyword options of a network with their defaults."""
    parameters = inspect.signature(_FAMILIES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check_value(setting: str, option: str, value: Any, expected: type) -> None:
    """Check one option by its type, and its range by its name."""
    coerce(setting, value, expected)
    if isinstance(value, str):
        check_choice(setting, value, _CHOICES[option])
    elif option == "dropout":
        check_range(setting, value, 0, 1, high_open=True)
    elif expected is int:
        check_range(setting, value, 0 if option == "n_hidden" else 1)
    elif expected is float:
        check_range(setting, value, 0, low_open=True)


def check_network_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless a network has this name and these options.

    Args:
        name: Name of the architecture; `gapscope list networks` shows them.
        options: Keyword options of the architecture by name.
    """
    check_choice("Name of a network", name, network_names())
    defaults = network_options(name)
    check_known(f"Network {name!r}", options, defaults)
    for option, value in options.items():
        _check_value(
            f"Option '{option}' of network '{name}'", option, value, type(defaults[option])
        )


@check_arguments
def build_network(
    name: str,
    *,
    input_shape: Sequence[int],
    n_outputs: int,
    initialization: str = "torch",
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Build a network from samples [n, *input_shape] to raw outputs [n, n_outputs].

    The same name, sizes, options and generator seed give bit-identical weights, without using the global random state.
    Enabling dropout or batch normalization does not change the other weights. The network is in training mode, on the
    CPU, in torch's default floating-point type.

    Args:
        name: Name of the architecture; `gapscope list networks` shows them.
        input_shape: Shape of one sample, such as (3, 32, 32).
        n_outputs: Number of outputs: classes, labels, or regression targets.
        initialization: "torch", "standard_normal", "xavier_uniform", "he_uniform" or "he_normal", see `initialize`.
        generator: Source of the initial weights; None for a new one with seed 0.
        **options: Options of the network, see its builder.

    Raises:
        InvalidInput: Name, option, value or shape is invalid.

    >>> network = build_network("fully_connected", input_shape=(2,), n_outputs=1, width=50, activation="tanh")
    >>> list(network(torch.zeros(4, 2)).shape)
    [4, 1]
    """
    check_network_options(name, options)
    if not input_shape or any(not isinstance(size, int) or size < 1 for size in input_shape):
        raise InvalidInput(
            f"input_shape must be the shape of one sample, without the batch, such as (1, 28, 28); got {input_shape!r}."
        )
    check_range("n_outputs", n_outputs, 1)
    # Built on the meta device first, so that every weight is sampled exactly once, below.
    with torch.device("meta"):
        network = nn.Sequential(
            OrderedDict(_FAMILIES[name](tuple(input_shape), n_outputs, **options))
        )
    network.to_empty(device="cpu")
    initialize(network, initialization, generator)
    return network
