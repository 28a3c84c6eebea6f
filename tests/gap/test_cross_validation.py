"""Cross-validation against scikit-learn's splitters and closed forms; baselines."""

from __future__ import annotations

import numpy
import pandas
import pytest
from sklearn import model_selection
from sklearn.linear_model import LinearRegression

from gapscope.base.errors import InvalidInput
from gapscope.gap.columns import suggest_estimator
from gapscope.gap.cross_validation import (
    baseline_errors,
    baselines,
    cross_val_predict,
    cross_validate,
    cross_validate_pool,
)
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.results.records import records_to_pandas
from report.synthetic_pool import synthetic_records


def pool(n: int = 40, seed: int = 0) -> pandas.DataFrame:
    """Networks whose gap follows zeta, not their size."""
    rng = numpy.random.default_rng(seed)
    zeta = rng.uniform(0, 1, n)
    return pandas.DataFrame(
        {
            "status": "finished",
            "zeta": zeta,
            "parameter_count": 10 ** rng.uniform(3, 6, n),
            "train_loss": rng.uniform(0, 0.1, n),
            "gap": 0.1 + 0.5 * zeta + 0.05 * rng.standard_normal(n),
        },
        index=[f"net{i}" for i in range(n)],
    )


ESTIMATOR = GapEstimator(features=["zeta"])
FEW = pool(24)


@pytest.fixture(scope="module")
def one_left_out() -> pandas.DataFrame:
    return cross_validate(ESTIMATOR, FEW, scheme="leave_one_out")


def _value(found: pandas.DataFrame, model: str, metric: str, column: str = "value") -> float:
    rows = found.set_index(["model", "metric"])[column].to_dict()
    return float(rows[model, metric])


@pytest.mark.thorough
def test_held_out_predictions_are_scikit_learns() -> None:
    table = pool()
    oracle = model_selection.cross_val_predict(
        LinearRegression(), table[["zeta"]], table["gap"], cv=model_selection.LeaveOneOut()
    )
    result = cross_val_predict(ESTIMATOR, table).loc[table.index]
    numpy.testing.assert_allclose(result["prediction"], numpy.asarray(oracle), rtol=1e-9)
    assert result["target"].tolist() == table["gap"].tolist()


@pytest.mark.thorough
def test_metrics_are_their_formulas(one_left_out: pandas.DataFrame) -> None:
    predictions = cross_val_predict(ESTIMATOR, FEW)
    errors = (predictions["prediction"] - predictions["target"]).to_numpy()
    result = one_left_out
    assert _value(result, "estimator", "ssr") == pytest.approx((errors**2).sum())
    assert _value(result, "estimator", "rmse") == pytest.approx((errors**2).mean() ** 0.5)
    assert _value(result, "estimator", "mae") == pytest.approx(numpy.abs(errors).mean())
    expected = numpy.corrcoef(predictions["prediction"], predictions["target"])[0, 1]
    assert _value(result, "estimator", "pearson") == pytest.approx(expected)
    for metric in ("rmse", "mae", "pearson", "coverage"):
        low, high = (_value(result, "estimator", metric, end) for end in ("low", "high"))
        assert low <= _value(result, "estimator", metric) <= high


@pytest.mark.thorough
def test_the_papers_protocol_gives_the_sum_over_the_held_out_tenth() -> None:
    table = pool()
    predictions = cross_val_predict(ESTIMATOR, table, scheme="splits", n_splits=30)
    squares = ((predictions["prediction"] - predictions["target"]) ** 2).to_numpy()
    sums = squares.reshape(30, 4).sum(1)
    result = cross_validate(ESTIMATOR, table, n_splits=30)
    assert _value(result, "estimator", "ssr") == pytest.approx(sums.mean())
    assert _value(result, "estimator", "ssr", "high") == pytest.approx(numpy.quantile(sums, 0.95))
    assert _value(result, "estimator", "fit_pearson") > 0.9
    assert "5th to 95th percentile of 30 splits" in result["interval"].tolist()


def test_three_baselines_are_always_listed_and_lose_here(one_left_out: pandas.DataFrame) -> None:
    result = one_left_out
    assert list(result["model"].unique()) == [
        "estimator",
        "mean gap",
        "parameter_count",
        "train_loss",
    ]
    own = _value(result, "estimator", "rmse")
    assert all(
        own < 0.5 * _value(result, name, "rmse")
        for name in ("mean gap", "parameter_count", "train_loss")
    )


def test_the_mean_gap_has_no_correlation_although_leaving_one_out_makes_one(
    one_left_out: pandas.DataFrame,
) -> None:
    predictions = cross_val_predict(baselines(FEW)["mean gap"], FEW)
    assert numpy.corrcoef(predictions["prediction"], predictions["target"])[0, 1] == pytest.approx(
        -1
    )
    assert numpy.isnan(_value(one_left_out, "mean gap", "pearson"))
    assert "fit_pearson" not in set(one_left_out.loc[one_left_out["model"] == "mean gap", "metric"])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["linear", "ridge"])
def test_intervals_cover_on_real_networks(pgdl: pandas.DataFrame, kind: str) -> None:
    features = ["m.wcv", "m.smoothness_gap", "m.vr"]
    result = cross_validate(GapEstimator(kind=kind, features=features), pgdl, n_splits=40)
    assert 0.85 <= _value(result, "estimator", "coverage") <= 0.95
    assert _value(result, "estimator", "ssr") < 0.2 * _value(result, "mean gap", "ssr")
    assert _value(result, "estimator", "refused") < 0.05


def test_wrong_input_raises_with_facts() -> None:
    with pytest.raises(InvalidInput, match="must name its features"):
        cross_validate(GapEstimator(), pool())
    with pytest.raises(InvalidInput, match="got 'loo'"):
        cross_validate(ESTIMATOR, pool(), scheme="loo")
    with pytest.raises(InvalidInput, match=r"\(0, 1\); got 1"):
        cross_validate(ESTIMATOR, pool(), test_share=1)


@pytest.mark.thorough
def test_few_networks_are_held_out_one_by_one() -> None:
    records, steps = synthetic_records(20), []
    estimator, result = cross_validate_pool(
        records, on_fit=lambda done, of: steps.append((done, of))
    )
    table = records_to_pandas(records[:20])
    expected = cross_val_predict(suggest_estimator(records), table)
    assert result.equals(expected) and estimator.interval == "jackknife+"
    assert steps == [(k, 20) for k in range(1, 21)]


def test_every_network_is_predicted_once_from_other_folds() -> None:
    rng = numpy.random.default_rng(0)
    table = records_to_pandas(synthetic_records(30)[:30])
    table["noise"] = rng.standard_normal(30)
    result = cross_val_predict(GapEstimator(features=["noise"]), table, scheme="folds", n_splits=7)
    assert sorted(result.index) == sorted(table.index)
    assert len(set(result["split"])) == 7
    for _, part in result.groupby("split"):
        rest = table.drop(part.index)
        model = GapEstimator(features=["noise"]).fit(rest, rest["gap"])
        numpy.testing.assert_array_equal(part["prediction"], model.predict(table.loc[part.index]))


def test_baselines_are_fitted_on_what_is_not_held_out() -> None:
    table = records_to_pandas(synthetic_records(20)[:20])
    held = table.index[:5].tolist()
    errors = baseline_errors(table, held, held[:3])
    mean = table["gap"].iloc[5:].mean()
    numpy.testing.assert_allclose(errors["mean gap"], mean - table["gap"].iloc[:3])
    assert set(errors) == {"mean gap", "parameter_count", "train_loss"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_share": 0.999}, "test_share below 0.999"),
        ({"scheme": "folds", "n_splits": 1}, "n_splits of 2"),
    ],
)
def test_splits_without_networks_to_fit_on_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        cross_validate(ESTIMATOR, FEW, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["zeta", "gap", "train_loss"])
def test_columns_of_text_are_named(column: str) -> None:
    with pytest.raises(InvalidInput, match=f"{column!r} must hold numbers"):
        cross_validate(ESTIMATOR, FEW.assign(**{column: "big"}))
    numbers = FEW.assign(**{column: FEW[column].astype(str)})
    expected, found = (cross_val_predict(ESTIMATOR, table) for table in (FEW, numbers))
    pandas.testing.assert_frame_equal(found, expected)
