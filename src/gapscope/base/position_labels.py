"""Labels of positions in the shape of a grid: without an axis of size 1, or of one-hot classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gapscope.base.targets import are_zero_or_one


def labels_of_positions(labels: Tensor, output_shape: Sequence[int]) -> Tensor:
    """Return labels of positions without an axis of size 1, or of one-hot classes, that the outputs have as well.

    Args:
        labels: Class labels [n, ...] of positions.
        output_shape: Shape of the network's outputs, with the classes in the second or in the last axis.
    """
    shape = tuple(output_shape)
    if labels.ndim == len(shape) + 1 and labels.shape[1] == 1 and labels.shape[2:] == shape[1:]:
        return labels.squeeze(1)
    if labels.ndim == len(shape) + 1 and labels.ndim > 3:
        shape = (shape[0], 1, *shape[1:])  # one output per position, without an axis
    if labels.ndim != len(shape):
        return labels
    return _without_class_axis(labels, {shape[1:-1]: shape[-1], shape[2:]: shape[1]})


def _without_class_axis(labels: Tensor, grids: Mapping[tuple[int, ...], int | None]) -> Tensor:
    """Return labels without an axis of size 1, or of one-hot classes, in addition to a grid of positions.

    Args:
        labels: Class labels [n, ...] of positions.
        grids: Grid of positions -> number of classes, or None if it is not known.
    """
    for axis, sizes in ((1, labels.shape[2:]), (-1, labels.shape[1:-1])):
        grid = tuple(sizes)
        if grid not in grids:
            continue
        size = labels.shape[axis]
        if size == 1:
            return labels.squeeze(axis)
        # one output per position is the logit of the second of two classes
        fits = grids[grid] in (None, size) or (grids[grid] == 1 and size == 2)
        is_one_hot = fits and are_zero_or_one(labels)
        if is_one_hot and bool((labels.sum(axis) == 1).all()):
            return labels.argmax(axis)
    return labels


def labels_as_on(labels: Tensor, grid: Sequence[int]) -> Tensor:
    """Return labels of positions in the shape of a grid: without an axis of size 1 or of classes, or reshaped.

    Args:
        labels: Class labels [n, ...] of positions.
        grid: Shape of the labels of one sample.
    """
    shape = tuple(grid)
    labels = _without_class_axis(labels, {shape: None})
    if labels[:1].numel() == torch.Size(shape).numel():
        return labels.reshape(len(labels), *shape)
    return labels


def labels_on_grid(labels: Tensor, inputs: Tensor) -> Tensor:
    """Return labels of positions without an axis of size 1, or of one-hot classes, that the inputs do not have.

    Args:
        labels: Class labels [n, ...] of positions.
        inputs: Pictures [n, C, ...], or features [n, ..., d], of these positions.
    """
    shape = tuple(inputs.shape)
    grids = dict.fromkeys((shape[2:], shape[1:-1], shape[1:]))
    if labels.ndim < 3 or (tuple(labels.shape[1:]) in grids and labels.shape[1] > 1):
        return labels
    return _without_class_axis(labels, grids)
