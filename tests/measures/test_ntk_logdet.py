from __future__ import annotations

import math
import pickle

import torch
from torch import Tensor, nn

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


def test_effective_rank() -> None:
    equal = LogDeterminant(torch.ones(4, dtype=torch.float64), 0.0)
    assert math.isclose(equal.effective_rank, 4)
    single = LogDeterminant(torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64), 1e-12)
    assert math.isclose(single.effective_rank, 1) and single == -math.inf
    assert LogDeterminant(torch.zeros(2, dtype=torch.float64), 0.0).effective_rank == 0


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
