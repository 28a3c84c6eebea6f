"""Figs. 3 and 4: the two metrics of model gradient similarity along training, beside the test accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
from scipy import stats

from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.szolnoky2022 import setups, tuning
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.runs import counted
from gapscope_studies.szolnoky2022.setups import Setup
from gapscope_studies.szolnoky2022.watching import gaps, watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"test_accuracy": "test accuracy (%)", "trace": "tr K / nC", "logdet": "log det K"}


def ends(table: Table) -> Table:
    """What each run came to.

    Args:
        table: From `watched`.

    Returns:
        One row a run: method, seed, whether it diverged, final and best test accuracy, final trace and log
        determinant, and `growth`, the difference of log tr K between the last recording and the first.
    """
    import pandas

    rows = []
    for (method, seed), run in table.groupby(["method", "seed"], sort=False):
        run = run.sort_values("epoch")
        rows.append(
            {
                "method": method,
                "seed": seed,
                "diverged": bool(run["diverged"].any()),
                "final": run["test_accuracy"].iloc[-1],
                "best": run["test_accuracy"].max(),
                "trace": run["trace"].iloc[-1],
                "logdet": run["logdet"].iloc[-1],
                "growth": math.log(run["trace"].iloc[-1] / run["trace"].iloc[0]),
            }
        )
    return pandas.DataFrame(rows)


def summary(found: Table) -> Table:
    """Means over the runs of each method; traces geometrically; kernels over runs where their numbers are finite."""
    import pandas

    rows = []
    for method, group in found.groupby("method", sort=False):
        finite = group["logdet"][numpy.isfinite(group["logdet"])]
        rows.append(
            {
                "method": method,
                "final": group["final"].mean(),
                "sd": group["final"].std(),
                "best": group["best"].mean(),
                "diverged": int(group["diverged"].sum()),
                "tr K / nC": math.exp(numpy.log(group["trace"]).mean()),
                "log det K": finite.mean() if len(finite) else -math.inf,
                "growth of log tr K": group["growth"].mean(),
            }
        )
    return pandas.DataFrame(rows)


def rank_correlation(found: Table, *, draws: int = 1000) -> tuple[float, float, float]:
    """Spearman's correlation of the final accuracy with the final trace, with a 95 % bootstrap interval.

    Over the runs that have a trace: those that did not diverge.

    Args:
        found: From `ends`.
        draws: Bootstrap samples of the methods, whose runs stay together.

    Returns:
        The correlation (negative where a lower trace goes with a higher accuracy), lower and upper end.
    """
    known = found.dropna(subset="trace")
    groups = [group[["trace", "final"]].to_numpy() for _, group in known.groupby("method", sort=False)]
    random = numpy.random.default_rng(0)

    def correlation(parts: list[numpy.ndarray]) -> float:
        joined = numpy.concatenate(parts)
        if (numpy.ptp(joined, axis=0) == 0).any():
            return math.nan
        result: Any = stats.spearmanr(joined[:, 0], joined[:, 1])
        return float(result.statistic)

    drawn = [correlation([groups[i] for i in random.integers(0, len(groups), len(groups))]) for _ in range(draws)]
    low, high = numpy.nanquantile(drawn, [0.025, 0.975])
    return correlation(groups), float(low), float(high)


def slower_growth(found: Table) -> list[str]:
    """Methods whose mean growth of log tr K is below that of the unregularised network."""
    growth = found.groupby("method", sort=False)["growth"].mean()
    return [str(name) for name, value in growth.items() if value < growth["Unregularised"]]


def draw_curves(axis: Axes, setup: Setup, table: Table, column: str) -> None:
    """One line a method, the mean over runs (traces geometrically); log determinants have gaps where singular."""
    for method in setup.methods:
        rows = table[table["method"] == method.name]
        values = numpy.log(rows[column]) if column == "trace" else rows[column]
        # a diverged run (NaN) leaves the mean to the others; a single singular kernel (-inf) leaves a gap in it
        mean = values.groupby(rows["epoch"]).mean()
        mean = mean.where(numpy.isfinite(mean))
        line = numpy.exp(mean) if column == "trace" else mean
        axis.plot(mean.index, line, color=method.colour, lw=1.2, label=method.name)
    axis.set_ylabel(PANELS[column], fontsize=9)
    axis.tick_params(which="both", labelsize=7)
    if column == "trace":
        axis.set_yscale("log")


def curves_figure(setup: Setup, table: Table) -> Figure:
    """Test accuracy, trace and log determinant against epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.2), layout="constrained")
    for axis, column in zip(figure.subplots(1, 3).flat, PANELS, strict=True):
        draw_curves(axis, setup, table, column)
    figure.supxlabel("epoch", fontsize=9)
    figure.legend(*axis.get_legend_handles_labels(), fontsize=8, ncols=7, loc="outside upper center", frameon=False)
    return figure


def metrics_sentence(found: Table) -> str:
    """What the trace did under regularisation, and how it goes with accuracy."""
    slower, rivals = slower_growth(found), found["method"].nunique() - 1
    correlation = "{:.2f} [{:.2f}, {:.2f}]".format(*rank_correlation(found))
    growth = found.groupby("method", sort=False)["growth"].mean()
    return (
        f"{len(slower)} of {rivals} methods slow the growth of the trace ({', '.join(slower) or 'none'}), as the paper "
        f"says of all: tr K grows by a factor {math.exp(growth['Unregularised']):.3g} unregularised and "
        f"{math.exp(growth['MGS']):.3g} under MGS. Spearman's correlation of final trace and final test accuracy over "
        f"runs is {correlation}, resampling methods (the paper: lower metrics, higher accuracy)."
    )


def accuracy_sentence(found: Table) -> str:
    """Where the methods end, and how far below their best recordings."""
    table = summary(found).set_index("method")
    parts = [f"{name} {row['final']:.1f} ({row['best']:.1f})" for name, row in table.iterrows()]
    diverged = table["diverged"][table["diverged"] > 0]
    lost = ", ".join(f"{count} of {name}" for name, count in diverged.items())
    said = f" Runs that diverged, counted as guessing: {lost}." if lost else ""
    return f"Final test accuracy in per cent (best recording): {', '.join(parts)}.{said}"


def _masks_sentence(table: Table) -> str:
    dropout = table[table["method"] == "Dropout"]
    return (
        f"With its masks on, the kernel of the dropout network is singular at {gaps(dropout, 'masked_logdet')} of "
        f"{len(dropout)} recordings, without them at {gaps(dropout, 'logdet')} (the paper's determinant has gaps)."
    )


def metrics_along_training(
    setting: Setting, *, make: Callable[[Setting], Setup], every: tuple[int, int, int], network: str
) -> Outcome:
    """Watch every method, tuned once, in the middle scenario.

    Args:
        setting: Scale, work folder, workers.
        make: Gives the setup.
        every: Epochs between recordings at smoke, small and paper scale.
        network: The network at small scale, in words.

    Returns:
        Curves, the end of every method, and how trace and accuracy go together.
    """
    setup = make(setting)
    tuned = tuning.cross_validated(setting, setup)
    smoke, small, large = every
    table, _ = watched(
        setting,
        setup,
        tuning.chosen_strengths(tuned),
        every=setting.choose(smoke=smoke, small=small, paper=large),
        n_samples=setting.choose(smoke=16, small=128, paper=256),
    )
    found = ends(table)
    verdict = [accuracy_sentence(found), metrics_sentence(found), _masks_sentence(table)]
    verdict.append(tuning.description(setup, tuned))
    if setting.scale == "small":
        verdict.append(f"{counted(setup.runs)} of {network} on {setup.base.data.train_size} samples.")
    return Outcome(
        numbers={
            "ends": found.to_dict("records"),
            "rank_correlation": rank_correlation(found),
            "slower_growth": slower_growth(found),
            "strengths": tuning.chosen_strengths(tuned),
            "recordings": table.to_dict("records"),
        },
        tables={"Ends of training, means over runs": summary(found), "Strengths tried": tuned},
        figures={"curves": curves_figure(setup, table)},
        verdict=" ".join(verdict),
        seeds=range(setup.runs),
    )


figure_3 = partial(
    metrics_along_training,
    make=setups.alexnet,
    every=(2, 2, 2),
    network="an AlexNet an eighth as wide",
)
figure_4 = partial(
    metrics_along_training,
    make=setups.resnet20,
    every=(2, 4, 2),
    network="a ResNet-20 a quarter as wide",
)
