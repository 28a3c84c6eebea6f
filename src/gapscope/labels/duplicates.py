"""Duplicates and near-duplicates among samples, and between two data sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.base.second_data import join_samples
from gapscope.labels.picture_copies import are_pictures, copied_pictures
from gapscope.labels.text_copies import are_word_frequencies, copied_texts, have_equal_order
from gapscope.statistics.baselines import find_nearest, sample_features

# Repeats are named, and are a finding of `gapscope.check`, from this fraction of the samples on, by judgment.
MIN_REPEATS = 0.02
# Of tables, near rows are near-duplicates only if chance has few such pairs: of points in m dimensions it has
# n (1 - 2^(-0.05^m)), of 1,000 on a line 34, in a plane 1.7, in space 0.09.
MIN_FREE, MIN_DIMENSION = 3, 2.5
# rows whose dimension is estimated: to 5 %
QUERIES = 1000
# distances of equal rows in standard deviations
ROUNDING = 1e-6
# all pairs are compared: 4e8 distances
MAX_SAMPLES = 20_000
ONLY_EXACT = "Near-duplicates were not searched, to keep the time budget: exact repeats alone."
# CPU seconds per pair of samples, and per pair and column: twice those of 5,000 to 20,000 rows of 60 or 784 columns
SECONDS_PER_PAIR, SECONDS_PER_COLUMN = 8e-9, 3e-11


# rows from which consecutive numbers, each once, are no measured values; by judgment
MIN_NUMBERED = 20


def row_numbers(samples: Samples) -> int | None:
    """Return the column of a table that numbers its rows, in any order; None for none, or several, as of ranks.

    Args:
        samples: The samples.
    """
    x = samples.inputs
    n = len(x)
    is_table = samples.has_one_input and x.ndim == 2 and x.is_floating_point()
    if not is_table or n < MIN_NUMBERED or x.shape[1] < 2:
        return None
    is_range = (x.amax(0) - x.amin(0) == n - 1) & (x == x.round()).all(0)
    columns = [k for k in torch.nonzero(is_range).flatten().tolist() if len(x[:, k].unique()) == n]
    return columns[0] if len(columns) == 1 else None


def exact_repeats(samples: Samples) -> list[tuple[int, int]]:
    """Return pairs of the first and every later sample with equal values, and equal texts, sorted."""
    first: dict[bytes, int] = {}
    parts = samples.parts
    if samples.text_keys is not None:
        if are_word_frequencies(samples):
            parts = ()  # equal texts have equal frequencies
        parts = (*parts, samples.text_keys)
    # -0.0 becomes 0.0
    flat = [part.detach().reshape(len(samples), -1).cpu().add(0) for part in parts]
    # canonical strides also along dimensions of size 1, which a view as bytes needs
    rows = [
        part.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy() for part in flat
    ]
    joined = rows[0] if len(rows) == 1 else np.concatenate(rows, 1)
    width = joined.shape[1]
    if width:
        keys = joined.view(f"V{width}")[:, 0].tolist()
    else:
        keys = [b""] * len(samples)
    repeats = [(first.setdefault(key, i), i) for i, key in enumerate(keys)]
    return sorted(pair for pair in repeats if pair[0] != pair[1])


def has_tokens(samples: Samples) -> bool:
    """Return whether an input holds token ids, whose features ignore their order."""
    return any(not part.is_floating_point() for part in samples.parts)


def _may_be_copies(samples: Samples, i: int, j: int) -> bool:
    """Return whether two near samples have the same texts, which their features do not hold or not in order."""
    keys = samples.text_keys
    if keys is not None and keys[i] != keys[j]:
        return False
    return not has_tokens(samples) or have_equal_order(samples, i, j)


def _is_crowded(features: Float[Tensor, "n d"], limit: float) -> bool:
    """Return whether different rows of a table are as near as near-duplicates by chance, as points on a line are.

    Args:
        features: Standardized columns.
        limit: The largest distance of near-duplicates.
    """
    steps = features.sort(0).values.diff(dim=0)
    # columns of which a tenth of neighbouring values are that near
    n_free = sum(float(column[column > 0].quantile(0.1)) <= limit for column in steps.T)
    if n_free < MIN_FREE:
        return True
    rows = torch.linspace(0, len(features) - 1, min(len(features), QUERIES)).round().long()
    # after the row itself
    first, second = find_nearest(features[rows], features, k=3)[0][:, 1:].T
    ratios = (second / first)[first > limit]
    # that of independent rows in m dimensions has the median 2^(1/m)
    return bool(len(ratios)) and float(ratios.median()) > 2 ** (1 / MIN_DIMENSION)


def _limit(
    samples: Samples, features: Float[Tensor, "n d"], distances: Float[Tensor, "n 1"]
) -> float | None:
    """Return the largest distance of near-duplicates; None for tables whose near rows may be no duplicates.

    Args:
        samples: The samples.
        features: Their features.
        distances: Their distances to the nearest other ones.
    """
    positive = distances[distances > ROUNDING]
    # a near-duplicate is closer than a twentieth of the median distance to the nearest neighbour
    limit = max(0.05 * float(positive.median()) if len(positive) else 0.0, ROUNDING)
    is_table = samples.has_one_input and samples.inputs.ndim == 2 and not has_tokens(samples)
    if is_table and len(features) > 2 and _is_crowded(features, limit):
        return None
    return limit


def compares_all_pairs(samples: Samples, seconds: float) -> bool:
    """Return whether the search compares all pairs of samples, which finds near-duplicates: else exact repeats alone.

    Args:
        samples: The samples.
        seconds: CPU seconds that may be used.
    """
    n = len(samples)
    columns = samples.inputs[:1].numel()
    expected = n**2 * (SECONDS_PER_PAIR + columns * SECONDS_PER_COLUMN)
    return n <= MAX_SAMPLES and expected <= seconds


def duplicate_pairs(samples: Samples, *, seconds: float = math.inf) -> list[tuple[int, int]]:
    """Return sorted pairs (i, j), i < j, of nearest neighbours that are near-duplicates.

    Their Euclidean distance on standardized features is below 5 % of the median distance to the nearest neighbour. Of
    tables with less than three continuous columns, or on a plane, only exact repeats are found: others are near. Of
    pictures, copies that were saved again, resized or mirrored are found as well; of texts, copies with a few other
    words. Beyond 20,000 samples, and where a comparison of all pairs takes too long, only exact repeats are found.

    Args:
        samples: The samples.
        seconds: CPU seconds that may be used.
    """
    if not compares_all_pairs(samples, seconds):
        return exact_repeats(samples)
    texts = copied_texts(samples)
    if texts is not None:
        return sorted({*texts, *exact_repeats(samples)})
    features = sample_features(samples)
    if not features.shape[1]:
        return exact_repeats(samples)
    distances, nearest = find_nearest(features)
    limit = _limit(samples, features, distances)
    if limit is None:
        return exact_repeats(samples)
    close = torch.nonzero(distances[:, 0] <= limit).flatten().tolist()
    pairs = {(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close}
    if has_tokens(samples) or samples.text_keys is not None:
        pairs = {pair for pair in pairs if _may_be_copies(samples, *pair)}
        pairs |= set(exact_repeats(samples))
    if samples.has_one_input and are_pictures(samples.inputs):
        pairs |= set(copied_pictures(samples.inputs))
    return sorted(pairs)


# Repeats are no copies if chance explains at least half of them, by judgment.
MAX_BY_CHANCE = 0.5
# by judgment
N_SHUFFLES = 3
# columns that may depend on each other so much that shuffling them shows no chance; by judgment
FEW_COLUMNS = 3


def repeat_by_design(samples: Samples) -> bool:
    """Return whether inputs are a table of at most three columns of few values, or one of whole numbers.

    Such columns may depend on each other, as days, weeks and months do: their rows repeat, and are no copies.

    Args:
        samples: The samples.
    """
    inputs = samples.inputs
    if not samples.has_one_input or inputs.ndim != 2 or samples.text_keys is not None:
        return False
    varying = inputs[:, (inputs != inputs[:1]).any(0)]
    is_whole = varying.shape[1] == 1 and bool((varying == varying.round()).all())
    return 0 < varying.shape[1] <= FEW_COLUMNS and (is_whole or has_few_values(varying))


def repeats_by_chance(samples: Samples, *, seconds: float = math.inf) -> float:
    """Return the number of samples of a table that would repeat another one if its columns were independent.

    Every column is shuffled within each class; mean of three draws. Columns of few values repeat by design; of few such
    columns (`repeat_by_design`), the number is that of all repeats. 0 for other inputs than tables, and for fewer than
    two columns that vary: the values of one stay the same.

    Args:
        samples: The samples.
        seconds: As for the repeats of the samples themselves.
    """
    if not samples.has_one_input or samples.inputs.ndim != 2:
        return 0.0
    if repeat_by_design(samples):
        return float(len(exact_repeats(samples)))
    inputs = samples.inputs
    varying = torch.nonzero((inputs != inputs[:1]).any(0)).flatten().tolist()
    keys = None if are_word_frequencies(samples) else samples.text_keys
    if len(varying) + (keys is not None) < 2:  # shuffled constants stay the same
        return 0.0
    labels = torch.zeros(len(samples), dtype=torch.long)
    if samples.targets is not None and samples.is_classification:
        labels = samples.y.cpu()
    found = 0
    for seed in range(N_SHUFFLES):
        generator = torch.Generator().manual_seed(seed)
        shuffled = inputs.clone()
        shuffled_keys = None if keys is None else keys.clone()
        for label in labels.unique():
            rows = torch.nonzero(labels == label).flatten()
            for column in varying:
                order = torch.randperm(len(rows), generator=generator)
                shuffled[rows, column] = inputs[rows[order], column]
            if keys is not None and shuffled_keys is not None:
                order = torch.randperm(len(rows), generator=generator)
                shuffled_keys[rows] = keys[rows[order]]
        drawn = replace(samples, inputs=shuffled, text_keys=shuffled_keys)
        found += len({j for _, j in duplicate_pairs(drawn, seconds=seconds)})
    return found / N_SHUFFLES


def has_few_values(inputs: Float[Tensor, "n ..."]) -> bool:
    """Return whether no column has a value of its own in half of the samples.

    Args:
        inputs: Inputs of the samples.
    """
    return all(2 * len(column.unique()) < len(inputs) for column in inputs.flatten(1).T)


def beyond_chance(
    samples: Samples, pairs: Sequence[tuple[int, int]] | None = None
) -> Sequence[tuple[int, int]]:
    """Return pairs of copies; none if independent columns would have half of the exact repeats of a table.

    Args:
        samples: The samples.
        pairs: Their copies; None for their exact repeats.
    """
    exact = exact_repeats(samples)
    pairs = exact if pairs is None else pairs
    if not pairs or not exact or are_word_frequencies(samples):
        return pairs
    if repeat_by_design(samples):
        return []
    by_chance = repeats_by_chance(samples, seconds=0.0)
    return [] if by_chance >= MAX_BY_CHANCE * len(exact) else pairs


def _joined(samples: Samples, test: Samples) -> Samples:
    return join_samples(replace(samples, targets=None), replace(test, targets=None))


def _exact_copies(both: Samples, n: int) -> dict[int, int]:
    """Return the first training sample that a test sample repeats, by test sample; the first n are training samples."""
    return {j - n: i for i, j in reversed(exact_repeats(both)) if i < n <= j}


def exact_copies_in_test(samples: Samples, test: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of training samples i that test samples j repeat exactly.

    `test` is adapted to the training samples (`gapscope.base.second_data.as_second`).
    """
    return _by_test_sample(_exact_copies(_joined(samples, test), len(samples)))


def duplicates_in_test(
    samples: Samples, test: Samples, *, seconds: float = math.inf
) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of training samples i that test samples j repeat or nearly repeat.

    Args:
        samples: Training samples.
        test: Test samples, adapted to the training samples (`gapscope.base.second_data.as_second`).
        seconds: CPU seconds that may be used; if they do not suffice, exact repeats alone are found.
    """
    n = len(samples)
    both = _joined(samples, test)
    exact = _exact_copies(both, n)
    if not compares_all_pairs(both, seconds):
        return _by_test_sample(exact)
    texts = copied_texts(both, n)
    if texts is not None:
        return _by_test_sample({j - n: i for i, j in texts} | exact)
    features = sample_features(both)
    if not features.shape[1]:
        return _by_test_sample(exact)
    distances, nearest = find_nearest(features[n:], features[:n])
    limit = _limit(samples, features[:n], find_nearest(features[:n])[0])
    if limit is None:
        return _by_test_sample(exact)
    close = torch.nonzero(distances[:, 0] <= limit).flatten().tolist()
    found = {j: int(nearest[j]) for j in close}
    if has_tokens(samples) or both.text_keys is not None:
        found = exact | {j: i for j, i in found.items() if _may_be_copies(both, i, n + j)}
    if samples.has_one_input and are_pictures(samples.inputs):
        found = {j: i for i, j in reversed(copied_pictures(samples.inputs, test.inputs))} | found
    return _by_test_sample(found)


def _by_test_sample(found: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((i, j) for j, i in sorted(found.items()))
