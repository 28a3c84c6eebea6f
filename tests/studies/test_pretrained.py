"""Study of features of pretrained networks: the rule, the projected NTK, and the summaries."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gapscope_studies.pretrained import cells, ntk, summary
from gapscope_studies.pretrained.__main__ import RULE

BARS = {"coverage": 0.85, "forecast_minus_hold_out": 0.0, "forecast_minus_folds": 0.01,
        "labels_minus_cleanlab": -0.01, "choice_regret": 0.01, "ntk_gain": 0.01, "ntk_forecast": -0.01}  # fmt: skip


def test_the_rule_names_what_was_opened_and_compares_every_network_of_its_cells() -> None:
    rule = tomllib.loads(RULE.read_text(encoding="utf-8"))
    assert set(rule["bars"]) == set(BARS)
    assert all(settings["opened"] for settings in rule["data"].values())
    jobs = cells.jobs(rule, Path())
    for data, settings in rule["data"].items():
        for network in rule["networks"][settings["kind"]]:
            assert any(name.startswith(f"accuracy {data} {network} ") for name in jobs["accuracy"])
    assert len(jobs["labels"]) == len(rule["data"]) * len(rule["labels"]["kinds"]) * len(
        rule["labels"]["seeds"]
    )


@pytest.mark.parametrize("groups", [1, 4])
def test_projected_gradients_keep_inner_products_in_expectation(groups: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, groups=groups), nn.Tanh(), nn.Flatten(), nn.Linear(200, 3)
    )
    x, combination = torch.randn(3, 4, 5, 5), torch.tensor([1.0, -1.0, 1.0])
    convolution = network[0]
    assert isinstance(convolution, nn.Conv2d)
    gradients = []
    for row in x:
        gradient = torch.autograd.grad(
            (network(row[None]) @ combination).sum(), convolution.weight
        )[0]
        gradients.append(gradient.flatten())
    exact = torch.stack(gradients) @ torch.stack(gradients).T
    kernels = []
    for seed in range(300):
        projected = ntk.ProjectedGradients(network, seed).of(x, combination)
        kernels.append(projected @ projected.T)
    stack = torch.stack(kernels)
    error = stack.std(0) / len(kernels) ** 0.5
    assert bool(((stack.mean(0) - exact).abs() < 5 * error).all())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_accuracies_of_kernel_ridge_are_those_of_refits() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(40, dtype=torch.float64) > 0).long()
    kernel = x @ x.T
    held_out, test = ntk.ridge_accuracies(kernel, 25, y, 2)
    # the same by fitting without each sample, at every ridge
    scaled = kernel / kernel.diagonal()[:25].mean() + 1.0
    targets = nn.functional.one_hot(y[:25], 2).double()
    targets = targets - targets.mean(0)
    results = []
    for ridge in ntk.RIDGES:
        predictions = []
        for i in range(25):
            rest = [j for j in range(25) if j != i]
            system = scaled[rest][:, rest] + ridge * torch.eye(24, dtype=torch.float64)
            predictions.append(scaled[i, rest] @ torch.linalg.solve(system, targets[rest]))
        predicted = torch.stack(predictions)
        error = float((targets - predicted).square().sum())
        system = scaled[:25, :25] + ridge * torch.eye(25, dtype=torch.float64)
        on_test = (scaled[25:, :25] @ torch.linalg.solve(system, targets)).argmax(1)
        accuracies = [
            float((a == b).double().mean())
            for a, b in ((predicted.argmax(1), y[:25]), (on_test, y[25:]))
        ]
        results.append((error, *accuracies))
    assert (held_out, test) == pytest.approx(min(results)[1:])


def _cell(data: str, network: str, truth: float, forecast: float, n: int = 100) -> dict[str, Any]:
    interval = {
        "low": forecast - 0.05,
        "high": forecast + 0.05,
        "answered": True,
        "cpu_seconds": 0.5,
    }
    return {
        "data": data, "network": network, "n": n, "seed": 0, "truth": truth,
        "methods": {
            cells.FORECAST: {"value": forecast} | interval,
            cells.CURVE: {"value": truth} | interval,
            cells.FOLDS: {"value": truth - 0.01, "cpu_seconds": 2.0},
            cells.HOLD_OUT: {"value": truth + 0.1, "cpu_seconds": 0.4},
        },
        "scores": {cells.LOGME: {"value": -forecast, "cpu_seconds": 0.1}, cells.SIZE: {"value": 10, "cpu_seconds": 0}},
    }  # fmt: skip


def test_errors_coverage_and_regret_of_known_cells() -> None:
    rows = [
        _cell(data, network, truth, truth + error)
        for data, errors in {"a": (0.02, 0.02), "b": (-0.02, 0.08)}.items()
        for (network, truth), error in zip(
            {"large": 0.8, "small": 0.75}.items(), errors, strict=True
        )
    ]
    result = summary.accuracy(rows, BARS)
    forecast, _, folds, hold_out = result["overall"]
    assert forecast["error"][0] == pytest.approx(
        np.sqrt(np.mean(np.square([0.02, 0.02, 0.02, 0.08])))
    )
    assert forecast["coverage"][0] == 0.75 and forecast["bias"] == pytest.approx(0.025)
    assert folds["error"][0] == pytest.approx(0.01) and hold_out["bias"] == pytest.approx(0.1)
    assert result["bars"][0]["verdict"] == "not met"
    choice = summary.choice(rows, BARS)
    by_score = {row["score"]: row for row in choice["pretrained"]}
    # the forecast takes the small network for the better one on "b" alone: 0.83 against 0.78
    assert by_score[cells.FORECAST]["regret"][0] == pytest.approx(0.025)
    assert by_score[cells.FOLDS]["regret"][0] == 0.0 and by_score[cells.FOLDS]["best"] == 1.0
    assert by_score[cells.FOLDS]["cpu_seconds"] == 4.0


def test_differences_of_rankings_and_the_gain_of_the_ntk() -> None:
    def ranking(auroc: float) -> dict[str, float]:
        return {"auroc": auroc, "average_precision": auroc / 2, "cpu_seconds": 1.0}

    rows = [
        {
            "data": data,
            "kind": kind,
            "methods": {"ours": ranking(0.9 + shift), "cleanlab": ranking(0.9)},
        }
        for data, shift in (("a", 0.03), ("b", 0.03))
        for kind in ("even", "class-similar")
    ]
    result = summary.labels(rows, BARS)
    assert result["differences"][0]["auroc"][0] == pytest.approx(0.03)
    assert result["bars"][0]["verdict"] == "met"
    of_ntk = [
        {"data": data, "network": "n", "features": 0.9, "NTK": 0.7, "features and NTK": 0.89, "feature_seconds": 1.0,
         "ntk_seconds": 9.0} for data in ("a", "b")
    ]  # fmt: skip
    gain = summary.ntk(of_ntk, BARS)
    assert gain["gain"][0] == pytest.approx(-0.01) and gain["bars"][0]["verdict"] == "not met"
