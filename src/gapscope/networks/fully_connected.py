"""Fully connected networks by number and width of hidden layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, dense, dropout_layers


def fully_connected(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    n_hidden: int = 2,
    width: int = 100,
    activation: str = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Sequential:
    r"""Build a fully connected network with `n_hidden` hidden layers of `width` units.

    For $D$ inputs, $M \ge 1$ hidden layers of $H$ units and $K$ outputs it has
    $(D+1)H + (M-1)(H+1)H + (H+1)K$ parameters. Forouzesh et al. 2021 (arXiv 2007.15378) count layers in two ways: the
    "3-layer" networks of their Fig. 2(a) have 2 hidden layers, the "L-layer" networks of Fig. 2(b) have L.

    Args:
        n_hidden: Hidden layers; 0 is a linear model.
        width: Units of every hidden layer.
        activation: "relu", "tanh", "sigmoid", "gelu" or "identity".
        dropout: Probability of dropout after each hidden activation.

    >>> sum(p.numel() for p in fully_connected((3, 32, 32), 10, n_hidden=2, width=140).parameters())
    451370
    """
    layers: Layers = {"flatten": nn.Flatten()}
    n_inputs = math.prod(input_shape)
    for i in range(1, n_hidden + 1):
        normalization = "batch" if batch_norm else "none"
        layers |= dense(f"fc{i}", n_inputs, width, activation=activation, normalization=normalization)
        layers |= dropout_layers(f"fc{i}", dropout)
        n_inputs = width
    layers["output"] = nn.Linear(n_inputs, n_outputs)
    return nn.Sequential(OrderedDict(layers))
