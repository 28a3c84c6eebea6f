"""Learning curves of 20 learners on 248 public data sets: how far two single runs tell the accuracy with more samples.

The stored rows come from the package lcdb (Mohr, Viering, Loog, van Rijn, "LCDB 1.0", 2022; MIT license). Each is one
curve: the test accuracy of one run per size, and the mean test accuracy of all runs at the largest size with five runs
or more. Constants are fitted to data sets with an even OpenML number, and judged on those with an odd one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from gapscope.accuracy import extrapolation
from gapscope.accuracy.extrapolation import SizedScore, extrapolate
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    find_row,
    rms_difference,
    rms_error,
    to_numbers,
    to_table,
)
from gapscope_studies.kit.study import Outcome, RunSettings, Table

ROWS = Path(__file__).with_suffix(".csv.gz")
REACHES = (2, 4, 8)
SMALLEST = 16
# curves to which laws of four parameters are fitted by least squares, at each reach
N_FITTED = 150
LAST, RULE, HALF, POWER, MMF = (
    "last point",
    "gapscope",
    "half the slope per doubling",
    "pow4",
    "mmf4",
)
CONSTANTS = ("MEAN_GROWTH", "GROWTH_DEVIATION", "DECAY", "MODEL_DEVIATION")


# --- rows


def extract(database: Path) -> Table:
    """Return one row per curve and reach from the database of lcdb.

    Args:
        database: Its file database-accuracy.csv.
    """
    columns = [
        "openmlid",
        "learner",
        "size_train",
        "size_test",
        "outer_seed",
        "inner_seed",
        "score_test",
    ]
    table = pandas.read_csv(database, usecols=columns)
    table = table[np.isfinite(table["score_test"])]
    runs = table.groupby(["openmlid", "learner", "size_train"])["score_test"].agg(["mean", "size"])
    first = table[(table["outer_seed"] == 0) & (table["inner_seed"] == 0)].set_index(
        ["openmlid", "learner"]
    )
    rows = []
    for (data, learner), means in runs.groupby(level=[0, 1]):
        if (data, learner) not in first.index:
            continue
        single = (
            first.loc[[(data, learner)]]
            .drop_duplicates("size_train")
            .set_index("size_train")
            .sort_index()
        )
        of_size = means.droplevel([0, 1])
        for reach in REACHES:
            row = _row(of_size, single, reach)
            if row is not None:
                rows.append({"data": data, "learner": learner, "reach": reach} | row)
    return pandas.DataFrame(rows)


def _near(sizes: list[int], size: float) -> int | None:
    nearest = min(sizes, key=lambda item: abs(math.log(item / size)))
    return nearest if abs(math.log(nearest / size)) < 0.02 else None


def _row(means: Table, single: Table, reach: int) -> dict[str, Any] | None:
    sizes = [int(size) for size in means.index]
    for size in sorted(sizes, reverse=True):
        large, small = _near(sizes, size / reach), _near(sizes, size / reach / 2)
        if means["size"][size] < 5 or large is None or small is None or small < SMALLEST:
            continue
        if large not in single.index or small not in single.index:
            continue
        seen = single[single.index <= large]
        return {
            "samples": size, "truth": round(means["mean"][size], 4), "large": large, "small": small,
            "tested": int(single["size_test"][large]),
            "sizes": " ".join(str(item) for item in seen.index),
            "scores": " ".join(f"{item:.4f}" for item in seen["score_test"]),
        }  # fmt: skip
    return None


def curves() -> Table:
    """Return the stored rows, with the scores of both sizes."""
    table = pandas.read_csv(ROWS)
    scores = [
        dict(zip(sizes.split(), map(float, values.split()), strict=True))
        for sizes, values in zip(table["sizes"], table["scores"], strict=True)
    ]
    for column in ("large", "small"):
        table[f"{column}_score"] = [
            item[str(size)] for item, size in zip(scores, table[column], strict=True)
        ]
    return table


# --- methods


def predict(row: Any) -> tuple[float, float]:
    """Return gapscope's prediction for one curve, and half the width of its 90 % interval."""
    scores = []
    for name in ("large", "small"):
        score = float(getattr(row, f"{name}_score"))
        fraction = (score * row.tested + 2) / (row.tested + 4)
        scores.append(SizedScore(getattr(row, name), score, fraction * (1 - fraction) / row.tested))
    result = extrapolate(scores[0], scores[1], row.samples)
    return result.value, result.reach


def _power(n: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    return a - np.exp(b - np.exp(d) * np.log(n + np.exp(c)))


def _mmf(n: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    return (a * np.exp(b) + c * n ** np.exp(d)) / (np.exp(b) + n ** np.exp(d))


LAWS: dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[float, ...], ...]]] = {
    POWER: (_power, ((0.9, 0.0, 0.0, -1.0), (0.7, 1.0, 3.0, 0.0))),
    MMF: (_mmf, ((0.5, 3.0, 0.9, 0.0), (0.3, 5.0, 0.8, -0.5))),
}


def fit_law(law: str, row: Any) -> float:
    """Return the extrapolation of a law of four parameters, fitted to all sizes by least squares from two starts."""
    from scipy.optimize import least_squares

    function, starts = LAWS[law]
    sizes = np.array(row.sizes.split(), dtype=float)
    scores = np.array(row.scores.split(), dtype=float)
    last = float(scores[-1])
    if len(sizes) < 4:
        return last
    with np.errstate(all="ignore"):
        fits = [
            least_squares(
                lambda p: np.nan_to_num(function(sizes, *p) - scores, nan=1e3, posinf=1e3),
                start,
                max_nfev=200,
            )
            for start in starts
        ]
        value = float(
            function(np.array([float(row.samples)]), *min(fits, key=lambda fit: fit.cost).x)[0]
        )
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else last


# --- fit and evaluation


def fit_constants(table: Table, iterations: int = 300) -> dict[str, float]:
    """Return the constants of `gapscope.accuracy.extrapolation` that fit these curves best.

    They maximize the likelihood of the truth, with Student's distribution of 8 degrees of freedom.
    """
    from scipy.optimize import minimize
    from scipy.stats import t as student

    rows = list(table.itertuples())
    start = np.log([0.2, 0.1, 0.5, 0.1])
    shipped = {name: getattr(extrapolation, name) for name in CONSTANTS}

    def loss(parameters: np.ndarray) -> float:
        for name, value in zip(CONSTANTS, np.exp(parameters), strict=True):
            setattr(extrapolation, name, min(float(value), 0.99))
        values, reaches = np.array([predict(row) for row in rows]).T
        deviations = reaches / extrapolation.STUDENT_QUANTILE
        residuals = (table["truth"].to_numpy() - values) / deviations
        return float(-(student.logpdf(residuals, 8) - np.log(deviations)).mean())

    try:
        best = minimize(
            loss, start, method="Nelder-Mead", options={"maxfev": iterations, "xatol": 1e-2}
        ).x
    finally:
        for name, value in shipped.items():
            setattr(extrapolation, name, value)
    return dict(zip(CONSTANTS, np.exp(best).tolist(), strict=True))


def _table_of(
    reach: int, table: Table, methods: dict[str, np.ndarray], reaches: np.ndarray
) -> list[dict[str, Any]]:
    truth, data = table["truth"].to_numpy(), table["data"].tolist()
    last = methods[LAST] - truth
    rows = []
    for name, values in methods.items():
        error = values - truth
        is_rule = name == RULE
        rows.append({
            "reach": f"{reach} times", "method": name, "curves": len(table), "RMSE": rms_error(error, data),
            "minus the last point": rms_difference(error, last, data), "median error": float(np.median(np.abs(error))),
            "covered": float((np.abs(error) <= reaches).mean()) if is_rule else math.nan,
            "width": float(2 * np.mean(reaches)) if is_rule else math.nan,
        })  # fmt: skip
    return rows


def _evaluate(
    table: Table, reach: int, n_fitted: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of all curves of one reach, and of those to which laws are fitted."""
    part = table[table["reach"] == reach]
    predicted = np.array([predict(row) for row in part.itertuples()])
    large, slope = (
        part["large_score"].to_numpy(),
        (part["large_score"] - part["small_score"]).to_numpy(),
    )
    methods = {LAST: large, HALF: large + 0.5 * math.log2(reach) * slope, RULE: predicted[:, 0]}
    some = np.random.default_rng(0).permutation(len(part))[:n_fitted]
    laws = {
        name: np.array([fit_law(name, row) for row in part.iloc[some].itertuples()])
        for name in LAWS
    }
    of_some = {name: values[some] for name, values in methods.items()} | laws
    return (
        _table_of(reach, part, methods, predicted[:, 1]),
        _table_of(reach, part.iloc[some], of_some, predicted[some, 1]),
    )


def public_curves(setting: RunSettings) -> Outcome:
    """Judge the extrapolation of two single runs on curves of data sets that no constant was fitted on."""
    table = curves()
    if setting.scale == "smoke":
        table = table[table["data"] % 40 < 2]
    judged = table[table["data"] % 2 == 1]
    results = [
        _evaluate(judged, reach, 5 if setting.scale == "smoke" else N_FITTED) for reach in REACHES
    ]
    rows, some = ([row for result in results for row in result[part]] for part in (0, 1))
    numbers: dict[str, Any] = {"errors": to_numbers(rows), "laws": to_numbers(some)}
    if setting.scale != "smoke":
        even = table[(table["data"] % 2 == 0) & (table.index % 8 == 0)]
        numbers["constants"] = {
            name: {"shipped": getattr(extrapolation, name), "fitted again": value}
            for name, value in fit_constants(even).items()
        }
    of_rule = [
        find_row([row for row in rows if row["reach"] == f"{reach} times"], "method", RULE)
        for reach in REACHES
    ]
    return Outcome(
        numbers=numbers,
        claims=[
            error_claim(f"two single runs tell more than the last point, at {row['reach']} the samples",
                        "root mean squared error minus that of the last point", row["minus the last point"], below=0.0)
            for row in of_rule
        ],
        tables={"All curves": to_table(rows), "Curves to which laws are fitted": to_table(some)},
        verdict=(
            f"{judged['data'].nunique()} data sets with an odd OpenML number, {judged['learner'].nunique()} learners "
            "of scikit-learn. Intervals of errors are over data sets. Test sets hold about a tenth of the samples."
        ),
        stands_in_for=[{"what": "data", "paper": "", "here": "accuracies of the package lcdb 0.1.0"}],
        data={"lcdb": f"{len(table)} rows"},
    )  # fmt: skip


def main() -> None:
    """Write the stored rows from an installed lcdb."""
    spec = find_spec("lcdb")
    assert spec is not None and spec.origin is not None
    extract(Path(spec.origin).parent / "database-accuracy.csv").to_csv(
        ROWS, index=False, compression={"method": "gzip", "mtime": 0}
    )


if __name__ == "__main__":
    main()
