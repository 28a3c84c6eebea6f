"""Attributes of units, and the ranking by them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable

ATTRIBUTES = ("mean_absolute_activation", "class_selectivity", "weight_norm", "random")
Attribute = str | Callable[[Float[Tensor, "s m *p"]], Float[Tensor, " m"]]


def mean_absolute_activation(values: Float[Tensor, "s m p"]) -> Float[Tensor, " m"]:
    r"""Return the mean absolute activation over samples and positions (Zhao et al., eq. 1).

    Args:
        values: Activations by sample, unit and position.

    >>> mean_absolute_activation(torch.tensor([[[1.0, -3.0], [0.0, 1.0]]])).tolist()
    [2.0, 0.5]
    """
    return values.abs().mean(2, dtype=torch.float64).mean(0)


def class_selectivity(class_means: Float[Tensor, "c m"]) -> Float[Tensor, " m"]:
    r"""Compute the class selectivity of each unit (Morcos et al. 2018).

    $(\mu_{max} - \mu_{-max}) / (\mu_{max} + \mu_{-max})$:
    $\mu_{max}$ is the unit's largest mean activation over classes, $\mu_{-max}$ the mean of its means for the others; a
    unit that is never active has 0.

    Args:
        class_means: Mean activation of each unit for each of two or more classes.

    Returns:
        One number per unit; in [0, 1] where activations are not negative.

    Raises:
        NotMeasurable: There is one class only.

    >>> class_selectivity(torch.tensor([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [0.5, 0.0]
    """
    classes = len(class_means)
    if classes < 2:
        raise NotMeasurable(f"class_selectivity compares classes and needs at least 2; got samples of {classes}.")
    largest = class_means.amax(0)
    others = (class_means.sum(0) - largest) / (classes - 1)
    total = largest + others
    return torch.where(total == 0, 0, (largest - others) / torch.where(total == 0, 1, total))


def weight_norm(layer: nn.Module | None, label: str) -> Float[Tensor, " m"]:
    """Return the L1 norm of the incoming weights of each unit (Li et al. 2017), no biases.

    Args:
        layer: The convolution or linear layer that computes the units, None where it is not known.
        label: Name of the ablated layer, for the message.

    Raises:
        NotMeasurable: That layer is not known.
    """
    if layer is None:
        raise NotMeasurable(
            f"attribute='weight_norm' needs the layer with weights that computes the units of '{label}'; none was "
            "found. Pass a function attribute=lambda activations: scores."
        )
    return layer.weight.detach().double().flatten(1).abs().sum(1)  # type: ignore[union-attr]


def rank_units(scores: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
    """Return the units by descending score (stable)."""
    return scores.argsort(descending=True, stable=True)
