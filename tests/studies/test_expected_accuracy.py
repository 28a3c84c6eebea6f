from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gapscope.accuracy.accuracy_estimator import load_default
from gapscope.accuracy.extrapolation import DECAY, MEAN_GROWTH
from gapscope.data import load_dataset
from gapscope_studies.expected_accuracy.fit import (
    COLUMNS,
    Candidate,
    as_table,
    fit,
    fitted_table,
    select_simplest,
)
from gapscope_studies.expected_accuracy.held_out import CLOSED
from gapscope_studies.expected_accuracy.intervals import intervals
from gapscope_studies.expected_accuracy.judged import FOLDS, HOLD_OUT, SHIPPED, estimates, refusals
from gapscope_studies.expected_accuracy.monitored_run import monitored_run
from gapscope_studies.expected_accuracy.pools import (
    ADAM,
    FIRST_JUDGED,
    FITTED,
    JUDGED,
    Configuration,
    TrainingConfig,
    has_cross_validation,
    judged_in_turn,
    load_rows,
)
from gapscope_studies.expected_accuracy.public_curves import (
    POWER,
    RULE,
    curves,
    fit_constants,
    fit_law,
    predict,
)
from gapscope_studies.expected_accuracy.runs import data_of, on_equally_noisy, read_network
from gapscope_studies.expected_accuracy.study import STUDY
from gapscope_studies.kit.study import RunSettings


def test_pools_are_sampled_once_and_half_clean() -> None:
    for plan in (FITTED, *FIRST_JUDGED, *JUDGED):
        drawn = plan.configurations()
        assert drawn == plan.configurations()
        assert len({item.name for item in drawn}) == len(drawn)
        assert sum(item.noise == 0 for item in drawn) >= len(drawn) / 2


def test_evaluated_pools_share_no_network_with_the_fitted_ones_and_bring_new_data() -> None:
    fitted = {(plan.name, plan.seed) for plan in (FITTED, *FIRST_JUDGED)}
    assert not fitted & {(plan.name, plan.seed) for plan in JUDGED}
    seen = {item.data for plan in (FITTED, *FIRST_JUDGED) for item in plan.configurations()}
    assert not seen & {item.data for item in JUDGED[2].configurations()}


def test_a_small_table_is_scored_on_all_rows_that_are_not_trained_on(data_root: Path) -> None:
    asked = next(item for item in JUDGED[2].configurations() if item.data == "concrete_quartiles")
    train, test, classes = data_of(asked, str(data_root))
    problem = load_dataset("concrete", root=data_root)
    assert (len(train), classes) == (asked.samples, 4)
    assert len(train) + len(test) == len(problem.train) + len(problem.test)
    assert set(train.y.tolist()) == {0, 1, 2, 3}


def test_wrong_labels_meet_wrong_predictions_by_chance() -> None:
    assert on_equally_noisy(1.0, 0.3, 10) == pytest.approx(0.7)
    assert on_equally_noisy(0.0, 0.9, 10) == pytest.approx(0.1)
    assert on_equally_noisy(0.4, 0.0, 10) == 0.4


@pytest.mark.thorough
def test_baselines_train_the_same_configuration() -> None:
    recipe = TrainingConfig("fully_connected", {"n_hidden": 1, "width": 16}, ADAM | {"epochs": 40})
    asked = Configuration("test", "digits", 100, 0.0, recipe, 1)
    assert has_cross_validation(asked)
    result = read_network(asked)
    assert 0.3 < result["cross_validation"] <= 1 and 0 <= result["hold_out"] <= 1
    assert result["test_score_like_training"] == result["test_score"] > 0.3


@pytest.mark.usefixtures("few_resamples")
def test_architectures_at_smoke_scale(tmp_path: Path) -> None:
    setting = RunSettings(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    numbers = STUDY.part("architectures").run(setting).numbers
    table: Any = pd.DataFrame(numbers["networks"]).set_index("recipe")
    by_hand = np.sign(np.subtract.outer(*[table["parameters"].to_numpy(float)] * 2)) * np.sign(
        np.subtract.outer(*[table["test_score"].to_numpy(float)] * 2)
    )
    message = {row["known before training"]: row["tau"][0] for row in numbers["tau"]}
    assert len(table) == 3 and message["parameter count"] == pytest.approx(by_hand.sum() / 6)
    assert table["expected"].between(0, 1).all() and (table["sensitivity"] > 0).all()


def test_the_shipped_corrections_are_fitted_to_the_networks_of_the_card() -> None:
    card = load_default().card
    table = fitted_table().head(card["fitted_on"]["networks"])
    for target, column in COLUMNS.items():
        again = Candidate(card[target]["kind"], tuple(card[target]["readings"])).estimator()
        again.fit(table, table[column] - table["left_out"])
        assert again.predict(table) == pytest.approx(
            load_default().corrections[target].predict(table), abs=1e-9
        )


@pytest.mark.slow
def test_the_shipped_estimator_is_the_one_that_the_fit_chooses() -> None:
    card = load_default().card
    again = fit(fitted_table().head(card["fitted_on"]["networks"])).card
    for target in COLUMNS:
        assert [again[target][name] for name in ("kind", "readings")] == [
            card[target][name] for name in ("kind", "readings")
        ]


def test_of_candidates_that_have_equal_errors_the_plainest_is_used() -> None:
    draw = np.random.default_rng(0)
    errors = {name: pd.Series(draw.normal(scale=0.05, size=100)) for name in ("best", "alike")}
    squares = {
        Candidate("gaussian_process", ("left_out", "fit")): errors["best"] ** 2,
        Candidate("gaussian_process", ("left_out",)): errors["alike"] ** 2,
        Candidate("ridge", ("left_out",)): errors["alike"] ** 2,
        Candidate("ridge", ()): (errors["best"] + 0.1) ** 2,
    }
    assert select_simplest(squares) == Candidate("ridge", ("left_out",))


@pytest.mark.thorough
@pytest.mark.usefixtures("few_resamples")
def test_the_evaluation_of_stored_networks_needs_no_data(tmp_path: Path) -> None:
    setting = RunSettings(
        scale="small", work=tmp_path, data_root=str(tmp_path), workers=1, say=lambda line: None
    )
    numbers = (outcome := STUDY.part("judged").run(setting)).numbers
    assert outcome.data["boston_housing"] == "not on this machine"
    known = load_rows("networks")
    networks = [known[item.job] for item in judged_in_turn() if item.job in known]
    assert sum(numbers["trained"].values()) == len(networks) <= numbers["drawn"]
    rows = {row["method"]: row for row in numbers["judged"]["all that were answered"]}
    table: Any = as_table(networks)
    answered = table[~refusals(load_default(), table)]
    message = [answer.value for answer in load_default().predict(answered)["like_training"]]
    errors = message - answered["test_score_like_training"]
    assert rows[SHIPPED]["error"][0] == pytest.approx(float((errors**2).mean()) ** 0.5)
    held = answered["hold_out"] - answered["test_score_like_training"]
    assert rows[HOLD_OUT]["error"][0] == pytest.approx(float((held**2).mean()) ** 0.5)


def test_baselines_have_closed_forms() -> None:
    fitted = fitted_table()
    networks = fitted.head(3).assign(
        hold_out=[0.0, 0.5, 1.0], samples=100.0, cross_validation=float("nan")
    )
    result = estimates(networks, fitted, load_default())
    half = 1.645 * (0.5 * 0.5 / 10) ** 0.5
    assert result[HOLD_OUT].iloc[1].tolist() == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert (
        result[HOLD_OUT]["value"].tolist() == [0.0, 0.5, 1.0]
        and result[HOLD_OUT].iloc[0]["high"] > 0.1
    )
    gap = (fitted["train_accuracy"] - fitted["test_score_like_training"]).mean()
    assert result["mean gap"]["value"].tolist() == pytest.approx(
        (networks["train_accuracy"] - gap).tolist()
    )
    assert result[FOLDS]["value"].isna().all()


@pytest.mark.thorough
@pytest.mark.usefixtures("few_resamples")
def test_public_curves_are_predicted_by_the_shipped_rule(tmp_path: Path) -> None:
    setting = RunSettings(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    numbers = STUDY.part("public_curves").run(setting).numbers
    table = curves()
    table = table[(table["data"] % 40 == 1) & (table["reach"] == 2)]
    errors = np.array([predict(row)[0] for row in table.itertuples()]) - table["truth"]
    (row,) = [
        row for row in numbers["errors"] if row["method"] == RULE and row["reach"] == "2 times"
    ]
    assert row["RMSE"][0] == pytest.approx(np.sqrt((errors**2).mean())) and row["curves"] == len(
        table
    )


def test_a_law_of_four_parameters_is_recovered() -> None:
    sizes = 16 * 2 ** np.arange(8)
    scores = 0.9 - np.exp(-0.5) * (sizes + 5.0) ** -0.4
    row = pd.Series(
        {"sizes": " ".join(map(str, sizes)), "scores": " ".join(map(str, scores)), "samples": 8192}
    )
    assert fit_law(POWER, row) == pytest.approx(0.9 - np.exp(-0.5) * 8197.0**-0.4, abs=2e-3)


@pytest.mark.slow
def test_the_shipped_constants_are_those_of_the_even_data_sets() -> None:
    table = curves()
    fitted = fit_constants(table[(table["data"] % 2 == 0) & (table.index % 8 == 0)])
    assert fitted["MEAN_GROWTH"] * fitted["DECAY"] == pytest.approx(MEAN_GROWTH * DECAY, rel=0.3)


@pytest.mark.thorough
@pytest.mark.usefixtures("few_resamples")
def test_held_out_probabilities_at_smoke_scale(tmp_path: Path) -> None:
    setting = RunSettings(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    numbers = STUDY.part("held_out").run(setting).numbers
    table = pd.DataFrame(numbers["rows"])
    assert len(table) == 2 * 2 * 5 and table["accuracy"].between(0.4, 1).all()
    (row,) = [row for row in numbers["0%"] if row["method"] == CLOSED]
    chosen = table[(table["method"] == CLOSED) & (table["noise"] == 0)]
    assert row["cross-entropy"] == pytest.approx(chosen["cross-entropy"].mean())


@pytest.mark.thorough
def test_intervals_at_smoke_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what is looked at are forecasts, from before the training
    monkeypatch.setattr("gapscope_studies.expected_accuracy.interval_cells.MAX_STEPS", 40)
    setting = RunSettings(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    outcome = intervals(setting)
    rows = outcome.numbers["smoke"]
    assert {row["forecast"] for row in rows} == {"without a network", "with a network"}
    for row in rows:
        coverage = (
            row["coverage"][0] if isinstance(row["coverage"], list | tuple) else row["coverage"]
        )
        assert coverage + row["below"] + row["above"] == pytest.approx(1)
    widths = {
        row["samples"]: row["width"] for row in rows if row["forecast"] == "without a network"
    }
    assert widths["60 to 120"] > 1.5 * widths["250 to 500"]


@pytest.mark.thorough
def test_a_run_predicts_its_own_samples_better_than_new_ones(tmp_path: Path) -> None:
    outcome = monitored_run(
        RunSettings(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    )
    assert outcome.numbers["rows"][-1]["excess"][0] > 0.05
