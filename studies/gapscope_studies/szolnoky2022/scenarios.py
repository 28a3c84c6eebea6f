"""The test bench of noise by training size, and the robustness to five training variables (Fig. 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy

from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.szolnoky2022 import setups, tuning
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.runs import counted, means, scenario_runs, with_interval, written
from gapscope_studies.szolnoky2022.setups import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# 11 x 13 = 143 scenarios; the paper gives their number and that 0, 30, 60, 80 % and 3,000 samples are among them.
PAPER_NOISES = tuple(round(0.1 * i, 1) for i in range(11))
PAPER_SIZES = (250, 500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 5000, 6000, 8000, 10_000)
QUANTILES = (0.1, 0.5, 0.9)


def bench_scenarios(setting: Setting, setup: Setup) -> list[dict[str, Any]]:
    """Every noise level with every training size; it holds the noise levels of Table 1, whose networks it shares."""
    size = setup.base.data.train_size
    assert size is not None
    noises = setting.choose(smoke=(0.0, 0.6), small=(0.0, 0.3, 0.6, 0.8), paper=PAPER_NOISES)
    sizes = setting.choose(smoke=(size // 2, size), small=(500, size), paper=PAPER_SIZES)
    return [{"data.label_noise": noise, "data.train_size": size} for size in sizes for noise in noises]


def first_places(found: Table) -> dict[str, int]:
    """Method -> number of scenarios in which its mean final accuracy is the highest."""
    best = found.sort_values("final", ascending=False, kind="stable").groupby(["noise", "size"])["method"].first()
    return {str(name): int((best == name).sum()) for name in found["method"].unique()}


def mean_ranks(found: Table) -> dict[str, float]:
    """Method -> its rank by mean final accuracy, 1 the best, averaged over scenarios."""
    ranks = found.groupby(["noise", "size"])["final"].rank(ascending=False)
    return {str(name): float(part.mean()) for name, part in ranks.groupby(found["method"], sort=False)}


def bench_figure(setup: Setup, found: Table) -> Figure:
    """Final test accuracy of every method over noise and training size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.0 * len(setup.methods) + 0.8, 2.4), layout="constrained")
    axes = figure.subplots(1, len(setup.methods), sharey=True).flat
    for axis, method in zip(axes, setup.methods, strict=True):
        grid = found[found["method"] == method.name].pivot(index="noise", columns="size", values="final")
        image = axis.imshow(grid, vmin=0, vmax=100, origin="lower", aspect="auto", cmap="viridis")
        if grid.size <= 20:
            for (row, column), value in numpy.ndenumerate(grid.to_numpy()):
                axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7,
                          color="k" if value > 60 else "w")  # fmt: skip
        axis.set_xticks(range(grid.shape[1]), [str(size) for size in grid.columns], fontsize=7, rotation=90)
        axis.set_yticks(range(grid.shape[0]), [f"{100 * noise:.0f}" for noise in grid.index], fontsize=7)
        axis.set_title(method.name, fontsize=9)
    figure.supxlabel("training samples", fontsize=9)
    figure.supylabel("label noise (%)", fontsize=9)
    figure.colorbar(image, ax=figure.axes, label="final test accuracy (%)")
    return figure


def _gains(table: Table) -> dict[str, tuple[float, float, float]]:
    """Other method -> final accuracy of MGS less its own, mean over scenarios (paired), with a 95 % t-interval."""
    finals: Any = table.pivot_table(index=["noise", "size"], columns="method", values="final", sort=False)
    return {name: with_interval((finals["MGS"] - finals[name]).to_list()) for name in finals.columns if name != "MGS"}


def bench(setting: Setting, *, make: Callable[[Setting], Setup], runs: tuple[int, int]) -> Outcome:
    """Final accuracy of every method, its strength frozen, over noise and training size.

    Args:
        setting: Scale, work folder, workers.
        make: Gives the setup.
        runs: Networks a method and scenario at smoke and small scale.

    Returns:
        One map a method, first places and ranks.
    """
    setup = make(setting)
    scenarios = bench_scenarios(setting, setup)
    tuned = tuning.cross_validated(setting, setup)
    count = setting.choose(smoke=runs[0], small=runs[1], paper=setup.runs)
    table = scenario_runs(setting, setup, tuning.chosen_strengths(tuned), scenarios, runs=count)
    found = means(table, "noise", "size")
    first, ranks, gains = first_places(found), mean_ranks(found), _gains(table)
    places = ", ".join(f"{name} {first[name]} (mean rank {ranks[name]:.1f})" for name in first)
    beyond = ", ".join(f"{name} {written(*gain)}" for name, gain in gains.items())
    wide: Any = found.pivot(index=["noise", "size"], columns="method", values="final")
    return Outcome(
        numbers={
            "means": found.to_dict("records"),
            "first_places": first,
            "mean_ranks": ranks,
            "gains": gains,
            "strengths": tuning.chosen_strengths(tuned),
        },
        tables={"Final test accuracy in per cent": wide[[method.name for method in setup.methods]].reset_index()},
        figures={"bench": bench_figure(setup, found)},
        verdict=(
            f"Best final accuracy in how many of {len(scenarios)} scenarios (the paper has 143 and says MGS is the "
            f"best overall): {places}. MGS less each other, mean over scenarios with 95 % t-intervals: {beyond}. "
            f"{counted(count)} a scenario. {tuning.description(setup, tuned)}"
        ),
        seeds=range(count),
    )


def variations(setting: Setting, setup: Setup) -> dict[str, list[dict[str, Any]]]:
    """Variable -> scenarios in which it alone differs from the middle one, to both sides, the middle one included."""
    base = setup.base
    factors = setting.choose(smoke=(0.5, 1, 2), small=(0.5, 1, 2), paper=(0.25, 0.5, 1, 2, 4))
    noises = setting.choose(smoke=(0.3, 0.5, 0.7), small=(0.3, 0.5, 0.7), paper=(0.2, 0.35, 0.5, 0.65, 0.8))
    assert base.data.train_size is not None
    return {
        "training size": [{"data.train_size": round(factor * base.data.train_size)} for factor in factors],
        "label noise": [{"data.label_noise": noise} for noise in noises],
        "batch size": [{"training.batch_size": round(factor * base.training.batch_size)} for factor in factors],
        "learning rate": [{"training.learning_rate": factor * base.training.learning_rate} for factor in factors],
        "epochs": [{"training.epochs": max(1, round(factor * base.training.epochs))} for factor in factors],
    }


def quantiles(tables: Mapping[str, Table]) -> Table:
    """10, 50 and 90 % quantiles of the final accuracy over the values of each variable and their runs.

    Args:
        tables: Variable -> its runs.

    Returns:
        One row a variable and method, a column a quantile.
    """
    import pandas

    rows = []
    for variable, table in tables.items():
        for method, group in table.groupby("method", sort=False):
            values = {f"{100 * q:.0f} %": float(group["final"].quantile(q)) for q in QUANTILES}
            rows.append({"variable": variable, "method": method} | values)
    return pandas.DataFrame(rows)


def radar_figure(setup: Setup, found: Table) -> Figure:
    """One radar chart a quantile: a spoke a variable, a polygon a method."""
    from matplotlib.figure import Figure

    variables = list(found["variable"].unique())
    angles = numpy.linspace(0, 2 * numpy.pi, len(variables), endpoint=False)
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    axes = figure.subplots(1, len(QUANTILES), subplot_kw={"projection": "polar"}).flat
    for axis, quantile in zip(axes, QUANTILES, strict=True):
        for method in setup.methods:
            rows = found[found["method"] == method.name].set_index("variable")
            values = [rows.loc[variable, f"{100 * quantile:.0f} %"] for variable in variables]
            axis.plot([*angles, angles[0]], [*values, values[0]], color=method.colour, lw=1.4, label=method.name)
        axis.set_xticks(angles, [variable.replace(" ", "\n") for variable in variables], fontsize=8)
        axis.tick_params(axis="x", pad=8)
        axis.set_ylim(0, 100)
        axis.set_yticks([25, 50, 75, 100])
        axis.tick_params(axis="y", labelsize=6)
        axis.set_title(f"{100 * quantile:.0f} % quantile of accuracy", fontsize=9, pad=14)
    figure.legend(*axis.get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside lower center", frameon=False)
    return figure


def _robustness_sentence(found: Table) -> str:
    best, spread = {}, {}
    for variable, group in found.groupby("variable", sort=False):
        rows = group.set_index("method")
        best[variable] = str(rows["50 %"].idxmax())
        spread[variable] = rows["90 %"] - rows["10 %"]
    led = [name for name, method in best.items() if method == "MGS"]
    steady = [name for name, values in spread.items() if values.idxmin() == "MGS"]
    widths = ", ".join(f"{name} {values['MGS']:.1f}" for name, values in spread.items())
    return (
        f"MGS has the highest median accuracy when {', '.join(led) or 'no variable'} is changed ({len(led)} of "
        f"{len(best)} variables; all in the paper), and the smallest spread from the 10 to the 90 % quantile for "
        f"{', '.join(steady) or 'none'} (all but the learning rate in the paper). Its spread in points: {widths}."
    )


def robustness(setting: Setting) -> Outcome:
    """Final accuracy of every method, tuned in the middle scenario, when one training variable is changed.

    Args:
        setting: Scale, work folder, workers. At small scale the network is fully connected.

    Returns:
        Quantiles over the values of each variable, as radar charts.
    """
    setup = setups.lenet5(setting) if setting.scale == "paper" else setups.fully_connected(setting)
    tuned = tuning.cross_validated(setting, setup)
    strengths = tuning.chosen_strengths(tuned)
    count = setting.choose(smoke=1, small=1, paper=setup.runs)
    changes = variations(setting, setup)
    every = [scenario for scenarios in changes.values() for scenario in scenarios]
    scenario_runs(setting, setup, strengths, every, runs=count)  # all at once, then one variable after the other
    tables = {
        variable: scenario_runs(setting, setup, strengths, scenarios, runs=count)
        for variable, scenarios in changes.items()
    }
    found = quantiles(tables)
    columns = ["noise", "size", "batch size", "learning rate", "epochs"]
    runs = [row for table in tables.values() for row in table[[*columns, "method", "seed", "final"]].to_dict("records")]
    return Outcome(
        numbers={"quantiles": found.to_dict("records"), "runs": runs, "strengths": strengths},
        tables={"Quantiles of final test accuracy in per cent": found},
        figures={"radar": radar_figure(setup, found)},
        verdict=(
            f"{_robustness_sentence(found)} {len(changes['epochs'])} values a variable around "
            f"{setup.base.data.train_size} samples, network {setup.base.network.name}, "
            f"{counted(count)} each. "
            f"{tuning.description(setup, tuned)}"
        ),
        seeds=range(count),
    )


bench_lenet5 = partial(bench, make=setups.lenet5, runs=(1, 1))
bench_fully_connected = partial(bench, make=setups.fully_connected, runs=(1, 1))
