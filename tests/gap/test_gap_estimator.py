"""The gap estimator: closed forms, scikit-learn's own checks, coverage by simulation, refusals, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pandas
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.gap.gap_estimator import GapEstimator


@parametrize_with_checks(
    [
        GapEstimator(),
        GapEstimator(kind="ridge"),
        GapEstimator(kind="gaussian_process", interval="none"),
    ],
    expected_failed_checks=lambda estimator: {
        "check_dataframe_column_names_consistency": "columns are matched by name, others are ignored"
    },
)
@pytest.mark.filterwarnings("ignore:Skipping check")
def test_scikit_learns_own_checks(estimator: GapEstimator, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def networks(n: int, seed: int = 0, noise: float = 0.02) -> pandas.DataFrame:
    """A pool whose gap is 0.3 zeta - 0.2 kappa + 0.1 log10(size) - 0.2 plus noise."""
    rng = numpy.random.default_rng(seed)
    table = pandas.DataFrame(
        {
            "zeta": rng.uniform(0.1, 0.7, n),
            "kappa": rng.uniform(0.2, 0.6, n),
            "size": 10 ** rng.uniform(3, 6, n),
            "network.name": rng.choice(["lenet", "vgg"], n),
        }
    )
    gap = 0.3 * table["zeta"] - 0.2 * table["kappa"] + 0.1 * numpy.log10(table["size"]) - 0.2
    return table.assign(gap=gap + noise * rng.standard_normal(n))


READINGS = ("zeta", "kappa", "size")


def _estimator(**options: object) -> GapEstimator:
    settings = {"features": READINGS, "log_features": ("size",), "families": ("network.name",)}
    return GapEstimator(**(settings | options))  # type: ignore[arg-type]


def test_least_squares_is_scikit_learns() -> None:
    table = networks(30)
    design = table[list(READINGS)].assign(size=numpy.log(table["size"]))
    oracle = LinearRegression().fit(design, table["gap"])
    result = _estimator().fit(table, table["gap"])
    numpy.testing.assert_allclose(result.coef_, oracle.coef_, rtol=1e-9)
    assert result.intercept_ == pytest.approx(oracle.intercept_, rel=1e-9)
    numpy.testing.assert_allclose(result.predict(table), oracle.predict(design), rtol=1e-9)


def test_loo_residuals_are_those_of_refitting() -> None:
    table = networks(25)
    design = table[["zeta", "kappa"]]
    left_out = cross_val_predict(LinearRegression(), design, table["gap"], cv=LeaveOneOut())
    result = GapEstimator().fit(design, table["gap"])
    numpy.testing.assert_allclose(result.residuals_, numpy.abs(left_out - table["gap"]), rtol=1e-8)


def test_no_features_is_the_mean_gap() -> None:
    table = networks(15)
    result = GapEstimator(features=()).fit(table, table["gap"])
    numpy.testing.assert_allclose(
        result.predict(table.iloc[:4]), numpy.full(4, table["gap"].mean())
    )
    assert numpy.isfinite(result.predict_interval(table.iloc[:4])).all()


@pytest.mark.parametrize("interval", ["jackknife+", "cv+"])
@pytest.mark.parametrize("kind", ["linear", "ridge"])
def test_intervals_cover_new_networks(interval: str, kind: str) -> None:
    """Skewed, heteroscedastic noise: no assumption of the intervals but exchangeability holds."""
    covered, width = 0, []
    for seed in range(60):
        rng = numpy.random.default_rng(seed)
        x = rng.uniform(0, 1, (60, 2))
        y = x @ [0.5, -0.2] + (0.05 + 0.1 * x[:, 0]) * (rng.exponential(size=60) - 1)
        result = GapEstimator(kind=kind, interval=interval).fit(x[:30], y[:30])
        ends = result.predict_interval(x[30:], level=0.9)
        covered += int(((ends[:, 0] <= y[30:]) & (y[30:] <= ends[:, 1])).sum())
        width.append((ends[:, 1] - ends[:, 0]).mean())
    # 60 pools of 30 new networks; the standard error of the coverage over pools is about 0.01
    assert 0.86 <= covered / 1800 <= 0.96
    assert 0.2 < numpy.mean(width) < 0.7


def test_cv_plus_is_its_formula() -> None:
    table = networks(25)
    x, y = table[["zeta"]].to_numpy(), table["gap"].to_numpy()
    result = (
        GapEstimator(interval="cv+", n_folds=4, random_state=3)
        .fit(x, y)
        .predict_interval(x[:1], level=0.8)[0]
    )
    low, high = [], []
    for fold in numpy.array_split(numpy.random.default_rng(3).permutation(25), 4):
        model = LinearRegression().fit(numpy.delete(x, fold, 0), numpy.delete(y, fold))
        residuals = numpy.abs(y[fold] - model.predict(x[fold]))
        low += (model.predict(x[:1]) - residuals).tolist()
        high += (model.predict(x[:1]) + residuals).tolist()
    # the floor(.2 * 26) = 5th and the ceil(.8 * 26) = 21st smallest
    numpy.testing.assert_allclose(result, [sorted(low)[4], sorted(high)[20]], rtol=1e-9)


def test_few_networks_give_an_infinite_interval_not_a_wrong_one() -> None:
    table = networks(9)
    eight = GapEstimator(features=("zeta",)).fit(table.iloc[:8], table["gap"].iloc[:8])
    assert numpy.isinf(eight.predict_interval(table, 0.9)).all()
    message = "fitted on too few networks for an interval of 90 %"
    assert list(eight.assess(table.iloc[:2])["reason"]) == [message, message]
    assert list(eight.assess(table.iloc[:2], level=0.5)["reason"]) == ["", ""]
    nine = GapEstimator(features=("zeta",)).fit(table, table["gap"]).predict_interval(table, 0.9)
    assert numpy.isfinite(nine).all()


def test_a_network_unlike_the_fitted_ones_is_out_of_domain_with_the_reason() -> None:
    table = networks(40)
    result = _estimator().fit(table, table["gap"])
    typical = {"zeta": 0.4, "kappa": 0.4, "size": 3e4, "network.name": "vgg"}
    odd = [
        {},
        {"network.name": "resnet"},
        {"zeta": 0.9},
        {"kappa": numpy.nan},
        {"size": 1e9},
        {"size": -1.0},
    ]
    new = pandas.DataFrame([typical | change for change in odd], index=list("abcdef"))
    judged = result.in_domain(new)
    assert judged["verdict"].tolist() == ["inside"] + ["outside"] * 5
    assert judged.loc["a", "reason"] == ""
    assert judged.loc["b", "reason"] == "network.name is resnet; fitted on lenet, vgg"
    assert judged.loc["c", "reason"] == "zeta is 0.9, above every fitted network"
    assert judged.loc["d", "reason"] == "kappa is nan, which cannot be used"
    assert judged.loc["e", "reason"] == "size is 1e+09, above every fitted network"
    assert judged.loc["f", "reason"] == "size is -1, which cannot be used"
    answers = result.assess(new)
    assert list(answers.columns) == ["prediction", "low", "high", "verdict", "reason"]
    assert answers["prediction"].notna().tolist() == [True] + [False] * 5
    assert result.assess(new, refuse=False)["prediction"].notna().tolist() == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_setting_that_a_network_does_not_have_is_a_family_of_its_own() -> None:
    table = networks(30).assign(batch_norm=[True, None] * 15)
    result = _estimator(families=("batch_norm",)).fit(table, table["gap"])
    assert result.region_.families == {"batch_norm": ["True", "absent"]}
    typical = pandas.DataFrame([{"zeta": 0.4, "kappa": 0.4, "size": 3e4}])
    assert result.in_domain(typical)["verdict"].tolist() == ["inside"]
    only = _estimator(families=("batch_norm",)).fit(table.iloc[::2], table["gap"].iloc[::2])
    assert only.in_domain(typical)["reason"].tolist() == ["batch_norm is absent; fitted on True"]
    with pytest.raises(InvalidInput, match="column 'batch_nrom'"):
        _estimator(families=("batch_nrom",)).fit(table, table["gap"])


def test_readings_in_range_but_unlike_together_are_out_of_domain() -> None:
    rng = numpy.random.default_rng(0)
    zeta = rng.uniform(0, 1, 50)
    table = pandas.DataFrame({"zeta": zeta, "kappa": zeta + 0.01 * rng.standard_normal(50)})
    result = GapEstimator().fit(table, zeta)
    judged = result.in_domain(pandas.DataFrame({"zeta": [0.5, 0.9], "kappa": [0.5, 0.1]}))
    assert judged["verdict"].tolist() == ["inside", "outside"]
    assert (
        judged["reason"]
        .iloc[1]
        .startswith("its readings together are unlike the fitted ones (leverage ")
    )


def test_leverage_is_the_diagonal_of_the_hat_matrix() -> None:
    table = networks(20)[["zeta", "kappa"]]
    design = numpy.column_stack([numpy.ones(20), table])
    hat = design @ numpy.linalg.pinv(design)
    result = GapEstimator().fit(table, table["zeta"])
    numpy.testing.assert_allclose(
        result.region_.leverages(table.to_numpy()), numpy.diag(hat), rtol=1e-9
    )
    left_out = numpy.diag(hat) / (1 - numpy.diag(hat))
    rest = design[1:]
    assert left_out[0] == pytest.approx(design[0] @ numpy.linalg.inv(rest.T @ rest) @ design[0])
    assert result.region_.largest_leverage == pytest.approx(left_out.max())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "ridge", "families": ()},
        {"features": ()},
        {"kind": "gaussian_process", "clusters": ("network.name",)},
    ],
)
def test_saved_and_loaded_it_answers_bit_for_bit_the_same(
    tmp_path: Path, options: dict[str, object]
) -> None:
    table = networks(30)
    if options.get("features") == ():
        options = options | {"log_features": ()}
    result = _estimator(**options).fit(table, table["gap"])
    result.save(tmp_path / "estimator.json")
    again = GapEstimator.load(tmp_path / "estimator.json")
    assert result.assess(table).equals(again.assess(table))
    assert again.coef_.tolist() == result.coef_.tolist()
    json.loads(
        (tmp_path / "estimator.json").read_text(),
        parse_constant=lambda name: pytest.fail(f"not JSON: {name}"),
    )


def test_files_that_are_no_estimator_raise(tmp_path: Path) -> None:
    path = tmp_path / "estimator.json"
    path.write_text('{"schema": 1, "id": "x"}')
    with pytest.raises(UnreadableFile, match="gap estimator"):
        GapEstimator.load(path)
    table = networks(12)
    _estimator().fit(table, table["gap"]).save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"schema": 99}))
    with pytest.raises(UnreadableFile, match="older; got 99, written"):
        GapEstimator.load(path)
    path.write_text(
        json.dumps(content | {"parameters": content["parameters"] | {"directions": None}})
    )
    assert GapEstimator.load(path).kind == "linear"  # a parameter of version 0.4
    path.write_text(
        json.dumps(content | {"parameters": content["parameters"] | {"kind": "monotone"}})
    )
    with pytest.raises(UnreadableFile, match="got 'monotone'"):
        GapEstimator.load(path)
    for name in ("coefficients", "residuals", "left_out"):
        fitted = content["fitted"] | {name: content["fitted"][name][:1]}
        path.write_text(json.dumps(content | {"fitted": fitted}))
        with pytest.raises(UnreadableFile, match="is damaged"):
            GapEstimator.load(path)
    path.write_text(json.dumps(content | {"schema": "1"}))
    with pytest.raises(UnreadableFile, match="no 'schema'"):
        GapEstimator.load(path)
    path.write_text(json.dumps(content | {"parameters": [], "fitted": 3}))
    with pytest.raises(UnreadableFile, match="is damaged"):
        GapEstimator.load(path)
    del content["fitted"]["coefficients"]
    path.write_text(json.dumps(content))
    with pytest.raises(UnreadableFile, match=r"is damaged \('coefficients'\)"):
        GapEstimator.load(path)
    path.write_text(path.read_text()[:50])
    with pytest.raises(UnreadableFile, match="must hold JSON"):
        GapEstimator.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rigde"}, r"kind must be one of .* got 'rigde'. Did you mean 'ridge'\?"),
        (
            {"features": ("zetta",), "log_features": ()},
            r"must have a column 'zetta'.*Did you mean 'zeta'\?",
        ),
        ({"features": "zeta"}, "features must be a list of column names; got 'zeta'"),
        (
            {"log_features": ("depth",)},
            "log_features must name readings among zeta, kappa, size; got 'depth'",
        ),
        ({"features": None}, "must be positive to enter by its logarithm; got -"),
    ],
)
def test_wrong_input_raises_with_facts(options: dict[str, object], message: str) -> None:
    table = networks(12).assign(
        size=lambda t: -t["size"] if options == {"features": None} else t["size"]
    )
    with pytest.raises(InvalidInput, match=message):
        _estimator(**options).fit(table, table["gap"])


def test_readings_that_are_no_finite_numbers_are_named() -> None:
    table = networks(12)
    with pytest.raises(InvalidInput, match=r"column 'network.name' holds '(lenet|vgg)'\. Name"):
        GapEstimator().fit(table, table["gap"])
    with pytest.raises(InvalidInput, match="column 'kappa' holds NaN"):
        _estimator().fit(table.assign(kappa=[numpy.nan, *table["kappa"].iloc[1:]]), table["gap"])
    with pytest.raises(InvalidInput, match="named columns"):
        _estimator().fit(table[list(READINGS)].to_numpy(), table["gap"])


def test_columns_are_matched_by_name() -> None:
    table = networks(30)
    X = table[list(READINGS)]
    fitted = GapEstimator().fit(X, table["gap"])
    expected = fitted.predict(X)
    for other in (X[X.columns[::-1]], X.assign(more=1.0)):
        assert fitted.predict(other).tolist() == expected.tolist()
        assert fitted.assess(other)["prediction"].tolist() == expected.tolist()
    with pytest.raises(InvalidInput, match="column 'size'"):
        fitted.predict(X.drop(columns="size"))
    with pytest.raises(InvalidInput, match="'kappa', 'size' several times"):
        fitted.predict(pandas.concat([X, X], axis=1))


def test_gaps_that_do_not_fit_the_rows_raise() -> None:
    table = networks(30)
    X, y = table[list(READINGS)], table["gap"]
    fitted = GapEstimator().fit(X, y)
    cases = {
        "matched by position": (X, y[::-1]),
        "Swap them": (y, X),
        "contains NaN": (X, y.where(y.index > 3)),
        "inconsistent numbers of samples": (X, y[:5]),
    }
    for message, (first, second) in cases.items():
        for call in (GapEstimator().fit, fitted.score):
            with pytest.raises(InvalidInput, match=message):
                call(first, second)
    with pytest.raises(InvalidInput, match="could not convert string"):
        GapEstimator().fit(X, ["a"] * 30)
    with pytest.raises(InvalidInput, match="not fitted"):
        GapEstimator().predict(X)
