"""Checks of a training run: GS203, GS301 and GS302, while it runs (`Monitor`) and after it (`check`).

Each code has one rule, which both callers evaluate on a `RunState`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.task import class_logits
from gapscope.batch_norm.norm_layers import has_statistics, is_population_norm
from gapscope.batch_norm.refresh import refresh_population
from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import named_modules
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.results.estimate import NORMAL_95, paired_difference, percent
from gapscope.results.outcomes import Finding, Fine, NotChecked, Outcome
from gapscope.statistics.baselines import RBF, LooRow, kernel_row, rbf_spectrum, sample_features
from gapscope.training.alarms.base import Alarm
from gapscope.training.loss_course import (
    LOWER,
    LOWER_IT,
    MIN_FALL,
    Advice,
    read_course,
    recent_fall,
)

# Fewer recordings give no verdict: the alarm averages over five, and a trend needs two pairs.
MIN_RECORDINGS = 5
_logger = logging.getLogger("gapscope")


@dataclass(frozen=True)
class TooFewRecordings(NotChecked):
    """Outcome of a check that needs more recordings than there are."""

    @classmethod
    def after(cls, recordings: int, epochs: int) -> TooFewRecordings:
        """Return the outcome after so many recordings in so many epochs.

        Args:
            recordings: Number of recordings.
            epochs: Number of epochs that passed, recorded or not.
        """
        return cls(
            f"seen {recordings} of {epochs} epochs: no verdict below {MIN_RECORDINGS} recordings"
        )


@dataclass
class RunState:
    """State of a training run, as its checks see it.

    Attributes:
        network: Network from one input tensor to outputs [n, K].
        samples: Monitored samples, in the form of the network; after training all checked samples.
        losses: Training losses so far, one per recording or epoch.
        is_over: Whether training has ended.
        alarm: Overfitting alarm of the monitor, if any.
        recordings: Number of recordings of the alarm.
        epochs: Number of epochs that passed, recorded or not.
        batch_size: Batch size of training, if known.
        kernel: Leave-one-out predictions of a kernel machine on the samples: returns None if there are none.
    """

    network: nn.Module
    samples: Samples
    losses: Sequence[float] = ()
    is_over: bool = False
    alarm: Alarm | None = None
    recordings: int = 0
    epochs: int = 0
    batch_size: int | None = None
    kernel: Callable[[], LooRow | None] = field(default=lambda: None)

    def correct(self, network: nn.Module | None = None) -> Tensor:
        """Return which samples a network classifies correctly, in evaluation mode, [n].

        Args:
            network: A classifier of these samples; None for the one in training.
        """
        return self.samples.task.correct(self.outputs(network), self.samples.y.cpu())

    def outputs(self, network: nn.Module | None = None) -> Tensor:
        """Return the outputs of a network, one per class, in evaluation mode on the CPU, [n, K].

        Args:
            network: A classifier of these samples; None for the one in training.
        """
        if network is None:
            network = self.network
        with inspection_mode(network):
            outputs = network_outputs(network, self.samples.inputs)
        return class_logits(outputs).cpu()


# accuracy below the kernel's that is no finding, by judgment
MARGIN = 0.05


def _advice(run: RunState, losses: Sequence[float]) -> Advice:
    """Return what to do about a training that has not converged, by its losses and outputs."""
    labels = run.samples.y.cpu()
    frequencies = labels.bincount().double() / len(labels)
    constant = float(torch.special.entr(frequencies).sum())
    outputs = run.outputs().double()
    uniform = math.log(max(outputs.shape[1], 2))
    return read_course(losses, constant, uniform, float(outputs.std(0).mean()))


def convergence(run: RunState) -> Outcome:
    """Report a training that fits its samples worse than an RBF kernel predicts held-out ones.

    That is a training accuracy below a - 0.05 - 1.96 se, with the leave-one-out accuracy a of RBF ridge regression; or,
    at the end of a training, an accuracy below 0.9 and below a + 0.05 with a loss that fell by a tenth over the last
    fifth of the epochs. A running training is not judged while its loss falls. The advice is read from the level and
    the whole course of the losses (`read_course`).
    """
    if not run.samples.is_classification:
        return NotChecked("needs one class label per sample")
    if run.losses and not math.isfinite(run.losses[-1]):
        return Finding("the training loss is not finite", LOWER_IT, fixes=LOWER)
    losses = [loss for loss in run.losses if math.isfinite(loss)]
    fall = recent_fall(losses)
    if not run.is_over and len(run.losses) < MIN_RECORDINGS:
        return TooFewRecordings.after(len(run.losses), run.epochs)
    if not run.is_over and fall > MIN_FALL:
        return NotChecked("the loss still falls")
    row = run.kernel()
    if row is None:
        return NotChecked("no kernel machine beats the most frequent class")
    kernel = row.score
    accuracy = float(run.correct().double().mean())
    n = len(run.samples)
    error = math.sqrt(kernel * (1 - kernel) / n + accuracy * (1 - accuracy) / n)
    is_below = accuracy < kernel - MARGIN - NORMAL_95 * error
    # a tenth over the last fifth of the epochs, by judgment
    is_steep = run.is_over and fall > 0.1 and accuracy < min(0.9, kernel + MARGIN)
    text = (
        f"training accuracy {percent(accuracy)}; held-out samples {percent(kernel)} by {row.method}"
    )
    if len(losses) < len(run.losses):
        n_omitted = len(run.losses) - len(losses)
        text += f"; {n_omitted} of {len(run.losses)} training losses are not finite and are omitted"
    if not is_below and not is_steep:
        return Fine(text)
    if not math.isnan(fall):
        text += (
            f"; the loss fell by {percent(max(fall, 0.0))} over the last fifth of the recordings"
        )
    advice = _advice(run, losses)
    if advice.reason:
        text += f"; {advice.reason}"
    return Finding(text, advice.action, cost=max(kernel - accuracy, 0.0), fixes=advice.fixes)


def memorization(run: RunState) -> Outcome:
    """Report an overfitting alarm that was raised; no verdict from fewer than five recordings, and of regression.

    Of regression, alarms stop too early without any noise in the targets (docs/evidence/monitoring.md).
    """
    alarm = run.alarm
    if alarm is None:
        return NotChecked("pass monitor=, a gapscope.Monitor with an alarm")
    if not run.samples.is_classification:
        return NotChecked(
            "needs one class label per sample: of other targets, alarms are raised without any noise too"
        )
    if alarm.raised:
        if alarm.peak is None:
            best = ""
        else:
            best = f"; the estimated best epoch is {alarm.peak}"
        return Finding(
            f"the overfitting alarm was raised at epoch {alarm.raised_at}{best}",
            "memorization has begun: look for label errors with gapscope.find_label_issues(None, data), train with "
            "gapscope.GradientSimilarityPenalty(0.001), or choose the epoch by a 10 % validation split",
            fixes=("drop flagged labels", "weight decay"),
        )
    if run.recordings < MIN_RECORDINGS:
        return TooFewRecordings.after(run.recordings, run.epochs)
    return Fine(f"the alarm was not raised in {run.recordings} recordings")


# Losses of training accuracy, significant at 90 %: by running statistics, and by those of small batches.
MIN_STALE, MIN_BATCH_LOSS = 0.02, 0.05


def _with_batches(run: RunState, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return samples, and which are correct if batch norm uses the statistics of random whole batches."""
    network = copy_network(run.network).eval()
    for module in network.modules():
        # those of several processes would wait for the other ones
        if has_statistics(module) and not isinstance(module, nn.SyncBatchNorm):
            module.train()
    n_batches = len(run.samples) // batch_size
    order = torch.randperm(len(run.samples), generator=torch.Generator().manual_seed(0))[
        : n_batches * batch_size
    ]
    labels = run.samples.y.cpu()
    correct: list[Tensor] = []
    with torch.no_grad():
        for rows in order.split(batch_size):
            outputs = network(run.samples.inputs[rows])
            correct.append(run.samples.task.correct(outputs.cpu(), labels[rows]))
    return order, torch.cat(correct)


def batch_statistics(run: RunState) -> Outcome:
    """Report batch norm whose statistics cost accuracy on the training samples.

    The running statistics, against those of the data: two points, significant at 90 %. The statistics of batches of the
    training's size, against those of the data: five points.
    """
    layers = [name for name, item in named_modules(run.network).items() if has_statistics(item)]
    if not layers:
        return NotChecked("no batch norm")
    if not run.samples.is_classification:
        return NotChecked("needs one class label per sample")
    # 512 samples: a standard error of the accuracy of at most about .02
    run = replace(run, samples=run.samples.first(512))
    refreshed = copy_network(run.network)
    refresh_population(refreshed, run.samples.inputs, layers=layers)
    running = run.correct().double()
    population = run.correct(refreshed).double()
    lost = paired_difference(population.tolist(), running.tolist())
    text = f"training accuracy {percent(running.mean().item())} with the running statistics"
    if lost.value >= MIN_STALE and lost.low > 0:
        kinds = {
            is_population_norm(item)
            for item in named_modules(run.network).values()
            if has_statistics(item)
        }
        # by default, the function refreshes layers of one kind
        named = f", layers={layers}" if len(kinds) > 1 else ""
        return Finding(
            f"{text}, {percent(population.mean().item())} with those of the training samples",
            f"call gapscope.batch_norm.refresh_population(network, data{named}), or raise the momentum of the layers "
            "(PyTorch's momentum is the weight of the newest batch)",
            cost=lost.value,
            interval=(lost.low, lost.high),
            fixes=("refresh batch norm statistics", "larger batches"),
        )
    if run.batch_size is None or not 2 <= run.batch_size <= len(run.samples) / 4:
        return Fine(text)
    rows, correct = _with_batches(run, run.batch_size)
    in_batches = correct.double()
    population = population[rows]
    lost = paired_difference(population.tolist(), in_batches.tolist())
    if lost.value >= MIN_BATCH_LOSS and lost.low > 0:
        return Finding(
            f"training accuracy {percent(in_batches.mean().item())} with the statistics of batches of "
            f"{run.batch_size}, {percent(population.mean().item())} with those of the training samples",
            "train with larger batches, or with GroupNorm in place of batch norm",
            cost=lost.value / 2,
            fixes=("larger batches", "GroupNorm", "refresh batch norm statistics"),
        )
    return Fine(
        f"{text}, {percent(in_batches.mean().item())} with those of batches of {run.batch_size}"
    )


@dataclass(frozen=True)
class RunCheck:
    """Check of a training run.

    Attributes:
        title: Noun phrase for the finding.
        rule: Outcome of a state.
        information: Whether it is information only.
        seconds: Rough time for 500 samples and a small network.
    """

    title: str
    rule: Callable[[RunState], Outcome]
    information: bool = False
    seconds: float = 0.1


RUN_CHECKS = {
    "GS203": RunCheck("batch norm statistics", batch_statistics),
    "GS301": RunCheck("memorization of label errors", memorization, information=True, seconds=0.01),
    "GS302": RunCheck("training has not converged", convergence, seconds=0.5),
}


class RunChecks:
    """Checks of a running training, each code reported once."""

    def __init__(self, codes: Sequence[str], samples: Samples) -> None:
        unknown = [code for code in codes if code not in RUN_CHECKS]
        if unknown:
            raise InvalidInput(
                f"Got {', '.join(map(repr, unknown))}; checks of a monitor must be among {', '.join(RUN_CHECKS)}. Use "
                "gapscope.check for the others."
            )
        self.codes = tuple(codes)
        self.samples = samples
        self.reset()

    def reset(self) -> None:
        """Reset for another training run."""
        self.findings: list[Finding] = []
        self.outcomes: dict[str, Outcome] = {}
        self.losses: list[float] = []
        self._kernel: LooRow | None = None

    def observe(
        self,
        loss: float,
        epoch: int,
        state: RunState,
        attempt: Callable[[str], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Evaluate the checks at one recording.

        Args:
            loss: Training loss of the monitored samples.
            epoch: Number of the epoch.
            state: Network, samples, alarm and counts of the monitor; losses and kernel are completed here.
            attempt: Context of each check, by its code, which may keep an error.
        """
        self.losses.append(loss)
        state = replace(state, losses=self.losses, kernel=self._kernel_row)
        for code in self.codes:
            outcome: Outcome = NotChecked(f"failed at epoch {epoch}")
            with attempt(code):
                outcome = RUN_CHECKS[code].rule(state)
            self.outcomes[code] = outcome
            if isinstance(outcome, Finding) and all(
                finding.code != code for finding in self.findings
            ):
                finding = replace(outcome, code=code, title=RUN_CHECKS[code].title, epoch=epoch)
                self.findings.append(finding)
                _logger.warning("%s", finding)

    def _kernel_row(self) -> LooRow:
        if self._kernel is None:
            spectrum = rbf_spectrum(sample_features(self.samples))
            self._kernel = kernel_row(RBF, "inputs", spectrum, self.samples.y.cpu())
        return self._kernel

    def lines(self, epochs: int) -> list[str]:
        """Return findings, then the codes without one and what is known of them.

        Args:
            epochs: Number of epochs that passed, also those since the last recording.
        """
        lines = [str(finding) for finding in self.findings]
        found = {finding.code for finding in self.findings}
        for code in self.codes:
            outcome = self.outcomes.get(code)
            if code in found:
                continue
            if isinstance(outcome, TooFewRecordings):
                outcome = TooFewRecordings.after(len(self.losses), epochs)
            if outcome is None:
                lines.append(f"{code}: not checked (no recordings)")
            elif isinstance(outcome, NotChecked):
                lines.append(f"{code}: not checked ({outcome.reason})")
            else:
                lines.append(f"{code}: no findings")
        return lines

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values that a resumed training needs."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "losses": list(self.losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.findings = [_finding(content) for content in state["findings"]]
        self.losses = [float(loss) for loss in state["losses"]]


def _finding(content: Mapping[str, Any]) -> Finding:
    """Return a finding from its fields, of which JSON made lists of tuples."""
    fields: dict[str, Any] = dict(content)
    for name in ("indices", "fixes", "interval"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return Finding(**fields)
