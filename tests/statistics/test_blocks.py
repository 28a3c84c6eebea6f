"""Kernels of many rows in blocks: the results of the whole matrices."""

from __future__ import annotations

import pytest
import torch

from gapscope.statistics import baselines, kernel_ridge
from gapscope.statistics.baselines import rbf_ridge
from gapscope.statistics.kernel_ridge import (
    BlockedSpectrum,
    linear_spectrum,
    loo_predictions,
    nystroem_spectrum,
    select_ridge,
)

N = 300
X = torch.randn(N, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.stack([X[:, 0] * X[:, 1], X.sum(1)], 1)


@pytest.fixture
def _in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 100)
    monkeypatch.setattr(kernel_ridge, "BLOCK_ROWS", 64)


def columns() -> torch.Tensor:
    return torch.cdist(X, X[:40]).square().div(-4).exp()


@pytest.mark.usefixtures("_in_blocks")
def test_nystroem_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    k = columns()
    blocked = nystroem_spectrum(k.__getitem__, k[:40], N)
    assert isinstance(blocked, BlockedSpectrum) and len(blocked) == N
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 10**6)
    whole = nystroem_spectrum(k.__getitem__, k[:40], N)
    torch.testing.assert_close(blocked.values, whole.values)
    first, second = (loo_predictions(kernel, Y, 0.1) for kernel in (blocked, whole))
    torch.testing.assert_close(first.predictions, second.predictions)
    assert first.squared_error == pytest.approx(second.squared_error)
    assert first.effective_dimension == pytest.approx(second.effective_dimension)
    assert first.largest_leverage == pytest.approx(second.largest_leverage)
    ridges = (1e-4, 1e-2, 1.0)
    assert select_ridge(blocked, Y, ridges)[0] == select_ridge(whole, Y, ridges)[0]


@pytest.mark.usefixtures("_in_blocks")
def test_linear_kernel_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = linear_spectrum(X)
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 10**6)
    predictions = loo_predictions(linear_spectrum(X), Y, 0.1).predictions
    torch.testing.assert_close(loo_predictions(blocked, Y, 0.1).predictions, predictions)


@pytest.mark.usefixtures("_in_blocks")
def test_the_ridge_is_selected_on_a_part_of_the_rows_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 150)
    monkeypatch.setattr(kernel_ridge, "MAX_BYTES_OF_RIDGES", 0)
    k = columns()
    blocked = nystroem_spectrum(k.__getitem__, k[:40], N)
    rows = torch.cat([torch.arange(N)[part] for part in kernel_ridge.row_blocks(N)[::2]])
    ridges = (1e-4, 1e-2, 1.0)
    errors = [
        float((loo_predictions(blocked, Y, r * blocked.mean).predictions - Y)[rows].square().sum())
        for r in ridges
    ]
    assert select_ridge(blocked, Y, ridges)[0] == ridges[errors.index(min(errors))]


def test_rbf_ridge_of_many_rows_has_the_score_of_the_whole_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(baselines, "MAX_EXACT", 100)
    monkeypatch.setattr(baselines, "N_LANDMARKS", 50)
    whole = rbf_ridge(X, Y)
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", N - 1)
    monkeypatch.setattr(kernel_ridge, "BLOCK_ROWS", 64)
    assert rbf_ridge(X, Y).score == pytest.approx(whole.score)
