"""Duplicates of a check: among the training samples, and of training samples in the test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from gapscope.base.samples import Samples
from gapscope.labels.duplicates import (
    MIN_REPEATS,
    compares_all_pairs,
    duplicate_pairs,
    duplicates_in_test,
    repeats_by_chance,
)
from gapscope.labels.text_copies import are_word_frequencies

# Repeats are no finding if chance explains at least half of them.
MAX_BY_CHANCE = 0.5


@dataclass(frozen=True)
class Copies:
    """Duplicates and near-duplicates, computed when they are first asked for.

    Attributes:
        samples: All training samples.
        test: Test samples; None without.
        texts: Texts of the training samples by column, if they were passed as texts.
        seconds: CPU seconds that one search may use; if they do not suffice, exact repeats alone are found.
    """

    samples: Samples
    test: Samples | None
    seconds: float
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def compares_all_pairs(self) -> bool:
        """Whether near-duplicates are searched, not exact repeats alone."""
        return compares_all_pairs(self.samples, self.seconds)

    @property
    def are_features(self) -> bool:
        """Whether inputs are columns without names, maybe features: copies by content have other numbers there."""
        x = self.samples.inputs
        is_table = self.samples.has_one_input and x.ndim == 2 and x.is_floating_point()
        return is_table and not self.samples.columns and not are_word_frequencies(self.samples)

    @property
    def without(self) -> str:
        """How test samples differ from training samples if no copy of them was found, in words."""
        if not self.compares_all_pairs:
            return "that are no exact copy of a training sample"
        if self.are_features:
            return "that are no near-exact copy of a training sample"
        return "that repeat no training sample"

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of duplicates and near-duplicates among the training samples."""
        return duplicate_pairs(self.samples, seconds=self.seconds)

    @cached_property
    def by_chance(self) -> float:
        """Fraction of the samples that would repeat another one if the columns were independent."""
        return repeats_by_chance(self.samples, seconds=self.seconds) / len(self.samples)

    @cached_property
    def repeats(self) -> list[int]:
        """Samples that repeat an earlier one; empty if there are few, or if chance explains them."""
        return sorted({j for _, j in self._beyond_chance(self.pairs, self.samples)})

    @cached_property
    def repeats_in_test(self) -> list[int]:
        """Test samples that repeat a training sample; empty if there are few, or if chance explains them."""
        if self.test is None:
            return []
        return sorted({j for _, j in self._beyond_chance(self.in_test, self.test)})

    def _beyond_chance(
        self, pairs: Sequence[tuple[int, int]], second: Samples
    ) -> Sequence[tuple[int, int]]:
        """Return the pairs that count: none if samples with few possible values repeat that often by chance.

        Exact repeats of texts count in any case: words of a template are no independent columns.

        Args:
            pairs: Pairs of samples i that samples j of `second` repeat.
            second: Samples in which repeats are counted.
        """
        needed = MIN_REPEATS * len(second)
        fraction = len({j for _, j in pairs}) / len(second)
        if fraction < MIN_REPEATS or self.by_chance < MAX_BY_CHANCE * fraction:
            return pairs if fraction >= MIN_REPEATS else []
        if not are_word_frequencies(self.samples):
            return []
        x = self.samples.inputs
        other = second.inputs
        exact = [(i, j) for i, j in pairs if torch.equal(x[i], other[j].to(x))]
        if second is self.samples:  # frequencies omit single letters and digits
            exact = [(i, j) for i, j in exact if all(t[i] == t[j] for t in self.texts.values())]
        return exact if len({j for _, j in exact}) >= needed else []

    @cached_property
    def in_test(self) -> tuple[tuple[int, int], ...]:
        """Pairs (i, j) of training samples i that test samples j repeat or nearly repeat."""
        if self.test is None:
            return ()
        return duplicates_in_test(self.samples, self.test, seconds=self.seconds)
