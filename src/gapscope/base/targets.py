"""Targets: conversion, validation, and the requirements of functions that use them.

Whether the positions of labels fit the outputs of a network is checked in `gapscope.inspection.validation.ready`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput

IGNORED = -100
"""Label of positions (pixels, tokens) that do not count."""


def parse_targets(targets: Tensor, notes: list[str]) -> Tensor:
    """Convert raw targets to labels (int64) or regression targets [n, K], and add notes."""
    if targets.is_complex():
        raise InvalidInput(f"targets must be real; got {targets.dtype}. Pass real and imaginary parts as columns.")
    if not targets.is_floating_point():
        targets = targets.long()
        return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    targets = targets[:, None] if targets.ndim == 1 else targets
    zeros, ones = targets == 0, targets == 1
    if targets.shape[1:] == (1,) and bool((zeros | ones).all() & zeros.any() & ones.any()):
        notes.append(
            "Targets that are all 0.0 or 1.0 are treated as two classes. For regression pass gs.Samples(x, y[:, None])."
        )
        return targets[:, 0].long()
    return targets


def check_targets(targets: Tensor) -> None:
    """Raise InvalidInput unless these are labels >= 0, or finite regression targets [n, K]."""
    if targets.is_floating_point():
        if targets.ndim != 2:
            raise InvalidInput(
                f"Regression targets must have shape [n, K]; got {list(targets.shape)}. For K = 1 use y[:, None]."
            )
        if not bool(torch.isfinite(targets).all()):
            raise InvalidInput("targets must be finite; got NaN or infinity. Drop those samples.")
        return
    if targets.ndim == 0 or targets.dtype != torch.int64 or (targets.ndim > 1 and targets[0].numel() < 2):
        raise _not_labels(targets, "[n]")
    negative = targets < 0
    wrong = targets[negative & (targets != IGNORED)] if targets.ndim > 1 else targets[negative]
    if len(wrong):
        raise InvalidInput(f"Class labels must be 0 or larger; got {int(wrong.min())}. Number the classes 0, 1, 2, ...")


def check_label_shape(labels: Tensor, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless these are int64 labels of this shape."""
    if labels.dtype != torch.int64 or labels.shape != tuple(shape):
        raise _not_labels(labels, str(list(shape)))


def _not_labels(targets: Tensor, shape: str) -> InvalidInput:
    return InvalidInput(
        f"Class labels must be an int64 tensor of shape {shape}; got {targets.dtype} of shape {list(targets.shape)}. "
        "Use y.long(), or float targets [n, K] for regression."
    )


def check_labels(labels: Tensor, n_classes: int) -> None:
    """Raise InvalidInput unless all labels are below the number of classes."""
    if labels.numel() and int(labels.max()) >= n_classes:
        raise InvalidInput(
            f"Class labels must be smaller than the number of classes, {n_classes}; got {int(labels.max())}. Give the "
            "network one output per class, or number the classes 0, 1, 2, ..."
        )


def check_regression_shape(targets: Tensor, shape: Sequence[int], owner: str = "Regression targets") -> None:
    """Raise InvalidInput unless regression targets have the shape of the outputs."""
    if targets.shape != tuple(shape):
        column = "For K = 1 use y[:, None]. " if targets.ndim == 1 else ""
        raise InvalidInput(
            f"{owner} must have the shape of the outputs, {list(shape)}; got {list(targets.shape)}. {column}"
            "Give the network one output per target (for class labels pass y.long())."
        )


def require_targets(targets: Tensor | None, owner: str = "This function") -> Tensor:
    """Return the targets, or raise InvalidInput if there are none (`owner` needs them)."""
    if targets is None:
        raise InvalidInput(f"{owner} needs targets; got inputs alone. Pass data as (x, y).")
    return targets


def require_labels(targets: Tensor | None, owner: str = "This function", *, dense: bool = False) -> Tensor:
    """Return class labels [n] (with `dense` also labels of positions), or raise InvalidInput."""
    targets = require_targets(targets, owner)
    if targets.is_floating_point() or (targets.ndim != 1 and not dense):
        regression = targets.is_floating_point()
        advice = "y.long() if these are labels" if regression else "one label per sample (if one-hot: y.argmax(1))"
        raise InvalidInput(
            f"{owner} needs class labels, int64 of shape [n]; got {targets.dtype} of shape {list(targets.shape)}. "
            f"Pass {advice}."
        )
    return targets


def require_regression_targets(targets: Tensor | None, owner: str = "This function") -> Tensor:
    """Return regression targets [n, K], or raise InvalidInput."""
    targets = require_targets(targets, owner)
    if not targets.is_floating_point():
        raise InvalidInput(
            f"{owner} needs regression targets, floating point of shape [n, K]; got {targets.dtype} of shape "
            f"{list(targets.shape)}. Pass y.float() if these are no labels."
        )
    return targets
