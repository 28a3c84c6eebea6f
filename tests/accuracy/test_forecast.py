"""Forecast before training: its parts by hand, on several forms of networks, and beside trained networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.forecast import forecast_accuracy
from gapscope.accuracy.loo_rows import NETWORK_ERROR, combine_rows
from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.specs import DataSpec, TrainingSpec
from gapscope.data import prepare
from gapscope.data.problem import Problem
from gapscope.inspection.losses import evaluate
from gapscope.measures.embed import embed
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.networks import build_network
from gapscope.statistics.baselines import LooRow, linear_ridge, most_frequent_class, scored_row


def untrained(problem: Problem, name: str = "fully_connected", **options: Any) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    return build_network(
        name, input_shape=problem.input_shape, n_outputs=10, generator=generator, **options
    )


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_trained_network_reaches_the_forecast_on_equally_noisy_labels(noise: float) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=300, label_noise=noise))
    network = untrained(problem, width=64)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    forecast = forecast_accuracy(network, problem.train)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    gs.train(network, problem.train, TrainingSpec(optimizer="adam", learning_rate=0.003, epochs=40))
    clean = evaluate(network, problem.test)["accuracy"]
    # a wrong prediction meets a wrong label that happens to be the same with probability noise / 9
    same_noise = clean * (1 - noise) + (1 - clean) * noise / 9
    assert forecast.interval is not None
    assert forecast.interval[0] <= same_noise <= forecast.interval[1]


def test_rows_headline_and_interval_by_hand() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=200))
    network, train = untrained(problem, width=32), problem.train
    forecast = forecast_accuracy(network, train)
    ntk = kernel_leave_one_out(network, train.inputs, train.y)
    row, rbf = forecast.row("NTK"), forecast.row("RBF ridge")
    assert row is not None and rbf is not None and row.score == ntk.accuracy
    assert forecast.score == pytest.approx((row.score + rbf.score) / 2) and forecast.combined == (
        "RBF ridge",
        "NTK",
    )
    spread = (
        1.645 * (forecast.score * (1 - forecast.score) * (1 / 200 + 4 * NETWORK_ERROR**2)) ** 0.5
    )
    assert forecast.interval == pytest.approx(
        (forecast.score - spread, min(1, forecast.score + spread))
    )
    paired = row.correct(train.y).double() - rbf.correct(train.y).double()
    assert forecast.network_gain is not None
    assert forecast.network_gain.value == pytest.approx(float(paired.mean()))
    assert forecast.network_gain.high - forecast.network_gain.value == pytest.approx(
        1.96 * float(paired.std()) / 200**0.5
    )
    inputs: list[Tensor] = []
    hook = list(network.modules())[-1].register_forward_pre_hook(
        lambda m, x: inputs.append(x[0].detach().double())
    )
    network(train.inputs)
    hook.remove()
    hidden = forecast.row("last hidden features")
    features = (inputs[0] - inputs[0].mean(0)) / inputs[0].std(0, correction=0).mean()
    assert hidden is not None
    torch.testing.assert_close(
        hidden.predictions, linear_ridge(features, train.y, n_classes=10).predictions
    )


def test_learning_curve_ends_at_the_forecast() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=300))
    forecast = forecast_accuracy(None, problem.train)
    assert [point.samples for point in forecast.curve] == [75, 150, 300, 600]
    assert [point.extrapolated for point in forecast.curve] == [False, False, False, True]
    assert (
        forecast.curve[2].score == pytest.approx(forecast.score)
        and forecast.gain_from_doubling_data > 0
    )
    assert forecast.network_gain is None and forecast.combined == ("RBF ridge",)


def test_regression_gives_r_squared() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    forecast = forecast_accuracy(nn.Linear(3, 1), (x, x @ torch.tensor([[1.0], [2.0], [0.5]])))
    ntk = forecast.row("NTK")
    assert (
        forecast.task == "regression"
        and forecast.interval is None
        and ntk is not None
        and ntk.score > 0.99
    )


def test_new_head_has_an_output_per_class() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    network = build_network(
        "fully_connected", input_shape=problem.input_shape, n_outputs=3, width=16
    )
    forecast = forecast_accuracy(network, problem.train, head="new")
    row = forecast.row("NTK")
    assert row is not None and row.predictions.shape == (60, 10)
    with pytest.raises(InvalidInput, match="classes, 3"):
        forecast_accuracy(network, problem.train)
    row = forecast_accuracy(
        nn.Linear(64, 2), (problem.train.inputs.flatten(1), problem.train.targets), head="new"
    ).row("NTK")
    assert row is not None and row.predictions.shape == (60, 10)


def test_a_small_budget_leaves_the_ntk_out() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=300))
    forecast = forecast_accuracy(untrained(problem, width=32), problem.train, time_budget=1e-9)
    assert forecast.row("NTK") is None and "time_budget" in repr(forecast)
    assert forecast.combined == ("RBF ridge",)


def test_interrupts_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    assert not forecast_accuracy(None, problem.train).interrupted

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapscope.accuracy.forecast_curve.rbf_ridge", stop)
    forecast = forecast_accuracy(None, problem.train)
    assert forecast.interrupted and not forecast.curve and len(forecast.rows) == 4


def test_features_of_the_caller_make_a_row() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=100))
    network = untrained(problem, width=32)
    expected = forecast_accuracy(network, problem.train).row("last hidden features")
    row = forecast_accuracy(None, problem.train, features=embed(network, problem.train)).row(
        "last hidden features"
    )
    assert row is not None and expected is not None
    torch.testing.assert_close(row.predictions, expected.predictions)
    with pytest.raises(InvalidInput, match="features"):
        forecast_accuracy(None, problem.train, features=torch.ones(3, 2))


def test_a_budget_below_a_forward_pass_names_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    monkeypatch.setattr("gapscope.accuracy.loo_rows.forward_seconds", lambda _: 1000.0)
    forecast = forecast_accuracy(untrained(problem, width=16), problem.train)
    assert len(forecast.rows) == 4
    assert any("forward pass" in note and "time_budget=" in note for note in forecast.notes)


def test_rows_without_the_network_survive_a_spent_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    network = untrained(problem, width=16)
    for module in ("accuracy.loo_rows", "labels.kernel_views"):
        monkeypatch.setattr(f"gapscope.{module}.forward_seconds", lambda _: 0.0)
    # the clock runs out at the first pass after the rows of the inputs
    monkeypatch.setattr(CpuBudget, "affords", lambda *_: True)
    forecast = forecast_accuracy(network, problem.train, time_budget=1e-9)
    assert len(forecast.rows) == 4
    assert any("There are no rows of the network" in note for note in forecast.notes)
    issues = gs.find_label_issues(network, problem.train, time_budget=1e-9)
    assert any("The network was not used" in sentence for sentence in issues.sentences)


def test_rows_beyond_the_budget_are_left_out_most_expensive_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    seconds = {"linear ridge": 1.0, "RBF ridge": 2.0, "nearest neighbours": 100.0}
    for module in ("statistics.baselines", "accuracy.forecast_run"):
        monkeypatch.setattr(f"gapscope.{module}.baseline_seconds", lambda *_: seconds)
    forecast = forecast_accuracy(None, problem.train, time_budget=50)
    assert [row.method for row in forecast.rows] == [
        "most frequent class",
        "linear ridge",
        "RBF ridge",
    ]
    assert any("nearest neighbours" in note for note in forecast.notes)


def test_a_large_network_with_better_features_answers_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(120, 2, generator=generator)
    x = torch.cat([signal, 3 * torch.randn(120, 60, generator=generator)], 1)
    network = nn.Sequential(nn.Linear(62, 2), nn.Tanh(), nn.Linear(2, 2))
    with torch.no_grad():
        # "pretrained": it has learned where the signal is
        next(network.parameters()).copy_(torch.eye(2, 62))
    data = (x, (signal[:, 0] > 0).long())
    assert forecast_accuracy(network, data).combined == ("last hidden features", "NTK")
    monkeypatch.setattr("gapscope.measures.fitted_labels.MANY_PARAMETERS", 10)
    forecast = forecast_accuracy(network, data)
    assert forecast.combined == ("last hidden features",) and forecast.row("NTK") is None
    assert any("no NTK row: above 1,000,000 parameters" in note for note in forecast.notes)
    assert any("features carry" in line for line in forecast.sentences)


def test_a_large_network_without_better_features_is_forecast_by_an_estimated_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=120))
    network = untrained(problem, width=32)
    exact = forecast_accuracy(network, problem.train)
    monkeypatch.setattr("gapscope.measures.fitted_labels.MANY_PARAMETERS", 10)
    state = torch.get_rng_state()
    forecast = forecast_accuracy(network, problem.train)
    assert torch.equal(state, torch.get_rng_state())
    assert forecast.combined == ("RBF ridge", "NTK (estimate)")
    estimate, row = forecast.row("NTK"), exact.row("NTK")
    # one position per sample and all outputs: no projection remains
    assert estimate is not None and row is not None
    assert estimate.score == pytest.approx(row.score, abs=0.01)
    assert "The NTK is estimated from 256 projections per weight." in forecast.notes
    assert forecast.network_gain is not None
    few = forecast_accuracy(network, problem.train, time_budget=1e-3)
    assert few.row("NTK") is None


@pytest.mark.parametrize("name", ["kernel_leave_one_out", "extract_features"])
def test_interrupts_keep_the_finished_rows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    problem, _ = prepare(DataSpec(name="digits", train_size=60))
    monkeypatch.setattr(f"gapscope.accuracy.loo_rows.{name}", stop)
    forecast = forecast_accuracy(untrained(problem, width=16), problem.train)
    assert len(forecast.rows) == (5 if name == "kernel_leave_one_out" else 4)
    assert forecast.row("NTK") is None and "Interrupted" in forecast.notes[-1]
    monkeypatch.setattr("gapscope.accuracy.forecast_run.loo_baselines", stop)
    with pytest.raises(KeyboardInterrupt):
        forecast_accuracy(None, problem.train)


def _clusters(n: int, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors of three overlapping classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    centres = torch.randn(3, d, generator=generator)
    return centres[labels] + torch.randn(n, d, generator=generator), labels


@pytest.mark.thorough
def test_the_interval_of_vectors_by_hand_and_narrower_with_more_samples() -> None:
    widths = []
    for n in (60, 400, 1600):
        forecast = forecast_accuracy(None, _clusters(n))
        first, _, last, _ = forecast.curve
        growth = max((last.score - first.score) / 2, 0.0)
        s = forecast.score
        below = (s * (1 - s) * (2.5**2 / n + 0.065**2) + growth**2) ** 0.5
        above = (s * (1 - s) * (1.3**2 / n + 0.085**2) + (0.3 * growth) ** 2) ** 0.5
        assert forecast.interval == pytest.approx((s - below, min(1, s + above)))
        widths.append(below + above)
    assert widths[0] > 1.5 * widths[1] > 1.8 * widths[2]


def test_images_and_forecasts_without_a_curve_keep_the_interval_of_networks() -> None:
    x, y = _clusters(400, 16)
    of_vectors = forecast_accuracy(None, (x, y)).interval
    images = forecast_accuracy(None, (x.reshape(400, 1, 4, 4), y))
    assert of_vectors is not None and images.interval is not None
    spread = 1.645 * (images.score * (1 - images.score) * (1 / 400 + 4 * NETWORK_ERROR**2)) ** 0.5
    assert images.interval[0] == pytest.approx(images.score - spread)
    assert of_vectors[1] - of_vectors[0] < images.interval[1] - images.interval[0]


@pytest.mark.parametrize(("n_right", "has_ntk", "wide", "combined"),
                         [(90, False, True, ["linear ridge", "RBF ridge"]), (82, False, True, ["RBF ridge"]),
                          (90, False, False, ["RBF ridge"]), (90, True, True, ["RBF ridge", "NTK"])])  # fmt: skip
def test_a_significantly_better_linear_ridge_joins_the_forecast(
    n_right: int, has_ntk: bool, wide: bool, combined: list[str]
) -> None:
    labels = torch.arange(100) % 2

    def row(method: str, right: int) -> LooRow:
        predicted = torch.where(torch.arange(100) < right, labels, 1 - labels)
        return scored_row(
            method, "inputs", torch.nn.functional.one_hot(predicted, 2).double(), labels
        )

    rows = [most_frequent_class(labels), row("linear ridge", n_right), row("RBF ridge", 80)]
    rows += [row("NTK", 80)] * has_ntk
    assert [each.method for each in combine_rows(rows, labels, wide=wide)] == combined


def test_data_in_place_of_the_network_are_named() -> None:
    with pytest.raises(InvalidInput, match="network comes first"):
        gs.forecast_accuracy(torch.randn(20, 3), torch.arange(20) % 2)  # pyright: ignore[reportArgumentType]
