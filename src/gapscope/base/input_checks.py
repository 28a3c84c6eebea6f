"""Checks of inputs: their type, their shape, and whether they are finite."""

from __future__ import annotations

import cmath
from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput


def _check_is_tensor(inputs: Any) -> None:
    if not isinstance(inputs, Tensor):
        raise InvalidInput(
            f"inputs must be a tensor; got {type(inputs).__name__}. Use torch.as_tensor(inputs)."
        )


def check_inputs(inputs: Any) -> None:
    """Raise InvalidInput unless inputs are a tensor [n, ...] of finite numbers, or of token ids."""
    _check_is_tensor(inputs)
    if inputs.ndim < 2:
        raise InvalidInput(
            f"inputs must have shape [n, ...] with one row per sample; got {list(inputs.shape)}. "
            "For one value per sample use x[:, None], for a single sample x[None], for several inputs ((x1, x2), y)."
        )
    if len(inputs) == 0:
        raise InvalidInput("inputs must hold at least one sample; got an empty tensor.")
    if inputs.dtype == torch.bool:
        raise InvalidInput(
            "inputs must be floating point (or int64 token ids); got torch.bool. Use "
            "x.float(), or x.astype(float) of an array."
        )
    check_values(inputs)


def has_finite_sum(tensor: Tensor) -> bool:
    """Return whether the sum is finite, without temporaries (large sums may overflow)."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    # a number of Python: on a tensor `isfinite` takes four operations
    return cmath.isfinite(tensor.detach().sum().item())


def check_holds_numbers(inputs: Tensor) -> None:
    """Raise InvalidInput for inputs that are no tensor, or on the meta device."""
    _check_is_tensor(inputs)
    if inputs.is_meta:
        raise InvalidInput(
            "inputs must hold numbers; got tensors on the meta device, which have none. Load the data."
        )


def check_values(inputs: Tensor) -> None:
    """Raise InvalidInput unless all values are finite, and of a type that networks take."""
    check_holds_numbers(inputs)
    if inputs.is_floating_point() and not has_finite_sum(inputs):
        n_invalid = int((~torch.isfinite(inputs)).reshape(len(inputs), -1).any(1).sum())
        if n_invalid:
            raise InvalidInput(
                f"inputs must be finite; {n_invalid} of {len(inputs)} samples hold NaN or infinity. Drop or impute: "
                "x = sklearn.impute.SimpleImputer().fit_transform(x)."
            )
    elif not inputs.is_floating_point() and inputs.dtype not in (
        torch.int64,
        torch.int32,
        torch.bool,
    ):
        advice = "Convert images with x.float() / 255 (x.astype(float) / 255 of an array)."
        if inputs.dtype != torch.uint8:
            advice = "Use x.float(), or x.long() for token ids; of an array x.astype(float), or x.astype(int)."
        if inputs.is_complex():
            advice = "Use torch.view_as_real(x), and a network that takes it."
        raise InvalidInput(
            f"inputs must be floating point (or int64 token ids); got {inputs.dtype}. {advice}"
        )
