"""Trainings on halves of the samples with and without a fix, scored on the other halves."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.checks.fixes import Fix, Spec, get_setting, take
from gapscope.checks.trainers import Scorer, Trainer, constant_scorer, run_seed
from gapscope.statistics.intervals import r_squared_scales


def _halves(samples: Samples, seed: int) -> tuple[Tensor, Tensor]:
    """Return two random halves, with the same classes if there is one per sample, as indices."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(samples), generator=generator)
    if samples.is_classification:
        order = order[samples.y.cpu()[order].argsort(stable=True)]
    return order[::2].sort().values, order[1::2].sort().values


def class_weights(samples: Samples, balanced: bool) -> Tensor:
    """Return weights of samples [n], with which the mean is the balanced accuracy; else ones."""
    if not balanced or not samples.is_classification:
        return torch.ones(len(samples), dtype=torch.float64)
    labels = samples.y.cpu()
    classes, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    return (len(labels) / len(classes) / counts.double())[codes]


class Splits:
    """Trainings on halves, with their cost; each half is scored in turn if `both` is true."""

    def __init__(
        self,
        trainer: Trainer,
        samples: Samples,
        spec: Spec,
        weights: Tensor,
        seed: int,
        budget: CpuBudget,
        max_trainings: float,
    ) -> None:
        self.trainer = trainer
        self.samples = samples
        self.spec = spec
        self.weights = weights
        self.seed = seed
        self.budget = budget
        self.max_trainings = max_trainings
        self.both = False
        self.trainings = 0.0
        self._seconds_per_training = 0.0
        self._split = -1
        self._kept: list[tuple[Samples, Samples, Tensor]] = []
        # units of the residuals of regression targets; None for labels, and for targets of which none varies
        self.scales: Tensor | None = None
        if samples.kind == "regression":
            scales = torch.from_numpy(r_squared_scales(samples.y.cpu().double().numpy()))
            self.scales = scales if bool(scales.isfinite().any()) else None

    def _scores(self, scorer: Scorer, samples: Samples) -> Tensor:
        """Return the scores of samples [n]: R^2 of regression."""
        values = scorer(samples).double()
        if self.scales is not None:
            return 1 + (values / self.scales / self.scales).sum(1)
        return values if values.ndim == 1 else values.mean(1)

    def constant_score(self, scored: Tensor) -> float:
        """Return the score of the best constant on some samples.

        Args:
            scored: Indices of samples.
        """
        values = self._scores(constant_scorer(self.samples), take(self.samples, scored))
        return float((values * self.weights[scored]).mean())

    def cost(self, fix: Fix | None) -> float:
        """Return the cost of one split, in trainings on all samples."""
        cost = 1.0 if self.both else 0.5
        if fix is None or fix.change_spec is None:
            return cost
        changed = fix.change_spec(self.spec)
        epochs = get_setting(self.spec, "epochs")
        if changed is None or not epochs:
            return cost
        return cost * float(get_setting(changed, "epochs") or 0) / epochs

    def affords(self, cost: float) -> bool:
        """Return whether the time and the number of trainings allow some more.

        Args:
            cost: Their number, in trainings on all samples.
        """
        has_time = self.budget.affords(self._seconds_per_training * cost)
        return has_time and self.trainings + cost <= self.max_trainings

    def timed_baseline(self) -> Tensor:
        """Return the scores without a fix on the first split [n], and note the time of a training."""
        start = time.process_time()
        scores = self.scores(None, 0)
        self._seconds_per_training = (time.process_time() - start) / self.cost(None)
        return scores

    def gains(self, fix: Fix, split: int) -> Tensor:
        """Return the weighted scores with a fix minus those without [n], 0 if the fix changes nothing on this split."""
        without = self.scores(None, split)
        try:
            return self.scores(fix, split, without) - without
        except InvalidInput:
            return without - without

    def scores(self, fix: Fix | None, split: int, without: Tensor | None = None) -> Tensor:
        """Return the weighted scores of the samples [n] with a fix (None: without); NaN for those that are not scored.

        Args:
            fix: The fix.
            split: Number of the split.
            without: Scores that are not computed again: those without the fix, for a half that it does not change; or
                for no fix those of the first half.

        Raises:
            InvalidInput: The fix changes nothing on this split.
        """
        result = torch.full((len(self.samples),), torch.nan, dtype=torch.float64)
        unchanged: list[InvalidInput] = []
        parts = self._parts(split)[: 2 if self.both else 1]
        for i, (train, unseen, scored) in enumerate(parts):
            if fix is None and without is not None and i == 0:
                result[scored] = without[scored]
                continue
            try:
                values = self._score(fix, train, unseen, run_seed(self.seed, split))
                result[scored] = values * self.weights[scored]
            except InvalidInput as error:
                if without is None:
                    raise
                unchanged.append(error)
                result[scored] = without[scored]
        if len(unchanged) == len(parts):
            raise unchanged[0]
        return result

    def _parts(self, split: int) -> list[tuple[Samples, Samples, Tensor]]:
        """Return what is trained on, what is scored, and indices of the latter, for either half.

        The samples are the same objects for all fixes of a split, for which suspected labels are searched once.
        """
        if split != self._split:
            first, second = _halves(self.samples, run_seed(self.seed, split))
            a = take(self.samples, first)
            b = take(self.samples, second)
            self._split = split
            self._kept = [(a, b, second), (b, a, first)]
        return self._kept

    def _score(self, fix: Fix | None, train: Samples, unseen: Samples, seed: int) -> Tensor:
        """Return the scores of samples by a training on others."""
        spec = self.spec
        if fix is not None:
            changed, spec = fix.apply(train, spec, self.budget)
            unseen = replace(unseen, inputs=fix.map_inputs(train, unseen.inputs))
            train = changed
        self.trainings += self.cost(fix) / (2 if self.both else 1)
        values = self._scores(self.trainer.run(train, spec, seed, fix), unseen)
        if self.scales is not None:
            constant = self._scores(constant_scorer(train), unseen)
            # one outlier makes the error of a network arbitrarily large; it counts as one that predicts the mean
            if not float(values.mean()) >= float(constant.mean()):
                values = constant
        return values
