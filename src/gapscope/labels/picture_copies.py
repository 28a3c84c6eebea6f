"""Copies of pictures that were saved again, resized or mirrored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.statistics.baselines import feature_matrix, find_nearest

# Side of the thumbnails that are compared: compression and resizing change single pixels, not means of many.
SIDE = 8
# A copy is closer than this fraction of the median distance to the nearest neighbour. Chosen on 60 copies of each kind
# in CIFAR-10, Fashion-MNIST, MNIST, digits and photographs: saved again as JPEG (quality 80 to 88) 0.01 to
# 0.15, resized to 7/8 and back 0.01 to 0.10 on photographs, different pictures from 0.17 on.
NEAR = 0.15


def are_pictures(inputs: Tensor) -> bool:
    """Return whether inputs are pictures [n, 1 to 4 channels, height, width] of 8 pixels or more."""
    return (
        inputs.is_floating_point()
        and inputs.ndim == 4
        and inputs.shape[1] <= 4
        and min(inputs.shape[2:]) >= SIDE
    )


def _thumbnails(pictures: Tensor) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(pictures.float(), SIDE)


def copied_pictures(pictures: Tensor, candidates: Tensor | None = None) -> list[tuple[int, int]]:
    """Return pairs (i, j) of a picture i and its copy j, also if j is mirrored.

    Args:
        pictures: Pictures [n, channels, height, width].
        candidates: Pictures in which copies are searched, such as test samples; None for the pictures themselves, with
            pairs i < j.
    """
    n = len(pictures)
    own = _thumbnails(pictures.cpu())
    if candidates is None:
        others = own
    else:
        others = _thumbnails(candidates.cpu().to(pictures.dtype))
    # standardized together, so that all are in one scale
    features = feature_matrix(torch.cat([own, others, others.flip(-1)])).float()
    first = features[:n]
    plain = features[n : n + len(others)]
    mirrored = features[n + len(others) :]
    distances, nearest = find_nearest(first)
    positive = distances[distances > 1e-6]
    limit = max(NEAR * float(positive.median()) if len(positive) else 0.0, 1e-6)
    pairs: set[tuple[int, int]] = set()
    if candidates is None:
        searches = [(distances, nearest)]
    else:
        searches = [find_nearest(plain, first)]
    for close, index in [*searches, find_nearest(mirrored, first)]:
        for j in torch.nonzero(close[:, 0] <= limit).flatten().tolist():
            i = int(index[j, 0])
            if candidates is not None:
                pairs.add((i, j))
            elif i != j:  # a symmetric picture is its own mirror image
                pairs.add((min(i, j), max(i, j)))
    return sorted(pairs)
