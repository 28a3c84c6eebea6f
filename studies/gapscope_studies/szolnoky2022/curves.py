"""Figs. 2 to 4: the two metrics of model gradient similarity along training, beside the test accuracy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy
from scipy import stats

from gapscope_studies.kit.claims import REGULARIZED, Claim, ComparisonArm, claim, downsample_curve, relation
from gapscope_studies.kit.plots import legend, lines, named, panels
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.szolnoky2022 import protocol
from gapscope_studies.szolnoky2022.boundaries import disagreements, draw_boundaries
from gapscope_studies.szolnoky2022.setups import Setup, make
from gapscope_studies.szolnoky2022.tables import DROP, with_interval, with_tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {"test_accuracy": "test accuracy (%)", "trace": "log10 of tr K / nC", "logdet": "log det K"}


def ends(table: Table) -> Table:
    """Return what each run came to. `growth` is the difference of log tr K between the last recording and the first."""
    import pandas

    rows = []
    for (method, seed), run in table.groupby(["method", "seed"], sort=False):
        run = run.sort_values("epoch")
        last, first = run.iloc[-1], run.iloc[0]
        rows.append(
            {"method": method, "seed": seed, "diverged": bool(run["diverged"].any())}
            | {"final": last["test_accuracy"], "best": run["test_accuracy"].max(), "trace": last["trace"]}
            | {"logdet": last["logdet"], "growth": math.log(last["trace"] / first["trace"])}
        )
    return pandas.DataFrame(rows)


def summary(found: Table) -> Table:
    """Means over the runs of each method. Traces geometrically. Kernels over runs where their numbers are finite."""
    groups = found.assign(
        trace=numpy.log(found["trace"]), logdet=found["logdet"].where(numpy.isfinite(found["logdet"]))
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
    """Rank correlation, NaN where one is constant."""
    if (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    result: Any = stats.spearmanr(x, y)
    return float(result.statistic)


def rank_correlation(found: Table) -> tuple[float, float, float]:
    """Spearman of the final accuracy with the final trace over runs that have one, with its interval over methods."""
    known = found.dropna(subset="trace")
    pair = known[["trace", "final"]].to_numpy()
    result = bootstrap(lambda rows: spearman(*pair[rows].T), len(pair), known["method"].to_list(), draws=1000)
    result = result.within(-1.0, 1.0)
    return result.value, result.low, result.high


def reached(setup: Setup, table: Table, *names: str) -> tuple[ComparisonArm, ...]:
    """For the guard: how well methods learned. All of them without names."""
    arms = []
    for name in names or table["method"].unique():
        group = table[table["method"] == name]
        runs = [run.sort_values("epoch") for _, run in group.groupby("seed")]
        last: dict[str, float | None] = {}
        for column in ("train_accuracy", "train_loss"):
            known = [run[column].dropna() for run in runs if column in run]
            ends = [float(values.iloc[-1]) for values in known if len(values)]
            last[column] = float(numpy.median(ends)) if ends else None
        accuracy = last["train_accuracy"]
        arms.append(ComparisonArm(
            name=str(name), train_accuracy=None if accuracy is None else accuracy / 100, chance=setup.chance / 100,
            train_loss=last["train_loss"],
            curve=downsample_curve([run["test_accuracy"].dropna().to_list() for run in runs]),
            loss_curve=downsample_curve([run["train_loss"].dropna().to_list() for run in runs if "train_loss" in run]),
        ))  # fmt: skip
    return tuple(arms)


def rank_claim(source: str, setup: Setup, table: Table, found: Table) -> Claim:
    """That a lower final trace goes with a higher accuracy, resampling methods, whose runs stay together.

    A run that diverged counts: its accuracy is that of guessing, and its trace the largest.
    """
    return relation(
        source, "a lower trace goes with a higher test accuracy", "Spearman of final trace and final accuracy",
        spearman, found["trace"].fillna(math.inf), found["final"], clusters=found["method"].to_list(), below=0.0,
        unit="methods", compared=reached(setup, table), **REGULARIZED,
    )  # fmt: skip


def slower(found: Table) -> list[str]:
    """Methods whose mean growth of log tr K is below that of the unregularized network."""
    growth = found.groupby("method", sort=False)["growth"].mean()
    return growth.index[growth < growth["Unregularised"]].to_list()


def by_seed(found: Table, column: str) -> Any:
    """One row per seed, one column a method."""
    return found.pivot(index="seed", columns="method", values=column)


def growth_claims(source: str, setup: Setup, table: Table, found: Table) -> list[Claim]:
    """That every method slows the growth of the trace. A run that diverged has no growth, its pair no value."""
    growth = by_seed(found, "growth")
    return [
        claim(source, f"{name} slows the growth of tr K", f"growth of log tr K under {name} minus unregularized",
              (growth[name] - growth["Unregularised"]).dropna(), below=0.0,
              compared=reached(setup, table, name, "Unregularised"), **REGULARIZED)
        for name in list(setup.colours)[1:]
    ]  # fmt: skip


def bend(epochs: Any, accuracy: Any, trace: Any) -> float:
    """Slope of log tr K an epoch around the peak of the test accuracy, minus its slope from there on.

    The peak is that of the mean over five recordings, "around" is those five; NaN where fewer than five come after.

    >>> flat_then_steep = [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    >>> round(bend(range(12), [0, 1, 2, 3, 5, 3, 2, 1, 0, 0, 0, 0], flat_then_steep) / math.log(2), 6)
    -1.0
    """
    x, y = numpy.asarray(epochs, dtype=float), numpy.log(numpy.asarray(trace, dtype=float))
    middle = 2 + int(numpy.convolve(numpy.asarray(accuracy, dtype=float), numpy.ones(5) / 5, "valid").argmax())
    around, after = slice(middle - 2, middle + 3), slice(middle + 2, None)
    if len(x[after]) < 5:
        return math.nan
    return float(numpy.polyfit(x[around], y[around], 1)[0] - numpy.polyfit(x[after], y[after], 1)[0])


def plateau_claims(source: str, setup: Setup, table: Table) -> list[Claim]:
    """That tr K hardly grows when the test accuracy peaks, and grows again once it falls (Sec. 3)."""
    claims = []
    for name in ("Unregularised", "Weight"):
        runs = [run.sort_values("epoch").iloc[1:] for _, run in table[table["method"] == name].groupby("seed")]
        bends = [bend(run["epoch"], run["test_accuracy"], run["trace"]) for run in runs if not run["diverged"].any()]
        claims.append(
            claim(source, f"tr K levels off when the test accuracy peaks ({name})",
                  "slope of log tr K an epoch at the peak minus after it", [b for b in bends if not math.isnan(b)],
                  below=0.0, compared=reached(setup, table, name))
        )  # fmt: skip
    return claims


def gaps_claim(source: str, setup: Setup, table: Table) -> Claim:
    """That the determinant of the dropout network, its masks on, has gaps, where the kernel is singular."""
    runs = table[table["method"] == "Dropout"].groupby("seed")
    counts = runs["masked_logdet"].agg(lambda values: float((values == -math.inf).sum()))
    return claim(source, "the determinant of the dropout network has gaps", "singular recordings with masks on",
                 counts.to_list(), above=0.0, compared=reached(setup, table, "Dropout"))  # fmt: skip


def draw_curves(axis: Axes, setup: Setup, table: Table, column: str) -> None:
    """One line a method, the mean over runs that lived, with their range. A singular kernel leaves a gap."""
    values = table.assign(trace=numpy.log10(table["trace"])) if column == "trace" else table
    grids: Any = {name: group.pivot(index="seed", columns="epoch", values=column)
                  for name, group in values.groupby("method", sort=False)}  # fmt: skip
    epochs = sorted(table["epoch"].unique())
    runs = {name: grid[~grid[epochs[-1]].isna()].to_numpy() for name, grid in grids.items()}
    lines(axis, {name: numpy.where(numpy.isfinite(each), each, numpy.nan) for name, each in runs.items()}, epochs,
          colors=setup.colours)  # fmt: skip
    named(axis, xlabel="epoch", ylabel=PANELS[column])


def metrics_along_training(setting: RunSettings, *, name: str, source: str, paper: dict[str, str]) -> Outcome:
    """Watch every method, tuned once, in the middle scenario (Figs. 3 and 4)."""
    setup = make(setting, name)
    tuned = protocol.tuned(setting, setup)
    table, _, specs = protocol.watched(setting, setup, protocol.chosen_strengths(tuned))
    result = ends(table)
    figure, axes = panels(len(PANELS), height=3.2)
    for axis, column in zip(axes, PANELS, strict=True):
        draw_curves(axis, setup, table, column)
    legend(figure)
    mine = result[result["method"] == "MGS"]
    claims = [
        *growth_claims(source, setup, table, result), rank_claim(source, setup, table, result),
        claim(source, f"MGS ends within {DROP:g} points of its best recording", "best minus final accuracy of MGS",
              mine["best"] - mine["final"], below=DROP, compared=reached(setup, table, "MGS")),
        gaps_claim(source, setup, table), *plateau_claims(source, setup, table),
    ]  # fmt: skip
    return with_tuning(
        setting, setup, tuned, specs, paper,
        numbers={"ends": result.to_dict("records"), "rank_correlation": rank_correlation(result),
                 "slower_growth": slower(result), "recordings": table.to_dict("records")},
        claims=claims, tables={"Ends of training, means over runs": summary(result)}, figures={"curves": figure},
    )  # fmt: skip


# --- Fig. 2 with Fig. A.1


def alignment_gains(table: Table) -> dict[str, list[float]]:
    """Alignment of the kernel with that of the labels at the end of training minus at its start, by method."""
    table = table[~table["diverged"]].sort_values("epoch").dropna(subset="alignment")
    ends = table.groupby(["method", "seed"], sort=False)["alignment"].agg(["first", "last"])
    gains = ends["last"] - ends["first"]
    return {str(method): group.to_list() for method, group in gains.groupby(level="method", sort=False)}


def boundary_claims(source: str, setup: Setup, table: Table, found: Table) -> list[Claim]:
    """That decision boundaries come nearer to the true model under a method, and where the trace is lower."""
    apart = by_seed(found, "boundary")
    quantity = "share of the data classified unlike the true model, {} minus unregularized"
    claims = [
        claim(source, f"the decision boundary of {name} is nearer to the true model", quantity.format(name),
              (apart[name] - apart["Unregularised"]).dropna(), below=0.0,
              compared=reached(setup, table, name, "Unregularised"), **REGULARIZED)
        for name in list(setup.colours)[1:]
    ]  # fmt: skip
    known = found.dropna(subset=["trace", "boundary"])
    return [
        *claims,
        relation(source, "boundaries are nearer to the true model where the trace is lower",
                 "Spearman of final trace and share classified unlike the true model", spearman, known["trace"],
                 known["boundary"], clusters=known["method"].to_list(), above=0.0, unit="methods",
                 compared=reached(setup, table), **REGULARIZED),
    ]  # fmt: skip


def figure_2(setting: RunSettings) -> Outcome:
    """Every method, both MGS penalties among them, on two noisy circles."""
    setup = make(setting, "circles")
    tuned = protocol.tuned(setting, setup)
    table, planes, specs = protocol.watched(setting, setup, protocol.chosen_strengths(tuned))
    apart, result = disagreements(setup, planes), ends(table)
    result["boundary"] = [apart.get((row.method, row.seed), math.nan) for row in result.itertuples()]
    finals, growth = by_seed(result, "final"), by_seed(result, "growth")
    beyond = {name: finals[name] - finals["Unregularised"] for name in finals if name != "Unregularised"}
    figure, axes = panels(2, height=3.0)
    for axis, column in zip(axes, ("trace", "logdet"), strict=True):
        draw_curves(axis, setup, table, column)
    legend(figure)
    between = growth["MGS (log det)"] - growth["MGS"]
    gains = alignment_gains(table)
    claims = [
        *growth_claims("Fig. 2", setup, table, result), rank_claim("Fig. 2", setup, table, result),
        *(claim("Fig. 2", f"{name} generalizes better than no regularization", f"points of {name} over unregularized",
                values, above=0.0, compared=reached(setup, table, name)) for name, values in beyond.items()),
        claim("Fig. 2", "the penalties on trace and determinant differ subtly",
              "growth of log tr K under the penalty on the determinant minus on the trace", between,
              above=-math.log(2), below=math.log(2), compared=reached(setup, table, "MGS (log det)", "MGS"),
              **REGULARIZED),
        *boundary_claims("Fig. 2", setup, table, result),
        claim("Sec. 2.2", "in training the kernel aligns with that of the labels",
              "centred alignment at the end minus at the start, unregularized", gains["Unregularised"], above=0.0,
              compared=reached(setup, table, "Unregularised")),
    ]  # fmt: skip
    return with_tuning(
        setting, setup, tuned, specs, {"data": "two noisy circles", "network": "fully connected, tanh"},
        numbers={"ends": result.to_dict("records"), "rank_correlation": rank_correlation(result),
                 "beyond_unregularised": {name: with_interval(values.to_list()) for name, values in beyond.items()},
                 "slower_growth": slower(result), "alignment_gains": gains},
        claims=claims, tables={"Ends of training, means over runs": summary(result)},
        figures={"boundaries": draw_boundaries(setting, setup, planes), "metrics": figure},
    )  # fmt: skip
