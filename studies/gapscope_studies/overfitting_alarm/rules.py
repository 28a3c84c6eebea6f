"""Rules that say of a watched training when to stop: every alarm replayed, alone and combined, and its baselines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gapscope.labels.noise_rate import margins_of, noise_rate_bound
from gapscope.training.alarms.base import Alarm
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.alarms.joint import JointAlarm, agreement
from gapscope.training.alarms.shared_learning import SharedLearning
from gapscope_studies.overfitting_alarm.alarms import (
    ReplayedAlarm,
    alignment,
    disagreement_fraction,
    first_exceeded,
    prediction_changes,
    significant_rise,
)
from gapscope_studies.overfitting_alarm.runs import Run

Settings = dict[str, float]
# Whose test accuracy counts: the network on all data, the one without a tenth, the one with canaries.
WHOLE, SPLIT, CANARIES = "whole", "split", "canaries"


@dataclass(frozen=True)
class Stop:
    """Epochs at which a rule ends training and at which it puts the best checkpoint."""

    at: int
    peak: int


@dataclass(frozen=True)
class Rule:
    """A rule in words, where it stops for a run and settings, and the settings among which it is tuned."""

    name: str
    title: str
    stops: Callable[..., Stop | None]
    grid: Mapping[str, Sequence[float]]
    network: str = WHOLE  # which of the run's networks it watches and is judged on

    def settings(self) -> list[Settings]:
        """All combinations."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


def _stop(found: tuple[int, int] | None) -> Stop | None:
    return None if found is None else Stop(*found)


def _replay(alarm: Alarm, looks: Iterable[object]) -> Stop | None:
    """Let an alarm see one observation after the other until it is raised. Epochs count from 0."""
    for _ in looks:
        if alarm.raised_at is not None:
            return Stop(alarm.raised_at, alarm.raised_at if alarm.peak is None else alarm.peak)
    return None


def _falling(values: Iterable[float], *, window: float, fall: float, patience: float, skip: float = 0) -> Stop | None:
    """Where the mean over `window` values has fallen; the first `skip` values are ignored."""
    alarm = ReplayedAlarm(window=int(window), fall=fall, patience=int(patience))
    return _replay(alarm, (alarm.follow(value, i) for i, value in enumerate(values) if i >= skip))


def _smooth(values: Sequence[float], window: int) -> list[float]:
    return [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]


def first_drop(values: Sequence[float], *, fall: float, patience: int, window: int) -> Stop | None:
    """First index at which the smoothed values lie more than `fall` below their maximum so far, `patience` in a row."""
    smooth = _smooth(values, window)
    peak, below = 0, 0
    for index, value in enumerate(smooth):
        if value > smooth[peak] or math.isnan(smooth[peak]):
            peak = index
        below = below + 1 if value < smooth[peak] - fall else 0
        if below >= patience:
            return Stop(index, peak)
    return None


def flat(values: Sequence[float], *, growth: float, patience: int, window: int) -> Stop | None:
    """First index at which the smoothed values have grown by less than `growth` over `patience` recordings."""
    smooth = _smooth(values, window)
    hits = [i for i in range(patience, len(smooth)) if smooth[i] - smooth[i - patience] < growth]
    return Stop(hits[0], hits[0]) if hits else None


def _wave(run: Run, tensor: str, **given: float) -> Stop | None:
    """Label Wave on predicted classes, or on outputs."""
    result = run.tensors[tensor]
    changes = prediction_changes(result if result.ndim == 2 else result.argmax(2))
    return _falling([-change for change in changes], **given)


def _alignment(run: Run, *, kurtosis: float, skip: float, **given: float) -> Stop | None:
    values = (alignment(row.double(), kurtosis=bool(kurtosis)) for row in run.tensors["cosines"])
    return _falling(values, skip=round(skip * len(run.columns["test_accuracy"])), **given)


def _shared(
    run: Run, *, weight: float = 2.0, threshold: float, patience: float, smallest_conflict: float = 0.0
) -> Stop | None:
    alarm = SharedLearning(
        weight=weight, threshold=threshold, patience=int(patience), smallest_conflict=smallest_conflict
    )
    outputs, neighbours, labels = (run.tensors[name] for name in ("outputs", "neighbours", "labels"))
    pairs = zip(outputs, neighbours, strict=True)
    return _replay(
        alarm, (alarm.update(z.double().softmax(1), labels, near.long(), i) for i, (z, near) in enumerate(pairs))
    )


def _agreements(run: Run) -> Iterable[float]:
    """Agreement of probabilities with the initial kernel's left-out predictions, the first signal of `JointAlarm`."""
    predictions = run.tensors["initial"].double().clamp(0, 1)
    return (agreement(z.double().softmax(1), predictions) for z in run.tensors["outputs"])


def _joint(run: Run, **given: float) -> Stop | None:
    alarm = JointAlarm(window=int(given["window"]), fall=given["fall"], patience=int(given["patience"]))
    predictions, labels = run.tensors["initial"].double().clamp(0, 1), run.tensors["labels"]
    looks = enumerate(zip(*(run.tensors[name] for name in ("outputs", "neighbours", "cosines")), strict=True))
    return _replay(
        alarm,
        (
            alarm.update(z.double().softmax(1), labels, predictions, near.long(), cosines.double(), i)
            for i, (z, near, cosines) in looks
        ),
    )


def _canaries(run: Run, *, smallest_noise: float, **given: float) -> Stop | None:
    planted = Canaries(torch.zeros(100, dtype=torch.int64), n_classes=2)  # nothing is restored here
    alarm = CanaryAlarm(
        planted, window=int(given["window"]), fall=given["fall"], patience=int(given["patience"]),
        smallest_noise=smallest_noise,
    )  # fmt: skip
    labels, which = run.tensors["canary_labels"], run.tensors["is_canary"]
    return _replay(
        alarm, (alarm.update(z.double(), labels, which, i) for i, z in enumerate(run.tensors["canary_outputs"]))
    )


def noise_rates(run: Run) -> list[float]:
    """The canaries' bound of the noise rate after every epoch, from mean margins so far."""
    outputs, labels, which = (run.tensors[name] for name in ("canary_outputs", "canary_labels", "is_canary"))
    margins = torch.stack([margins_of(z.double(), labels) for z in outputs])
    means = margins.cumsum(0) / torch.arange(1, len(margins) + 1)[:, None]
    return [noise_rate_bound(row[~which], row[which]) for row in means]


def _behind_kernel(stops: Callable[..., Stop | None]) -> Callable[..., Stop | None]:
    """The rule where the initial kernel's gate is open. It is open or shut for a whole training."""

    def gated(run: Run, *, margin: float, share: float, **given: float) -> Stop | None:
        if disagreement_fraction(run.tensors["initial"].double(), run.tensors["labels"], margin) < share:
            return None
        return stops(run, **given)

    return gated


def _wave_behind_canaries(run: Run, *, smallest_noise: float, **given: float) -> Stop | None:
    stop = _wave(run, "canary_predicted", window=3, **given)
    if stop is None:
        return None
    rates = noise_rates(run)
    later = [index for index in range(stop.at, len(rates)) if rates[index] >= smallest_noise]
    return Stop(later[0], stop.peak) if later else None


def _late_joiners(run: Run, *, looks: float, level: float) -> Stop | None:
    errors = run.tensors["errors"]
    epochs = np.linspace(0, len(errors) - 1, int(looks)).round().astype(int).tolist()
    result = significant_rise(errors[epochs], level)
    return None if result is None else Stop(*(epochs[look] for look in result))


def _negative_log(values: Sequence[float]) -> list[float]:
    return [-math.log(max(value, 1e-12)) for value in values]


_WAVE = {"window": (2, 3, 5), "fall": (0.0, 0.005, 0.01, 0.02), "patience": (1, 3, 5)}
_GATE = {"margin": (0.0, 0.2, 0.4), "share": (0.05, 0.1, 0.2)}

RULES = (
    Rule(
        "shared learning",
        "probability of the label at a sample against that at its neighbours in gradient space",
        _shared,
        {
            "weight": (1.0, 2.0),
            "threshold": (3.0, 5.0),
            "patience": (1, 2),
            "smallest_conflict": (0.0, 0.1, 0.15, 0.2, 0.3),
        },
    ),
    Rule(
        "joint",
        "left-out agreement, gradient-weight alignment and shared learning added up",
        _joint,
        {"window": (3, 5), "fall": (0.02, 0.03, 0.04, 0.06), "patience": (1, 2, 3)},
    ),
    Rule(
        "left-out agreement",
        "probabilities against the initial kernel's left-out predictions",
        lambda run, **given: _falling(_agreements(run), **given),
        {"window": (1, 3, 5), "fall": (0.0, 0.005, 0.01, 0.02), "patience": (2, 3, 5)},
    ),
    Rule(
        "Label Wave",
        "prediction changes in the training pass (Yuan et al. 2024)",
        lambda run, **given: _wave(run, "predicted", **given),
        _WAVE,
    ),
    Rule(
        "Label Wave, watched samples",
        "prediction changes of the watched samples in evaluation mode",
        lambda run, **given: _wave(run, "outputs", **given),
        _WAVE,
    ),
    Rule(
        "gradient-weight alignment",
        "cosine of the last layer's loss gradients and weight (Hoelzl et al. 2025)",
        _alignment,
        {"kurtosis": (0, 1), "skip": (0.1,), "fall": (0.0, 0.02, 0.1), "patience": (1, 3, 5), "window": (1, 3)},
    ),
    Rule(
        "gradient disparity",
        "distance between the gradients of mini-batches (Forouzesh and Thiran 2021)",
        lambda run, **given: _falling([-math.log(max(d, 1e-300)) for d in run.columns["disparity"]], **given),
        {"fall": (0.0, 0.1, 0.2, 0.4), "patience": (2, 3, 5), "window": (1, 3, 5)},
    ),
    Rule(
        "evidence",
        "the loss gradient against its noise (Mahsereci et al. 2017)",
        lambda run, **given: _stop(first_exceeded(run.columns["evidence"], **given)),
        {"threshold": (-2.0, -1.0, -0.5, -0.25, -0.1, 0.0, 0.1, 0.2, 0.4), "patience": (1, 2, 3, 5)},
    ),
    Rule(
        "canaries",
        "probability of ordinary labels against that of false ones, where the bound of the noise rate is large",
        _canaries,
        {"fall": (0.01, 0.03, 0.06), "patience": (1, 3), "window": (1, 3), "smallest_noise": (0.0, 0.1, 0.2)},
        network=CANARIES,
    ),
    Rule(
        "Label Wave behind the initial kernel",
        "Label Wave where many labels contradict the initial kernel's left-out predictions",
        _behind_kernel(lambda run, **given: _wave(run, "predicted", window=3, **given)),
        {"fall": (0.0, 0.01), "patience": (1, 3), **_GATE},
    ),
    Rule(
        "alignment behind the initial kernel",
        "gradient-weight alignment behind the same gate",
        _behind_kernel(lambda run, **given: _alignment(run, fall=0.0, skip=0.1, window=3, **given)),
        {"kurtosis": (0, 1), "patience": (1, 3), **_GATE},
    ),
    Rule(
        "shared learning behind the initial kernel",
        "shared learning behind the same gate, in place of its own",
        _behind_kernel(_shared),
        {"threshold": (3.0, 5.0), "patience": (1, 2), **_GATE},
    ),
    Rule(
        "Label Wave behind canaries",
        "Label Wave where the canaries' bound of the noise rate is large",
        _wave_behind_canaries,
        {"fall": (0.0, 0.005, 0.01), "patience": (1, 2, 3), "smallest_noise": (0.05, 0.1, 0.15, 0.2)},
        network=CANARIES,
    ),
    Rule(
        "late joiners",
        "exact paired test on a tenth that is kept out",
        _late_joiners,
        {"looks": (5, 10, 20), "level": (0.05, 0.1, 0.2)},
        network=SPLIT,
    ),
    Rule(
        "training loss",
        "plateau of the log training loss",
        lambda run, **given: flat(_negative_log(run.columns["train_loss"]), **given),
        {"growth": (0.02, 0.05, 0.1, 0.2), "patience": (1, 3, 5), "window": (1, 3, 5)},
    ),
    Rule(
        "10 % split, loss",
        "rise of the log loss on a tenth of the (noisy) training samples",
        lambda run, **given: first_drop(_negative_log(run.split["loss"]), **given),
        {"fall": (0.0, 0.02, 0.05, 0.1), "patience": (1, 3, 5), "window": (1, 3, 5)},
        network=SPLIT,
    ),
    Rule(
        "10 % split, accuracy",
        "fall of the accuracy on a tenth of the (noisy) training samples",
        lambda run, **given: first_drop(run.split["accuracy"], **given),
        {"fall": (0.0, 0.01, 0.03, 0.05), "patience": (1, 3, 5), "window": (1, 3, 5)},
        network=SPLIT,
    ),
)
