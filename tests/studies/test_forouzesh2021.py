from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from gapscope.inspection.outputs import network_outputs
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope_studies.forouzesh2021 import STUDY, figures, tables
from gapscope_studies.forouzesh2021.analysis import over_predicted, relation, relation_claim
from gapscope_studies.forouzesh2021.grids import make_grid
from gapscope_studies.forouzesh2021.networks import (
    average_runs,
    by_draw,
    fit_temperature,
    load_run,
    load_samples,
    measure_run,
    measure_runs,
)
from gapscope_studies.kit.study import RunSettings
from support.smoke_studies import SmokeStudy


@pytest.fixture
def study(smoke: Callable[[str], SmokeStudy]) -> SmokeStudy:
    return smoke("forouzesh2021")


@pytest.fixture
def setting(study: SmokeStudy) -> RunSettings:
    """With the networks of one grid trained and measured."""
    study.content("fig2b")
    return study.setting


@pytest.mark.thorough
def test_no_network_is_trained_twice(study: SmokeStudy) -> None:
    for part in ("fig2b", "mnist", "cifar100"):
        study.content(part)
    grids: dict[str, str] = {
        part.name: part.run.keywords["grid"]
        for part in STUDY.parts
        if isinstance(part.run, partial)
    }
    with study.lock:  # another process may be in the middle of a part
        done = study.done()
        trained = {path.name for path in (study.setting.work / "networks" / "runs").iterdir()}
        measured = {path.stem for path in (study.setting.work / "measurements").iterdir()}
    expected = [
        {spec.id for item in make_grid(study.setting, grids[part]) for spec in item.specs()}
        for part in done
    ]
    assert trained == set().union(*expected) and len(trained) < sum(map(len, expected))
    assert measured == trained


@pytest.mark.thorough
def test_measures_the_trained_network_on_the_whole_test_split(setting: RunSettings) -> None:
    spec = make_grid(setting, "by_depth")[0].specs()[1]
    problem, test = load_samples(setting, spec)
    assert len(problem.test) == 500 and len(test) == 100 and len(problem.train) == 50
    network, row = load_run(setting, spec, problem), measure_run(setting, spec)
    assert row["s_after"] == float(output_sensitivity(network, test.inputs))
    outputs = network_outputs(network, test.inputs)
    right = (outputs.argmax(1) == test.y).double().mean()
    assert row["test_accuracy"] == pytest.approx(float(right), abs=1e-12)
    loss = torch.nn.functional.cross_entropy(outputs.double(), test.y)
    assert row["test_loss"] == pytest.approx(float(loss), rel=1e-12)
    assert row["s_before"] != row["s_after"] != row["s_per_output"]


@pytest.mark.thorough
def test_points_average_the_numbers_and_not_their_logarithms(setting: RunSettings) -> None:
    table = measure_runs(setting, make_grid(setting, "by_depth"))
    means = average_runs(table)
    first = table[table["configuration"] == 0]
    assert len(first) == 2 and means.loc[0, "runs"] == 2
    assert means.loc[0, "s_after"] == pytest.approx(first["s_after"].mean())
    assert means.loc[0, "s_after_max"] == first["s_after"].max()


@pytest.mark.thorough
def test_bias_and_variance_add_up_to_the_squared_error(study: SmokeStudy) -> None:
    for point in study.content("fig10cd")["numbers"]["points"]:
        # test_loss is a mean over outputs, the decomposition a sum; both are stored with six digits
        assert point["bias"] + point["variance"] == pytest.approx(
            point["outputs"] * point["test_loss"], rel=1e-4
        )


def test_the_authors_numbers_are_listed_next_to_ours() -> None:
    row = tables.authors_row(200, "test_loss", pandas.Series([35511.0, 35511.0 + 2 * 3551.0]))
    assert row["authors"] == 35511 and row["ours"] == 35511 + 3551 and row["our deviation"] == 3551
    assert row["deviations apart"] == pytest.approx(1 / math.sqrt(2))
    assert tables.authors_row(500, "test_accuracy", pandas.Series([0.291]))[
        "ours"
    ] == pytest.approx(29.1)


def test_the_authors_protocol_is_that_of_their_code() -> None:
    at_paper = make_grid(RunSettings(scale="paper", work=Path()), "authors")
    assert [item.spec.network.options for item in at_paper] == [
        {"n_hidden": 4, "width": w} for w in (200, 300, 500)
    ]
    at_small = make_grid(RunSettings(scale="small", work=Path()), "authors")
    assert at_small[0].spec == at_paper[0].spec and len(at_paper[0].specs()) == 10
    training = at_paper[0].spec.training
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("adam", 1e-3, 128)
    assert (training.epochs, training.stop_at_train_loss, training.stop_epochs) == (2000, 1e-5, 10)
    assert at_paper[0].spec.data.train_size == 1000


@pytest.mark.parametrize(
    ("ours", "runs", "outcome"), [(36000.0, 10, "held"), (60000.0, 10, "not held"), (41000.0, 10, "open"),
                                  (35600.0, 2, "open")]
)  # fmt: skip
def test_a_mean_is_compared_as_a_ratio_with_bounds(ours: float, runs: int, outcome: str) -> None:
    result = {"quantity": "test_loss", "width": 200, "authors": 35511.0, "deviation": 3551.0, "ours": ours,
             "our deviation": 3000.0, "runs": runs}  # fmt: skip
    claim = tables.same_mean(result)
    assert claim.value == pytest.approx(ours / 35511) and claim.outcome == outcome


def test_the_ratio_of_means_has_welchs_interval() -> None:
    generator = numpy.random.default_rng(0)
    first, second = generator.normal(100, 1, 10), generator.normal(100, 2, 10)
    row = {"quantity": "L", "width": 1, "ours": first.mean(), "our deviation": first.std(), "runs": 10,
           "authors": second.mean(), "deviation": second.std()}  # fmt: skip
    claim = tables.same_mean(row)
    # deviations of 1 and 2 % of the mean: the logarithms of the values are as normal as the values
    welch: Any = stats.ttest_ind(
        numpy.log(first), numpy.log(second), equal_var=False
    ).confidence_interval()
    assert (math.log(claim.low), math.log(claim.high)) == pytest.approx(
        (welch.low, welch.high), abs=1e-3
    )


def test_a_lower_loss_has_the_accuracy_beside_it() -> None:
    def of(loss: float, accuracy: float) -> pandas.DataFrame:
        draws = pandas.DataFrame(
            {"s_after": 1.0, "test_loss": loss, "test_accuracy": accuracy}, index=range(6)
        )
        return pandas.DataFrame([{
            "family": "a", "draws": draws, "train_accuracy": 1.0, "train_loss": 0.0, "outputs": 10, "curve": [],
            "loss curve": [], "stopped": True, "test_accuracy": accuracy,
        }])  # fmt: skip

    low, high = of(1.0, 0.15), of(10.0, 0.2)
    _, loss, control = figures._both(
        "Fig. 0", "the first has a lower {}", low, high, "first over second"
    )
    assert (loss.value, loss.outcome, control.ours) == (-1.0, "held", True)
    assert (control.value, control.outcome) == (pytest.approx(-5.0), "not held")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_larger_scales_hold_the_marked_pairs(scale: str) -> None:
    there = RunSettings(scale=scale, work=Path())
    pairs = [
        (item.spec.network.options["n_hidden"], item.spec.network.options["width"])
        for item in make_grid(there, "by_depth")
    ]
    deep, deeper = {"small": ((4, 200), (5, 80)), "paper": ((4, 500), (5, 165))}[scale]
    assert deep in pairs and deeper in pairs
    assert (deep[1] / 2) ** deep[0] == pytest.approx((deeper[1] / 2) ** deeper[0], rel=0.03)
    sizes = [item.spec.network.options for item in make_grid(there, "against_convolutions")]
    assert {"n_hidden": 2, "width": 140} in sizes and {
        "n_conv": 1,
        "channels": 5,
        "hidden": 100,
    } in sizes


def test_relation_agrees_with_least_squares_and_finds_the_slope() -> None:
    rng = numpy.random.default_rng(1)
    s = numpy.exp(rng.normal(0, 3, 40))
    loss = 2 * numpy.sqrt(s) * numpy.exp(rng.normal(0, 0.1, 40))
    result = relation(pandas.DataFrame({"s": s, "loss": loss}), "s", "loss")
    assert result["slope"] == pytest.approx(
        numpy.polyfit(numpy.log(s), numpy.log(loss), 1)[0], rel=1e-9
    )
    assert result["rho"] == pytest.approx(
        numpy.corrcoef(numpy.log(s), numpy.log(loss))[0, 1], rel=1e-9
    )
    assert result["rho_raw"] == pytest.approx(numpy.corrcoef(s, loss)[0, 1], rel=1e-9)
    assert result["slope_low"] < 0.5 < result["slope_high"] < result["slope_low"] + 0.1


def test_relation_leaves_out_what_has_no_logarithm() -> None:
    table = pandas.DataFrame(
        {"s": [1.0, 4.0, 9.0, 0.0, math.nan], "loss": [1.0, 2.0, 3.0, 4.0, 5.0]}
    )
    assert relation(table, "s", "loss")["n"] == 3
    assert math.isnan(relation(table.head(2), "s", "loss")["rho"])


def test_equation_9_is_met_by_what_it_predicts() -> None:
    # sqrt(1/2 * 9/10 * S * 0.25 / 0.01)
    s = 8.0
    loss = math.sqrt(0.45 * s * 25)
    table = pandas.DataFrame(
        {"s_after": [s], "test_loss": [2 * loss], "outputs": [10.0], "mean_square_input": [0.25]}
    )
    assert over_predicted(table)["median"] == pytest.approx(2)


def table_of(rows: list[dict[str, Any]], draws: int = 6) -> Any:
    """Points of made-up configurations, every run of which is the same."""
    common = {"name": "", "initialization": "", "outputs": 10.0, "stopped": True, "curve": [3.0, 2.0], "loss curve": [],
              "train_loss": 0.0}  # fmt: skip
    return average_runs(
        pandas.DataFrame(
            {"configuration": number, "seed": seed, **common, **row}
            for number, row in enumerate(rows)
            for seed in range(draws)
        )
    )


def points_of(accuracies: dict[str, float], n: int = 7, draws: int = 6) -> Any:
    return table_of(
        [{"family": family, "s_after": 10.0 ** (k + (family != "none")), "test_loss": 3.0**k,
          "train_accuracy": accuracy, "parameters": 100.0 * k}
         for family, accuracy in accuracies.items() for k in range(1, n + 1)], draws,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n", "draws", "units"),
    [(3, 6, "3 independent configurations"), (7, 2, "2 independent draws of weights")],
)
def test_few_configurations_or_few_draws_decide_nothing(n: int, draws: int, units: str) -> None:
    few = relation_claim("Fig.", "L rises", points_of({"none": 1.0}, n, draws), "s_after")
    assert few.outcome == "open" and few.verdict[1].startswith(units)


def test_draws_that_a_configuration_lacks_are_excluded() -> None:
    table = table_of([{"family": "a", "s_after": 1.0}, {"family": "b", "s_after": 2.0}])
    table.at[1, "draws"] = table.at[1, "draws"].drop(index=[0, 4])
    assert by_draw(table, "s_after").tolist() == [[[1.0] * 4, [2.0] * 4]]


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [(1.0, ""), (0.13, "did not learn: dropout"), (0.25, "did not learn alike")],
)
def test_a_regularization_is_evaluated_only_where_it_trains(accuracy: float, reason: str) -> None:
    claims = figures.shifts(points_of({"dropout": accuracy, "none": 1.0}), "Fig. 2(d)")
    s, loss = claims
    assert reason in s.sentence and s.outcome == ("open" if reason else "not held")
    assert loss.statement == "dropout lowers L" and loss.outcome == (
        "open" if reason else "not held"
    )


def test_the_nearest_products_are_compared() -> None:
    # (H/2)^M: 4, 16, 16
    shapes = [
        (1.0, 8.0, 1.0, 1.0),
        (1.0, 32.0, 2.0, 4.0),
        (2.0, 8.0, 3.0, 1.0),
    ]
    table = table_of(
        [{"family": f"{depth}", "n_hidden": depth, "width": width, "s_after": s, "test_loss": loss,
          "train_accuracy": 1.0} for depth, width, s, loss in shapes], draws=1,
    )  # fmt: skip
    claims = figures.depth_and_width(table)
    assert [10**claim.value for claim in claims] == pytest.approx([1.5, 0.25])
    assert (
        claims[0].quantity == "log10 of S of 2 layers of 8 over 1 layers of 32"
        and claims[0].outcome == "open"
    )


def test_cnns_of_equal_size_are_compared_and_narrow_ones_with_wide_ones() -> None:
    shapes = [
        (1.0, 5.0, 100.0, 2.0),
        (1.0, 20.0, 900.0, 8.0),
        (2.0, 5.0, 80.0, 4.0),
        (3.0, 8.0, 102.0, 1.0),
    ]
    table = table_of(
        [{"family": f"{n_conv}", "n_conv": n_conv, "channels": channels, "parameters": parameters, "s_after": s,
          "test_loss": s, "train_accuracy": 1.0} for n_conv, channels, parameters, s in shapes]
    )  # fmt: skip
    equal, _, narrow, _ = figures.deeper_cnns(table)
    assert equal.quantity == "log10 of S of 3 convolutions of 8 over 1 convolutions of 5"
    assert narrow.quantity == "log10 of S of 2 convolutions of 5 over 1 convolutions of 20"
    assert (10**equal.value, 10**narrow.value) == (pytest.approx(0.5), pytest.approx(0.5))


def sampled(sharpness: float, n: int = 400, k: int = 5) -> tuple[Tensor, Tensor]:
    """Logits, and labels that follow softmax(logits / sharpness)."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits * sharpness, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(
        1
    )


@pytest.mark.parametrize("sharpness", [0.01, 0.5, 1.0, 30.0, 1e6])
def test_is_the_minimum_that_scipy_finds(sharpness: float) -> None:
    logits, labels = sampled(sharpness)

    def loss(log_temperature: float) -> float:
        return nn.functional.cross_entropy(logits / math.exp(log_temperature), labels).item()

    middle = math.log(sharpness)
    result: Any = minimize_scalar(
        loss, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-9}
    )
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(math.exp(result.x), rel=1e-6)
    assert loss(math.log(temperature)) <= result.fun + 1e-12


def test_recovers_the_temperature_that_made_the_labels_and_ignores_what_softmax_ignores() -> None:
    logits, labels = sampled(3.0, n=20_000)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(3, rel=0.03)
    assert fit_temperature(10 * logits, labels) == pytest.approx(10 * temperature, rel=1e-9)
    assert fit_temperature(logits + torch.arange(20_000)[:, None], labels) == pytest.approx(
        temperature, rel=1e-9
    )


def test_without_a_finite_optimum_it_is_nan() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert math.isnan(fit_temperature(logits, torch.tensor([0, 1])))
    assert math.isnan(fit_temperature(logits, torch.tensor([1, 0])))
