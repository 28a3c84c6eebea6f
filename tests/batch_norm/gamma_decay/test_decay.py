"""Gamma decay against dense computations on a small network, and its options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.gamma_decay.decay import Covariance, gamma_decay
from gapscope.batch_norm.refresh import refresh_population

N, M = 30, 8
FACTOR = (N - M) / (M * (N - 1))


@pytest.fixture(scope="module")
def network() -> Any:
    network = warmed_up(plain())
    refresh_population(network, images(N), layers=["1", "4", "8"])
    return network


def normalized(network: Any, name: str) -> Tensor:
    """u [n, C, positions] of one layer."""
    recorded = []
    with torch.no_grad():
        hook = network.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs: recorded.append(inputs[0])
        )
        network(images(N).inputs)
        hook.remove()
    h, layer = recorded[0], network.get_submodule(name)
    h = h.flatten(2) if h.ndim > 2 else h[..., None]
    return (h - layer.running_mean[:, None]) / (layer.running_var + layer.eps).sqrt()[:, None]


def per_sample_derivatives(network: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return each sample's Jacobian [n, K, 2C] and loss gradient [n, 2C] by (gamma, beta)."""
    samples, layer = images(N), network.get_submodule(name)
    values = torch.cat([layer.weight, layer.bias]).detach()
    c = len(layer.weight)

    def outputs(values: Tensor, x: Tensor) -> Tensor:
        parameters = {f"{name}.weight": values[:c], f"{name}.bias": values[c:]}
        return torch.func.functional_call(network, parameters, (x[None],))[0]

    jacobian = torch.stack([torch.func.jacrev(outputs)(values, x) for x in samples.inputs])
    predicted = network(samples.inputs).softmax(1).detach()
    score = predicted - nn.functional.one_hot(samples.y, 3)
    return jacobian.detach(), torch.einsum("nk,nkc->nc", score, jacobian).detach()


def dense(network: Any, name: str) -> dict[str, Tensor]:
    """Compute one layer's decay by definition, for batches of one sample with replacement."""
    u = normalized(network, name)
    jacobian, gradient = per_sample_derivatives(network, name)
    p = network(images(N).inputs).softmax(1).detach()
    by_outputs = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    curvature = torch.einsum("nka,nkl,nlb->ab", jacobian, by_outputs, jacobian) / N
    # first order of (1/(1+s) - 1, -a) of a batch of one
    noise = torch.cat([-u.square().mean(2) / 2, -u.mean(2)], 1)
    noise = noise - noise.mean(0)
    gamma = network.get_submodule(name).weight.detach()
    both = (noise.T @ noise / N) * curvature / 2
    c = len(gamma)
    coupling = both[:c, :c] + both[:c, c:] + both[c:, :c] + both[c:, c:]
    v1, v2, v12 = (
        noise[:, c:].square().mean(0),
        4 * noise[:, :c].square().mean(0),
        2 * (noise[:, c:] * noise[:, :c]).mean(0),
    )
    mean = gradient.mean(0)
    independent = gamma * ((v1 / 2 + 3 * v2 / 8) * mean[:c] + v12 / 2 * mean[c:])
    in_own_batch = (noise * (gradient - mean)).mean(0)
    return {
        "coupling": coupling, "in_batch": independent + gamma * (in_own_batch[:c] + in_own_batch[c:]),
        "h_gamma": curvature[:c, :c].diagonal(), "h_beta": curvature[c:, c:].diagonal(), "v1": v1, "v2": v2, "v12": v12,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["1", "4", "8"])
@pytest.mark.parametrize("chunk_size", [7, 100])
def test_against_the_definition(network: Any, name: str, chunk_size: int) -> None:
    result = gamma_decay(network, images(N), batch_size=M, chunk_size=chunk_size)[name]
    expected = dense(network, name)
    torch.testing.assert_close(result.coupling, FACTOR * expected["coupling"])
    torch.testing.assert_close(result.zeta, FACTOR * expected["coupling"].diagonal())
    torch.testing.assert_close(result.first_order, FACTOR * expected["in_batch"])
    torch.testing.assert_close(result.curvature_gamma, expected["h_gamma"])
    torch.testing.assert_close(result.curvature_beta, expected["h_beta"])
    torch.testing.assert_close(result.mean_variance, FACTOR * expected["v1"])
    torch.testing.assert_close(result.std_variance, FACTOR * expected["v2"] / 4)
    torch.testing.assert_close(result.covariance, FACTOR * expected["v12"] / 2)
    gamma = network.get_submodule(name).weight.detach()
    assert float(result.decay) == pytest.approx(
        float(FACTOR * gamma @ expected["coupling"] @ gamma)
    )
    assert result.predicted == pytest.approx(float(result.decay) + float(result.first_order.sum()))
    assert result.decay.exact and bool((torch.linalg.eigvalsh(result.coupling) > -1e-12).all())


def test_full_and_diagonal_have_the_same_zeta(network: Any) -> None:
    full = gamma_decay(network, images(N), batch_size=M)
    diagonal = gamma_decay(network, images(N), batch_size=M, covariance="diagonal")
    for name, layer in diagonal.items():
        torch.testing.assert_close(layer.zeta, full[name].zeta)
        torch.testing.assert_close(layer.first_order, full[name].first_order)
        torch.testing.assert_close(layer.curvature_cross, full[name].curvature_cross)
        assert layer.coupling is None
        assert float(layer.decay) == pytest.approx(float((layer.zeta * layer.gamma.square()).sum()))


def test_fully_connected_statistics_are_those_of_the_paper(network: Any) -> None:
    layer = gamma_decay(network, images(N), batch_size=M, replacement=True)["8"]
    shrunk = network[8].running_var / (network[8].running_var + network[8].eps)
    torch.testing.assert_close(layer.mean_variance, shrunk / M)
    torch.testing.assert_close(
        layer.std_variance, shrunk**2 * (layer.excess_kurtosis + 2) / (4 * M)
    )
    torch.testing.assert_close(layer.covariance, shrunk**1.5 * layer.skewness / (2 * M))


def test_gauss_newton_of_a_relu_network_is_its_hessian(network: Any) -> None:
    samples, network = images(N), copy.deepcopy(network)
    network[9] = nn.ReLU()
    for name, layer in gamma_decay(network, samples, batch_size=M, covariance="diagonal").items():
        for part, curvature in (("weight", layer.curvature_gamma), ("bias", layer.curvature_beta)):

            def loss(values: Tensor, parameter: str = f"{name}.{part}") -> Tensor:
                outputs = torch.func.functional_call(
                    network, {parameter: values}, (samples.inputs,)
                )
                return nn.functional.cross_entropy(outputs, samples.y)

            hessian = torch.autograd.functional.hessian(
                loss, network.get_parameter(f"{name}.{part}").detach()
            )
            torch.testing.assert_close(curvature, torch.as_tensor(hessian).diagonal())


def test_squared_score_is_the_printed_fisher_information(network: Any) -> None:
    result = gamma_decay(
        network, images(N), batch_size=M, curvature="squared_score", covariance="diagonal"
    )
    for name, layer in result.items():
        _, gradient = per_sample_derivatives(network, name)
        c = len(layer.gamma)
        torch.testing.assert_close(layer.curvature_gamma, gradient[:, :c].square().mean(0))
        torch.testing.assert_close(layer.curvature_beta, gradient[:, c:].square().mean(0))
        torch.testing.assert_close(
            layer.curvature_cross, (gradient[:, :c] * gradient[:, c:]).mean(0)
        )


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_draws_agree_within_their_standard_error(network: Any, covariance: Covariance) -> None:
    exact = gamma_decay(network, images(N), batch_size=M, covariance=covariance)
    estimate = gamma_decay(network, images(N), batch_size=M, draws=64, covariance=covariance)
    for name, layer in estimate.items():
        error = layer.decay.standard_error
        assert error is not None and 0 < error < 0.5 * abs(exact[name].decay)
        assert abs(layer.decay - exact[name].decay) < 4 * error
    assert float(exact.decay) == pytest.approx(sum(float(layer.decay) for layer in exact.values()))
    assert exact.decay.standard_error is None
    errors = torch.tensor([layer.decay.standard_error for layer in estimate.values()])
    assert estimate.decay.standard_error == pytest.approx(float(errors.square().sum().sqrt()))
    assert estimate.predicted.standard_error == pytest.approx(estimate.decay.standard_error)


def test_draws_do_not_depend_on_chunks_and_repeat(network: Any) -> None:
    one = gamma_decay(network, images(N), batch_size=M, draws=3, noise_draws=2, chunk_size=7)
    other = gamma_decay(network, images(N), batch_size=M, draws=3, noise_draws=2, chunk_size=30)
    third = gamma_decay(
        network, images(N), batch_size=M, draws=3, generator=torch.Generator().manual_seed(1)
    )
    assert (
        float(one.decay) == pytest.approx(float(other.decay)) != pytest.approx(float(third.decay))
    )
    for name in one:
        assert float(one[name].predicted) == pytest.approx(float(other[name].predicted))
    assert one.for_batch_size(4)["1"].sampled is None


def test_in_place_activations_and_forward_order() -> None:
    network: Any = warmed_up(Residual().double())
    result = gamma_decay(network, images(N), batch_size=M)
    assert list(result) == ["norm1", "norm2", "last"]
    network.relu = nn.ReLU()
    assert float(gamma_decay(network, images(N), batch_size=M).decay) == pytest.approx(
        float(result.decay)
    )


def test_no_trace_is_left(network: Any) -> None:
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    network.zero_grad()
    state = torch.get_rng_state()
    gamma_decay(network, images(N), batch_size=M, draws=2)
    assert network.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )
    network.eval()


def test_another_batch_size_without_measuring(network: Any) -> None:
    decay = gamma_decay(network, images(N), batch_size=M)
    for size in (1, 2, 29):
        again = gamma_decay(network, images(N), batch_size=size)
        assert float(decay.for_batch_size(size).predicted) == pytest.approx(float(again.predicted))
        assert decay.for_batch_size(size).batch_size == size
    replaced = gamma_decay(network, images(N), batch_size=M, replacement=True)
    assert float(replaced.for_batch_size(1000).decay) == pytest.approx(
        float(replaced.decay) * M / 1000
    )
    with pytest.raises(InvalidInput, match=r"samples.*\[1, 29\]; got 30"):
        decay.for_batch_size(30)
