"""The list of kernels: a further entry reaches every verb that uses kernels of the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.statistics import baselines
from gapscope.statistics.kernel_ridge import Spectrum, spectrum

PARITY = "parity ridge"


def parity(features: Tensor, squares: Tensor | None) -> Spectrum:
    """Decompose the kernel of the product of the first two columns' signs: a rule that no smooth kernel finds."""
    del squares
    signs = (features[:, 0] * features[:, 1]).sign()[:, None]
    return spectrum((signs @ signs.T).double())


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Labels by parity among twelve columns, and one more kernel."""
    entry = baselines.InputKernel(PARITY, parity, lambda n, d, k: 1e-3)
    monkeypatch.setattr(baselines, "INPUT_KERNELS", [*baselines.INPUT_KERNELS, entry])
    x = torch.randn(120, 12, generator=torch.Generator().manual_seed(0))
    x[:, :2] += 0.5 * x[:, :2].sign()
    return x, ((x[:, 0] > 0) == (x[:, 1] > 0)).long()


def test_one_entry_reaches_the_forecast(data: tuple[Tensor, Tensor]) -> None:
    forecast = gs.forecast_accuracy(None, data)
    row = forecast.row(PARITY)
    assert row is not None and row.score > 0.9 and PARITY in repr(forecast)


def test_one_entry_reaches_label_errors(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    wrong = torch.arange(0, 120, 20)
    y[wrong] = 1 - y[wrong]
    issues = gs.find_label_issues(None, (x, y))
    assert issues.method == PARITY
    assert set(wrong.tolist()) == set(issues.indices[: len(wrong)].tolist())


def test_one_entry_reaches_held_out_predictions(data: tuple[Tensor, Tensor]) -> None:
    held = gs.out_of_sample(None, data)
    assert held.method.startswith(PARITY) and held.score > 0.9
