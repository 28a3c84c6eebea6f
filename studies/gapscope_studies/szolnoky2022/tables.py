"""Tables 1 and 2 with their fully connected variants, and how methods were tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from matplotlib.figure import Figure
from scipy import stats

from gapscope.base.specs import RunSpec
from gapscope_studies.kit.claims import (
    ABOVE_CHANCE,
    REGULARIZED,
    Claim,
    ComparisonArm,
    claim,
    downsample_curve,
    estimate,
)
from gapscope_studies.kit.plots import legend, lines, panels, set_labels
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import Interval
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.szolnoky2022 import protocol
from gapscope_studies.szolnoky2022.setups import ROBUST_LOSSES, Setup, make_setup

# the largest drop of MGS from its best epoch, in points of accuracy, and the noise at which it is compared
DROP, DROP_NOISE = 4.0, 0.6


def read_printed(number: int) -> Table:
    """Return one of the paper's tables in the form of `mean_table`."""
    rows: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"))
    return rows[rows["table"] == number].drop(columns="table").reset_index(drop=True)


def mean_table(table: Table, *by: str) -> Table:
    """Return mean and deviation of the final metric and mean of the best, sorted by noise."""
    groups = table.groupby([*(by or ("noise",)), "method"], sort=False)
    result = groups.agg(
        final=("final", "mean"),
        sd=("final", "std"),
        best=("best", "mean"),
        diverged=("diverged", "sum"),
    )
    return result.reset_index().sort_values("noise", kind="stable", ignore_index=True)


def compare_with_paper(ours: Table, paper: Table | None) -> Table:
    """Return results by noise and source as final ± deviation (best), diverged runs."""

    def cell(row: Any) -> str:
        spread = "" if math.isnan(row.sd) else f" ± {row.sd:.1f}"
        diverged = f", {row.diverged} diverged" if getattr(row, "diverged", 0) else ""
        return f"{row.final:.1f}{spread} ({row.best:.1f}){diverged}"

    return pandas.DataFrame(
        {"noise": f"{noise:g}", "source": source}
        | {row.method: cell(row) for row in group.itertuples()}
        for noise in ours["noise"].unique()
        for source, table in (("ours", ours), ("paper", paper))
        if table is not None and len(group := table[table["noise"] == noise])
    )


# --- claims


def arm_of(setup: Setup, rows: Table, constant: float = math.nan) -> ComparisonArm:
    """Return one method's training fit, by accuracy or by the loss saved of `constant`."""
    finished, failed = rows[~rows["diverged"]], ""
    if (
        not setup.lower_is_better and "size" in rows
    ):  # scenarios in which the median run learned nothing
        reached = rows.groupby(["noise", "size"])["train_accuracy"].median()
        count = int((reached <= setup.chance / 100 + ABOVE_CHANCE).sum())
        failed = f"in {count} of {len(reached)} scenarios" if count else ""
    # without missing values: of these alone, pandas 2.2 warns of an empty mean
    accuracy = (
        1 - rows["final"].dropna().median() / constant
        if setup.lower_is_better
        else rows["train_accuracy"].dropna().median()
    )
    loss = rows["train_loss"].dropna().median() if "train_loss" in rows else math.nan
    return ComparisonArm(
        name=str(rows["method"].iloc[0]),
        train_accuracy=None if math.isnan(accuracy) else float(accuracy),
        train_loss=None if math.isnan(loss) else float(loss),
        chance=0.0 if setup.lower_is_better else setup.chance / 100,
        curve=downsample_curve(finished["curve"].to_list()),
        loss_curve=downsample_curve(finished["loss curve"].to_list())
        if "loss curve" in finished
        else (),
        falling=setup.lower_is_better,
        failed=failed,
    )


def arms_of(setup: Setup, table: Table, *names: str) -> tuple[ComparisonArm, ...]:
    """Return the training fit of the networks of these methods, or of all."""
    groups = {str(name): group for name, group in table.groupby("method", sort=False)}
    return tuple(arm_of(setup, groups[name]) for name in names or groups)


def spread_claim(
    source: str,
    at: str,
    mgs: tuple[float, int],
    other: tuple[float, int],
    arms: Sequence[ComparisonArm],
) -> Claim:
    """Return the claim that the final metric varies less with MGS than without regularization.

    `mgs` and `other` are standard deviation and number of runs. The interval of their ratio is that of normal values:
    the ratio of the variances over that of the true variances has the F distribution.
    """
    (deviation, n), (of_other, n_other) = mgs, other
    ratio = deviation / of_other
    low, high = (
        ratio / float(stats.f.ppf(quantile, n - 1, n_other - 1)) ** 0.5
        for quantile in (0.975, 0.025)
    )
    return estimate(
        source, f"{at} MGS varies less from run to run than without regularization",
        "standard deviation of the final metric, MGS over unregularized", Interval(ratio, low, high, min(n, n_other)),
        below=1.0, compared=arms, unit="runs", **REGULARIZED,
    )  # fmt: skip


def table_claims(
    setup: Setup, source: str, table: Table, printed: Table, unit: str, constant: float
) -> list[Claim]:
    """Return claims per noise level that MGS ends above the unregularized network.

    Where the paper has it so, MGS also ends above all others, at their end and at their best epochs. That it ends above
    losses made for wrong labels, which the paper does not have, is a claim of ours.
    """
    sign = -1 if setup.lower_is_better else 1
    claims = []

    def add_gain(says: str, mgs: Table, other: Table, column: str = "final", **more: Any) -> None:
        name = str(other["method"].iloc[0])
        # where MGS should win because the other learns wrong labels, only MGS must have learned what is compared
        arms = tuple(
            arm_of(setup, side, constant)
            for side in ([mgs] if name == "Unregularised" else [mgs, other])
        )
        quantity = (
            f"gain of MGS over {name}{' at its best epoch' if column == 'best' else ''} ({unit})"
        )
        values = sign * (mgs["final"].to_numpy() - other[column].to_numpy())
        claims.append(
            claim(source, says, quantity, values, above=0.0, compared=arms, **REGULARIZED, **more)
        )

    for noise, group in table.groupby("noise"):
        at = (
            f"at noise of {noise:g} pixels"
            if setup.lower_is_better
            else f"at {100 * noise:.0f} % wrong labels"
        )
        rows = {
            str(name): each.sort_values("seed")
            for name, each in group.groupby("method", sort=False)
        }
        mgs, robust = (
            rows.pop("MGS"),
            {name: rows.pop(name) for name in ROBUST_LOSSES if name in rows},
        )
        paper = printed[printed["noise"] == noise].set_index("method")
        # the size of the lead is the paper's where network and data are
        lead = (
            paper.loc["MGS", "final"] - paper.loc["Unregularised", "final"]
            if source == "Table 1"
            else None
        )
        add_gain(
            f"{at} MGS ends better than without regularization",
            mgs,
            rows["Unregularised"],
            paper=lead,
        )
        if source == "Table 1" and paper.loc["MGS", "sd"] < paper.loc["Unregularised", "sd"]:
            spread, other = (
                (float(each["final"].std()), len(each)) for each in (mgs, rows["Unregularised"])
            )
            claims.append(spread_claim(source, at, spread, other, [arm_of(setup, mgs, constant)]))
        for column, says in (
            ("final", "best of all methods"),
            ("best", "better than the best epoch of every other method"),
        ):
            if sign * paper.loc["MGS", "final"] > (sign * paper.drop("MGS")[column]).max():
                best = max(rows.values(), key=lambda each, by=column: sign * each[by].mean())
                add_gain(f"{at} MGS ends {says}", mgs, best, column)
        if source == "Table A.2":  # "Dropout falls into the same category as the other methods"
            values = sign * (
                rows["Dropout"]["final"].to_numpy() - rows["Unregularised"]["final"].to_numpy()
            )
            arms = [arm_of(setup, rows["Dropout"], constant)]
            claims.append(claim(source, f"{at} dropout ends no better than without regularization",
                                f"gain of Dropout over Unregularised ({unit})", values, below=0.0, compared=arms,
                                **REGULARIZED))  # fmt: skip
        for name, other in robust.items():
            add_gain(f"{at} MGS ends better than {name}", mgs, other, ours=True)
        if noise == DROP_NOISE:
            claims.append(claim(source, f"{at} MGS ends within {DROP:g} points of its own best epoch",
                                "best minus final accuracy of MGS", mgs["best"] - mgs["final"], below=DROP,
                                compared=(arm_of(setup, mgs),)))  # fmt: skip
    return claims


# --- parts


def with_tuning(
    setting: RunSettings, setup: Setup, tuning: Table, specs: Sequence[RunSpec], paper: Mapping[str, str], *,
    numbers: Mapping[str, Any], tables: Mapping[str, Table], **more: Any,
) -> Outcome:  # fmt: skip
    """Return an outcome of tuned methods, with the tried and the chosen strengths."""
    # methods whose best strength is the smallest or the largest that was tried
    edge = ", ".join(str(method) for method, group in tuning.groupby("method", sort=False)
                     if len(group) > 1 and group["chosen"].to_numpy()[[0, -1]].any())  # fmt: skip
    verdict = (
        f"Each method was tuned once among {setup.n_strengths} strengths on held-out training samples, their labels as "
        f"they are ({setup.folds_scored} of {setup.folds} folds, one seed), then frozen"
        f"{f' (best at the edge of what was tried: {edge})' if edge else ''}."
    )
    paper = {
        "epochs": "not known (supplement lost)",
        "batch size": "not known",
        "seeds": "not known",
        **paper,
    }
    return outcome(
        setting, specs, paper, numbers={**numbers, "strengths": protocol.chosen_strengths(tuning)},
        tables={**tables, "Strengths tried": tuning}, verdict=verdict, **more,
    )  # fmt: skip


def curves_figure(setup: Setup, table: Table, label: str) -> Figure:
    """Plot the test metric along training, one panel per noise level (Figs. A.2 and A.3)."""
    noises = sorted(table["noise"].unique())
    figure, axes = panels(len(noises), width=2.6, height=2.9)
    for axis, noise in zip(axes, noises, strict=True):
        finished = table[(table["noise"] == noise) & ~table["diverged"]]
        lines(axis, {name: each["curve"].to_list() for name, each in finished.groupby("method", sort=False)},
              colors=setup.colours)  # fmt: skip
        set_labels(
            axis,
            title=f"noise {noise:g}",
            xlabel="epoch",
            yscale="log" if setup.lower_is_better else "linear",
        )
    set_labels(axes[0], ylabel=label)
    legend(figure)
    return figure


def paper_table(
    setting: RunSettings, *, name: str, number: int, source: str, unit: str, paper: Mapping[str, str],
    same_network: bool = True, also: Sequence[str] = (), long: bool = False,
) -> Outcome:  # fmt: skip
    """Compare final and best test metric of every method at every level of noise.

    `same_network` where it is that of the paper; `also` are more methods; `long` trains for longer, with the strengths
    that were tuned in shorter training.
    """
    setup, printed = make_setup(setting, name, *also, printed=True), read_printed(number)
    tuning = protocol.tune(setting, setup)
    path = "data.target_noise" if setup.lower_is_better else "data.label_noise"
    noises, changes = setup.printed_noises, {}
    if long:
        noises = setup.long["noises"]
        changes = {"training.epochs": setup.long["times"] * setup.base.training.epochs}
    # the level at which drops are compared is trained first
    levels = [noise for noise in printed["noise"].unique() if noise in noises]
    levels.sort(key=lambda noise: noise != DROP_NOISE)
    scenarios = [{path: float(noise), **changes} for noise in levels]
    table, specs = protocol.run_scenarios(setting, setup, tuning, scenarios, setup.runs)
    result = mean_table(table)
    numbers: dict[str, Any] = {
        "means": result.to_dict("records"),
        "runs": table.drop(columns=["curve", "loss curve"]).to_dict("records"),
    }
    constant = math.nan
    if setup.lower_is_better:
        numbers["constant_prediction"] = constant = protocol.constant_prediction_loss(
            setting, setup
        )
    return with_tuning(
        setting, setup, tuning, specs, paper, numbers=numbers,
        claims=table_claims(setup, source, table, printed, unit, constant),
        tables={f"Test {setup.metric} in {unit}: final ± standard deviation (best epoch)":
                compare_with_paper(result, printed if same_network else None)},
        figures={"curves": curves_figure(setup, table, f"test {setup.metric} ({unit})")},
    )  # fmt: skip


def tuning_part(setting: RunSettings) -> Outcome:
    """Return the tuning of Table 1: held-out scores of every strength of every method."""
    setup = make_setup(setting, "lenet5", *ROBUST_LOSSES)
    table = protocol.tune(setting, setup)
    column = f"held-out {setup.metric}"
    methods = [method for method in setup.methods if method.low != method.high]
    figure, axes = panels(len(methods), width=2.2, height=2.4)
    for axis, method in zip(axes, methods, strict=True):
        rows = table[table["method"] == method.name]
        best = rows[rows["chosen"]]
        axis.errorbar(
            rows["strength"],
            rows[column],
            rows["sd over folds"],
            color=method.colour,
            marker="o",
            ms=4,
        )
        axis.plot(best["strength"], best[column], "o", ms=10, mfc="none", color="k")
        axis.axhline(
            table[table["method"] == "Unregularised"][column].iloc[0], color="0.6", ls="--", lw=1
        )
        set_labels(
            axis,
            title=method.name,
            xlabel="strength",
            xscale="log" if method.logarithmic else "linear",
        )
    set_labels(axes[0], ylabel=column)
    return with_tuning(
        setting, setup, table, [setup.with_seed(protocol.TUNING_SEED)], {}, tables={},
        numbers={"table": table.to_dict("records")}, figures={"strengths": figure},
    )  # fmt: skip
