r"""Kernel blocks of one weight from its factors, in the cheapest exact order.

With columns a [N, K, T] and derivatives g [C, N, O, T] the Jacobian of one weight is
$J_{nc} = \sum_t g_{cnt} a_{nt}^\top$ (O x K), and its block of the kernel is $\langle J_{nc}, J_{md} \rangle$. Three
orders give the same numbers:

- explicit: form J of this weight, multiply it with itself; R O K T + 0.6 R^2 O K multiplications (R = N C);
- gram: $\sum_{ts} (a_{nt} \cdot a_{ms}) (g_{cnt} \cdot g_{dms})$; cheapest where T is small, and where T = 1
  it is the product of two Gram matrices;
- mixed: $\sum_{s} g_{dms} \cdot (J_{nc}\, a_{ms})$; cheapest where there are many outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.base.samples import slices

# Floats that a temporary of one contraction may take (128 MiB in float32).
TEMPORARY = 2**25


def gram_matrix(rows: Float[Tensor, "r p"]) -> Float[Tensor, "r r"]:
    """Return rows @ rows.T (multiplies only the lower half if there are many rows)."""
    r, p = rows.shape
    if r < 1000 or p < 512:
        return rows @ rows.T
    # The upper right quarter is the mirror image of the lower left: 3/4 of the multiplications.
    half = r // 2
    product = rows.new_empty(r, r)
    product[:half, :half] = rows[:half] @ rows[:half].T
    product[half:] = rows[half:] @ rows.T
    product[:half, half:] = product[half:, :half].T
    return product


@dataclass(frozen=True)
class KernelSide:
    """Columns and derivatives of one weight: the rows or the columns of a kernel block."""

    columns: Float[Tensor, "n k t"]
    gradients: Float[Tensor, "c n o t"]

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """C, N, O, K, T."""
        c, n, o, t = self.gradients.shape
        return c, n, o, self.columns.shape[1], t

    @cached_property
    def by_sample(self) -> Float[Tensor, "n co t"]:
        """Derivatives with samples first: [N, C O, T]."""
        return self.gradients.transpose(0, 1).flatten(1, 2)

    @cached_property
    def by_position(self) -> Float[Tensor, "n ct o"]:
        """Derivatives with the positions as rows: [N, C T, O]."""
        c, n, o, _, t = self.sizes
        return self.gradients.permute(1, 0, 3, 2).reshape(n, c * t, o)

    def jacobian(self, channels: slice) -> Float[Tensor, "nc ok"]:
        """Return J for some of the O channels, samples first: [N C, O' K]."""
        c, n, o, _, t = self.sizes
        rows = self.by_sample
        if channels.start > 0 or channels.stop < o:
            rows = rows.view(n, c, o, t)[:, :, channels].flatten(1, 2)
        return torch.bmm(rows, self.columns.mT).view(n * c, -1)


def _explicit(first: KernelSide, second: KernelSide, floats: int) -> Tensor:
    c, n, o, k, _ = first.sizes
    d, m, *_ = second.sizes
    # <J, J'> is a sum over the O x K entries: a few channels O' at a time, so that J itself never has to fit. [N C, O'
    # K] @ [M D, O' K]^T -> [N C, M D]
    kernel = first.columns.new_zeros(n * c, m * d)
    for channels in slices(o, max(1, floats // (max(n * c, m * d) * k))):
        rows = first.jacobian(channels)
        kernel += gram_matrix(rows) if second is first else rows @ second.jacobian(channels).T
    return kernel.view(n, c, m, d)


def _gram(first: KernelSide, second: KernelSide, _: int) -> Tensor:
    c, n, o, k, t = first.sizes
    d, m, _, _, s = second.sizes
    # J_nc = g_nc a_n^T has rank one: <J_nc, J_md> = (g_nc . g_md) (a_n . a_m), two Gram matrices, one over the outputs
    # (n c, m d), one over the samples (n, m).
    if t == s == 1:
        rows, others = first.by_position.reshape(n * c, o), second.by_position.reshape(m * d, o)
        products = gram_matrix(rows) if second is first else rows @ others.T
        return products.view(n, c, m, d).mul_((first.columns[..., 0] @ second.columns[..., 0].T)[:, None, :, None])
    # One sample i of the rows at a time, all of the columns: a_it . a_ms as [M, T S, 1] and g_cit . g_dms as [M, C D, T
    # S]; the batched product sums over the pairs of places (t, s).
    others = second.by_position.reshape(m * d * s, o)
    places = second.columns.transpose(1, 2).reshape(m * s, k)
    kernel = first.columns.new_empty(n, c, m, d)
    for i in range(n):
        inputs = (first.columns[i].T @ places.T).view(t, m, s).transpose(0, 1).reshape(m, t * s, 1)
        products = (first.by_position[i] @ others.T).view(c, t, m, d, s).permute(2, 0, 3, 1, 4)
        kernel[i] = torch.bmm(products.reshape(m, c * d, t * s), inputs).view(m, c, d).transpose(0, 1)
    return kernel


def _mixed(first: KernelSide, second: KernelSide, _: int) -> Tensor:
    c, n, o, k, _ = first.sizes
    d, m, _, _, s = second.sizes
    # <J_ic, J_md> = sum_s g_dms^T (J_ic a_ms): J_ic moves every place of every sample, [C O, K] @ [K, M S], and what
    # came out is multiplied with g_dms, summed over (o, s): [M, C, O S] @ [M, O S, D].
    places = second.columns.permute(1, 0, 2).reshape(k, m * s)
    others = second.gradients.permute(1, 2, 3, 0).reshape(m, o * s, d)
    kernel = first.columns.new_empty(n, c, m, d)
    for i in range(n):
        jacobian = first.gradients[:, i].reshape(c * o, -1) @ first.columns[i].T
        moved = (jacobian @ places).view(c, o, m, s).permute(2, 0, 1, 3).reshape(m, c, o * s)
        kernel[i] = torch.bmm(moved, others).transpose(0, 1)
    return kernel


ORDERS: dict[str, Callable[[KernelSide, KernelSide, int], Tensor]] = {
    "explicit": _explicit,
    "gram": _gram,
    "mixed": _mixed,
}


def cheapest_order(first: KernelSide, second: KernelSide, floats: int = TEMPORARY) -> str:
    """Return the order with the fewest multiplications among those whose temporaries fit."""
    c, n, o, k, t = first.sizes
    d, m, _, _, s = second.sizes
    if t == s == 1:
        return "gram"
    # Multiplications of each order. Explicit: J of both sides, counted half because a symmetric block needs it once,
    # then their product.
    pairs = n * c * m * d
    costs = {"explicit": (n * c * t + m * d * s) * o * k / 2 + 0.6 * pairs * o * k}
    if c * t * m * d * s <= floats:
        # Element-wise work on the [t, s] products is more expensive than the multiplications of a matrix product.
        costs["gram"] = n * m * t * s * k + pairs * t * s * (o + 16)
    if c * o * max(k, m * s) <= floats:
        costs["mixed"] = n * c * o * k * (t + m * s) + pairs * o * s
    return min(costs, key=costs.__getitem__)


def kernel_block(first: KernelSide, second: KernelSide, floats: int = TEMPORARY) -> Float[Tensor, "n c m d"]:
    """Return <J_nc, J_md> for all n, c of `first` and m, d of `second`."""
    return ORDERS[cheapest_order(first, second, floats)](first, second, floats)


def traced_block(first: KernelSide, second: KernelSide, floats: int = TEMPORARY) -> Float[Tensor, "n m"]:
    """Return sum_c <J_nc, J_mc> for all n of `first` and m of `second`."""
    c, n, o, k, t = first.sizes
    _, m, _, _, s = second.sizes
    # Summed over equal outputs c, the gram order needs only sum_c g_cnt . g_cms, one product over (c, o) of [N T, C O]
    # and [M S, C O]; the +4 counts the work on the [t, s] products. Left of <=: this order, right: the explicit one.
    fits = n * t * m * s <= floats
    if fits and n * m * t * s * (c * o + k + 4) <= c * o * k * (n * m + (n * t + m * s) / 2):
        rows, others = (side.gradients.permute(1, 3, 0, 2).reshape(-1, c * o) for side in (first, second))
        inputs, places = (side.columns.transpose(1, 2).reshape(-1, k) for side in (first, second))
        return ((rows @ others.T).mul_(inputs @ places.T)).view(n, t, m, s).sum((1, 3))
    kernel = first.columns.new_zeros(n, m)
    for channels in slices(o, max(1, floats // (max(n, m) * c * k))):
        rows = first.jacobian(channels).view(n, -1)
        kernel += rows @ (rows if second is first else second.jacobian(channels).view(m, -1)).T
    return kernel


def _gradient_by_gram(side: KernelSide, weights: Tensor) -> tuple[Tensor, Tensor]:
    c, n, o, k, t = side.sizes
    # S = sum W_icmd (a_it . a_ms) (g_cit . g_dms). The weights are symmetric, so that deriving by the left factors and
    # doubling takes the right ones into account: dS/dg_cit = 2 sum_mds W_icmd (a_it . a_ms) g_dms and dS/da_it = 2
    # sum_cmds W_icmd (g_cit . g_dms) a_ms.
    others = side.by_position.reshape(n * c * t, o)
    places = side.columns.transpose(1, 2).reshape(n * t, k)
    by_columns, by_gradients = torch.empty_like(side.columns), torch.empty_like(side.gradients)
    for i in range(n):
        inputs = (side.columns[i].T @ places.T).view(1, t, n, 1, t)
        spread = (2 * weights[i]).view(c, 1, n, c, 1)
        by_gradients[:, i] = ((inputs * spread).view(c * t, n * c * t) @ others).view(c, t, o).transpose(1, 2)
        products = (side.by_position[i] @ others.T).view(c, t, n, c, t)
        by_columns[i] = ((products * spread).sum((0, 3)).view(t, n * t) @ places).T
    return by_columns, by_gradients


def kernel_block_gradient(
    side: KernelSide, weights: Float[Tensor, "n c n c"], *, by_columns: bool
) -> tuple[Float[Tensor, "n k t"] | None, Float[Tensor, "c n o t"]]:
    """Return derivatives of sum(weights * kernel_block(side, side)) by both factors.

    The weights are symmetric. Without `by_columns` the first derivative is None.
    """
    c, n, o, k, t = side.sizes
    if t * t * (o + 16) > 0.6 * o * k or n * (c * t) ** 2 > TEMPORARY:
        # S = tr(J^T W J) has dS/dJ = 2 W J, and J_nc = sum_t g_cnt a_nt^T hands it on: dS/dg_cnt = (dS/dJ_nc) a_nt and
        # dS/da_nt = sum_c (dS/dJ_nc)^T g_cnt.
        by_jacobian = (2 * weights.reshape(n * c, n * c) @ side.jacobian(slice(0, o))).view(n, c * o, k)
        by_gradients = torch.bmm(by_jacobian, side.columns).view(n, c, o, t).transpose(0, 1)
        return torch.bmm(by_jacobian.mT, side.by_sample) if by_columns else None, by_gradients
    return _gradient_by_gram(side, weights)
