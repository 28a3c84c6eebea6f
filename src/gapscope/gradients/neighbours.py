"""Samples whose model gradients are most similar."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput


def most_similar(kernel: Float[Tensor, "n n"], k: int) -> Int[Tensor, "n k"]:
    r"""Return indices of the k samples of largest $K_{ij} / \sqrt{K_{ii} K_{jj}}$.

    Raises:
        InvalidInput: There are not enough samples.

    >>> most_similar(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]), 1).flatten().tolist()
    [1, 0, 1]
    """
    n = len(kernel)
    if k >= n:
        raise InvalidInput(f"neighbours must be fewer than the samples, here {n}; got {k}. Pass more samples.")
    kernel = kernel.double()
    # a sample without any gradient has the similarity 0 to all others
    norms = kernel.diagonal().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    similarity = kernel / norms[:, None] / norms
    return similarity.fill_diagonal_(-torch.inf).topk(k, dim=1).indices
