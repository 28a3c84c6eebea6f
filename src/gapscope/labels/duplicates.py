"""Duplicate samples: exact or near repeats, with the same label or another."""

from __future__ import annotations

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.statistics.baselines import sample_features

# A near-duplicate is closer than this fraction of the median distance to the nearest other sample.
NEAR = 0.05
MAX_SAMPLES = 20_000
BLOCK = 2048


def nearest_distances(queries: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each query's distance to its nearest feature (or other query), and the index."""
    others, distances, indices = queries if features is None else features, [], []
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        d = torch.cdist(block, others)
        if features is None:
            rows = torch.arange(len(block))
            d[rows, rows + start] = torch.inf
        smallest = d.min(1)
        distances.append(smallest.values)
        indices.append(smallest.indices)
    return torch.cat(distances), torch.cat(indices)


def _exact_repeats(inputs: Tensor) -> list[tuple[int, int]]:
    """Return pairs of the first and every later sample with equal values."""
    rows, inverse = torch.unique(inputs.reshape(len(inputs), -1).cpu(), dim=0, return_inverse=True)
    if len(rows) == len(inputs):
        return []
    first: dict[int, int] = {}
    repeats = [(first.setdefault(row, i), i) for i, row in enumerate(inverse.tolist())]
    return sorted(pair for pair in repeats if pair[0] != pair[1])


def _limit(distances: Tensor) -> float:
    positive = distances[distances > 1e-6]
    return max(NEAR * float(positive.median()) if len(positive) else 0.0, 1e-6)


def duplicate_pairs(samples: Samples) -> list[tuple[int, int]]:
    """Return pairs (i, j), i < j, of samples at almost no distance, sorted.

    One is the nearest neighbour of the other. Distances are Euclidean on standardized features; "almost no" is below
    5 % of the median distance to the nearest neighbour. Data sets of more than 20,000 samples are searched for exact
    repeats alone.
    """
    features = sample_features(samples) if len(samples) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        return _exact_repeats(samples.inputs)
    distances, nearest = nearest_distances(features)
    close = torch.nonzero(distances <= _limit(distances)).flatten().tolist()
    return sorted({(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close})


def duplicates_in_test(samples: Samples, test: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of test samples j that repeat training sample i.

    Raises:
        InvalidInput: The two have inputs of different shapes.
    """
    if samples.inputs.shape[1:] != test.inputs.shape[1:]:
        got, needed = list(test.inputs.shape[1:]), list(samples.inputs.shape[1:])
        raise InvalidInput(f"Got test inputs of shape {got}; {needed} is needed. Pass the test set of the same data.")
    n, inputs = len(samples), torch.cat([samples.inputs.cpu(), test.inputs.cpu().to(samples.inputs.dtype)])
    both = Samples(inputs, form=samples.form)
    features = sample_features(both) if len(both) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        first: dict[int, int] = {}
        for i, j in _exact_repeats(inputs):
            first[j] = i
        return tuple((i, j - n) for j, i in sorted(first.items()) if i < n <= j)
    distances, nearest = nearest_distances(features[n:], features[:n])
    close = distances <= _limit(nearest_distances(features[:n])[0])
    return tuple((int(nearest[j]), j) for j in torch.nonzero(close).flatten().tolist())


def conflicting_duplicates(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Return duplicates with different labels: at least one label of each pair is an error."""
    targets = samples.targets
    if targets is None or not samples.is_classification:
        return ()
    return tuple((i, j) for i, j in duplicate_pairs(samples) if int(targets[i]) != int(targets[j]))
