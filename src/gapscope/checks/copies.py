"""Duplicates of a check: among the training samples, and of training samples in the test samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gapscope.base.samples import Samples
from gapscope.labels.duplicates import (
    MAX_BY_CHANCE,
    MIN_REPEATS,
    compares_all_pairs,
    duplicate_pairs,
    duplicates_in_test,
    exact_copies_in_test,
    exact_repeats,
    has_few_values,
    repeats_by_chance,
)
from gapscope.labels.text_copies import are_word_frequencies


@dataclass(frozen=True)
class Copies:
    """Duplicates and near-duplicates, computed when they are first asked for.

    Attributes:
        samples: All training samples.
        test: Test samples; None without.
        seconds: CPU seconds that one search may use; if they do not suffice, exact repeats alone are found.
    """

    samples: Samples
    test: Samples | None
    seconds: float

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

    @property
    def has_few_values(self) -> bool:
        """Whether no column of a table has a value of its own in half of the samples."""
        return has_few_values(self.samples.inputs)

    @cached_property
    def beyond_chance(self) -> Sequence[tuple[int, int]]:
        """Pairs of duplicates among the training samples; empty if there are few, or if chance explains them."""
        return self._beyond_chance(self.pairs, self.samples)

    @cached_property
    def beyond_chance_in_test(self) -> Sequence[tuple[int, int]]:
        """Pairs of `in_test`; empty if there are few, or if chance explains them."""
        if self.test is None:
            return []
        return self._beyond_chance(self.in_test, self.test)

    @property
    def repeats(self) -> list[int]:
        """Samples that repeat an earlier one, beyond chance."""
        return sorted({j for _, j in self.beyond_chance})

    @property
    def repeats_in_test(self) -> list[int]:
        """Test samples that repeat a training sample, beyond chance."""
        return sorted({j for _, j in self.beyond_chance_in_test})

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
        if second is self.samples:
            exact = exact_repeats(second)
        else:
            exact = exact_copies_in_test(self.samples, second)
        return exact if len({j for _, j in exact}) >= needed else []

    @cached_property
    def in_test(self) -> tuple[tuple[int, int], ...]:
        """Pairs (i, j) of training samples i that test samples j repeat or nearly repeat."""
        if self.test is None:
            return ()
        return duplicates_in_test(self.samples, self.test, seconds=self.seconds)
