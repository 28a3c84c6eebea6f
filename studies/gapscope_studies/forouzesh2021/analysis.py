"""Shared analysis: log-log relations with intervals, part assembly, claims of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pandas
from matplotlib.figure import Figure

from gapscope.statistics.correlations import correlations, kendall_tau
from gapscope.theory.sensitivity import predicted_loss
from gapscope_studies.forouzesh2021.grids import Configuration, make_grid
from gapscope_studies.forouzesh2021.networks import (
    average_runs,
    by_draw,
    load_samples,
    measure_runs,
)
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve, estimate
from gapscope_studies.kit.claims import relation as relation_of
from gapscope_studies.kit.plots import panels, scatter, set_labels
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import bootstrap_both, log_log, pearson
from gapscope_studies.kit.study import Outcome, RunSettings, Table

Rows = list[dict[str, Any]]
Numbers = dict[str, float]
Columns = Mapping[str, numpy.ndarray]
DRAWS = "draws of weights and images"
LABELS = {
    "s_after": "sensitivity S after training",
    "s_before": "sensitivity S before training",
    "s_train": "S on training inputs",
    "s_softmax": "sensitivity behind the softmax",
    "s_calibrated": "S after training over the squared temperature",
    "j_softmax": "J behind the softmax",
    "variance": "variance over runs",
    "bias_and_variance": "bias + variance",
    "test_loss": "test loss L",
    "error_judged": "test error",
}
ENDS = ("", "_low", "_high")


def relation(table: Table, x: str, y: str = "test_loss") -> Numbers:
    """Return correlations and slope of two columns, with 95 % bootstrap intervals.

    Pearson's correlation of the logarithms (`rho`) and of the numbers (`rho_raw`), and the least-squares `slope` of log
    y on log x, over the `n` configurations that are positive and finite; NaN with fewer than 3.

    >>> line = relation(pandas.DataFrame({"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}), "a", "b")
    >>> round(line["rho"], 9), round(line["slope"], 9)
    (1.0, 0.5)
    """
    pair = table[[x, y]].astype(float)
    pair = pair[numpy.isfinite(pair).all(axis=1) & (pair > 0).all(axis=1)]
    if len(pair) < 3:
        return {"n": len(pair)} | {
            name + end: math.nan for name in ("rho", "rho_raw", "slope") for end in ENDS
        }
    correlation, slope = log_log(pair[x], pair[y])
    raw: Any = correlations(pair, [x], target=y, baseline=None).loc[x]
    return {
        "n": len(pair),
        "rho": correlation.value, "rho_low": correlation.low, "rho_high": correlation.high,
        **{f"rho_raw{end}": float(raw[f"pearson{end}"]) for end in ENDS},
        "slope": slope.value, "slope_low": slope.low, "slope_high": slope.high,
    }  # fmt: skip


def number_rows(numbers: Any, name: str = "") -> Rows:
    """Return nested numbers as rows, a relation as three with intervals."""
    if not isinstance(numbers, dict):
        return [{"quantity": name, "value": numbers, "95 % interval": ""}]
    if "rho" in numbers:
        return [
            {"quantity": f"{name}: {text}, {numbers['n']} configurations", "value": numbers[key],
             "95 % interval": f"[{numbers[key + '_low']:.3g}, {numbers[key + '_high']:.3g}]"}
            for key, text in (("rho", "Pearson of logarithms"), ("rho_raw", "Pearson"), ("slope", "log-log slope"))
        ]  # fmt: skip
    return [
        row
        for key, value in numbers.items()
        for row in number_rows(value, f"{name}, {key}" if name else key)
    ]


def select_fitted(table: Table) -> Table:
    """Return configurations that fit their training data, or all where fewer than three do."""
    result = table[table["fitted"]]
    return result if len(result) >= 3 else table


def over_predicted(table: Table) -> dict[str, float]:
    """Return the smallest, median and largest ratio of the test loss to eq. (9)."""
    ratios = [
        entry.test_loss
        / predicted_loss(
            entry.s_after, n_outputs=int(entry.outputs), input_second_moment=entry.mean_square_input
        )
        for entry in table.itertuples()
        if entry.s_after > 0
    ]
    return dict(
        zip(
            ("smallest", "median", "largest"),
            numpy.quantile(ratios, [0.0, 0.5, 1.0]).tolist(),
            strict=True,
        )
    )


def by_family(table: Table) -> dict[str, Numbers]:
    """Return the relation of loss and S within each family."""
    return {
        str(family): relation(group, "s_after")
        for family, group in table.groupby("family", sort=False)
    }


# --- parts


def _scatter(table: Table, x: str, y: str = "test_loss", *, predicted: bool = False) -> Figure:
    """Plot a log-log scatter, one colour per family (open markers: data not fitted)."""
    figure, (axis,) = panels(1, width=5.4, height=4.0)
    groups = {str(family): group for family, group in table.groupby("family", sort=False)}
    hollow = {name: (~group["fitted"].astype(bool)).to_list() for name, group in groups.items()}
    scatter(axis, {name: (group[x], group[y]) for name, group in groups.items()}, hollow)
    set_labels(axis, xscale="log", yscale="log", xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y))
    if predicted:
        first, limits = table.iloc[0], [table[x].min(), table[x].max()]
        options = {
            "n_outputs": int(first["outputs"]),
            "input_second_moment": first["mean_square_input"],
        }
        axis.plot(
            limits,
            [predicted_loss(s, **options) for s in limits],
            "--",
            color="0.5",
            lw=1,
            label="eq. (9)",
        )
    axis.legend(fontsize=7, frameon=False)
    return figure


@dataclass(frozen=True)
class Networks:
    """Networks of one part: configurations, their runs, and points, the averages of runs."""

    setting: RunSettings
    configurations: list[Configuration]
    runs: Table
    points: Table


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """Results of one part: numbers, claims, scatter plots (name -> columns), table."""

    numbers: Mapping[str, Any]
    claims: Sequence[Claim]
    plots: Mapping[str, tuple[str, str]]
    points: Table = (
        None  # of the figures and tables, where they are not all, or have further columns
    )
    table: Rows | None = None
    predicted: bool = False  # figures have the line of eq. (9)


def error_control(table: Table, claims: Sequence[Claim]) -> list[Claim]:
    """Return the control that the test error, independent of the logits' size, rises with S."""
    rises = [each for each in claims if each.statement.startswith("L rises with")]
    if not rises or "test_accuracy" not in table or len(table) < 3:
        return []
    return [
        relation_of(
            "control", "the test error rises with S as the test loss does", "Kendall's tau of S and the test error",
            kendall_tau, table["s_after"].astype(float), 1 - table["test_accuracy"].astype(float), above=0.0, ours=True,
            compared=rises[0].compared, unit="configurations (same images)", **LOGITS,
        )
    ]  # fmt: skip


def run_part(
    setting: RunSettings,
    *,
    grid: str,
    analyse: Callable[[Networks], PartResult],
    paper: Mapping[str, str],
) -> Outcome:
    """Train, measure and analyse the networks of a grid, and return the part's outcome."""
    configurations = make_grid(
        setting, grid, setting.read(__file__).get("runs_per_grid", {}).get(grid)
    )
    runs = measure_runs(setting, configurations)
    points = average_runs(runs)
    result = analyse(Networks(setting, configurations, runs, points))
    points = points if result.points is None else result.points
    # networks are scored on other test samples than those that are monitored while they train
    specs = [
        spec.replace({"data.test_size": None}) for item in configurations for spec in item.specs()
    ]
    n_measured, n_unfitted = (
        len(load_samples(setting, specs[0])[1]),
        int((~points["fitted"].astype(bool)).sum()),
    )
    columns = dict.fromkeys(column for pair in result.plots.values() for column in pair)
    scores = [
        name for name in ("train_accuracy", "test_accuracy", "parameters", "runs") if name in points
    ]
    return outcome(
        setting, specs, paper,
        numbers={**result.numbers, "points": points.drop(columns=["draws", "loss curve"]).to_dict("records")},
        claims=[*result.claims, *error_control(points, result.claims)],
        also=[{"what": "measured on", "paper": "", "here": f"{n_measured:,} test samples"}],
        tables={"What was computed": pandas.DataFrame(result.table or number_rows(result.numbers)),
                "Points (means over runs)": points[["family", "name", *columns, *scores]]},
        figures={name: _scatter(points, *pair, predicted=result.predicted) for name, pair in result.plots.items()},
        verdict=f"{n_unfitted} of {len(points)} configurations do not fit their training data." if n_unfitted else "",
        seeds=range(int(points["runs"].max())),
    )  # fmt: skip


# --- claims: units are the draws of weights and images, and where networks are related, these or the configurations


# from standard normal weights a single misfitted sample costs thousands of nats: the accuracy alone is limited
LOGITS: dict[str, Any] = {
    "loss_reach": math.inf,
    "unequal": "initial weights set the size of the logits",
}


def arms_of(table: Table) -> tuple[ComparisonArm, ...]:
    """Return the training fit of the networks of each family, for the guard."""
    regression = "train_accuracy" not in table
    return tuple(
        ComparisonArm(
            name=str(family),
            train_accuracy=float(group["train_r2" if regression else "train_accuracy"].mean()),
            chance=0.0 if regression else 1 / float(group["outputs"].iloc[0]),
            train_loss=None if regression else float(group["train_loss"].mean()),
            curve=downsample_curve(group["curve"].to_list()),
            falling=True,
            loss_curve=downsample_curve(group["loss curve"].to_list()),
            finished=True if group["stopped"].all() else None,
        )
        for family, group in table.groupby("family", sort=False)
    )


def statistic_claim(
    source: str, says: str, quantity: str, statistic: Callable[[Columns], float], table: Table, *columns: str,
    **more: Any,
) -> Claim:  # fmt: skip
    """Return a claim about means over runs of columns, such as a difference of correlations."""
    values = more.pop("values", None)
    values = by_draw(table, *columns) if values is None else values
    result = bootstrap_both(lambda means: statistic(dict(zip(columns, means, strict=True))), values)
    unit = "configurations" if values.shape[1] < values.shape[2] else DRAWS
    return estimate(
        source,
        says,
        quantity,
        result,
        compared=arms_of(table),
        **{"unit": unit, "above": 0.0, **LOGITS, **more},
    )


def log_pearson(columns: Columns, x: str, y: str = "test_loss") -> float:
    """Return the correlation of the logarithms of positive, finite rows."""
    pair = numpy.array([columns[x], columns[y]])
    return pearson(*numpy.log(pair[:, (numpy.isfinite(pair) & (pair > 0)).all(0)]))


def relation_claim(
    source: str, says: str, table: Table, x: str, y: str = "test_loss", **more: Any
) -> Claim:
    """Return the claim that log y rises with log x over configurations or `clusters` of them."""
    quantity, clusters = f"Pearson of log {y} and log {x}", more.pop("clusters", None)
    if clusters is None:
        free = statistic_claim(
            source, says, quantity, lambda means: log_pearson(means, x, y), table, x, y, **more
        )
        return replace(free, low=max(free.low, -1.0), high=min(free.high, 1.0))
    result = log_log(table[x], table[y], clusters)[0]
    return estimate(
        source, says, quantity, result, above=0.0, compared=arms_of(table), **LOGITS, **more
    )


def ratio_claim(
    source: str, says: str, first: Table, second: Table, column: str, quantity: str, **more: Any
) -> Claim:
    """Return a claim on the log10 ratio of two tables' values, by draw."""
    other = more.pop("over", column)
    values = numpy.log10(by_draw(first, column)[0] / by_draw(second, other)[0]).mean(0).tolist()
    compared = (*arms_of(first), *(() if second is first else arms_of(second)))
    return claim(
        source,
        says,
        f"log10 of {quantity}",
        values,
        unit=DRAWS,
        compared=compared,
        **LOGITS,
        **more,
    )
