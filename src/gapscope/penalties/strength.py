"""Strength of a penalty: a number, or a rule that controls it during training."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import InputLayout

# start, least, most of "auto", by the penalty's registered class
LIMITS = {
    "GradientSimilarityPenalty": (0.003, 0.0005, 0.0125),
    "L2Penalty": (0.003, 0.0005, 0.0125),
    "LossGradientPenalty": (0.1, 0.01, 0.5),
    "AutomaticDropout": (0.3, 0.05, 0.7),
}


@runtime_checkable
class StrengthRule(Protocol):
    """Rule that controls a penalty's strength, as `gapscope.training.AutomaticStrength` does.

    Attributes:
        strength: The current strength.
        most: Largest strength that the rule sets.
        check: Called with the network before its first pass; raises if the rule is not for this network.
    """

    strength: float
    most: float
    check: Callable[[nn.Module], None]

    def before_pass(self, network: nn.Module) -> float:
        """Return the strength of the next pass."""
        ...

    def after_pass(self, inputs: Tensor, targets: Tensor | None, layout: InputLayout | None = None) -> None:
        """Update from the mini-batch of the pass (`layout` describes several `inputs`)."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned."""
        ...


def strength_of(value: float | str | StrengthRule, penalty: str) -> tuple[float, StrengthRule | None]:
    """Return the initial strength, and the rule that controls it (None for a number).

    Raises:
        InvalidInput: It is a negative number or another word.
    """
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInput(f"strength of {penalty} must be a number, 0 or larger, or 'auto'; got {value!r}.")
        start, least, most = LIMITS[penalty]
        # by name: the rule predicts labels, which packages above this one do
        rule = importlib.import_module("gapscope.training.automatic_strength").AutomaticStrength
        made: StrengthRule = rule(start=start, least=least, most=most)
        return made.strength, made
    if isinstance(value, StrengthRule):
        return value.strength, value
    check_range(f"strength of {penalty}", value, 0)
    return value, None


def check_fixed(value: object, penalty: str) -> None:
    """Raise InvalidInput unless a strength without a rule is a number, 0 or larger."""
    if value == "auto" or isinstance(value, StrengthRule):
        raise InvalidInput(
            f"strength of {penalty} must be a number, 0 or larger; got 'auto', which {', '.join(LIMITS)} have."
        )
    check_range(f"strength of {penalty}", value, 0)  # type: ignore[arg-type]
