"""Derivatives of outputs by tensors in their graph, batched if possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.gradients.frozen_batch_stats import freeze_batch_stats
from gapscope.inspection.outputs import as_real, check_no_reentrant_checkpoint, explain_torch_errors


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _is_leaf(place: Any) -> bool:
    return isinstance(place, Tensor) or place.node.name() == "torch::autograd::AccumulateGrad"


def gradients_at(
    outputs: Sequence[Tensor],
    places: Sequence[Any],
    cotangents: Sequence[Float[Tensor, "c ..."]],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """Return derivatives [C, ...] of the weighted outputs by tensors or gradient edges.

    `cotangents` are C weights of each output. Batch statistics are constants (`gapscope.gradients.frozen_batch_stats`).
    """
    if not places:
        return []
    settings: dict[str, Any] = {"retain_graph": True, "create_graph": create_graph, "allow_unused": True}
    rows_of_cotangents = list(zip(*cotangents, strict=True))
    with freeze_batch_stats(parameters=any(map(_is_leaf, places))):
        if not create_graph and len(rows_of_cotangents) > 1:
            try:
                gradients = torch.autograd.grad(outputs, places, cotangents, is_grads_batched=True, **settings)
                return [_dense(gradient) for gradient in gradients]
            except RuntimeError:  # an operation whose backward vmap cannot batch: one cotangent after the other
                pass
        rows = [
            [_dense(gradient) for gradient in torch.autograd.grad(outputs, places, cotangent, **settings)]
            for cotangent in rows_of_cotangents
        ]
    if len(rows) == 1:
        return [None if gradient is None else gradient[None] for gradient in rows[0]]
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


def whole_gradient(
    value: Tensor, parameters: Sequence[Tensor], cotangent: Tensor | None = None, *, create_graph: bool
) -> list[Tensor]:
    """Return the derivatives of a scalar, or of weighted outputs, by all parameters.

    Each is dense and real, zero if independent; a complex parameter has its real and imaginary parts.
    """
    with explain_torch_errors():
        gradients = torch.autograd.grad(value, parameters, cotangent, create_graph=create_graph, allow_unused=True)
    if any(gradient is None for gradient in gradients):
        check_no_reentrant_checkpoint(value)
    filled = zip(gradients, parameters, strict=True)
    return [as_real(torch.zeros_like(p) if gradient is None else gradient.to_dense()) for gradient, p in filled]


def per_sample_gradients(
    outputs: Float[Tensor, "n k"], places: Sequence[Tensor], cotangents: Float[Tensor, "c n k"], *, create_graph: bool
) -> list[Float[Tensor, "c n ..."]]:
    """Return per-sample derivatives by one backward pass per sample and cotangent.

    Correct for any use of the parameters, and slower than all other strategies by the number of samples.
    """
    rows: list[list[Tensor]] = [[] for _ in places]
    for i in range(len(outputs)):
        selected = torch.zeros_like(cotangents, dtype=outputs.dtype)
        selected[:, i] = cotangents[:, i].to(outputs.dtype)
        gradients = gradients_at([outputs], places, [selected], create_graph=create_graph)
        for column, place, gradient in zip(rows, places, gradients, strict=True):
            column.append(place.new_zeros(len(selected), *place.shape) if gradient is None else gradient)
    return [torch.stack(column, dim=1) for column in rows]
