"""Curvature by gamma and beta and the sums of a layer's decay, against autograd and Monte Carlo estimates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.accumulators import (
    LayerAccumulator,
    SecondMoments,
    even_loss_excess,
    gaussian_sampler,
)
from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    derivatives_along,
    hessian_directions,
    output_gradient,
    tapped_forward,
)
from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.inspection.losses import Loss, sample_losses
from gapscope.inspection.sample_layout import SampleLayout


def quartic(outputs: Tensor, targets: Tensor) -> Tensor:
    return (
        ((outputs - targets) ** 4).mean(1) + outputs[:, 0] * outputs[:, 1] + outputs.square().sum(1)
    )


def own_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def hessian_factor(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([*hessian_directions(loss, outputs, targets, None)], 2)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(sample_losses, True), (sample_losses, False), (own_cross_entropy, True), (quartic, False)],
)
def test_factor_of_the_hessian_by_outputs(loss: Loss, labels: bool) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.randint(0, 3, (6,)) if labels else torch.randn(6, 3, dtype=torch.float64)
    factor = hessian_factor(loss, outputs, targets)
    for i in range(6):
        dense = torch.autograd.functional.hessian(
            lambda o, i=i: loss(o[None], targets[i : i + 1])[0], outputs[i]
        )
        torch.testing.assert_close(factor[i] @ factor[i].T, dense)
        gradient = torch.func.grad(lambda o, i=i: loss(o[None], targets[i : i + 1])[0])(outputs[i])
        torch.testing.assert_close(output_gradient(loss, outputs, targets)[i], gradient)


@pytest.mark.parametrize("loss", [sample_losses, own_cross_entropy])
def test_random_directions_are_those_of_the_factor(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (6,), generator=generator)
    factor = hessian_factor(loss, outputs, targets)
    signs = torch.randint(0, 2, (4, 6, 3), generator=generator) * 2 - 1
    expected = torch.einsum("nkr,dnr->dnk", factor, signs.double())
    torch.testing.assert_close(
        torch.stack([*hessian_directions(loss, outputs, targets, signs)]), expected
    )


def test_factor_of_one_logit_of_two_classes() -> None:
    outputs = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    factor = hessian_factor(sample_losses, outputs, torch.tensor([0, 1, 0, 1, 0, 1, 1]))
    p = outputs.sigmoid()
    torch.testing.assert_close(factor[:, 0, 0].square(), (p * (1 - p))[:, 0])


def test_losses_are_checked() -> None:
    outputs, targets = torch.randn(4, 2), torch.randn(4, 2)
    with pytest.raises(InvalidInput, match=r"per sample, shape \[4\]"):
        output_gradient(lambda o, t: (o - t).square().mean(), outputs, targets)
    with pytest.raises(InvalidInput, match="loss convex"):
        hessian_factor(lambda o, t: o.cos().sum(1), torch.zeros(4, 2), targets)


@pytest.mark.parametrize("make", [plain, Residual])
def test_derivatives_by_gamma_and_beta_sample_by_sample(make: type[nn.Module]) -> None:
    network = warmed_up(make().double())
    layers = batch_norm_layers(network)
    samples = images(5)
    layouts = dict.fromkeys(layers, SampleLayout())
    subject = EvaluationData(network, layers, layouts, samples, sample_losses, 5)
    outputs, taps = tapped_forward(subject, samples.inputs)
    direction = torch.randn(5, 3, dtype=torch.float64)
    result = {
        name: (by_gamma, by_beta)
        for name, by_gamma, by_beta in derivatives_along(outputs, taps, direction)
    }
    for i in range(5):
        value = (network(samples.inputs[i : i + 1]) * direction[i]).sum()
        for name, layer in layers.items():
            by_gamma, by_beta = torch.autograd.grad(
                value, [layer.weight, layer.bias], retain_graph=True
            )
            torch.testing.assert_close(result[name][0][i], by_gamma)
            torch.testing.assert_close(result[name][1][i], by_beta)


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
    batch = u[torch.randint(0, N, (batches, size), generator=torch.Generator().manual_seed(1))]
    mean = batch.mean((1, 3))
    return mean, (batch.square().mean((1, 3)) - mean.square()).sqrt() - 1


def test_statistics_of_random_batches(u: Tensor) -> None:
    """M Var(a) = V1 exactly, the other moments in the limit of large M."""
    size = 400
    a, s = statistics_of_batches(u, size, 4000)
    noise = sums_of(u, full=True).noise_covariance()
    v1, v2, v12 = noise.rr.diagonal(), noise.pp.diagonal(), noise.rp.diagonal()
    torch.testing.assert_close(size * a.square().mean(0), v1, rtol=0.1, atol=0)
    torch.testing.assert_close(size * s.var(0), v2 / 4, rtol=0.15, atol=0)
    torch.testing.assert_close(size * (a * s).mean(0), v12 / 2, rtol=0.15, atol=0)
    torch.testing.assert_close(
        size * (1 / (1 + s) - 1).mean(0), v1 / 2 + 3 * v2 / 8, rtol=0.4, atol=0
    )
    torch.testing.assert_close(
        size * (a.T @ a) / len(a), noise.rr, rtol=0, atol=0.1 * float(v1.max())
    )


def test_covariance_of_gaussian_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    root[5] = root[4]  # singular
    covariance = root @ root.T
    blocks = SecondMoments(
        covariance[:3, :3], covariance[3:, 3:], covariance[:3, 3:], covariance[3:, :3]
    )
    diagonals = blocks.diagonals()
    pp, rr, pr, rp = (block.diag() for block in diagonals)
    by_channel = torch.cat([torch.cat([pp, pr], 1), torch.cat([rp, rr], 1)])
    for moments, expected in ((blocks, covariance), (diagonals, by_channel)):
        samples = gaussian_sampler(moments)(100_000, generator)
        tolerance = 0.03 * float(covariance.diagonal().max())
        torch.testing.assert_close(torch.cov(samples.T), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", [3, 2 * C, 2 * C + 1])
def test_noise_of_few_samples_has_their_covariance(n: int) -> None:
    u = torch.randn(n, C, 5, generator=torch.Generator().manual_seed(0))
    samples = sums_of(u, full=True).sampler()(100_000, torch.Generator().manual_seed(1))
    expected = torch.cov(torch.cat([u.square().mean(2), u.mean(2)], 1).double().T, correction=0)
    torch.testing.assert_close(
        torch.cov(samples.T), expected, rtol=0, atol=0.03 * float(expected.diagonal().max())
    )


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("affine", [True, False])
def test_the_decay_is_all_of_a_quadratic_loss_of_a_linear_network(
    covariance: str, affine: bool
) -> None:
    network = nn.Sequential(nn.BatchNorm1d(4, affine=affine), nn.Linear(4, 2)).double()
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 1] += x[:, 0]
    network(x)
    layers = gamma_decay(
        network,
        (x, x[:, :2]),
        batch_size=10,
        noise_draws=30,
        covariance=covariance,  # type: ignore[arg-type]
    )
    layer = layers["0"]
    assert layer.sampled is not None and layer.sampled.standard_error is not None
    assert 0 < layer.sampled.standard_error < 0.05 * layer.decay
    assert abs(layer.sampled - layer.decay) < 4 * layer.sampled.standard_error
    assert float(layer.predicted) == pytest.approx(layer.sampled + float(layer.first_order.sum()))
    assert layer.predicted.standard_error == layer.sampled.standard_error


def test_the_excess_includes_kinks() -> None:
    """Loss |h| at targets 0: E|h + noise| - E|h| = variance * density(0), by its kink."""
    h = torch.linspace(-3, 3, 2001, dtype=torch.float64)[:, None]
    network = nn.BatchNorm1d(1, eps=0.0).double().eval()
    assert network.running_mean is not None and network.running_var is not None
    network.running_var.fill_(1.0)

    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.abs().squeeze(1)

    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    subject = EvaluationData(
        nn.Sequential(network), {"0": network}, {"0": SampleLayout()}, Samples(h, h), absolute, 500
    )
    only_mean = SecondMoments(zero, one, zero, zero)
    sampler, generator = gaussian_sampler(only_mean), torch.Generator().manual_seed(0)
    result = even_loss_excess(
        subject, "0", sampler, h.abs().squeeze(1), scale=0.2, draws=20, generator=generator
    )
    assert result == pytest.approx(0.2**2 / 6, rel=0.1)
