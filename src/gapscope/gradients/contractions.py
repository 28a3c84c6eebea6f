r"""Kernel blocks of one weight from its factors, by the cheapest of three exact orders.

With columns a [N, K, T] and derivatives g [C, N, O, T] the Jacobian of one weight is
$J_{nc} = \sum_t g_{cnt} a_{nt}^\top$ (O x K), and its block of the kernel is $\langle J_{nc}, J_{md} \rangle$. Three
orders give the same numbers:

- explicit: form J of this weight, multiply it with itself; R O K T + 0.6 R^2 O K multiplications (R = N C);
- gram: $\sum_{ts} (a_{nt} \cdot a_{ms}) (g_{cnt} \cdot g_{dms})$; cheapest if T is small, and if T = 1
  it is the product of two Gram matrices;
- mixed: $\sum_{s} g_{dms} \cdot (J_{nc}\, a_{ms})$; cheapest for many outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.base.samples import slices
from gapscope.gradients.products import multiply

# Floats that a temporary of one contraction may take (128 MiB in float32).
TEMPORARY = 2**25


def gram_matrix(rows: Float[Tensor, "r p"]) -> Float[Tensor, "r r"]:
    """Return rows @ rows.T (multiplies only the lower half if there are many rows)."""
    r, p = rows.shape
    if r < 1000 or p < 512:
        return multiply(rows, rows.T)
    # G = [[A, B^T], [B, D]] is symmetric: with the lower half [B, D] and A known, B^T is copied, which saves one of
    # four quarters of the multiplications.
    half = r // 2
    product = rows.new_empty(r, r)
    product[:half, :half] = multiply(rows[:half], rows[:half].T)
    product[half:] = multiply(rows[half:], rows.T)
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
        # J_nc = sum_t g_cnt a_nt^T, batched over n with c and o as rows: [N, C O', T] @ [N, T, K]
        rows = self.by_sample
        if channels.start > 0 or channels.stop < o:
            rows = rows.view(n, c, o, t)[:, :, channels].flatten(1, 2)
        return torch.bmm(rows, self.columns.mT).view(n * c, -1)


def _explicit(first: KernelSide, second: KernelSide, floats: int) -> Tensor:
    c, n, o, k, _ = first.sizes
    d, m, *_ = second.sizes
    # <J, J'> is a sum over the O x K entries, so that it can be accumulated over groups O' of channels, and J itself
    # never has to fit: [N C, O' K] @ [O' K, M D] -> [N C, M D]
    kernel = first.columns.new_zeros(n * c, m * d)
    group = max(1, floats // (max(n * c, m * d) * k))
    for channels in slices(o, group):
        rows = first.jacobian(channels)
        if second is first:
            kernel += gram_matrix(rows)
        else:
            kernel += multiply(rows, second.jacobian(channels).T)
    return kernel.view(n, c, m, d)


def _gram(first: KernelSide, second: KernelSide, _: int) -> Tensor:
    c, n, o, k, t = first.sizes
    d, m, _, _, s = second.sizes
    if t == s == 1:
        # J_nc = g_nc a_n^T has rank one, and <g a^T, g' a'^T> = (g . g') (a . a'): the Gram matrix of the g, over
        # (c, n) and (d, m) as they lie in memory, times that of the a, over n and m, which is broadcast over c and d.
        g = first.gradients.reshape(-1, o)
        if second is first:
            g_products = gram_matrix(g)
        else:
            g_products = multiply(g, second.gradients.reshape(-1, o).T)
        a_products = multiply(first.columns[..., 0], second.columns[..., 0].T)
        kernel = g_products.view(c, n, d, m).mul_(a_products[:, None])
        return kernel.permute(1, 0, 3, 2)
    # For sample i of the rows and all samples of the columns: a_it . a_ms as [M, T S, 1] and g_cit . g_dms as
    # [M, C D, T S]. The batched product sums over the pairs of positions (t, s).
    g_second = second.by_position.reshape(m * d * s, o)
    a_second = second.columns.transpose(1, 2).reshape(m * s, k)
    kernel = first.columns.new_empty(n, c, m, d)
    for i in range(n):
        a_products = multiply(first.columns[i].T, a_second.T).view(t, m, s)
        a_products = a_products.transpose(0, 1).reshape(m, t * s, 1)
        g_products = multiply(first.by_position[i], g_second.T).view(c, t, m, d, s)
        g_products = g_products.permute(2, 0, 3, 1, 4).reshape(m, c * d, t * s)
        of_sample = torch.bmm(g_products, a_products).view(m, c, d)
        kernel[i] = of_sample.transpose(0, 1)
    return kernel


def _mixed(first: KernelSide, second: KernelSide, _: int) -> Tensor:
    c, n, o, k, _ = first.sizes
    d, m, _, _, s = second.sizes
    # <J_ic, J_md> = tr(J_ic^T sum_s g_dms a_ms^T) = sum_s g_dms . (J_ic a_ms). J_ic is applied to all positions of all
    # samples at once, [C O, K] @ [K, M S]; the products with g_dms are summed over (o, s): [M, C, O S] @ [M, O S, D].
    a_second = second.columns.permute(1, 0, 2).reshape(k, m * s)
    g_second = second.gradients.permute(1, 2, 3, 0).reshape(m, o * s, d)
    kernel = first.columns.new_empty(n, c, m, d)
    for i in range(n):
        jacobian = multiply(first.gradients[:, i].reshape(c * o, -1), first.columns[i].T)
        applied = multiply(jacobian, a_second).view(c, o, m, s)
        applied = applied.permute(2, 0, 1, 3).reshape(m, c, o * s)
        kernel[i] = torch.bmm(applied, g_second).transpose(0, 1)
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
    # Multiplications of each order. Explicit: both J (half of them, because a symmetric block needs only one), then
    # their product.
    pairs = n * c * m * d
    costs = {"explicit": (n * c * t + m * d * s) * o * k / 2 + 0.6 * pairs * o * k}
    if c * t * m * d * s <= floats:
        # The products [t, s] are multiplied element by element, each at the cost of 16 numbers of a matrix product.
        costs["gram"] = n * m * t * s * k + pairs * t * s * (o + 16)
    if c * o * max(k, m * s) <= floats:
        costs["mixed"] = n * c * o * k * (t + m * s) + pairs * o * s
    return min(costs, key=costs.__getitem__)


def kernel_block(
    first: KernelSide, second: KernelSide, floats: int = TEMPORARY
) -> Float[Tensor, "n c m d"]:
    """Return <J_nc, J_md> for all n, c of `first` and m, d of `second`."""
    return ORDERS[cheapest_order(first, second, floats)](first, second, floats)


def traced_block(
    first: KernelSide, second: KernelSide, floats: int = TEMPORARY
) -> Float[Tensor, "n m"]:
    """Return sum_c <J_nc, J_mc> for all n of `first` and m of `second`."""
    c, n, o, k, t = first.sizes
    _, m, _, _, s = second.sizes
    # sum_c <J_nc, J_mc> = sum_ts (a_nt . a_ms) (sum_c g_cnt . g_cms): the sum over c and the dot product over o are one
    # product of [N T, C O] and [C O, M S]. Its cost has 4 for the element-wise work on the products [t, s]; that of the
    # explicit order is J of both sides and their product.
    of_one_row = t * m * s
    cost = n * of_one_row * (c * o + k + 4)
    cost_of_explicit = c * o * k * (n * m + (n * t + m * s) / 2)
    if of_one_row <= floats and cost <= cost_of_explicit:
        g, g_second = (
            side.gradients.permute(1, 3, 0, 2).reshape(-1, c * o) for side in (first, second)
        )
        a, a_second = (side.columns.transpose(1, 2).reshape(-1, k) for side in (first, second))
        blocks = []
        for rows in slices(n, floats // of_one_row):
            of_rows = slice(rows.start * t, rows.stop * t)
            products = multiply(g[of_rows], g_second.T).mul_(multiply(a[of_rows], a_second.T))
            blocks.append(products.view(-1, t, m, s).sum((1, 3)))
        if len(blocks) == 1:
            return blocks[0]
        return torch.cat(blocks)
    # The explicit order, with c among the summed entries: [N, C O' K] @ [C O' K, M]
    kernel = first.columns.new_zeros(n, m)
    group = max(1, floats // (max(n, m) * c * k))
    for channels in slices(o, group):
        rows = first.jacobian(channels).view(n, -1)
        others = rows
        if second is not first:
            others = second.jacobian(channels).view(m, -1)
        kernel += multiply(rows, others.T)
    return kernel


def _gradient_by_gram(side: KernelSide, weights: Tensor) -> tuple[Tensor, Tensor]:
    c, n, o, k, t = side.sizes
    # S = sum W_icmd (a_it . a_ms) (g_cit . g_dms) contains every factor on the left and on the right. W is symmetric,
    # so that both places contribute equally: the derivative by the left factor, doubled,
    #   dS/dg_cit = 2 sum_mds W_icmd (a_it . a_ms) g_dms    and    dS/da_it = 2 sum_cmds W_icmd (g_cit . g_dms) a_ms.
    g = side.by_position.reshape(n * c * t, o)
    a = side.columns.transpose(1, 2).reshape(n * t, k)
    by_columns = torch.empty_like(side.columns)
    by_gradients = torch.empty_like(side.gradients)
    for i in range(n):
        # all have the dimensions [C, T, N, C, T] of the indices c, t, m, d, s
        doubled = (2 * weights[i]).view(c, 1, n, c, 1)
        a_products = multiply(side.columns[i].T, a.T).view(1, t, n, 1, t)
        weighted = (a_products * doubled).view(c * t, n * c * t)
        by_gradients[:, i] = multiply(weighted, g).view(c, t, o).transpose(1, 2)
        g_products = multiply(side.by_position[i], g.T).view(c, t, n, c, t)
        weighted = (g_products * doubled).sum((0, 3)).view(t, n * t)
        by_columns[i] = multiply(weighted, a).T
    return by_columns, by_gradients


def kernel_block_gradient(
    side: KernelSide, weights: Float[Tensor, "n c n c"], *, by_columns: bool
) -> tuple[Float[Tensor, "n k t"] | None, Float[Tensor, "c n o t"]]:
    """Return derivatives of sum(weights * kernel_block(side, side)) by both factors.

    The weights are symmetric. Without `by_columns` the first derivative is None.
    """
    c, n, o, k, t = side.sizes
    if t * t * (o + 16) > 0.6 * o * k or n * (c * t) ** 2 > TEMPORARY:
        # S = tr(J^T W J) has dS/dJ = 2 W J for symmetric W. By the chain rule through J_nc = sum_t g_cnt a_nt^T,
        # dS/dg_cnt = (dS/dJ_nc) a_nt and dS/da_nt = sum_c (dS/dJ_nc)^T g_cnt: the sum over c is that over the rows.
        doubled = 2 * weights.reshape(n * c, n * c)
        by_jacobian = multiply(doubled, side.jacobian(slice(0, o))).view(n, c * o, k)
        by_gradients = torch.bmm(by_jacobian, side.columns).view(n, c, o, t).transpose(0, 1)
        if not by_columns:
            return None, by_gradients
        return torch.bmm(by_jacobian.mT, side.by_sample), by_gradients
    return _gradient_by_gram(side, weights)
