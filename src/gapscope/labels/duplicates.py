"""Duplicates: samples that repeat another one exactly or nearly, with the same label or another."""

from __future__ import annotations

import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.statistics.baselines import sample_features

# A near-duplicate is closer than this fraction of the median distance to the nearest other sample.
NEAR = 0.05
MAX_SAMPLES = 20_000
BLOCK = 2048


def nearest_distances(features: Tensor) -> tuple[Tensor, Tensor]:
    """Distance to the nearest other sample, and its index, of every sample."""
    distances, indices = [], []
    for start in range(0, len(features), BLOCK):
        block = features[start : start + BLOCK]
        d = torch.cdist(block, features)
        own = torch.arange(len(block))
        d[own, own + start] = torch.inf
        smallest = d.min(1)
        distances.append(smallest.values)
        indices.append(smallest.indices)
    return torch.cat(distances), torch.cat(indices)


def duplicate_pairs(samples: Samples) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of samples of which one is the nearest neighbour of the other at almost no distance.

    Distances are Euclidean on standardized features; "almost no" is below 5 % of the median distance to the nearest
    neighbour. Data sets of more than 20,000 samples are searched for exact repeats alone.

    Args:
        samples: The samples.

    Returns:
        The pairs, sorted.
    """
    features = sample_features(samples)
    if len(samples) > MAX_SAMPLES or not features.shape[1]:
        rows, inverse = torch.unique(samples.inputs.reshape(len(samples), -1).cpu(), dim=0, return_inverse=True)
        if len(rows) == len(samples):
            return []
        first: dict[int, int] = {}
        repeats = [(first.setdefault(row, i), i) for i, row in enumerate(inverse.tolist())]
        return sorted(pair for pair in repeats if pair[0] != pair[1])
    distances, nearest = nearest_distances(features)
    positive = distances[distances > 1e-6]
    limit = NEAR * float(positive.median()) if len(positive) else 0.0
    close = torch.nonzero(distances <= max(limit, 1e-6)).flatten().tolist()
    return sorted({(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close})


def conflicting_duplicates(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Pairs of duplicates with different labels: at least one label of each is wrong."""
    targets = samples.targets
    if targets is None or not samples.is_classification:
        return ()
    return tuple((i, j) for i, j in duplicate_pairs(samples) if int(targets[i]) != int(targets[j]))
