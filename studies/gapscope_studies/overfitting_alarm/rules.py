"""Stopping rules on recorded training runs: replayed alarms and their baselines."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gapscope.training.alarms.base import Alarm
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.alarms.joint import JointAlarm, agreement
from gapscope.training.alarms.shared_learning import SharedLearning
from gapscope_studies.overfitting_alarm.alarms import (
    ReplayedAlarm,
    Stop,
    alignment,
    first_exceeded,
    prediction_changes,
    significant_rise,
)
from gapscope_studies.overfitting_alarm.runs import Run

Settings = dict[str, float]
# network whose test accuracy counts; see `Run`
WHOLE, SPLIT, CANARIES = (
    "whole",
    "split",
    "canaries",
)


@dataclass(frozen=True)
class Rule:
    """Stopping rule: its title, the function that applies it, and its candidate settings."""

    name: str
    title: str
    stops: Callable[..., Stop | None]
    grid: Mapping[str, Sequence[float]]
    network: str = WHOLE

    def settings(self) -> list[Settings]:
        """Return all combinations of candidate settings."""
        return [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]


def _replay(alarm: Alarm, observations: Iterable[object]) -> Stop | None:
    """Replay an alarm until it is raised. Epochs count from 0."""
    for _ in observations:
        if alarm.raised_at is not None:
            return Stop(alarm.raised_at, alarm.raised_at if alarm.peak is None else alarm.peak)
    return None


def first_fall(
    values: Iterable[float], *, window: float, fall: float, patience: float, skip: float = 0
) -> Stop | None:
    """Return the first fall of the mean over `window` values, after the first `skip` values."""
    alarm = ReplayedAlarm(window=int(window), fall=fall, patience=int(patience))
    return _replay(alarm, (alarm.follow(value, i) for i, value in enumerate(values) if i >= skip))


def _smooth(values: Sequence[float], window: int) -> list[float]:
    return [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]


def first_drop(values: Sequence[float], *, fall: float, patience: int, window: int) -> Stop | None:
    """Return the first drop by `fall` below the smoothed maximum, `patience` in a row."""
    smooth = _smooth(values, window)
    peak, below = 0, 0
    for index, value in enumerate(smooth):
        if value > smooth[peak] or math.isnan(smooth[peak]):
            peak = index
        below = below + 1 if value < smooth[peak] - fall else 0
        if below >= patience:
            return Stop(index, peak)
    return None


def first_plateau(
    values: Sequence[float], *, growth: float, patience: int, window: int
) -> Stop | None:
    """Return the first index where smoothed values grew by less than `growth` in `patience`."""
    smooth = _smooth(values, window)
    flat = [i for i in range(patience, len(smooth)) if smooth[i] - smooth[i - patience] < growth]
    return Stop(flat[0], flat[0]) if flat else None


def _negative_log(values: Sequence[float], smallest: float = 1e-12) -> list[float]:
    return [-math.log(max(value, smallest)) for value in values]


def _wave(run: Run, tensor: str, **settings: float) -> Stop | None:
    """Apply Label Wave to predicted classes or to outputs."""
    values = run.tensors[tensor]
    changes = prediction_changes(values if values.ndim == 2 else values.argmax(2))
    return first_fall([-change for change in changes], **settings)


def _alignment(run: Run, *, kurtosis: float, skip: float, **settings: float) -> Stop | None:
    values = (alignment(row.double(), kurtosis=bool(kurtosis)) for row in run.tensors["cosines"])
    return first_fall(values, skip=round(skip * len(run.columns["test_accuracy"])), **settings)


def _shared(run: Run, *, patience: float, **settings: Any) -> Stop | None:
    alarm, labels = SharedLearning(patience=int(patience), **settings), run.tensors["labels"]
    epochs = enumerate(zip(run.tensors["outputs"], run.tensors["neighbours"], strict=True))
    return _replay(
        alarm,
        (alarm.update(z.double().softmax(1), labels, near.long(), i) for i, (z, near) in epochs),
    )


def _left_out(run: Run, **settings: float) -> Stop | None:
    """Follow the agreement with leave-one-out predictions, the first signal of `JointAlarm`."""
    predictions = run.tensors["initial"].double().clamp(0, 1)
    return first_fall(
        (agreement(z.double().softmax(1), predictions) for z in run.tensors["outputs"]), **settings
    )


def _joint(run: Run, *, window: float, fall: float, patience: float) -> Stop | None:
    alarm = JointAlarm(window=int(window), fall=fall, patience=int(patience))
    predictions, labels = run.tensors["initial"].double().clamp(0, 1), run.tensors["labels"]

    def observations() -> Iterable[object]:
        series = (run.tensors[name] for name in ("outputs", "neighbours", "cosines"))
        for i, (z, near, cosines) in enumerate(zip(*series, strict=True)):
            yield alarm.update(
                z.double().softmax(1), labels, predictions, near.long(), cosines.double(), i
            )

    return _replay(alarm, observations())


def _canaries(run: Run, *, window: float, patience: float, **settings: Any) -> Stop | None:
    # replaying restores nothing
    canaries = Canaries(torch.zeros(100, dtype=torch.int64), n_classes=2)
    alarm = CanaryAlarm(canaries, window=int(window), patience=int(patience), **settings)
    labels, is_canary = run.tensors["canary_labels"], run.tensors["is_canary"]
    outputs = enumerate(run.tensors["canary_outputs"])
    return _replay(alarm, (alarm.update(z.double(), labels, is_canary, i) for i, z in outputs))


def _late_joiners(run: Run, *, looks: float, level: float) -> Stop | None:
    errors = run.tensors["errors"]
    epochs = np.linspace(0, len(errors) - 1, int(looks)).round().astype(int).tolist()
    times = significant_rise(errors[epochs], level)
    return None if times is None else Stop(*(epochs[time] for time in times))


STOPS: dict[str, Callable[..., Stop | None]] = {
    "shared learning": _shared,
    "joint": _joint,
    "left-out agreement": _left_out,
    "Label Wave": lambda run, **settings: _wave(run, "predicted", **settings),
    "Label Wave, watched samples": lambda run, **settings: _wave(run, "outputs", **settings),
    "gradient-weight alignment": _alignment,
    "gradient disparity": lambda run, **settings: first_fall(
        _negative_log(run.columns["disparity"], 1e-300), **settings
    ),
    "evidence": lambda run, **settings: first_exceeded(run.columns["evidence"], **settings),
    "canaries": _canaries,
    "late joiners": _late_joiners,
    "training loss": lambda run, **settings: first_plateau(
        _negative_log(run.columns["train_loss"]), **settings
    ),
    "10 % split, loss": lambda run, **settings: first_drop(
        _negative_log(run.split["loss"]), **settings
    ),
    "10 % split, accuracy": lambda run, **settings: first_drop(run.split["accuracy"], **settings),
}
_FIELDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES = {name: Rule(name, stops=STOPS[name], **fields) for name, fields in _FIELDS.items()}
