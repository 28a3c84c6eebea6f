"""Duplicates and near-duplicates among samples, and between two data sets."""

from __future__ import annotations

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.statistics.baselines import find_nearest, sample_features

# A near-duplicate is closer than this fraction of the median distance to the nearest neighbour.
NEAR = 0.05
# The same for images, averaged to at most 8 x 8 pixels. Of CIFAR-10, Fashion-MNIST, MNIST, digits and photographs of
# flowers, different images were at least 0.166 apart; copies saved again as JPEG (quality 88) at most 0.14, those
# resized by 0.6 and back 0.13 (median of CIFAR-10).
NEAR_IMAGES, SIDE = 0.15, 8
MIN_SIDE = 4
MAX_SAMPLES = 20_000


def exact_repeats(inputs: Tensor) -> list[tuple[int, int]]:
    """Return pairs of the first and every later sample with equal values, sorted."""
    first: dict[bytes, int] = {}
    values = inputs.detach().reshape(len(inputs), -1).cpu().add(0).contiguous()  # -0.0 becomes 0.0
    rows = values.view(torch.uint8).numpy()
    repeats = [(first.setdefault(row.tobytes(), i), i) for i, row in enumerate(rows)]
    return sorted(pair for pair in repeats if pair[0] != pair[1])


def _are_images(samples: Samples) -> bool:
    x = samples.inputs
    return samples.form is None and x.ndim == 4 and x.is_floating_point() and min(x.shape[-2:]) >= MIN_SIDE


def _copy_features(samples: Samples) -> Tensor:
    """Return features [n, d] in which copies are close: pooled pixels of images, else `sample_features`."""
    if not _are_images(samples):
        return sample_features(samples)
    x = samples.inputs.detach().double().cpu()
    scale = x.std((0, 2, 3), keepdim=True, correction=0).clamp_min(1e-12)
    side = (min(SIDE, x.shape[-2]), min(SIDE, x.shape[-1]))
    return torch.nn.functional.adaptive_avg_pool2d(x / scale, side)


def _limit(distances: Tensor, *, of_images: bool) -> float:
    positive = distances[distances > 1e-6]
    near = NEAR_IMAGES if of_images else NEAR
    return max(near * float(positive.median()) if len(positive) else 0.0, 1e-6)


def _nearest_copy(queries: Tensor, features: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the nearest features, mirrored ones included, other than `own`."""
    best = [find_nearest(queries.flatten(1), features.flatten(1), k=2)]
    if queries.ndim == 4:
        best.append(find_nearest(queries.flip(-1).flatten(1), features.flatten(1), k=2))
    distances, indices = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
    if own is not None:
        distances = distances.masked_fill(indices == own[:, None], torch.inf)
    nearest = distances.min(1, keepdim=True)
    return nearest.values.squeeze(1), indices.gather(1, nearest.indices).squeeze(1)


def duplicate_pairs(samples: Samples) -> list[tuple[int, int]]:
    """Return sorted pairs (i, j), i < j, of nearest neighbours that are near-duplicates.

    Their Euclidean distance on standardized features is below 5 % of the median distance to the nearest neighbour. For
    images it is below 15 % on pixels averaged to 8 x 8, as they are or mirrored: copies may have been saved again,
    resized or flipped.
    Beyond 20,000 samples, only exact repeats are found.

    Args:
        samples: Samples, labels are not used.
    """
    features = _copy_features(samples) if len(samples) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1] or len(samples) < 3:
        return exact_repeats(samples.inputs)
    rows = torch.arange(len(features))
    limit = _limit(find_nearest(features.flatten(1))[0], of_images=_are_images(samples))
    distances, nearest = _nearest_copy(features, features, rows)
    close = torch.nonzero(distances <= limit).flatten().tolist()
    return sorted({(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close})


def duplicates_in_test(samples: Samples, test: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of training samples i that test samples j repeat or nearly repeat.

    Args:
        samples: Training samples.
        test: Test samples of the same shape.

    Raises:
        InvalidInput: The shapes differ.
    """
    if samples.inputs.shape[1:] != test.inputs.shape[1:]:
        got, needed = list(test.inputs.shape[1:]), list(samples.inputs.shape[1:])
        raise InvalidInput(f"Got test inputs of shape {got}; {needed} is needed. Pass the test set of the same data.")
    n, inputs = len(samples), torch.cat([samples.inputs.cpu(), test.inputs.cpu().to(samples.inputs.dtype)])
    both = Samples(inputs, form=samples.form)
    features = _copy_features(both) if len(both) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1] or n < 3:
        by_test_sample = sorted((j - n, i) for i, j in exact_repeats(inputs) if i < n <= j)
        return tuple((i, j) for j, i in by_test_sample)
    limit = _limit(find_nearest(features[:n].flatten(1))[0], of_images=_are_images(samples))
    distances, nearest = _nearest_copy(features[n:], features[:n], None)
    return tuple((int(nearest[j]), j) for j in torch.nonzero(distances <= limit).flatten().tolist())


def conflicting_duplicates(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs of (near-)duplicates with different labels: one at least is an error."""
    targets = samples.targets
    if targets is None or not samples.is_classification:
        return ()
    return tuple((i, j) for i, j in duplicate_pairs(samples) if int(targets[i]) != int(targets[j]))
