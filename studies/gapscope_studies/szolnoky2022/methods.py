"""The regularisers that are compared, and between which strengths each is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy

from gapscope.base.specs import Spec


@dataclass(frozen=True)
class Method:
    """One regulariser with one setting, its strength.

    Attributes:
        name: Its name in tables and figures.
        colour: Its colour in figures.
        settings: Strength -> setting path -> value, see `Spec.replace`.
        low: Smallest strength that is tried.
        high: Largest one.
        logarithmic: Whether the strengths between are evenly spaced in their logarithm.
    """

    name: str
    colour: str
    settings: Callable[[float], Mapping[str, Any]]
    low: float
    high: float
    logarithmic: bool = True

    def between(self, low: float, high: float) -> Self:
        """The same method, tuned in another range."""
        return replace(self, low=low, high=high)

    def strengths(self, n: int) -> tuple[float, ...]:
        """Return n strengths from the smallest to the largest, to two digits; one where there is nothing to tune."""
        if self.low == self.high:
            return (self.low,)
        spaced = numpy.geomspace if self.logarithmic else numpy.linspace
        return tuple(float(f"{value:.2g}") for value in spaced(self.low, self.high, n))

    def applied(self, spec: Spec, strength: float) -> Spec:
        """Return the spec of the same network trained by this method."""
        return spec.replace(self.settings(strength))


def _penalty(name: str, **options: Any) -> Callable[[float], Mapping[str, Any]]:
    def settings(strength: float) -> Mapping[str, Any]:
        return {"training.penalties": [{"name": name, "options": {"strength": strength, **options}}]}

    return settings


UNREGULARISED = Method("Unregularised", "0.5", lambda strength: {}, 0.0, 0.0)
DROPOUT = Method(
    "Dropout", "tab:brown", lambda strength: {"network.options.dropout": strength}, 0.1, 0.8, logarithmic=False
)
WEIGHT = Method("Weight", "tab:blue", _penalty("weight"), 0.0003, 0.01)
# the squared gradient of the mini-batch loss by the weights
LOSS_GRADIENT = Method("Loss gradient", "tab:green", _penalty("loss_gradient"), 0.01, 1.0)
# the paper's: strength times tr K / (n C) of the mini-batch, one class probe a step, or times log det (I + K) / (n C)
SIMILARITY = Method("MGS", "tab:red", _penalty("gradient_similarity"), 0.001, 0.1)
LOG_DETERMINANT = Method("MGS (log det)", "tab:pink", _penalty("gradient_similarity", kind="logdet"), 0.001, 0.1)
# its strength is the learning rate
ADAM = Method(
    "Adam",
    "tab:orange",
    lambda strength: {"training.optimizer": "adam", "training.learning_rate": strength},
    10**-3.5,
    0.01,
)


def cyclical(epochs: int) -> Method:
    """A triangular learning rate between a tenth of its largest value, the strength, and that value.

    Args:
        epochs: Length of a cycle, even.

    Returns:
        The method.
    """
    return Method(
        "Cyclical",
        "tab:purple",
        lambda strength: {
            "training.schedule": "cyclical",
            "training.schedule_epochs": epochs // 2,
            "training.learning_rate": strength,
        },
        10**-1.5,
        1.0,
    )
