from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.measures.ntk import LogDeterminant, empirical_ntk, ntk_logdet, ntk_trace
from gapscope.measures.registry import get_measure


def _network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs)).double()


def _inputs(n: int = 5) -> Tensor:
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _matrix(network: nn.Module, x: Tensor) -> Tensor:
    return empirical_ntk(network, x).flatten(2).flatten(0, 1)


def test_value_rank_and_eigenvalues() -> None:
    network, x = _network(), _inputs()
    result = ntk_logdet(network, x)
    matrix = _matrix(network, x)
    assert math.isclose(result, float(torch.linalg.slogdet(matrix).logabsdet), rel_tol=1e-10)
    assert result.rank == 15
    assert math.isclose(float(result.eigenvalues.sum()), ntk_trace(network, x), rel_tol=1e-12)
    traced = ntk_logdet(network, x, outputs="traced")
    assert math.isclose(traced, float(torch.logdet(empirical_ntk(network, x, outputs="traced"))), rel_tol=1e-10)


def test_a_duplicated_sample_is_a_gap_with_its_rank_in_either_precision() -> None:
    network, x = _network(), _inputs()
    twice = torch.cat([x, x[:1]])
    result = ntk_logdet(network, twice)
    assert result == -math.inf and result.rank == 15
    single = ntk_logdet(network.float(), twice.float(), dtype=None)
    assert single == -math.inf and single.rank == 15
    assert ntk_logdet(network, twice.float()) == -math.inf  # float64 unless told otherwise


def test_more_rows_than_weights() -> None:
    torch.manual_seed(0)
    result = ntk_logdet(nn.Linear(2, 1), torch.randn(7, 2))
    assert result == -math.inf and result.rank == 3


def test_effective_rank() -> None:
    equal = LogDeterminant(torch.ones(4, dtype=torch.float64), 0.0)
    assert math.isclose(equal.effective_rank, 4)
    single = LogDeterminant(torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64), 1e-12)
    assert math.isclose(single.effective_rank, 1) and single == -math.inf
    assert LogDeterminant(torch.zeros(2, dtype=torch.float64), 0.0).effective_rank == 0


def test_interlacing_of_the_centred_and_uncentred_scatter() -> None:
    """Paper, Sec. 2.3, with the indices mended: l_i <= l~_i <= l_(i+1), and l_1 = 0 always."""
    network, x = _network(1), _inputs(6)
    matrix = _matrix(network, x)
    n = len(matrix)
    centring = torch.eye(n, dtype=matrix.dtype) - 1 / n
    centred = torch.linalg.eigvalsh(centring @ matrix @ centring)
    uncentred = ntk_logdet(network, x).eigenvalues
    slack = 1e-12 * float(uncentred[-1])
    assert abs(float(centred[0])) < slack
    assert bool((centred <= uncentred + slack).all())
    assert bool((uncentred[:-1] <= centred[1:] + slack).all())


def test_trace_and_pseudo_determinant_of_the_centred_scatter() -> None:
    """tr C = tr K - n |mean J|^2 and pdet C = det K (1' K^-1 1) / n."""
    network, x = _network(1), _inputs(6)
    parameters = list(network.parameters())
    rows = []
    for output in network(x)[:, 0]:
        gradients = torch.autograd.grad(output, parameters, retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    jacobian = torch.stack(rows)
    centred = jacobian - jacobian.mean(0)
    spectrum = torch.linalg.eigvalsh(centred @ centred.T)[1:]
    trace = ntk_trace(network, x) - 6 * float(jacobian.mean(0).square().sum())
    assert math.isclose(trace, float(spectrum.sum()), rel_tol=1e-12)
    ones = torch.ones(6, dtype=torch.float64)
    inner = float(ones @ torch.linalg.solve(_matrix(network, x), ones))
    assert math.isclose(ntk_logdet(network, x) + math.log(inner / 6), float(spectrum.log().sum()), rel_tol=1e-9)


def test_scaling_the_outputs_shifts_the_log_determinant() -> None:
    network, x = _network(), _inputs()

    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    assert math.isclose(ntk_logdet(Doubled(), x), ntk_logdet(network, x) + 15 * math.log(4), rel_tol=1e-10)


def test_chunks_and_order_do_not_matter() -> None:
    network, x = _network(), _inputs()
    whole = ntk_logdet(network, x)
    assert math.isclose(ntk_logdet(network, x.flip(0), chunk_size=2), whole, rel_tol=1e-10)


def test_as_a_registered_measure_and_pickled() -> None:
    network, x = _network(), _inputs()
    readings = get_measure("ntk_logdet")(network, Samples(x))
    result = ntk_logdet(network, x)
    assert readings.values() == {
        "ntk_logdet": float(result),
        "ntk_logdet.rank": 15,
        "ntk_logdet.effective_rank": result.effective_rank,
    }
    again = pickle.loads(pickle.dumps(result))
    assert again == result and torch.equal(again.eigenvalues, result.eigenvalues)


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidInput, match="outputs must be one of"):
        ntk_logdet(_network(), _inputs(), outputs="mean")  # type: ignore[arg-type]
