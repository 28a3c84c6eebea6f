"""Parts that are tables: Tables I and II, the authors' stored results, and a ranking.

The ranking is one of untrained networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from scipy import stats

from gapscope.prediction.correlations import correlations, kendall_tau
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers
from gapscope_studies.forouzesh2021.analysis import (
    Answer,
    Columns,
    Measured,
    Rows,
    fitted,
    log_pearson,
    relation,
    relations_claim,
)
from gapscope_studies.forouzesh2021.figures import SAME
from gapscope_studies.forouzesh2021.networks import by_draw, measured_samples
from gapscope_studies.kit.claims import Claim, claim
from gapscope_studies.kit.claims import estimate as claims_of
from gapscope_studies.kit.statistics import Interval, pearson
from gapscope_studies.kit.study import Table

AUTHORS_RUNS = 10
JUDGED = "error_judged"
TABLE_1 = {
    "j_softmax": "J after softmax",
    "j": "J before softmax",
    "s_softmax": "S after softmax",
    "s_few": "S before softmax",
}


def _printed(table: str) -> Table:
    import pandas

    rows: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), comment="#")
    return rows[rows["table"] == table]


def _lead(columns: Columns) -> float:
    """Correlation of the loss with S before the softmax, less the largest of the three others."""
    result = {name: pearson(columns[name], columns["test_loss"]) for name in TABLE_1}
    return result.pop("s_few") - max(result.values())


def table_1(measured: Measured) -> Answer:
    """Correlate J and S, before and after the softmax, with the test loss (Table I).

    Correlations are Pearson's. The table has computing times, too.
    """
    all_runs, used, theirs = measured.runs, fitted(measured.points), _printed("I").set_index("quantity")
    rows, numbers = [], {}
    for column, label in TABLE_1.items():
        result, seconds = relation(used, column), all_runs[f"{column}_seconds"]
        numbers[label] = {**result, "seconds": seconds.mean(), "seconds_std": seconds.std()}
        rows.append({"metric": label, "paper": theirs.loc[label, "mean"], **result,
                     "paper's seconds": theirs.loc[label, "seconds"], "seconds": seconds.mean()})  # fmt: skip
    numbers["S before softmax, per output, on all test inputs"] = relation(used, "s_per_output")
    times = all_runs["j_seconds"] / all_runs["s_few_seconds"]
    claims = [
        relations_claim("Table I", "of J and S, before and after the softmax, S before it goes best with the loss",
                           "its Pearson minus the largest of the others", _lead, used, *TABLE_1, "test_loss"),
        claim("Sec. V", "J takes more than ten times the time of S", "processor time of J over that of S", times,
              clusters=all_runs["configuration"].to_list(), unit="configurations", above=10.0,
              compared=(), untrained="processor times"),
    ]  # fmt: skip
    return Answer(numbers={"metrics": numbers, "j_over_s_seconds": times.median()}, claims=claims, table=rows,
                  plots={"s": ("s_after", "test_loss"), "j": ("j_softmax", "test_loss")})  # fmt: skip


def table_2(measured: Measured) -> Answer:
    """Correlate the error with loss and S before and after temperature scaling (Table II).

    The paper's table is lost.
    """
    table = fitted(measured.points)
    table = table[table["temperature"].notna()]
    table = table.assign(s_calibrated=table["s_after"] / table["temperature"] ** 2)
    pairs = {"loss": ("loss_judged", "loss_calibrated"), "S": ("s_after", "s_calibrated")}
    claims = [
        relations_claim(
            "Table II", f"temperature scaling brings the {name} closer to the error",
            "Pearson of the logs after minus before",
            lambda columns, pair=pair: log_pearson(columns, pair[1], JUDGED) - log_pearson(columns, pair[0], JUDGED),
            table, *pair, JUDGED,
        )
        for name, pair in pairs.items()
    ]  # fmt: skip
    numbers = {name: {"before": relation(table, before, JUDGED), "after": relation(table, after, JUDGED)}
               for name, (before, after) in pairs.items()}  # fmt: skip
    plots = {"before": ("s_after", JUDGED), "after": ("s_calibrated", JUDGED)}
    return Answer(numbers=numbers, claims=claims, plots=plots, points=table)


def authors_row(width: int, name: str, ours: Any) -> dict[str, Any]:
    """Return one of the authors' stored results with ours (accuracy in per cent)."""
    theirs = _printed("authors")
    result = theirs[(theirs["width"] == width) & (theirs["quantity"] == name)]
    mean, deviation = (float(result[key].iloc[0]) if len(result) else math.nan for key in ("mean", "deviation"))
    scale = 100 if name == "test_accuracy" else 1
    own, own_deviation = scale * ours.mean(), scale * ours.std(ddof=0)
    return {
        "width": width,
        "quantity": name,
        "authors": mean,
        "deviation": deviation,
        "ours": own,
        "our deviation": own_deviation,
        "runs": len(ours),
        "deviations apart": abs(own - mean) / math.hypot(deviation, own_deviation),
    }


def same_mean(found: Mapping[str, Any], comparisons: int) -> Claim:
    """Return the claim that our mean is the authors' mean of ten runs.

    The difference is compared with its standard error. The bound is that which 5 % of as many comparisons of equal
    means would pass anywhere (Bonferroni).
    """
    error = math.hypot(found["deviation"] / math.sqrt(AUTHORS_RUNS), found["our deviation"] / math.sqrt(found["runs"]))
    apart = abs(found["ours"] - found["authors"]) / error
    says = f"{found['quantity']} at width {found['width']} is {found['authors']:.4g}"
    return claims_of("the authors' code", says, "standard errors between the means",
                     Interval(apart, apart, apart, found["runs"]), unit="runs", compared=(),
                     untrained="the authors' own trainings, their settings",
                     below=float(stats.norm.isf(0.025 / comparisons)))  # fmt: skip


def authors(measured: Measured) -> Answer:
    """Compare our runs with the authors' three stored results.

    These have 4 hidden layers, standard normal weights, 1,000 CIFAR-10 images and ten runs.
    """
    inputs = math.prod(measured_samples(measured.setting, measured.configurations[0].spec)[0].input_shape)
    widths = measured.points["width"].astype(int)
    theory = [expected_sensitivity(fully_connected_layers(inputs, [width] * 4), 10) for width in widths]
    table = measured.points.assign(s_over_eq_10=measured.points["s_before"] / theory)
    rows = [
        authors_row(int(width), name, group[name])
        for width, group in measured.runs.groupby("width")
        for name in ("test_loss", "s_after", "test_accuracy")
    ]
    known = [result for result in rows if math.isfinite(result["deviations apart"])]
    claims = [same_mean(result, len(known)) for result in known]
    ratios = by_draw(measured.points, "s_before")[0] / numpy.transpose([theory])
    claims.append(claim("eq. (10)", "S before training is eq. (10)", "S before training over eq. (10)", ratios.mean(0),
                        unit="draws of weights", above=1 / SAME, below=SAME, compared=(),
                        untrained="untrained networks"))  # fmt: skip
    return Answer(numbers={"comparison": rows, "relation": relation(table, "s_after")}, claims=claims, table=rows,
                  points=table, plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def _ranking_rows(used: Table, what: str) -> Rows:
    rows = []
    for target in ("test_loss", "error"):
        result: Table = correlations(used, ["s_before"], target=target, baseline="parameters")
        for measure, values in result.iterrows():
            row = {
                "networks": what,
                "predictor": "S before training" if measure == "s_before" else "parameter count",
                "of": "test loss" if target == "test_loss" else "test error",
                "n": int(values["n"]),
            }
            for name in ("kendall", "spearman"):
                row[name.capitalize()] = values[name]
                row[f"{name.capitalize()} interval"] = f"[{values[f'{name}_low']:.2f}, {values[f'{name}_high']:.2f}]"
            rows.append(row)
    return rows


RANKED = ("s_before", "parameters", "test_loss")


def _tau_lead(columns: Columns) -> float:
    """Return Kendall's tau of the loss with S before training, minus that with network size.

    The size is the number of parameters.
    """
    of_s, of_size = (kendall_tau(columns[name], columns["test_loss"]) for name in ("s_before", "parameters"))
    return of_s - of_size


def ranking(measured: Measured) -> Answer:
    """Compare S before training with the parameter count as a ranking by loss and error."""
    table = measured.points
    is_standard = table["initialization"] == "standard_normal"
    used = fitted(table[is_standard])
    rows, claims = [], []
    for what, networks in (
        ("standard normal, all", used),
        ("standard normal, fully connected", used[used["n_hidden"].notna()]),
        ("other initializations, fully connected", table[~is_standard]),
    ):
        rows += _ranking_rows(networks, what)
        says = f"S before training ranks the losses better than counting parameters ({what})"
        quantity = "Kendall's tau of S minus that of the parameters"
        claims.append(relations_claim("ranking", says, quantity, _tau_lead, networks, *RANKED, ours=True))
    return Answer(numbers={"rankings": rows}, claims=claims, table=rows, points=table,
                  plots={"s": ("s_before", "test_loss"), "size": ("parameters", "test_loss")})  # fmt: skip
