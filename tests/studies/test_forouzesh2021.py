from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch

from gapscope.cli.study import load_study
from gapscope.inspection.outputs import network_outputs
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope_studies.forouzesh2021 import STUDY, figures, grids, tables
from gapscope_studies.forouzesh2021.analysis import fitted, left_out, over_predicted, relation
from gapscope_studies.forouzesh2021.grids import Configuration
from gapscope_studies.forouzesh2021.runs import measure_run, measured_samples, points, runs, trained_network
from gapscope_studies.kit.study import Setting, run_study

GRIDS = (
    grids.by_depth, grids.figure_1, grids.table_1, grids.initialized, grids.against_convolutions,
    grids.cnns_by_depth, grids.regularized_fully_connected, grids.regularized_cnns, grids.few_and_many, grids.stages,
    grids.untrained, grids.housing, grids.authors,
)  # fmt: skip


def configurations(setting: Setting) -> list[Configuration]:
    return [item for grid in GRIDS for item in grid(setting)]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Smoke scale, with every network of every part trained at once."""
    where = Setting(scale="smoke", work=tmp_path_factory.mktemp("work"), workers=1, say=lambda line: None)
    where.train(
        "networks", list(dict.fromkeys(spec for item in configurations(where) for spec in item.specs())), measures=()
    )
    return where


@pytest.fixture(scope="module")
def results(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    written = run_study(STUDY, setting, folder)
    assert len(written) == len(STUDY.parts)
    return folder / "forouzesh2021" / "smoke"


def content(results: Path, part: str) -> Any:
    return json.loads((results / f"{part}.json").read_text())


@pytest.mark.parametrize("part", [part.name for part in STUDY.parts])
def test_every_part_leaves_figures_in_its_verdict(results: Path, part: str) -> None:
    found = content(results, part)
    assert any(character.isdigit() for character in found["verdict"])
    page = (results / f"{part}.md").read_text()
    assert page.count("![") == len(list(results.glob(f"{part}-*.svg"))) >= 1
    assert all(path.stat().st_size < 200_000 for path in results.glob(f"{part}-*.svg"))


def test_no_network_is_trained_twice(setting: Setting, results: Path) -> None:
    specs = {spec.id for item in configurations(setting) for spec in item.specs()}
    trained = {path.name for path in (setting.work / "networks" / "runs").iterdir()}
    assert results.exists() and trained == specs
    assert {path.stem for path in (setting.work / "measurements").iterdir()} == specs


def test_measures_the_trained_network_on_the_whole_test_split(setting: Setting) -> None:
    spec = grids.by_depth(setting)[0].specs()[1]
    problem, test = measured_samples(setting, spec)
    assert len(problem.test) == 500 and len(test) == 100 and len(problem.train) == 50
    network, row = trained_network(setting, spec, problem), measure_run(setting, spec)
    assert row["s_after"] == float(output_sensitivity(network, test.inputs))
    outputs = network_outputs(network, test.inputs)
    assert test.targets is not None
    right = (outputs.argmax(1) == test.targets).double().mean()
    assert row["test_accuracy"] == pytest.approx(float(right), abs=1e-12)
    loss = torch.nn.functional.cross_entropy(outputs.double(), test.targets)
    assert row["test_loss"] == pytest.approx(float(loss), rel=1e-12)
    assert row["s_before"] != row["s_after"] != row["s_per_output"]


def test_points_average_the_numbers_and_not_their_logarithms(setting: Setting) -> None:
    table = runs(setting, grids.by_depth(setting))
    means = points(table)
    first = table[table["configuration"] == 0]
    assert len(first) == 2 and means.loc[0, "runs"] == 2
    assert means.loc[0, "s_after"] == pytest.approx(first["s_after"].mean())
    assert means.loc[0, "s_after_max"] == first["s_after"].max()


def test_bias_and_variance_add_up_to_the_squared_error(results: Path) -> None:
    for point in content(results, "fig10cd")["numbers"]["points"]:
        # test_loss is a mean over outputs, the decomposition a sum, over the same samples and runs
        assert point["bias"] + point["variance"] == pytest.approx(point["outputs"] * point["test_loss"], rel=1e-6)


def test_the_authors_numbers_stand_beside_ours() -> None:
    row = tables._authors_row(200, "test_loss", pandas.Series([35511.0, 35511.0 + 2 * 3551.0]))
    assert row["authors"] == 35511 and row["ours"] == 35511 + 3551 and row["our deviation"] == 3551
    assert row["deviations apart"] == pytest.approx(1 / math.sqrt(2))
    assert tables._authors_row(500, "test_accuracy", pandas.Series([0.291]))["ours"] == pytest.approx(29.1)


def test_the_authors_protocol_is_that_of_their_code() -> None:
    at_paper = grids.authors(Setting(scale="paper", work=Path()))
    assert [item.spec.network.options for item in at_paper] == [{"n_hidden": 4, "width": w} for w in (200, 300, 500)]
    at_small = grids.authors(Setting(scale="small", work=Path()))
    assert at_small[0].spec == at_paper[0].spec and len(at_paper[0].specs()) == 10
    training = at_paper[0].spec.training
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("adam", 1e-3, 128)
    assert (training.epochs, training.stop_at_train_loss, training.stop_epochs) == (2000, 1e-5, 10)
    assert at_paper[0].spec.data.train_size == 1000


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_larger_scales_hold_the_marked_pairs(scale: str) -> None:
    there = Setting(scale=scale, work=Path())
    pairs = [
        (item.spec.network.options["n_hidden"], item.spec.network.options["width"]) for item in grids.by_depth(there)
    ]
    deep, deeper = {"small": ((4, 200), (5, 80)), "paper": ((4, 500), (5, 165))}[scale]
    assert deep in pairs and deeper in pairs
    assert (deep[1] / 2) ** deep[0] == pytest.approx((deeper[1] / 2) ** deeper[0], rel=0.03)
    sizes = [item.spec.network.options for item in grids.against_convolutions(there)]
    assert {"n_hidden": 2, "width": 140} in sizes and {"n_conv": 1, "channels": 5, "hidden": 100} in sizes


def test_relation_agrees_with_least_squares_and_finds_the_slope() -> None:
    rng = numpy.random.default_rng(1)
    s = numpy.exp(rng.normal(0, 3, 40))
    loss = 2 * numpy.sqrt(s) * numpy.exp(rng.normal(0, 0.1, 40))
    found = relation(pandas.DataFrame({"s": s, "loss": loss}), "s", "loss")
    assert found.slope == pytest.approx(numpy.polyfit(numpy.log(s), numpy.log(loss), 1)[0], rel=1e-9)
    assert found.rho == pytest.approx(numpy.corrcoef(numpy.log(s), numpy.log(loss))[0, 1], rel=1e-9)
    assert found.rho_raw == pytest.approx(numpy.corrcoef(s, loss)[0, 1], rel=1e-9)
    assert found.slope_low < 0.5 < found.slope_high and found.slope_high - found.slope_low < 0.1


def test_relation_leaves_out_what_has_no_logarithm() -> None:
    table = pandas.DataFrame({"s": [1.0, 4.0, 9.0, 0.0, math.nan], "loss": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert relation(table, "s", "loss").n == 3
    assert math.isnan(relation(table.head(2), "s", "loss").rho)


def test_equation_9_is_met_by_what_it_predicts() -> None:
    # sqrt(1/2 * 9/10 * S * 0.25 / 0.01)
    s = 8.0
    loss = math.sqrt(0.45 * s * 25)
    table = pandas.DataFrame({"s_after": [s], "test_loss": [2 * loss], "outputs": [10.0], "mean_square_input": [0.25]})
    assert over_predicted(table)["median"] == pytest.approx(2)


def test_networks_that_did_not_fit_are_left_out_and_counted() -> None:
    table = pandas.DataFrame({"fitted": [True, True, True, False]})
    assert len(fitted(table)) == 3 and left_out(table).startswith(" 1 of 4 configurations did not fit")
    few = pandas.DataFrame({"fitted": [True, False]})
    assert len(fitted(few)) == 2 and "all are used" in left_out(few)


def test_shifts_are_ratios_of_geometric_means() -> None:
    table = pandas.DataFrame(
        {
            "family": ["none", "none", "dropout", "dropout"],
            "s_after": [1.0, 100.0, 2.0, 2.0],
            "test_loss": [2.0, 8.0, 1.0, 1.0],
            "train_accuracy": [1.0, 1.0, 1.0, 0.5],
        }
    )
    rows, sentence = figures.shifts(table)
    assert [entry["ours"] for entry in rows] == pytest.approx([0.2, 0.25])
    assert "dropout S x 0.2, L x 0.25 (training accuracy 0.75)" in sentence


def test_the_nearest_products_are_compared() -> None:
    table = pandas.DataFrame(
        {
            "n_hidden": [1.0, 1.0, 2.0],
            "width": [8.0, 32.0, 8.0],  # (H/2)^M: 4, 16, 16
            "s_before": [1.0, 2.0, 2.0],
            "s_after": [1.0, 2.0, 3.0],
            "test_loss": [1.0, 4.0, 1.0],
        }
    )
    rows, sentence = figures.equal_products(table)
    assert [entry["ours"] for entry in rows] == [1.0, 1.5, 0.25]
    assert sentence.startswith("2 layers of 8 over 1 layers of 32 ((H/2)^M equal within 0%)")


def test_the_study_is_found_by_its_name() -> None:
    assert load_study("forouzesh2021") is STUDY
