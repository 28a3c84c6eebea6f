"""Tried advice: fixes are trained on halves of the samples, and scored on the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapscope.base.errors import GapscopeError, InvalidInput, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.checks.fixes import FIXES, Fix, Spec, get_setting
from gapscope.checks.trainers import Trainer, run_seed
from gapscope.results.estimate import NORMAL_90, IntervalEstimate, paired_difference, percent
from gapscope.results.formatting import pluralize

MAX_TRAININGS = 6.0
MIN_SAMPLES = 40
# The winner is trained again on this many fresh splits: the best of several fixes on one split looks better than it is.
FRESH_SPLITS = 2
# One-sided limit of the decision and of the printed interval, in standard errors of the paired 90 % interval.
DECISION = 1.282
# Gain on fresh splits from which a fix is advised: chosen on 50 cases of nine tables, where 0.02 proposes changes for 1
# of 8 sound networks in place of 3, and misses none that it helped.
MIN_GAIN = 0.02


@dataclass(frozen=True)
class Trial:
    """One fix that was tried.

    Attributes:
        name: Name of the fix.
        first_gain: Gain in accuracy on the first split, on which all fixes are compared.
        gain: Gain on fresh splits with its 90 % interval; None for fixes that were not the best of the first split.
        pooled: The same over all splits.
        helps: Whether the fix is advised (`_judge`).
    """

    name: str
    first_gain: float
    gain: IntervalEstimate | None = None
    pooled: IntervalEstimate | None = None
    helps: bool = False


@dataclass(frozen=True)
class TriedAdvice:
    """Fixes that were tried.

    Attributes:
        trials: One per fix, by their gain on the first split, largest first.
        score: Accuracy of the unchanged configuration on the unseen half of the first split.
        trainings: Cost in trainings on all samples with the given number of epochs.
        score_name: "accuracy", or "balanced accuracy" where classes are unequal.
        note: Why fewer fixes were tried than applied; empty if all were.
    """

    trials: tuple[Trial, ...]
    score: float
    trainings: float
    score_name: str = "accuracy"
    note: str = ""

    @property
    def best(self) -> Trial | None:
        """The fix that helps; None if none does."""
        return next((trial for trial in self.trials if trial.helps), None)

    @property
    def lines(self) -> list[str]:
        """The best fix with its gain, and the others, as text."""
        names = ", ".join(trial.name for trial in self.trials if not trial.helps)
        cost = f"{self.trainings:.1f} trainings, {self.score_name} {percent(self.score)} from one half"
        lines = [f"tried: no gain from {names} ({cost})"]
        best = self.best
        if best is not None and best.gain is not None:
            gain = best.gain
            interval = f"90 % interval {100 * gain.low:.1f} to {100 * gain.high:.1f}"
            lines = [f"tried: {best.name} {100 * gain.value:+.1f} points ({interval}; {cost})"]
            if names:
                lines.append(f"       less or nothing from {names}")
        return [*lines, self.note] if self.note else lines


def candidates(
    suggested: Sequence[str], samples: Samples, spec: Spec, accepts: Callable[[Fix], bool] | None = None
) -> list[Fix]:
    """Return the fixes that change something here: those that findings suggest, then all others.

    Args:
        suggested: Names of fixes, best first; unknown ones are skipped.
        samples: Training samples.
        spec: Training configuration.
        accepts: Returns whether a fix can be tried; None for all that change no network.
    """
    names = dict.fromkeys([*(name for name in suggested if name in FIXES), *FIXES])
    result: list[Fix] = []
    for name in names:
        fix = FIXES[name]
        if fix.changes_network if accepts is None else not accepts(fix):
            continue
        try:
            fix.apply(samples, spec)
        except GapscopeError:
            continue
        result.append(fix)
    return result


def _halves(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return two random halves with the same classes, as indices."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    return order[::2].sort().values, order[1::2].sort().values


class _Splits:
    """Trainings on halves, with their cost."""

    def __init__(self, trainer: Trainer, samples: Samples, spec: Spec, weights: Tensor, seed: int) -> None:
        self.trainer, self.samples, self.spec, self.weights, self.seed = trainer, samples, spec, weights, seed
        self.trainings = 0.0

    def cost(self, fix: Fix | None) -> float:
        """Return the cost of one training on a half, in trainings on all samples."""
        if fix is None or fix.change_spec is None:
            return 0.5
        changed, epochs = fix.change_spec(self.spec), get_setting(self.spec, "epochs")
        return 0.5 if changed is None or not epochs else 0.5 * float(get_setting(changed, "epochs") or 0) / epochs

    def correct(self, fix: Fix | None, split: int) -> tuple[Tensor, Tensor]:
        """Return the scored samples of a split, and their weighted results with a fix (None: without)."""
        seed = run_seed(self.seed, split)
        trained, scored = _halves(self.samples.y.cpu(), seed)
        train, unseen, spec = self.samples.subset(trained), self.samples.subset(scored), self.spec
        if fix is not None:
            changed, spec = fix.apply(train, spec)
            inputs = fix.map_inputs(train, unseen.inputs)
            unseen = Samples(inputs, unseen.targets, form=unseen.form)
            train = changed
        self.trainings += self.cost(fix)
        score = self.trainer.run(train, spec, seed, fix)
        return scored, score(unseen).double() * self.weights[scored]


def try_fixes(
    trainer: Trainer,
    samples: Samples,
    spec: Spec,
    suggested: Sequence[str],
    *,
    balanced: bool = False,
    max_trainings: float = MAX_TRAININGS,
    deadline: float | None = None,
    seed: int = 0,
) -> TriedAdvice:
    """Try fixes on halves of the samples.

    On a first split, the unchanged configuration and as many fixes as the cost allows are trained on one half and
    scored on the other. The best one is trained again on two fresh splits, beside the unchanged configuration: they
    give its gain, without the bias of having been chosen. It helps if the lower end of the paired 80 % interval over
    all splits is above 0, and the gain on the fresh ones above two points.

    Args:
        trainer: What trains.
        samples: Training samples with class labels.
        spec: Training configuration.
        suggested: Names of fixes to try first.
        balanced: Whether to score by balanced accuracy.
        max_trainings: Largest cost, in trainings on all samples.
        deadline: CPU seconds at which no further training begins; None without a limit.
        seed: Seed of splits and trainings.

    Raises:
        InvalidInput: `max_trainings` does not pay for one fix.
        NotMeasurable: There are too few samples, a training failed, no training learns anything, or the time is too
            short.
    """
    if len(samples) < MIN_SAMPLES:
        raise NotMeasurable(f"advice is tried on {MIN_SAMPLES} samples or more; there are {len(samples)}")
    labels = samples.y.cpu()
    counts = labels.bincount().double()
    weights = torch.ones(len(labels), dtype=torch.float64)
    if balanced:
        weights = (len(labels) / int((counts > 0).sum()) / counts)[labels]
    splits = _Splits(trainer, samples, spec, weights, seed)
    start = time.process_time()
    if max_trainings < splits.cost(None) * 2 * (1 + FRESH_SPLITS):
        raise InvalidInput(f"max_trainings must be 3 or more; got {max_trainings}. Pass a larger number.")
    scored, baseline = splits.correct(None, 0)
    seconds = time.process_time() - start
    score = float(baseline.sum() / weights[scored].sum())

    def is_affordable(cost: float) -> bool:
        in_time = deadline is None or time.process_time() + seconds * cost / 0.5 <= deadline
        return in_time and splits.trainings + cost <= max_trainings

    reserve = FRESH_SPLITS * 2 * splits.cost(None)
    results: list[tuple[Fix, Tensor]] = []
    skipped: list[str] = []
    for fix in candidates(suggested, samples, spec, trainer.accepts):
        if not is_affordable(splits.cost(fix) + reserve):
            skipped.append(fix.name)
            continue
        try:
            results.append((fix, splits.correct(fix, 0)[1] - baseline))
        except InvalidInput:
            continue  # changes nothing on this half
    if not results:
        raise NotMeasurable("the time budget ends before a fix could be tried, or no fix applies")
    chance = _chance(labels[scored])
    if not balanced and all(float((difference + baseline).mean()) <= chance for _, difference in results):
        raise NotMeasurable(
            f"no training predicts more than the most frequent class, {percent(chance)}; train_fn must return a "
            "trained network"
        )
    results.sort(key=lambda item: -float(item[1].mean()))
    best, first = results[0]
    fresh: list[Tensor] = []
    for split in range(1, 1 + FRESH_SPLITS):
        if float(first.mean()) > 0 and is_affordable(splits.cost(best) + splits.cost(None)):
            fresh.append(splits.correct(best, split)[1] - splits.correct(None, split)[1])
    trials = [Trial(fix.name, float(difference.mean())) for fix, difference in results]
    if fresh:
        trials[0] = _judge(best, first, fresh)
    note = f"not tried: {', '.join(skipped)} ({pluralize(round(max_trainings), 'training')} at most)" if skipped else ""
    name = "balanced accuracy" if balanced else "accuracy"
    return TriedAdvice(tuple(trials), score, splits.trainings, name, note)


def _chance(labels: Tensor) -> float:
    return float(labels.bincount().max()) / len(labels)


def _judge(fix: Fix, first: Tensor, fresh: Sequence[Tensor]) -> Trial:
    """Return the trial of the best fix, with its gain on fresh splits and whether it helps."""
    everything = paired_difference(torch.cat([first, *fresh]).tolist())
    gain = paired_difference(torch.cat(list(fresh)).tolist())
    limit = everything.value - (everything.value - everything.low) * DECISION / NORMAL_90
    return Trial(fix.name, float(first.mean()), gain, everything, helps=limit > 0 and gain.value > MIN_GAIN)
