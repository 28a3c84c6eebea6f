"""Outcomes of checks: findings, fine, and not checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """Limit of the network, with its evidence.

    Attributes:
        evidence: Measured numbers.
        action: What to do, in the imperative.
        cost: Expected cost in accuracy, between 0 and 1; None if it is not known. Findings are ordered by it.
        indices: Samples of the finding, if any.
        code: Code of the check, added when it runs.
        title: Noun phrase; empty for the title of the check, added when it runs.
        interval: 90 % interval of the cost; None without one.
        fixes: Names of the fixes that the advice stands for, best first (`gapscope.checks.fixes`).
        epoch: Recording of a running training at which it appeared; None after training.
        headline: What a result says whose main finding it is; empty for the sentence of all checks of its group.
        cause: Name of its cost in the account; empty for that of its check.
    """

    evidence: str
    action: str
    cost: float | None = None
    indices: Tensor | tuple[int, ...] = ()
    code: str = ""
    title: str = ""
    interval: tuple[float, float] | None = None
    fixes: tuple[str, ...] = ()
    epoch: int | None = None
    headline: str = ""
    cause: str = ""

    def __str__(self) -> str:
        when = "" if self.epoch is None else f" at epoch {self.epoch}"
        return f"{self.code}{when}: {self.evidence}\n       -> {self.action}"


@dataclass(frozen=True)
class Fine:
    """Outcome of a check without a finding, with its evidence.

    Attributes:
        evidence: Measured numbers; empty if there are none.
        code: Code of the check, added when it runs.
        title: Title of the check, added when it runs.
    """

    evidence: str = ""
    code: str = ""
    title: str = ""


@dataclass(frozen=True)
class NotChecked:
    """Outcome of a check that could not run: the reason, and the missing argument.

    Attributes:
        reason: What is missing, or why the check does not apply.
        code: Code of the check, added when it runs.
        title: Title of the check, added when it runs.
    """

    reason: str
    code: str = ""
    title: str = ""


Outcome = Finding | Fine | NotChecked
