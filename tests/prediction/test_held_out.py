"""What is said of networks that were left out: each alone, in folds where there are hundreds, beside the baselines."""

from __future__ import annotations

import numpy
import pytest

from gapscope.prediction.columns import suggest_estimator
from gapscope.prediction.cross_validation import (
    MOST_LEFT_OUT,
    baseline_errors,
    cross_val_predict,
    cross_validate_pool,
    with_interval_for,
)
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.results.records import records_to_pandas
from report.synthetic_pool import synthetic_records


def test_few_networks_are_held_out_one_by_one() -> None:
    records, steps = synthetic_records(20), []
    estimator, found = cross_validate_pool(records, on_fit=lambda done, of: steps.append((done, of)))
    table = records_to_pandas(records[:20])
    expected = cross_val_predict(suggest_estimator(records), table)
    assert found.equals(expected) and estimator.interval == "jackknife+"
    assert steps == [(k, 20) for k in range(1, 21)]


def test_every_network_is_predicted_once_from_other_folds() -> None:
    rng = numpy.random.default_rng(0)
    table = records_to_pandas(synthetic_records(30)[:30])
    table["noise"] = rng.standard_normal(30)
    found = cross_val_predict(GapEstimator(features=["noise"]), table, scheme="folds", n_splits=7)
    assert sorted(found.index) == sorted(table.index)
    assert len(set(found["split"])) == 7
    for _, part in found.groupby("split"):
        rest = table.drop(part.index)
        model = GapEstimator(features=["noise"]).fit(rest, rest["gap"])
        numpy.testing.assert_array_equal(part["prediction"], model.predict(table.loc[part.index]))


@pytest.mark.parametrize("n", [MOST_LEFT_OUT, MOST_LEFT_OUT + 1])
def test_the_change_is_at_a_hundred(n: int) -> None:
    assert with_interval_for(GapEstimator(), n).interval == ("jackknife+" if n <= 100 else "cv+")


def test_baselines_are_fitted_on_what_is_not_held_out() -> None:
    table = records_to_pandas(synthetic_records(20)[:20])
    held = table.index[:5].tolist()
    errors = baseline_errors(table, held, held[:3])
    mean = table["gap"].iloc[5:].mean()
    numpy.testing.assert_allclose(errors["mean gap"], mean - table["gap"].iloc[:3])
    assert set(errors) == {"mean gap", "parameter_count", "train_loss"}
