"""Checks during training: GS301 (label errors are memorized) and GS302 (no convergence)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.losses import evaluate
from gapscope.statistics.baselines import kernel_row, rbf_spectrum, sample_features
from gapscope.training.alarms.base import Alarm

RUN_CHECKS = ("GS301", "GS302")
# stuck: over PATIENCE recordings the loss fell by less than a fraction FALL, and accuracy is MARGIN below the kernel's
PATIENCE, FALL, MARGIN = 5, 0.02, 0.05
_logger = logging.getLogger("gapscope")


@dataclass(frozen=True)
class RunFinding:
    """A finding about a training run.

    Attributes:
        code: "GS301" or "GS302".
        epoch: Epoch of the recording at which it appeared.
        evidence: Measured numbers in one sentence.
        action: Recommended action, one imperative sentence.
    """

    code: str
    epoch: int
    evidence: str
    action: str

    def __str__(self) -> str:
        return f"{self.code} at epoch {self.epoch}: {self.evidence}\n       -> {self.action}"


class RunChecks:
    """Checks of a training run, each code reported once.

    Args:
        codes: "GS301", "GS302", or both.

    Raises:
        InvalidInput: A code is not one of a training run.
    """

    def __init__(self, codes: Sequence[str], samples: Samples) -> None:
        unknown = [code for code in codes if code not in RUN_CHECKS]
        if unknown:
            raise InvalidInput(
                f"Got {', '.join(map(repr, unknown))}; checks of a monitor must be among {', '.join(RUN_CHECKS)}. Use "
                "gapscope.check for the others."
            )
        self.codes, self.samples = tuple(codes), samples
        self.reset()

    def reset(self) -> None:
        """Reset for another training run."""
        self.findings: list[RunFinding] = []
        self._losses: list[float] = []
        self._kernel: float | None = None

    def observe(self, network: nn.Module, epoch: int, alarm: Alarm | None) -> None:
        """Evaluate the network on the monitored samples, and report new findings (GS301 from the alarm)."""
        if "GS301" in self.codes and alarm is not None and alarm.raised:
            best = "" if alarm.peak is None else f"; the best epoch so far is {alarm.peak}"
            self._report(
                "GS301",
                epoch,
                f"the overfitting alarm was raised at epoch {alarm.raised_at}{best}",
                "stop there, or train with gapscope.GradientSimilarityPenalty",
            )
        if "GS302" in self.codes and self.samples.is_classification:
            scores = evaluate(network, Samples(self.samples.inputs, self.samples.targets))
            self._check_convergence(epoch, scores["loss"], scores["accuracy"])

    def _check_convergence(self, epoch: int, loss: float, accuracy: float) -> None:
        if not math.isfinite(loss):
            self._report("GS302", epoch, "the training loss is not finite", "lower the learning rate")
            return
        self._losses.append(loss)
        if len(self._losses) <= PATIENCE:
            return
        before = min(self._losses[:-PATIENCE])
        if min(self._losses[-PATIENCE:]) < (1 - FALL) * before:
            return
        if self._kernel is None:
            assert self.samples.targets is not None
            spectrum = rbf_spectrum(sample_features(self.samples))
            self._kernel = kernel_row("RBF ridge", "inputs", spectrum, self.samples.targets.cpu()).score
        if accuracy < self._kernel - MARGIN:
            self._report(
                "GS302",
                epoch,
                f"the training loss has not fallen by {FALL:.0%} for {PATIENCE} recordings; training accuracy "
                f"{accuracy:.0%}, an RBF kernel predicts held-out samples at {self._kernel:.0%}".replace("%", " %"),
                "change the learning rate, or use a wider network",
            )

    def _report(self, code: str, epoch: int, evidence: str, action: str) -> None:
        if all(finding.code != code for finding in self.findings):
            self.findings.append(RunFinding(code, epoch, evidence, action))
            _logger.warning("%s", self.findings[-1])

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values that a resumed training needs."""
        return {"findings": [asdict(finding) for finding in self.findings], "losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.findings = [RunFinding(**finding) for finding in state["findings"]]
        self._losses = [float(loss) for loss in state["losses"]]
