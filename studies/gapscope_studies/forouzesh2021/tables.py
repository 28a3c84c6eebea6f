"""Tables I and II, the authors' stored results, and a ranking before training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pandas
from scipy import stats

from gapscope.statistics.correlations import correlations, kendall_tau
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers
from gapscope_studies.forouzesh2021.analysis import (
    Columns,
    Networks,
    PartResult,
    Rows,
    log_pearson,
    relation,
    select_fitted,
    statistic_claim,
)
from gapscope_studies.forouzesh2021.figures import SAME
from gapscope_studies.forouzesh2021.networks import by_draw, load_samples
from gapscope_studies.kit.claims import Claim, claim, estimate
from gapscope_studies.kit.statistics import Interval, pearson
from gapscope_studies.kit.study import Table

AUTHORS_RUNS = 10
PAIRS_OF_MEANS = (("ours", "our deviation"), ("authors", "deviation"))
ERROR = "error_judged"
TABLE_1 = {
    "j_softmax": "J after softmax",
    "j": "J before softmax",
    "s_softmax": "S after softmax",
    "s_few": "S before softmax",
}


def _read_printed(table: str) -> Table:
    rows: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), comment="#")
    return rows[rows["table"] == table]


def _lead_of_s(columns: Columns) -> float:
    """Return the loss's correlation with S before the softmax, less the largest of the others."""
    result = {name: pearson(columns[name], columns["test_loss"]) for name in TABLE_1}
    return result.pop("s_few") - max(result.values())


def table_1(networks: Networks) -> PartResult:
    """Correlate J and S, before and after the softmax, with the test loss (Table I)."""
    fitted, printed = select_fitted(networks.points), _read_printed("I").set_index("quantity")
    rows, numbers = [], {}
    for column, label in TABLE_1.items():
        result, seconds = relation(fitted, column), networks.runs[f"{column}_seconds"]
        numbers[label] = {**result, "seconds": seconds.mean(), "seconds_std": seconds.std()}
        rows.append({"metric": label, "paper": printed.loc[label, "mean"], **result,
                     "paper's seconds": printed.loc[label, "seconds"], "seconds": seconds.mean()})  # fmt: skip
    numbers["S before softmax, per output, on all test inputs"] = relation(fitted, "s_per_output")
    times = networks.runs["j_seconds"] / networks.runs["s_few_seconds"]
    claims = [
        statistic_claim("Table I", "of J and S, before and after the softmax, S before it goes best with the loss",
                        "its Pearson minus the largest of the others", _lead_of_s, fitted, *TABLE_1, "test_loss"),
        claim("Sec. V", "J takes more than ten times the time of S", "processor time of J over that of S", times,
              clusters=networks.runs["configuration"].to_list(), unit="configurations", above=10.0,
              compared=(), untrained="processor times"),
    ]  # fmt: skip
    return PartResult(numbers={"metrics": numbers, "j_over_s_seconds": times.median()}, claims=claims, table=rows,
                  plots={"s": ("s_after", "test_loss"), "j": ("j_softmax", "test_loss")})  # fmt: skip


def table_2(networks: Networks) -> PartResult:
    """Correlate the error with loss and S before and after temperature scaling (Table II)."""
    table = select_fitted(networks.points)
    table = table[table["temperature"].notna()]
    table = table.assign(s_calibrated=table["s_after"] / table["temperature"] ** 2)
    pairs = {"loss": ("loss_judged", "loss_calibrated"), "S": ("s_after", "s_calibrated")}
    claims = [
        statistic_claim(
            "Table II", f"temperature scaling brings the {name} closer to the error",
            "Pearson of the logs after minus before",
            lambda columns, pair=pair: log_pearson(columns, pair[1], ERROR) - log_pearson(columns, pair[0], ERROR),
            table, *pair, ERROR,
        )
        for name, pair in pairs.items()
    ]  # fmt: skip
    numbers = {name: {"before": relation(table, before, ERROR), "after": relation(table, after, ERROR)}
               for name, (before, after) in pairs.items()}  # fmt: skip
    plots = {"before": ("s_after", ERROR), "after": ("s_calibrated", ERROR)}
    return PartResult(numbers=numbers, claims=claims, plots=plots, points=table)


def authors_row(width: int, name: str, ours: Any) -> dict[str, Any]:
    """Return one of the authors' stored results with ours (accuracy in per cent)."""
    printed = _read_printed("authors")
    printed = printed[(printed["width"] == width) & (printed["quantity"] == name)]
    mean, deviation = (
        float(printed[key].iloc[0]) if len(printed) else math.nan for key in ("mean", "deviation")
    )
    scale = 100 if name == "test_accuracy" else 1
    our_mean, our_deviation = scale * ours.mean(), scale * ours.std(ddof=0)
    return {
        "width": width, "quantity": name, "authors": mean, "deviation": deviation, "ours": our_mean,
        "our deviation": our_deviation, "runs": len(ours),
        "deviations apart": abs(our_mean - mean) / math.hypot(deviation, our_deviation),
    }  # fmt: skip


def same_mean(row: Mapping[str, Any]) -> Claim:
    """Return the claim that our mean is the authors' mean of ten runs within a factor.

    The interval of the ratio of two means is Welch's on the logarithms, by the delta method: the relative variances of
    both means add, with the degrees of freedom of Welch and Satterthwaite. The stored deviations divide by n.
    """
    ours, theirs = ((row[deviation] / row[mean]) ** 2 for mean, deviation in PAIRS_OF_MEANS)
    ours_df, theirs_df = row["runs"] - 1, AUTHORS_RUNS - 1
    # the variance of a mean is s^2 / n with s^2 = (deviation)^2 n / (n - 1), hence (deviation)^2 / (n - 1)
    parts = ours / ours_df, theirs / theirs_df
    df = sum(parts) ** 2 / (parts[0] ** 2 / ours_df + parts[1] ** 2 / theirs_df)
    half = float(stats.t.ppf(0.975, df)) * math.sqrt(sum(parts))
    ratio = row["ours"] / row["authors"]
    interval = Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half), row["runs"])
    says = f"{row['quantity']} at width {row['width']} is the authors' {row['authors']:.4g} within a factor of {SAME}"
    return estimate(
        "the authors' code", says, "our mean over the authors'", interval, unit="runs (same images)", compared=(),
        untrained="the authors' own trainings, their settings", above=1 / SAME, below=SAME,
    )  # fmt: skip


def authors(networks: Networks) -> PartResult:
    """Compare our runs with the authors' three stored results."""
    inputs = math.prod(
        load_samples(networks.setting, networks.configurations[0].spec)[0].input_shape
    )
    widths = networks.points["width"].astype(int)
    theory = [
        expected_sensitivity(fully_connected_layers(inputs, [width] * 4), 10) for width in widths
    ]
    table = networks.points.assign(s_over_eq_10=networks.points["s_before"] / theory)
    rows = [
        authors_row(int(width), name, group[name])
        for width, group in networks.runs.groupby("width")
        for name in ("test_loss", "s_after", "test_accuracy")
    ]
    claims = [same_mean(result) for result in rows if math.isfinite(result["deviations apart"])]
    ratios = by_draw(networks.points, "s_before")[0] / numpy.transpose([theory])
    claims.append(claim("eq. (10)", "S before training is eq. (10)", "S before training over eq. (10)", ratios.mean(0),
                        unit="draws of weights", above=1 / SAME, below=SAME, compared=(),
                        untrained="untrained networks"))  # fmt: skip
    return PartResult(numbers={"comparison": rows, "relation": relation(table, "s_after")}, claims=claims, table=rows,
                  points=table, plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def _ranking_rows(points: Table, name: str) -> Rows:
    rows = []
    for target in ("test_loss", "error"):
        result: Table = correlations(points, ["s_before"], target=target, baseline="parameters")
        for measure, values in result.iterrows():
            row = {
                "networks": name,
                "predictor": "S before training" if measure == "s_before" else "parameter count",
                "of": "test loss" if target == "test_loss" else "test error",
                "n": int(values["n"]),
            }
            for kind in ("kendall", "spearman"):
                row[kind.capitalize()] = values[kind]
                row[f"{kind.capitalize()} interval"] = (
                    f"[{values[f'{kind}_low']:.2f}, {values[f'{kind}_high']:.2f}]"
                )
            rows.append(row)
    return rows


def _tau_lead_of_s(columns: Columns) -> float:
    """Return Kendall's tau of loss and S before training, minus that with the size."""
    of_s, of_size = (
        kendall_tau(columns[name], columns["test_loss"]) for name in ("s_before", "parameters")
    )
    return of_s - of_size


def ranking(networks: Networks) -> PartResult:
    """Compare S before training with the parameter count as a ranking by loss and error."""
    points = networks.points
    is_standard = points["initialization"] == "standard_normal"
    standard = select_fitted(points[is_standard])
    rows, claims = [], []
    for name, subset in (
        ("standard normal, all", standard),
        ("standard normal, fully connected", standard[standard["n_hidden"].notna()]),
        ("other initializations, fully connected", points[~is_standard]),
    ):
        rows += _ranking_rows(subset, name)
        says = f"S before training ranks the losses better than counting parameters ({name})"
        quantity = "Kendall's tau of S minus that of the parameters"
        claims.append(statistic_claim("ranking", says, quantity, _tau_lead_of_s, subset, "s_before", "parameters",
                                      "test_loss", ours=True))  # fmt: skip
    return PartResult(numbers={"rankings": rows}, claims=claims, table=rows, points=points,
                      plots={"s": ("s_before", "test_loss"), "size": ("parameters", "test_loss")})  # fmt: skip
