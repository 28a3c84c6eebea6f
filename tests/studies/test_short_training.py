from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gapscope.measures.ntk import empirical_ntk
from gapscope_studies.expected_accuracy.pools import load_rows
from gapscope_studies.expected_accuracy.short_training import (
    RULE,
    flow_residuals,
    flow_time,
    preconditioned_kernels,
    short_training,
)
from gapscope_studies.kit.study import RunSettings


@pytest.mark.parametrize("time", [1e-3, 0.1, 3.0, 300.0])
def test_flow_equals_one_refit_per_sample(time: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(25, 6, generator=generator, dtype=torch.float64)
    kernel, b = x @ x.T + 0.5, torch.randn(25, 3, generator=generator, dtype=torch.float64)
    refits = torch.empty_like(b)
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        w, u = torch.linalg.eigh(kernel[rest][:, rest])
        # integral of exp(-K s) b over the time: what the other samples' residuals move the left-out one by
        moved = torch.where(w > 1e-9, -torch.expm1(-w * time) / w.clamp_min(1e-9), time)
        refits[i] = b[i] - kernel[i, rest] @ u @ (moved[:, None] * (u.T @ b[rest]))
    torch.testing.assert_close(flow_residuals(kernel, b, time), refits, rtol=0, atol=1e-9)


def test_time_of_the_flow_counts_every_repeated_step() -> None:
    training = {"epochs": 3, "batch_size": 50, "learning_rate": 0.1, "momentum": 0.9}
    velocity = way = 0.0
    for _ in range(9):  # 3 epochs of 3 batches, constant gradient 1
        velocity = 0.9 * velocity + 1
        way += 0.1 * velocity
    assert flow_time(training, 120) == pytest.approx(way, rel=1e-12)
    assert flow_time(training | {"momentum": 0.0}, 120) == pytest.approx(0.9)


def test_kernels_are_the_mean_ntk_and_adams() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    plain, scaled = preconditioned_kernels(network, x, y, batch_size=4)
    torch.testing.assert_close(
        plain.double(), empirical_ntk(network, x, outputs="traced") / 3, rtol=1e-5, atol=1e-6
    )
    parameters = list(network.parameters())
    losses = [
        nn.functional.cross_entropy(network(a[None]), b[None]) for a, b in zip(x, y, strict=True)
    ]
    rows = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]) for loss in losses]
    )
    scale = 1 / ((rows.mean(0).square() + rows.var(0) / 4).sqrt() + 1e-8)
    expected = torch.zeros(12, 12, dtype=torch.float64)
    for c in range(3):
        jacobian = torch.stack([
            torch.cat([g.flatten() for g in torch.autograd.grad(network(a[None])[0, c], parameters)]) for a in x
        ])  # fmt: skip
        expected += (jacobian * scale) @ jacobian.T / 3
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_judgement_averages_flow_and_ntk_on_all_stored_networks(tmp_path: Path) -> None:
    rows = load_rows("short_training").values()
    setting = RunSettings(
        scale="small", work=tmp_path, data_root=str(tmp_path), workers=1, say=lambda line: None
    )
    errors = short_training(setting).numbers["errors"]["all"]
    rule = next(row for row in errors if row["method"] == RULE)
    squares = [((row["flow"] + row["ntk"]) / 2 - row["truth"]) ** 2 for row in rows]
    assert rule["n"] == len(rows) == 40
    assert rule["RMSE"][0] == pytest.approx((sum(squares) / 40) ** 0.5)
