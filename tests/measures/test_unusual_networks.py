"""Unusual networks: complex weights, compiled, pruned, with constants in another precision."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.margin_signature import margin_signature
from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.measures.parameters import distance_from_initialization, parameter_norm
from gapscope.measures.training_fit import accuracy
from gapscope.penalties.gradient_norms import InputJacobianPenalty, LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from gradients.reference import CASES, Wrapped, dense_jacobian, trainable

DOUBLE = torch.float64


class Filter(nn.Module):
    """A Fourier filter with complex weights, or with its real and imaginary parts as real weights."""

    def __init__(self, weight: Tensor, *, parts: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_real(weight).clone() if parts else weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return torch.fft.irfft(torch.fft.rfft(x) * weight, n=6)


class ComplexHead(nn.Module):
    """A complex linear layer, whose outputs become real."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2, dtype=torch.complex128)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.to(torch.complex128)).abs()


def filters() -> tuple[nn.Module, nn.Module]:
    """The same network with complex weights and with pairs of real ones."""
    torch.manual_seed(0)
    ends, weight = (
        (nn.Linear(6, 6).double(), nn.Linear(6, 2).double()),
        torch.randn(4, dtype=torch.complex128),
    )
    made = [
        nn.Sequential(ends[0], Filter(weight, parts=parts), nn.Tanh(), ends[1])
        for parts in (False, True)
    ]
    return copy.deepcopy(made[0]), copy.deepcopy(made[1])


def test_complex_weights_count_both_their_parts() -> None:
    network, pairs = filters()
    x = torch.randn(4, 6, dtype=DOUBLE)
    torch.testing.assert_close(empirical_ntk(network, x), empirical_ntk(pairs, x))
    for options in ({}, {"method": "probe"}):
        assert ntk_trace(network, x, **options) == pytest.approx(ntk_trace(pairs, x, **options))
    assert ntk_logdet(network.float(), x.float()) == pytest.approx(
        ntk_logdet(pairs.float(), x.float()), rel=1e-6
    )
    assert parameter_norm(network) == pytest.approx(parameter_norm(pairs))


def test_distance_of_complex_weights() -> None:
    network, pairs = filters()
    before = [copy.deepcopy(net.state_dict()) for net in (network, pairs)]
    with torch.no_grad():
        network.get_parameter("1.weight").add_(1 - 2j)
        pairs.get_parameter("1.weight").add_(torch.tensor([1.0, -2.0]))
    far = [
        distance_from_initialization(net, initial_state=start)
        for net, start in zip((network, pairs), before, strict=True)
    ]
    assert far[0] == pytest.approx(far[1]) and far[0] == pytest.approx((4 * 5) ** 0.5)
    with pytest.raises(InvalidInput, match="state dictionary"):
        distance_from_initialization(
            network, initial_state={**before[0], "1.weight": torch.zeros(4)}
        )


@pytest.mark.parametrize(
    "penalty",
    [
        GradientSimilarityPenalty(1.0, method="exact"),
        GradientSimilarityPenalty(1.0, kind="logdet"),
        GradientSimilarityPenalty(1.0, probe="batch_sum"),
        LossGradientPenalty(1.0),
        InputJacobianPenalty(1.0, method="exact"),
        L2Penalty(1.0),
    ],
    ids=lambda penalty: type(penalty).__name__,
)
def test_penalties_of_complex_weights_are_real_with_the_right_gradient(penalty: Any) -> None:
    x, y = torch.randn(4, 6, dtype=DOUBLE), torch.randint(2, (4,))
    values, gradients = [], []
    for network in filters():
        value = copy.deepcopy(penalty)(network, x, y)
        result = torch.autograd.grad(value, trainable(network), materialize_grads=True)
        values.append(value)
        gradients.append([torch.view_as_real(g) if g.is_complex() else g for g in result])
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_complex_linear_layer_and_complex_outputs() -> None:
    network = nn.Sequential(nn.Linear(6, 6).double(), ComplexHead())
    x = torch.randn(3, 6, dtype=DOUBLE)
    rows = [
        torch.autograd.grad(out, trainable(network), retain_graph=True)
        for out in network(x).flatten()
    ]
    assert ntk_trace(network, x) == pytest.approx(
        sum(float(g.abs().square().sum()) for row in rows for g in row)
    )
    with pytest.raises(InvalidInput, match=r"must be floating point .*got torch\.complex64"):
        ntk_trace(nn.Linear(3, 2, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64))


def _old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 2)))


def _pruned() -> nn.Module:
    layer = nn.Linear(4, 2)
    prune.l1_unstructured(layer, "weight", 0.3)
    return nn.Sequential(layer)


def _constants() -> nn.Module:
    constant = torch.randn(4, 2)
    return Wrapped(lambda net, x: net.layer(x).float() @ constant, layer=nn.Linear(4, 4))


@pytest.mark.parametrize(
    "make", [_old_weight_norm, _pruned, _constants, lambda: CASES["patched forward"].build()]
)
def test_double_precision_of_networks_that_cannot_be_copied(make: Any) -> None:
    network, x = make(), torch.randn(3, 4)
    network(x)
    jacobian = dense_jacobian(network, x).double()
    expected = torch.einsum("ncp,mdp->ncmd", jacobian, jacobian)
    torch.testing.assert_close(
        empirical_ntk(network, x, dtype=DOUBLE), expected, rtol=1e-4, atol=1e-4
    )
    assert float(ntk_logdet(network, x).eigenvalues.sum()) == pytest.approx(
        float(jacobian.square().sum()), rel=1e-5
    )
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def test_a_compiled_network_has_the_layers_of_the_plain_one() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(30, 4)
    y = plain(x).argmax(1)
    compiled: Any = torch.compile(plain, backend="eager")
    compiled(x)
    for result in (margin_signature(compiled, x, y), margin_signature(plain, x, y)):
        assert result.layers == ("input", "0", "2")
    assert ntk_trace(compiled, x) == ntk_trace(plain, x)


def test_outputs_that_do_not_depend_on_the_inputs() -> None:
    network = Wrapped(
        lambda net, x: net.bias.expand(len(x), 2) * 1.0, bias=nn.Parameter(torch.ones(2))
    )
    x = torch.randn(3, 4)
    assert input_jacobian_norm(network, x) == 0
    value = InputJacobianPenalty(1.0)(network, x)
    value.backward()
    assert float(value.detach()) == 0


def test_outputs_detached_from_the_inputs_are_not_zero() -> None:
    network = Wrapped(lambda net, x: net.layer(x.detach()), layer=nn.Linear(4, 2))
    with pytest.raises(NotMeasurable, match="not connected to them"):
        input_jacobian_norm(network, torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
def test_a_traced_network_has_one_precision() -> None:
    x = torch.randn(3, 4)
    traced: Any = torch.jit.trace(nn.Linear(4, 2), (x,))
    with pytest.raises(InvalidInput, match="network that TorchScript"):
        ntk_logdet(nn.Sequential(traced), x)
    with pytest.raises(InvalidInput, match=r"TopLevelTracedModule.*must be an nn.Module"):
        ntk_logdet(traced, x)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_rejected(number: float) -> None:
    network, x, y = nn.Linear(4, 2), torch.randn(3, 4), torch.tensor([0, 1, 0])
    penalty = InputJacobianPenalty(1.0)
    penalty(network, x)
    with torch.no_grad():
        network.weight[0, 1] = number
    for measure in (ntk_trace, accuracy, parameter_norm):
        with pytest.raises(InvalidInput, match="finite; 'weight' holds NaN"):
            measure(
                network,
                *((x, y) if measure is accuracy else () if measure is parameter_norm else (x,)),
            )
    with pytest.raises(InvalidInput, match=r"finite; '0\.weight' holds NaN"):
        GradientSimilarityPenalty(1.0)(nn.Sequential(network), x)
    assert not penalty(network, x).isfinite()  # a training that has diverged knows what to do
