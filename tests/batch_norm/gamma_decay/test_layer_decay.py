"""A gamma decay at other batch sizes, with its totals and as a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batch_norm.some_networks import images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.gamma_decay.decay import gamma_decay

N, M = 30, 8


@pytest.fixture(scope="module")
def network() -> Any:
    return warmed_up(plain())


def test_another_batch_size_without_measuring(network: Any) -> None:
    decay = gamma_decay(network, images(N), batch_size=M)
    for size in (1, 2, 29):
        again = gamma_decay(network, images(N), batch_size=size)
        assert float(decay.for_batch_size(size).predicted) == pytest.approx(float(again.predicted))
        assert decay.for_batch_size(size).batch_size == size
    replaced = gamma_decay(network, images(N), batch_size=M, replacement=True)
    assert float(replaced.for_batch_size(1000).decay) == pytest.approx(float(replaced.decay) * M / 1000)
    with pytest.raises(InvalidInput, match=r"batch_size \(below the number of samples.*\[1, 29\]; got 30"):
        decay.for_batch_size(30)


def test_tables(network: Any) -> None:
    decay = gamma_decay(network, images(N), batch_size=M)
    table = decay.to_pandas()
    assert list(table.index) == ["1", "4", "8"]
    assert table["predicted"].to_numpy().sum() == pytest.approx(float(decay.predicted))
    assert "mean_zeta" in repr(decay) and len(decay) == 3


def test_totals_are_sums_over_layers_with_errors_added_in_squares(network: Any) -> None:
    exact = gamma_decay(network, images(N), batch_size=M)
    assert float(exact.decay) == pytest.approx(sum(float(layer.decay) for layer in exact.values()))
    assert exact.decay.standard_error is None
    drawn = gamma_decay(network, images(N), batch_size=M, draws=4)
    errors = torch.tensor([layer.decay.standard_error for layer in drawn.values()])
    assert drawn.decay.standard_error == pytest.approx(float(errors.square().sum().sqrt()))
