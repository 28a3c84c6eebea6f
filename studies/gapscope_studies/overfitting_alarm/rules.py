"""Rules that look at the recordings of a training, one after the other, and say when test accuracy has peaked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gapscope.training.alarm import OverfittingAlarm
from gapscope_studies.overfitting_alarm.runs import Run

Settings = dict[str, float]


@dataclass(frozen=True)
class Rule:
    """A rule with the settings among which it is tuned.

    Attributes:
        name: For tables.
        title: What it looks at, in words.
        stops_at: Run and settings -> index of the recording at which it is raised, or None.
        grid: Setting -> values.
        needs_split: Whether it looks at the network that was trained without a tenth of the samples.
    """

    name: str
    title: str
    stops_at: Callable[..., int | None]
    grid: Mapping[str, Sequence[float]]
    needs_split: bool = False

    def settings(self) -> list[Settings]:
        """All combinations."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


def _smoothed(values: Sequence[float], window: int) -> np.ndarray:
    """Mean over the last `window` values."""
    return np.array([np.mean(values[max(0, i - window + 1) : i + 1]) for i in range(len(values))])


def _first_in_a_row(hits: Sequence[bool], patience: int) -> int | None:
    count = 0
    for index, hit in enumerate(hits):
        count = count + 1 if hit else 0
        if count >= patience:
            return index
    return None


def fallen(values: Sequence[float], *, fall: float, patience: int, window: int) -> int | None:
    """First index at which the smoothed values lie more than `fall` below their maximum so far, `patience` in a row."""
    smooth = _smoothed(values, window)
    return _first_in_a_row(list(smooth < np.fmax.accumulate(smooth) - fall), patience)


def flat(values: Sequence[float], *, growth: float, patience: int, window: int) -> int | None:
    """First index at which the smoothed values have grown by less than `growth` over `patience` recordings."""
    smooth = _smoothed(values, window)
    hits = [smooth[i] - smooth[i - patience] < growth for i in range(patience, len(smooth))]
    return hits.index(True) + patience if True in hits else None


def growing_again(values: Sequence[float], *, rise: float, patience: int, window: int) -> int | None:
    """First index at which the smoothed values grow faster than ever they grew slowly before, by `rise` a recording.

    The plateau and renewed growth of Szolnoky et al. 2022: growth counts from its smallest value so far.
    """
    growth = np.diff(_smoothed(values, window))
    found = _first_in_a_row(list(growth > np.minimum.accumulate(growth) + rise), patience)
    return None if found is None else found + 1


def _support(run: Run, **settings: Any) -> int | None:
    alarm = OverfittingAlarm(**settings)
    for index, (probabilities, neighbours) in enumerate(zip(run.probabilities, run.neighbours, strict=True)):
        alarm.update(probabilities, run.labels, neighbours, index)
        if alarm.raised:
            return index
    return None


def _dear_growth(run: Run, *, level: float, patience: int, window: int) -> int | None:
    """Growth of log tr K for a fall of the training loss by one half of itself."""
    trace = np.diff(_smoothed(run.columns["log_trace"], window))
    loss = -np.diff(np.log2(np.maximum(_smoothed(run.columns["train_loss"], window), 1e-12)))
    found = _first_in_a_row([bool(t > level * max(x, 1e-3)) for t, x in zip(trace, loss, strict=True)], patience)
    return None if found is None else found + 1


def _negative_log(values: Sequence[float]) -> list[float]:
    return [-math.log(max(value, 1e-12)) for value in values]


_PATIENCE, _WINDOW = (1, 2, 3, 5), (1, 3)
_ROW = {"patience": (1, 2, 3), "window": _WINDOW}

ALARM = Rule(
    "shared learning",
    "the OverfittingAlarm: probability of the label at a sample against that at its neighbours in gradient space",
    _support,
    {
        "weight": (1.0, 2.0),
        "threshold": (3.0, 5.0),
        "patience": (1, 2),
        "smallest_conflict": (0.0, 0.1, 0.15, 0.2, 0.3),
    },
)

RULES = (
    ALARM,
    Rule(
        "log tr K",
        "plateau and renewed growth of the log trace",
        lambda run, **given: growing_again(run.columns["log_trace"], **given),
        {"rise": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), **_ROW},
    ),
    Rule(
        "log det K",
        "plateau and renewed growth of the log determinant",
        lambda run, **given: growing_again(run.columns["log_determinant"], **given),
        {"rise": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), **_ROW},
    ),
    Rule(
        "growth a loss",
        "growth of the log trace for each halving of the training loss",
        _dear_growth,
        {"level": (0.5, 1.0, 2.0, 3.0, 5.0, 8.0), **_ROW},
    ),
    Rule(
        "trace by fit",
        "fall of the trace of wrongly against rightly fitted samples",
        lambda run, **given: fallen(run.columns["unfitted"], **given),
        {"fall": (0.0, 0.02, 0.05, 0.1, 0.2, 0.3), **_ROW},
    ),
    Rule(
        "class blocks",
        "fall of the similarity within against between classes",
        lambda run, **given: fallen(run.columns["blocks"], **given),
        {"fall": (0.0, 0.002, 0.005, 0.01, 0.02, 0.03), **_ROW},
    ),
    Rule(
        "fraction fitted",
        "plateau of the training accuracy",
        lambda run, **given: flat(run.columns["train_accuracy"], **given),
        {"growth": (0.0, 0.01, 0.02, 0.04, 0.07), "patience": _PATIENCE, "window": _WINDOW},
    ),
    Rule(
        "training loss",
        "plateau of the log training loss",
        lambda run, **given: flat(_negative_log(run.columns["train_loss"]), **given),
        {"growth": (0.02, 0.05, 0.1, 0.2, 0.3), "patience": _PATIENCE, "window": _WINDOW},
    ),
    Rule(
        "gradient disparity",
        "rise of the distance between the gradients of mini-batches (Forouzesh and Thiran 2021)",
        lambda run, **given: fallen(_negative_log(run.columns["disparity"]), **given),
        {"fall": (0.0, 0.05, 0.1, 0.2, 0.3), "patience": _PATIENCE, "window": _WINDOW},
    ),
    Rule(
        "10 % split, loss",
        "rise of the log loss on a tenth of the (noisy) training samples",
        lambda run, **given: fallen(_negative_log(run.held_out["loss"]), **given),
        {"fall": (0.0, 0.01, 0.02, 0.05, 0.1), "patience": _PATIENCE, "window": _WINDOW},
        needs_split=True,
    ),
    Rule(
        "10 % split, accuracy",
        "fall of the accuracy on a tenth of the (noisy) training samples",
        lambda run, **given: fallen(run.held_out["accuracy"], **given),
        {"fall": (0.0, 0.01, 0.02, 0.03, 0.05), "patience": _PATIENCE, "window": _WINDOW},
        needs_split=True,
    ),
)
