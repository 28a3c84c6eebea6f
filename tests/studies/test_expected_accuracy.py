from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gapscope.estimation.accuracy_estimator import shipped
from gapscope_studies.expected_accuracy.fit import as_table, chosen, fit, fitted_table
from gapscope_studies.expected_accuracy.pools import (
    ADAM,
    FITTED,
    JUDGED,
    PLANS,
    Configuration,
    Recipe,
    has_cross_validation,
    judged_in_turn,
)
from gapscope_studies.expected_accuracy.rivals import refused, rivals
from gapscope_studies.expected_accuracy.runs import on_equally_noisy, probed
from gapscope_studies.expected_accuracy.study import STUDY
from gapscope_studies.kit.study import Setting


def test_pools_are_drawn_once_and_half_clean() -> None:
    for plan in PLANS.values():
        drawn = plan.configurations()
        assert drawn == plan.configurations()
        assert len({item.name for item in drawn}) == len(drawn)
        assert sum(item.noise == 0 for item in drawn) >= len(drawn) / 2


def test_judged_pools_grow_together_and_half_have_the_dear_rival() -> None:
    order = judged_in_turn()
    assert len(order) == sum(len(plan.configurations()) for plan in JUDGED) == len({item.name for item in order})
    assert {item.pool for item in order[:4]} == {plan.name for plan in JUDGED}
    assert 0.4 < sum(map(has_cross_validation, order)) / len(order) < 0.6


def test_judged_pools_share_no_network_with_the_fitted_one() -> None:
    fitted = {(item.data, item.recipe.name) for item in FITTED.configurations()}
    unseen = {(item.data, item.recipe.name) for item in JUDGED[0].configurations()}
    assert not fitted & unseen


def test_wrong_labels_meet_wrong_predictions_by_chance() -> None:
    assert on_equally_noisy(1.0, 0.3, 10) == pytest.approx(0.7)
    assert on_equally_noisy(0.0, 0.9, 10) == pytest.approx(0.1)
    assert on_equally_noisy(0.4, 0.0, 10) == 0.4


def test_rivals_train_the_same_recipe() -> None:
    recipe = Recipe("fully_connected", {"n_hidden": 1, "width": 16}, ADAM | {"epochs": 40})
    asked = Configuration("test", "digits", 100, 0.0, recipe, 1)
    assert has_cross_validation(asked)
    found = probed(asked, rivals=True)
    assert 0.3 < found["cross_validation"] <= 1 and 0 <= found["hold_out"] <= 1
    assert found["test_score_like_training"] == found["test_score"] > 0.3


def test_first_pool_at_smoke_scale(tmp_path: Path) -> None:
    setting = Setting(scale="smoke", work=tmp_path, workers=1, say=lambda line: None)
    outcome = STUDY.part("first_pool").run(setting)
    networks = outcome.numbers["networks"]
    assert len(networks) == 6 and all(0 <= row["initial.accuracy"] <= 1 for row in networks)
    assert outcome.claims[0].outcome in ("held", "not held", "open")
    value, low, high = outcome.numbers["errors"]["all"]["left-out accuracy, RMSE"]
    assert low <= value <= high


def test_twins_at_smoke_scale(tmp_path: Path) -> None:
    part = next(part for part in STUDY.parts if part.name == "twins")
    outcome = part.run(Setting(scale="smoke", work=tmp_path, workers=1, say=lambda line: None))
    rows = {row["design"]: row for row in outcome.numbers["designs"]}
    assert rows["half and quarter"]["cost in trainings"] == 0.75
    for network in outcome.numbers["networks"]:
        assert network["half and quarter.low"] <= network["half and quarter.score"] <= network["half and quarter.high"]
    errors = [network["hold-out.score"] - network["truth"] for network in outcome.numbers["networks"]]
    assert rows["hold-out"]["RMSE"][0] == pytest.approx((sum(error**2 for error in errors) / len(errors)) ** 0.5)


def test_the_shipped_estimator_is_the_one_that_the_fit_chooses() -> None:
    card = shipped().card
    table = fitted_table().head(card["fitted_on"]["networks"])
    for target in ("like_training", "clean"):
        best = chosen(table, target)
        assert [best.kind, list(best.readings)] == [card[target]["kind"], card[target]["readings"]]
        again = fit(table).corrections[target]
        assert again.predict(table) == pytest.approx(shipped().corrections[target].predict(table), abs=1e-9)


def test_the_judgement_of_what_is_kept(tmp_path: Path) -> None:
    setting = Setting(scale="small", work=tmp_path, workers=1, say=lambda line: None)
    numbers = STUDY.part("judged").run(setting).numbers
    assert sum(numbers["trained"].values()) == len(numbers["networks"]) <= numbers["drawn"]
    rows = {row["method"]: row for row in numbers["judged"]["all that were answered"]}
    table: Any = as_table([row for row in numbers["networks"] if row["pool"] != "judged_regression"])
    answered = table[~refused(shipped(), table)]
    said = [answer.value for answer in shipped().answers(answered)["like_training"]]
    errors = said - answered["test_score_like_training"]
    assert rows["**shipped estimate**"]["error"][0] == pytest.approx(float((errors**2).mean()) ** 0.5)
    held = answered["hold_out"] - answered["test_score_like_training"]
    assert rows["10 % hold-out"]["error"][0] == pytest.approx(float((held**2).mean()) ** 0.5)


def test_rivals_say_what_they_are_known_to_say() -> None:
    fitted = fitted_table()
    ways = {way.name: way for way in rivals(fitted, shipped())}
    asked = fitted.head(3).assign(hold_out=[0.0, 0.5, 1.0], samples=100.0)
    said = ways["10 % hold-out"].says(asked)
    half = 1.645 * (0.5 * 0.5 / 10) ** 0.5
    assert said.iloc[1].tolist() == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert said["value"].tolist() == [0.0, 0.5, 1.0] and said.iloc[0]["high"] > 0.1
    gap = (fitted["train_accuracy"] - fitted["test_score_like_training"]).mean()
    assert ways["mean gap"].says(asked)["value"].tolist() == pytest.approx((asked["train_accuracy"] - gap).tolist())
    assert ways["5-fold cross-validation"].says(asked)["value"].isna().all()
