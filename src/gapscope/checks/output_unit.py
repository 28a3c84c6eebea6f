"""Outputs of a regressor in another unit than the targets: logarithms, or standardized numbers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# R^2 of a line through the outputs, or through their exponentials, from which they follow the targets: by judgment.
MIN_R_SQUARED = 0.25
# fewer samples follow a line by chance; exponentials of larger outputs are no counts or prices: by judgment
MIN_SAMPLES, MAX_EXPONENT = 10, 50.0


@dataclass(frozen=True)
class OutputUnit:
    """Unit in which the outputs follow the targets, which they do not predict as they are.

    Attributes:
        is_log: Whether exponentials of the outputs follow the targets better.
        r_squared: R^2 of a line through them, the mean over targets.
    """

    is_log: bool
    r_squared: float

    @property
    def evidence(self) -> str:
        """The evidence, as the end of a sentence."""
        what = "exp(outputs)" if self.is_log else "the outputs"
        return f"a line through {what} has an R^2 of {self.r_squared:.2f}"

    @property
    def action(self) -> str:
        """The advice."""
        how = "standardized: times the standard deviation, plus the mean"
        if self.is_log:
            how = "logarithms: torch.exp"
        return f"wrap the network so that it returns the unit of the targets (its outputs may be {how})"


def _line(outputs: Tensor, targets: Tensor) -> float:
    """Return R^2 of increasing lines through the columns of the outputs, the mean over them."""
    x = outputs - outputs.mean(0)
    y = targets - targets.mean(0)
    scale = (x.square().sum(0) * y.square().sum(0)).sqrt()
    correlation = (x * y).sum(0) / scale.clamp_min(1e-300)
    return float(correlation.clamp_min(0.0).square().mean())


def find_output_unit(outputs: Tensor, targets: Tensor, r_squared: float) -> OutputUnit | None:
    """Return the unit in which outputs follow the targets; None if they predict them, or do not follow them.

    Args:
        outputs: Outputs [n, K].
        targets: Targets [n, K].
        r_squared: R^2 of the outputs as they are.
    """
    outputs = outputs.detach().cpu().double()
    targets = targets.detach().cpu().double()
    if r_squared >= 0 or len(targets) < MIN_SAMPLES or outputs.shape != targets.shape:
        return None
    line = _line(outputs, targets)
    log = 0.0
    if bool((targets >= 0).all()) and float(outputs.max()) < MAX_EXPONENT:
        log = _line(outputs.exp(), targets)
    if max(line, log) < MIN_R_SQUARED:
        return None
    return OutputUnit(log > line, max(line, log))
