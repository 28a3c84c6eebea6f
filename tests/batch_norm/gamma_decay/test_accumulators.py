"""Sums of one layer against expectations over drawn batches, and against each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gapscope.batch_norm.gamma_decay.accumulators import LayerAccumulator, SecondMoments

N, C, POSITIONS = 400, 3, 4


@pytest.fixture(scope="module")
def u() -> Tensor:
    """Inputs normalized over samples and positions, skewed and correlated between channels."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(N, C, POSITIONS, generator=generator, dtype=torch.float64).exp()
    h = h + h[:, :1] + torch.rand(N, C, 1, generator=generator, dtype=torch.float64)
    mean, std = h.mean((0, 2), keepdim=True), h.std((0, 2), keepdim=True, unbiased=False)
    return (h - mean) / std


def sums_of(u: Tensor, *, full: bool, chunks: int = 1) -> LayerAccumulator:
    sums = LayerAccumulator(C, full=full, draws=1, device=torch.device("cpu"))
    for part in u.chunk(chunks):
        sums.add(part, part.mean(2), part[:, :, 0])
        sums.add_direction(0, part.mean(2), part[:, :, 1])
    return sums


def statistics_of_batches(u: Tensor, size: int, batches: int) -> tuple[Tensor, Tensor]:
    """(a, s) of random batches with replacement, [batches, C]."""
    drawn = u[torch.randint(0, N, (batches, size), generator=torch.Generator().manual_seed(1))]
    mean = drawn.mean((1, 3))
    return mean, (drawn.square().mean((1, 3)) - mean.square()).sqrt() - 1


def test_statistics_of_drawn_batches(u: Tensor) -> None:
    """M Var(a) = V1 exactly; M Var(s), M Cov(a, s) and M E[1/(1 + s) - 1] in the limit of large M."""
    size = 400
    a, s = statistics_of_batches(u, size, 4000)
    noise = sums_of(u, full=True).noise_covariance()
    v1, v2, v12 = noise.rr.diagonal(), noise.pp.diagonal(), noise.rp.diagonal()
    torch.testing.assert_close(size * a.square().mean(0), v1, rtol=0.1, atol=0)
    torch.testing.assert_close(size * s.var(0), v2 / 4, rtol=0.15, atol=0)
    torch.testing.assert_close(size * (a * s).mean(0), v12 / 2, rtol=0.15, atol=0)
    torch.testing.assert_close(size * (1 / (1 + s) - 1).mean(0), v1 / 2 + 3 * v2 / 8, rtol=0.4, atol=0)
    torch.testing.assert_close(size * (a.T @ a) / len(a), noise.rr, rtol=0, atol=0.1 * float(v1.max()))


def test_pairs_of_channels_have_the_single_channels_on_their_diagonals(u: Tensor) -> None:
    full, diagonal = sums_of(u, full=True), sums_of(u, full=False)
    for one, other in zip(full.noise_covariance().diagonals(), diagonal.noise_covariance(), strict=True):
        torch.testing.assert_close(one, other)
    one, other = (
        sums.finish("", torch.ones(C, dtype=torch.float64), torch.ones(C, dtype=torch.float64), estimated=False)
        for sums in (full, diagonal)
    )
    torch.testing.assert_close(one.zeta, other.zeta)
    torch.testing.assert_close(one.first_order, other.first_order)
    assert one.coupling is not None and other.coupling is None and one.standard_error is None
    torch.testing.assert_close(one.coupling, one.coupling.T)


def test_chunks_do_not_matter(u: Tensor) -> None:
    whole, cut = sums_of(u, full=True), sums_of(u, full=True, chunks=7)
    for name in ("noise", "noise_sum", "gradient", "gradient_times_noise", "curvature"):
        torch.testing.assert_close(getattr(whole, name), getattr(cut, name))
    assert whole.n == cut.n == N


def test_blocks_of_vectors_are_their_own_diagonals() -> None:
    vectors = [torch.arange(3.0) + k for k in range(4)]
    assert all(torch.equal(one, other) for one, other in zip(SecondMoments(*vectors).diagonals(), vectors, strict=True))
