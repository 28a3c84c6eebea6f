"""Metrics of model gradient similarity along training, with test accuracy (Figs. 2 to 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from scipy.special import i0e

from gapscope.pools.from_spec import prepare_data
from gapscope_studies.kit.claims import REGULARIZED, Claim, claim, relation
from gapscope_studies.kit.plots import legend, lines, panels, set_labels
from gapscope_studies.kit.runs import differences
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.szolnoky2022 import protocol
from gapscope_studies.szolnoky2022.protocol import HALF_WIDTH, POINTS, plane
from gapscope_studies.szolnoky2022.setups import Setup, make_setup
from gapscope_studies.szolnoky2022.tables import DROP, arms_of, with_tuning

PANELS = {
    "test_accuracy": "test accuracy (%)",
    "trace": "log10 of tr K / nC",
    "logdet": "log det K",
}
# Two penalties differ subtly within two points of accuracy: any of them gains more over no regularization (2.1 to 4.1).
SUBTLE_POINTS = 2.0
SERIES = ("curve", "loss curve")  # columns of `last_recordings` that hold lists


def last_recordings(table: Table) -> Table:
    """Return a row per run: end, training, and growth of log tr K and of the alignment of K."""
    rows = []
    for (method, seed), run in table.groupby(["method", "seed"], sort=False):
        run = run.sort_values("epoch")
        series: dict[str, list[float]] = {
            name: run[name].dropna().to_list() if name in run else []
            for name in ("test_accuracy", "train_accuracy", "train_loss", "alignment")
        }
        last, diverged, alignment = run.iloc[-1], bool(run["diverged"].any()), series["alignment"]
        rows.append({
            "method": method, "seed": seed, "diverged": diverged,
            "final": last["test_accuracy"], "best": run["test_accuracy"].max(), "trace": last["trace"],
            "logdet": last["logdet"], "growth": math.log(last["trace"] / run["trace"].iloc[0]),
            "alignment": alignment[-1] - alignment[0] if alignment and not diverged else math.nan,
            "train_accuracy": series["train_accuracy"][-1] / 100 if series["train_accuracy"] else math.nan,
            "train_loss": series["train_loss"][-1] if series["train_loss"] else math.nan,
            "curve": series["test_accuracy"], "loss curve": series["train_loss"],
        })  # fmt: skip
    return pandas.DataFrame(rows)


def mean_table(runs: Table) -> Table:
    """Return means over the runs of each method (geometric for traces)."""
    groups = runs.assign(
        trace=numpy.log(runs["trace"]), logdet=runs["logdet"].where(numpy.isfinite(runs["logdet"]))
    ).groupby("method", sort=False)
    table = groups.agg(
        final=("final", "mean"), sd=("final", "std"), best=("best", "mean"), diverged=("diverged", "sum"),
        trace=("trace", "mean"), logdet=("logdet", "mean"), singular=("logdet", lambda values: values.isna().sum()),
        growth=("growth", "mean"),
    )  # fmt: skip
    table["trace"] = numpy.exp(table["trace"])
    names = {"trace": "tr K / nC", "logdet": "log det K, mean where finite", "singular": "not finite",
             "growth": "growth of log tr K"}  # fmt: skip
    return table.rename(columns=names).reset_index()


def spearman(x: numpy.ndarray, y: numpy.ndarray) -> float:
    """Return the rank correlation, NaN where one is constant."""
    if (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    result: Any = stats.spearmanr(x, y)
    return float(result.statistic)


def difference_claims(
    source: str, setup: Setup, runs: Table, column: str, says: str, quantity: str, **more: Any
) -> list[Claim]:
    """Return claims that methods differ from the unregularized one, by seed."""
    # a run that diverged has no growth, its pair no value
    return [
        claim(source, says.format(name), quantity.format(name),
              differences(runs, name, "Unregularised", column).dropna(),
              compared=arms_of(setup, runs, name, "Unregularised"), **REGULARIZED, **more)
        for name in list(setup.colours)[1:]
    ]  # fmt: skip


def growth_claims(source: str, setup: Setup, runs: Table) -> list[Claim]:
    """Return claims that every method slows the growth of the trace."""
    quantity = "growth of log tr K under {} minus unregularized"
    return difference_claims(
        source, setup, runs, "growth", "{} slows the growth of tr K", quantity, below=0.0
    )


def rank_claim(source: str, setup: Setup, runs: Table) -> Claim:
    """Return the claim that a lower final trace goes with a higher accuracy, over methods.

    A run that diverged counts: its accuracy is that of guessing, and its trace the largest.
    """
    return relation(
        source, "a lower trace goes with a higher test accuracy", "Spearman of final trace and final accuracy",
        spearman, runs["trace"].fillna(math.inf), runs["final"], clusters=runs["method"].to_list(), below=0.0,
        unit="methods", compared=arms_of(setup, runs), **REGULARIZED,
    )  # fmt: skip


def slope_change(epochs: Any, accuracy: Any, trace: Any) -> float:
    """Return the slope of log tr K around the peak of test accuracy, minus that after it.

    The peak is that of the mean over five recordings, "around" is those five; NaN where fewer than five come after.

    >>> flat_then_steep = [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    >>> round(slope_change(range(12), [0, 1, 2, 3, 5, 3, 2, 1, 0, 0, 0, 0], flat_then_steep) / math.log(2), 6)
    -1.0
    """
    x, y = numpy.asarray(epochs, dtype=float), numpy.log(numpy.asarray(trace, dtype=float))
    middle = 2 + int(
        numpy.convolve(numpy.asarray(accuracy, dtype=float), numpy.ones(5) / 5, "valid").argmax()
    )
    around, after = slice(middle - 2, middle + 3), slice(middle + 2, None)
    if len(x[after]) < 5:
        return math.nan
    return float(
        numpy.polyfit(x[around], y[around], 1)[0] - numpy.polyfit(x[after], y[after], 1)[0]
    )


def plateau_claims(source: str, setup: Setup, table: Table, runs: Table) -> list[Claim]:
    """Return claims that tr K levels off at the peak of test accuracy (Sec. 3)."""
    claims = []
    for name in ("Unregularised", "Weight"):
        groups = (
            table[(table["method"] == name) & (table["epoch"] > 0)]
            .sort_values("epoch")
            .groupby("seed")
        )
        slopes = [slope_change(run["epoch"], run["test_accuracy"], run["trace"])
                  for _, run in groups if not run["diverged"].any()]  # fmt: skip
        claims.append(
            claim(source, f"tr K levels off when the test accuracy peaks ({name})",
                  "slope of log tr K an epoch at the peak minus after it", numpy.array(slopes)[~numpy.isnan(slopes)],
                  below=0.0, compared=arms_of(setup, runs, name))
        )  # fmt: skip
    return claims


def adam_claims(source: str, setup: Setup, runs: Table) -> list[Claim]:
    """Return the claim that Adam, where it is compared, first does well and then overfits (caption of Fig. 4)."""
    adam = runs[runs["method"] == "Adam"]
    if adam.empty:
        return []
    return [
        claim(source, f"Adam ends more than {DROP:g} points below its best recording",
              "best minus final accuracy of Adam", adam["best"] - adam["final"], above=DROP,
              compared=arms_of(setup, runs, "Adam"))
    ]  # fmt: skip


def count_gaps(table: Table) -> list[float]:
    """Count the recordings of each dropout network at which its masked kernel is singular."""
    recordings = table[table["method"] == "Dropout"].groupby("seed")["masked_logdet"]
    return recordings.agg(lambda values: float((values == -math.inf).sum())).to_list()


def draw_curves(setup: Setup, table: Table, columns: Sequence[str]) -> Figure:
    """Plot the mean of runs that did not diverge, with gaps at singular kernels."""
    figure, axes = panels(len(columns), height=3.2)
    values = table.assign(trace=numpy.log10(table["trace"]))
    epochs = sorted(table["epoch"].unique())
    for axis, column in zip(axes, columns, strict=True):
        grids: Any = {name: group.pivot(index="seed", columns="epoch", values=column)
                      for name, group in values.groupby("method", sort=False)}  # fmt: skip
        runs = {name: grid[~grid[epochs[-1]].isna()].to_numpy() for name, grid in grids.items()}
        lines(axis, {name: numpy.where(numpy.isfinite(each), each, numpy.nan) for name, each in runs.items()}, epochs,
              colors=setup.colours)  # fmt: skip
        set_labels(axis, xlabel="epoch", ylabel=PANELS[column])
    legend(figure)
    return figure


def metrics_along_training(
    setting: RunSettings, *, name: str, source: str, paper: dict[str, str]
) -> Outcome:
    """Monitor every method, tuned once, in the middle scenario (Figs. 3 and 4)."""
    setup = make_setup(setting, name)
    tuning = protocol.tune(setting, setup)
    table, _, specs = protocol.monitor_methods(setting, setup, tuning)
    runs = last_recordings(table)
    mgs = runs[runs["method"] == "MGS"]
    claims = [
        *growth_claims(source, setup, runs), rank_claim(source, setup, runs),
        claim(source, f"MGS ends within {DROP:g} points of its best recording", "best minus final accuracy of MGS",
              mgs["best"] - mgs["final"], below=DROP, compared=arms_of(setup, runs, "MGS")),
        claim(source, "the determinant of the dropout network has gaps", "singular recordings with masks on",
              count_gaps(table), above=0.0, compared=arms_of(setup, runs, "Dropout")),
        *plateau_claims(source, setup, table, runs),
        *adam_claims(source, setup, runs),
    ]  # fmt: skip
    return with_tuning(
        setting, setup, tuning, specs, paper,
        numbers={"ends": runs.drop(columns=[*SERIES]).to_dict("records"), "recordings": table.to_dict("records")},
        claims=claims, tables={"Ends of training, means over runs": mean_table(runs)},
        figures={"curves": draw_curves(setup, table, list(PANELS))},
    )  # fmt: skip


# --- Fig. 2 with Fig. A.1: decision boundaries against the true model of two noisy circles, whose densities are known


def circle_density(radius: numpy.ndarray, circle: float, noise: float) -> numpy.ndarray:
    r"""Return the density of uniform points on a circle with Gaussian noise, by radius.

    $\exp(-(r - a)^2 / 2 s^2) e^{-ra/s^2} I_0(ra/s^2) / (2 \pi s^2)$ for a circle of radius a and noise s.
    """
    scaled = radius * circle / noise**2
    return (
        numpy.exp(-((radius - circle) ** 2) / (2 * noise**2))
        * i0e(scaled)
        / (2 * numpy.pi * noise**2)
    )


def true_model(factor: float, noise: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the likelier class at each point of `plane` (true: inner circle), and density."""
    radius = numpy.linalg.norm(plane().numpy(), axis=1)
    outer, inner = circle_density(radius, 1.0, noise), circle_density(radius, factor, noise)
    return inner > outer, (outer + inner) / (outer + inner).sum()


def disagreement(
    probabilities: Sequence[float] | numpy.ndarray, factor: float, noise: float
) -> float:
    """Return the fraction of the data that a network classifies unlike the true model."""
    inside, weight = true_model(factor, noise)
    return float(weight[(numpy.asarray(probabilities) > 0.5) != inside].sum())


def _circles(setup: Setup) -> tuple[float, float]:
    options = setup.base.data.options
    return float(options.get("factor", 0.5)), float(options.get("noise", 0.2))


def _draw(axis: Axes, values: Sequence[float], setting: RunSettings, setup: Setup) -> None:
    """Plot one decision boundary with the data, and the true model's dashed."""
    samples = prepare_data(setup.with_seed(0), setting.data_root)[0].train
    side = numpy.linspace(-HALF_WIDTH, HALF_WIDTH, POINTS)
    axis.contourf(side, side, numpy.reshape(values, (POINTS, POINTS)), levels=[0, 0.5, 1],
                  colors=["#dbe5f3", "#f8ddd6"])  # fmt: skip
    inside, _ = true_model(*_circles(setup))
    axis.contour(
        side,
        side,
        inside.reshape(POINTS, POINTS),
        levels=[0.5],
        colors="k",
        linestyles="--",
        linewidths=0.7,
    )
    for label, colour in ((0, "tab:blue"), (1, "tab:red")):
        axis.plot(*samples.inputs[samples.y == label].numpy().T, ".", color=colour, ms=3)
    axis.set(
        xticks=[],
        yticks=[],
        aspect="equal",
        xlim=(-HALF_WIDTH, HALF_WIDTH),
        ylim=(-HALF_WIDTH, HALF_WIDTH),
    )


def draw_boundaries(
    setting: RunSettings, setup: Setup, planes: Mapping[tuple[str, int], Sequence[float]]
) -> Figure:
    """Plot the decision boundary of every method's first run."""
    figure, axes = panels(len(setup.methods), width=1.75, height=2.0)
    for axis, method in zip(axes, setup.methods, strict=True):
        if (method.name, 0) in planes:
            _draw(axis, planes[method.name, 0], setting, setup)
        set_labels(axis, title=method.name)
    return figure


def subtle_claims(setup: Setup, runs: Table) -> list[Claim]:
    """Return claims that the penalties on trace and determinant differ subtly, by accuracy and boundary.

    The paper's determinant is that of K; that of I + K, which is never singular, is ours.
    """
    claims = []
    for name in ("MGS (log det K)", "MGS (log det I+K)"):
        for column, quantity, most in (
            ("final", "points of accuracy", SUBTLE_POINTS),
            ("boundary", "share of the data classified unlike the true model", SUBTLE_POINTS / 100),
        ):
            values = differences(runs, name, "MGS", column).dropna()
            claims.append(
                claim("Fig. 2", f"{name} and the penalty on the trace differ subtly ({quantity})",
                      f"{quantity}, {name} minus MGS", values, above=-most, below=most,
                      compared=arms_of(setup, runs, name, "MGS"), ours=name != "MGS (log det K)", **REGULARIZED)
            )  # fmt: skip
    return claims


def figure_2(setting: RunSettings) -> Outcome:
    """Compare every method, both MGS penalties among them, on two noisy circles."""
    setup = make_setup(setting, "circles")
    tuning = protocol.tune(setting, setup)
    table, planes, specs = protocol.monitor_methods(setting, setup, tuning)
    runs = last_recordings(table)
    apart = {key: disagreement(values, *_circles(setup)) for key, values in planes.items()}
    runs["boundary"] = [apart.get((row.method, row.seed), math.nan) for row in runs.itertuples()]
    complete = runs.dropna(subset=["trace", "boundary"])
    claims = [
        *growth_claims("Fig. 2", setup, runs), rank_claim("Fig. 2", setup, runs),
        *(claim("Fig. 2", f"{name} generalizes better than no regularization", f"points of {name} over unregularized",
                differences(runs, name, "Unregularised", "final"), above=0.0, compared=arms_of(setup, runs, name))
          for name in sorted(setup.colours) if name != "Unregularised"),
        *subtle_claims(setup, runs),
        *difference_claims("Fig. 2", setup, runs, "boundary",
                           "the decision boundary of {} is nearer to the true model",
                           "share of the data classified unlike the true model, {} minus unregularized", below=0.0),
        relation("Fig. 2", "boundaries are nearer to the true model where the trace is lower",
                 "Spearman of final trace and share classified unlike the true model", spearman, complete["trace"],
                 complete["boundary"], clusters=complete["method"].to_list(), above=0.0, unit="methods",
                 compared=arms_of(setup, runs), **REGULARIZED),
        claim("Sec. 2.2", "in training the kernel aligns with that of the labels",
              "centred alignment at the end minus at the start, unregularized",
              runs.loc[runs["method"] == "Unregularised", "alignment"].dropna(), above=0.0,
              compared=arms_of(setup, runs, "Unregularised")),
    ]  # fmt: skip
    return with_tuning(
        setting, setup, tuning, specs, {"data": "two noisy circles", "network": "fully connected, tanh"},
        numbers={"ends": runs.drop(columns=[*SERIES]).to_dict("records")},
        claims=claims, tables={"Ends of training, means over runs": mean_table(runs)},
        figures={"boundaries": draw_boundaries(setting, setup, planes),
                 "metrics": draw_curves(setup, table, ["trace", "logdet"])},
    )  # fmt: skip
