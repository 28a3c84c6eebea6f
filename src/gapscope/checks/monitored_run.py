"""Comparison of a monitor with the data and the network of a check: its verdict is of the run that it saw."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples, slices
from gapscope.inspection.losses import evaluate
from gapscope.inspection.validation import ready

if TYPE_CHECKING:
    from gapscope.checks.context import Context

# Fraction of the monitored inputs that must be among the data, by judgment: a part of them may have been dropped.
MIN_COMMON = 0.5
# Relative difference of the losses of one network on two devices, above the error of float32.
SAME_LOSS = 1e-3
OTHER_SAMPLES = "the monitor saw other samples: pass the data that it was made with"


@dataclass(frozen=True)
class MonitoredRun:
    """Comparison of a monitor with what is checked.

    Attributes:
        reason: Why the monitor is of another run; empty if it is not.
        note: How the network differs from all recordings of this run; empty if it does not.
    """

    reason: str = ""
    note: str = ""


def compare_run(context: Context) -> MonitoredRun:
    """Return whether the monitor of a check saw its data and its network.

    Args:
        context: Context of the check.
    """
    monitor = context.monitor
    samples = getattr(monitor, "samples", None)
    if not isinstance(samples, Samples) or samples.targets is None or not monitor.epochs:
        return MonitoredRun()
    other = getattr(monitor, "other_network", "")
    if other:
        return MonitoredRun(f"the monitor saw two networks: {other}; use one Monitor per network")
    network = None
    if context.prepared is not None:
        try:
            prepared = ready(context.prepared.bare, samples)
        except GapscopeError:
            return MonitoredRun(OTHER_SAMPLES)
        network = prepared.network
        samples = replace(prepared.samples, form=None)
    reason = _compare_samples(context, samples)
    if reason or network is None:
        return MonitoredRun(reason)
    return _compare_losses(monitor, evaluate(network, samples, missing=True)["loss"])


def _compare_samples(context: Context, seen: Samples) -> str:
    """Return how the monitored samples differ from those of the check; empty if they do not."""
    data = context.everything
    alarm = context.monitor.alarm
    inputs = fingerprints(seen.inputs)
    labels = fingerprints(seen.y)
    required = None if alarm is None else alarm.required_indices
    planted = torch.zeros(len(seen), dtype=torch.bool)
    if required is not None:
        planted = torch.isin(context.monitor.indices, required)
    positions = _positions(context)
    same_labels = torch.zeros(len(seen), dtype=torch.bool)
    is_same_form = data.inputs.shape[1:] == seen.inputs.shape[1:]
    if positions is not None:
        here = data.subset(positions)
        same_labels = labels == fingerprints(here.y)
        if is_same_form:
            common = inputs == fingerprints(here.inputs)
            if common.double().mean() >= MIN_COMMON:
                return _other_labels(common & ~same_labels & ~planted)
    if is_same_form:
        all_inputs = fingerprints(data.inputs)
        common = torch.isin(inputs, all_inputs)
        if common.double().mean() >= MIN_COMMON:
            # a multiplier, so that inputs and labels do not cancel
            pairs = all_inputs * 31 + fingerprints(data.y)
            same = torch.isin(inputs * 31 + labels, pairs)
            return _other_labels(common & ~same & ~planted)
    # random transforms change the inputs, and leave the order of the labels
    if bool((same_labels | planted).all()) and len(labels.unique()) > 1:
        return ""
    return OTHER_SAMPLES


def _positions(context: Context) -> Tensor | None:
    """Return the index of each monitored sample in the data of the check; None if one is missing."""
    given = context.given or context.everything
    rows = context.monitor.indices
    if not given.has_order or not context.monitor.samples.has_order:
        return None
    original = given.original(torch.arange(len(given)))
    positions = torch.searchsorted(original, rows).clamp(max=len(original) - 1)
    if not torch.equal(original[positions], rows):
        return None
    return positions


def _other_labels(differs: Tensor) -> str:
    n_different = int(differs.sum())
    if not n_different:
        return ""
    return (
        f"the monitor saw other samples: {n_different} of {len(differs)} have another label there; pass the data that "
        "it was made with"
    )


def fingerprints(values: Tensor) -> Tensor:
    """Return a hash of each sample's values, int64 [n]; floats are compared as float32.

    Args:
        values: Inputs or targets, [n, ...].
    """
    n = len(values)
    rows = values.detach().reshape(n, -1)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator)
    parts: list[Tensor] = []
    for part in slices(n, 1024):
        chunk = rows[part].cpu()
        if chunk.is_floating_point():
            # adding zero makes -0.0 and 0.0 equal
            chunk = (chunk.float() + 0.0).contiguous().view(torch.int32)
        parts.append((chunk.long() * weights).sum(1))
    return torch.cat(parts)


def _recorded_losses(monitor: Any) -> list[float]:
    """Return the losses on the monitored samples in evaluation mode, one per recording, if they were recorded."""
    losses: list[float] = []
    if monitor.checks is not None:
        losses = monitor.checks.losses
    elif monitor.mode == "eval":
        losses = [row.get("loss", math.nan) for row in monitor.rows]
    return [loss for loss in losses if math.isfinite(loss)]


def _compare_losses(monitor: Any, loss: float) -> MonitoredRun:
    """Return how the network's loss on the monitored samples differs from those of all recordings."""
    losses = _recorded_losses(monitor)
    if not losses or not math.isfinite(loss):
        return MonitoredRun()
    # the best epoch may have been restored: any recording will do
    if any(abs(loss - recorded) <= SAME_LOSS * abs(recorded) + 1e-6 for recorded in losses):
        return MonitoredRun()
    text = (
        f"its loss on the monitored samples is {loss:.3g}, in the recordings {min(losses):.3g} to {max(losses):.3g}, "
        f"{losses[-1]:.3g} in the last one"
    )
    if loss > max(losses):
        return MonitoredRun(f"the network is not the one that the monitor saw: {text}")
    if monitor.every > 1 or monitor.skipped:
        return MonitoredRun()
    return MonitoredRun(note=f"the network is not the one of a recording: {text}")
