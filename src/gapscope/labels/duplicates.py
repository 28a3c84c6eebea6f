"""Duplicates and near-duplicates among samples, and between two data sets."""

from __future__ import annotations

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.picture_copies import are_pictures, copied_pictures
from gapscope.statistics.baselines import find_nearest, sample_features

# A near-duplicate is closer than this fraction of the median distance to the nearest neighbour.
NEAR = 0.05
MAX_SAMPLES = 20_000


def exact_repeats(inputs: Tensor) -> list[tuple[int, int]]:
    """Return pairs of the first and every later sample with equal values, sorted."""
    first: dict[bytes, int] = {}
    values = inputs.detach().reshape(len(inputs), -1).cpu().add(0).contiguous()  # -0.0 becomes 0.0
    rows = values.view(torch.uint8).numpy()
    repeats = [(first.setdefault(row.tobytes(), i), i) for i, row in enumerate(rows)]
    return sorted(pair for pair in repeats if pair[0] != pair[1])


def _limit(distances: Tensor) -> float:
    positive = distances[distances > 1e-6]
    return max(NEAR * float(positive.median()) if len(positive) else 0.0, 1e-6)


def duplicate_pairs(samples: Samples) -> list[tuple[int, int]]:
    """Return sorted pairs (i, j), i < j, of nearest neighbours that are near-duplicates.

    Their Euclidean distance on standardized features is below 5 % of the median distance to the nearest neighbour. Of
    pictures, copies that were saved again, resized or mirrored are found as well. Beyond 20,000 samples, only exact
    repeats are found.
    """
    features = sample_features(samples) if len(samples) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        return exact_repeats(samples.inputs)
    distances, nearest = find_nearest(features)
    close = torch.nonzero(distances[:, 0] <= _limit(distances)).flatten().tolist()
    pairs = {(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close}
    if samples.form is None and are_pictures(samples.inputs):
        pairs |= set(copied_pictures(samples.inputs))
    return sorted(pairs)


def duplicates_in_test(samples: Samples, test: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of training samples i that test samples j repeat or nearly repeat."""
    if samples.inputs.shape[1:] != test.inputs.shape[1:]:
        got, needed = list(test.inputs.shape[1:]), list(samples.inputs.shape[1:])
        raise InvalidInput(f"Got test inputs of shape {got}; {needed} is needed. Pass the test set of the same data.")
    n, inputs = len(samples), torch.cat([samples.inputs.cpu(), test.inputs.cpu().to(samples.inputs.dtype)])
    both = Samples(inputs, form=samples.form)
    features = sample_features(both) if len(both) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        by_test_sample = sorted((j - n, i) for i, j in exact_repeats(inputs) if i < n <= j)
        return tuple((i, j) for j, i in by_test_sample)
    distances, nearest = find_nearest(features[n:], features[:n])
    close = distances[:, 0] <= _limit(find_nearest(features[:n])[0])
    pairs = {(int(nearest[j]), j) for j in torch.nonzero(close).flatten().tolist()}
    if samples.form is None and are_pictures(samples.inputs):
        known = {j for _, j in pairs}
        pairs |= {(i, j) for i, j in copied_pictures(samples.inputs, test.inputs) if j not in known}
    return tuple(sorted(pairs, key=lambda pair: pair[1]))


def conflicting_duplicates(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs of (near-)duplicates with different labels: one at least is an error."""
    targets = samples.targets
    if targets is None or not samples.is_classification:
        return ()
    return tuple((i, j) for i, j in duplicate_pairs(samples) if int(targets[i]) != int(targets[j]))
