"""Copies with different labels, among the samples and across a test set: one label at least is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.results.formatting import pluralize

Pairs = tuple[tuple[int, int], ...]

# Regression targets that differ by less than this fraction of their spread were rounded, by judgment.
ROUNDING = 1e-3
# pairs that one sentence names, and places of a pair
MAX_PAIRS, MAX_PLACES = 5, 3


@dataclass(frozen=True)
class Labels:
    """Labels of samples that are compared with those of others.

    Attributes:
        first: Samples of the first of each pair; they decide the task.
        second: Samples of the second of each pair, of the same task.
    """

    first: Samples
    second: Samples

    @cached_property
    def rounding(self) -> Tensor:
        """Differences of regression targets that count as rounding: 0.1 % of the distance of their quartiles."""
        values = self.first.y.detach().cpu().double().reshape(len(self.first), -1)
        last = len(values) - 1
        low, high = (values.kthvalue(1 + int(part * last), 0).values for part in (0.25, 0.75))
        spread = torch.where(high > low, high - low, values.std(0, correction=0))
        return ROUNDING * spread

    def _values(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """Return the labels of both samples, of sequences as many as both have."""
        a = self.first.y[i].detach().cpu()
        b = self.second.y[j].detach().cpu()
        if a.shape != b.shape and a.ndim and b.ndim:
            length = min(len(a), len(b))
            a = a[:length]
            b = b[:length]
        return a, b

    def places(self, i: int, j: int) -> list[tuple[int, ...]]:
        """Return the places at which the labels differ: the empty place of a single label, or none.

        A position without a label (-100) in one of the samples does not differ.

        Args:
            i: Index of a sample among the first.
            j: Index of a sample among the second.
        """
        a, b = self._values(i, j)
        if self.first.kind == "regression":
            size = (a.double() - b.double()).abs().flatten()
            return [()] if bool((size > self.rounding).any()) else []
        differs = a != b
        if self.first.kind == "positions":
            differs &= (a != IGNORED) & (b != IGNORED)
        if not differs.ndim:
            return [()] if bool(differs) else []
        return [tuple(place) for place in torch.nonzero(differs).tolist()]

    def size(self, i: int, j: int) -> float:
        """Return the difference of two regression targets; 0 for labels.

        Args:
            i: Index of a sample among the first.
            j: Index of a sample among the second.
        """
        if self.first.kind != "regression":
            return 0.0
        a, b = self._values(i, j)
        return float((a.double() - b.double()).abs().max())

    def sorted_conflicts(self, pairs: Sequence[tuple[int, int]]) -> Pairs:
        """Return the pairs with different labels, of regression targets those that differ most first.

        Args:
            pairs: Indices among the first and the second samples.
        """
        found = [pair for pair in pairs if self.places(*pair)]
        return tuple(sorted(found, key=lambda pair: -self.size(*pair)))

    def named(self, label: Any) -> str:
        """Return the name of a class, or the number that a label is.

        Args:
            label: A class, a target, or a zero or one of several labels.
        """
        if self.first.kind == "regression":
            return f"{float(label):.6g}"
        if self.first.kind == "multi-label":
            names = ()
        else:
            names = self.first.class_names
        code = int(label)
        return names[code] if 0 <= code < len(names) else str(code)

    def place_name(self, place: tuple[int, ...]) -> str:
        """Return a place as work lists name it: the name of an output, or numbers such as "3, 17".

        Args:
            place: Place within a sample.
        """
        if self.first.kind == "multi-label" and self.first.named_targets:
            return self.first.named_targets[place[0]]
        shape = self.first.y.shape[1:]
        # lists name no axis of size 1
        shown = [k for k, size in zip(place, shape, strict=True) if size > 1] or [*place]
        return ", ".join(map(str, shown))

    def described(self, i: int, j: int) -> tuple[str, str, str]:
        """Return the labels of two samples in parentheses, or where several of them differ (else empty).

        Args:
            i: Index of a sample among the first.
            j: Index of a sample among the second.
        """
        places = self.places(i, j)
        a, b = self._values(i, j)
        if not places or places == [()]:
            return f" ({self.named(a)})", f" ({self.named(b)})", ""
        listed = "; ".join(map(self.place_name, places[:MAX_PLACES]))
        if len(places) > MAX_PLACES:
            more = f" and {len(places) - MAX_PLACES:,} more"
        else:
            more = ""
        noun = "output" if self.first.kind == "multi-label" else "position"
        noun = noun if len(places) == 1 else f"{noun}s"
        return "", "", f" ({noun} {listed}{more})"


def conflicting_duplicates(samples: Samples, pairs: Sequence[tuple[int, int]]) -> Pairs:
    """Return pairs of (near-)duplicates with different labels: one at least is an error.

    Of several labels, and of labels of positions, one differs; regression targets differ by more than rounding.

    Args:
        samples: The samples.
        pairs: Their duplicates.
    """
    if samples.targets is None:
        return ()
    return Labels(samples, samples).sorted_conflicts(pairs)


def conflicts_in_test(samples: Samples, test: Samples, pairs: Sequence[tuple[int, int]]) -> Pairs:
    """Return pairs of a training sample and a test sample that repeats it under a different label.

    Args:
        samples: Training samples.
        test: Test samples, adapted to these; without labels there are no pairs.
        pairs: Indices of copies (`gapscope.labels.duplicates.duplicates_in_test`).
    """
    if samples.targets is None or test.targets is None:
        return ()
    return Labels(samples, test).sorted_conflicts(pairs)


def _listed(pairs: Pairs, describe: Callable[[int, int], str]) -> str:
    """Return the first pairs of a sentence, and how many more there are."""
    words = [describe(i, j) for i, j in pairs[:MAX_PAIRS]]
    if len(pairs) > MAX_PAIRS:
        words.append(f"and {len(pairs) - MAX_PAIRS:,} more")
    return ", ".join(words)


def sentences_on_copies(
    samples: Samples | None,
    conflicts: Pairs,
    test: Samples | None,
    in_test: Pairs,
    test_conflicts: Pairs,
) -> list[str]:
    """Return sentences on copies: those with different labels with their labels, and those in the test set.

    Args:
        samples: The samples; None if they are not known.
        conflicts: Pairs of row numbers of copies with different labels.
        test: Test samples; None without.
        in_test: Pairs of a row number and one of the test set.
        test_conflicts: Those of them with different labels.
    """

    def across(i: int, j: int) -> str:
        if samples is None or test is None or (i, j) not in test_conflicts:
            return f"{i} (test sample {j})"
        a, b, where = Labels(samples, test).described(samples.position(i), test.position(j))
        return f"{i}{a} and test sample {j}{b}{where}"

    def within(i: int, j: int) -> str:
        if samples is None:
            return f"{i} and {j}"
        a, b, where = Labels(samples, samples).described(samples.position(i), samples.position(j))
        return f"{i}{a} and {j}{b}{where}"

    lines: list[str] = []
    if conflicts:
        n_pairs = pluralize(len(conflicts), "pair")
        lines.append(
            f"{n_pairs} of (near-)duplicates with different labels: {_listed(conflicts, within)}."
        )
    if not in_test:
        return lines
    verb = "repeats" if len(in_test) == 1 else "repeat"
    start = f"{pluralize(len(in_test), 'test sample')} (nearly) {verb} a training sample"
    if test_conflicts:
        start += f", {len(test_conflicts):,} of them with a different label"
        lines.append(f"{start}: {_listed(test_conflicts, across)}.")
    else:
        lines.append(f"{start}: {_listed(in_test, across)}.")
    return lines
