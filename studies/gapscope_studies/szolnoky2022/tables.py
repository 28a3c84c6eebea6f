"""Tables 1 and 2 with their fully connected variants, and how methods were tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope_studies.kit.claims import ABOVE_CHANCE, REGULARIZED, Claim, ComparisonArm, claim, downsample_curve
from gapscope_studies.kit.plots import legend, lines, named, panels
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import t_interval
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.szolnoky2022 import protocol
from gapscope_studies.szolnoky2022.setups import ROBUST_LOSSES, Setup, make

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what a reproduction of Table 1 must reach, in points of accuracy, and at which noise
LEAD, DROP, JUDGED = 30.0, 4.0, 0.6


# --- statistics of runs


def printed(number: int) -> Table:
    """One of the paper's tables in the form of `means`: one row a noise level and method."""
    import pandas

    rows: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"))
    return rows[rows["table"] == number].drop(columns="table").reset_index(drop=True)


def means(table: Table, *by: str) -> Table:
    """Mean and deviation of the final metric and mean of the best one, a row a scenario and method, by noise."""
    groups = table.groupby([*(by or ("noise",)), "method"], sort=False)
    result = groups.agg(
        final=("final", "mean"), sd=("final", "std"), best=("best", "mean"), diverged=("diverged", "sum")
    )
    return result.reset_index().sort_values("noise", kind="stable", ignore_index=True)


def winners(found: Table, *, lower_is_better: bool = False) -> dict[float, str]:
    """Noise level -> the method with the best mean final metric."""
    order = found.sort_values("final", ascending=lower_is_better, kind="stable")
    return {float(noise): str(group["method"].iloc[0]) for noise, group in order.groupby("noise")}


def beyond_early_stopping(found: Table, method: str = "MGS", *, lower_is_better: bool = False) -> dict[float, float]:
    """Noise level -> final metric of the method less the best epoch of the best other one, positive where it leads."""
    sign = -1 if lower_is_better else 1
    differences = {}
    for noise, group in found.groupby("noise"):
        is_method = group["method"] == method
        others = (sign * group[~is_method]["best"]).max()
        differences[float(noise)] = float(sign * group[is_method]["final"].iloc[0] - others)
    return differences


def with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent values, and the ends of its 95 % t-interval."""
    return float(numpy.mean(values)), *t_interval(values)


def paired(table: Table, method: str, other: str) -> list[float]:
    """The method's final metric less another's on the same data and seed."""
    keys = ["noise", "size", "seed"]
    pair = [table[table["method"] == name].set_index(keys)["final"] for name in (method, other)]
    return (pair[0] - pair[1]).to_list()


def acceptance(table: Table, noise: float = JUDGED) -> dict[str, Any]:
    """Lead of MGS over the unregularized network and drop from its own best epoch, in points, at this noise level."""
    there = table[table["noise"] == noise]
    lead, *interval = with_interval(paired(there, "MGS", "Unregularised"))
    ours = there[there["method"] == "MGS"]
    drop = float((ours["best"] - ours["final"]).mean())
    return {"lead": lead, "interval": tuple(interval), "drop": drop, "holds": lead >= LEAD and drop <= DROP}


# --- tables as they are shown


def cell(row: Any) -> str:
    """Final metric, standard deviation (of several runs) and best epoch as the paper writes them, and what diverged."""
    spread = "" if math.isnan(row.sd) else f" ± {row.sd:.1f}"
    text = f"{row.final:.1f}{spread} ({row.best:.1f})"
    diverged = int(getattr(row, "diverged", 0))
    return f"{text}, {diverged} diverged" if diverged else text


def beside_the_paper(ours: Table, paper: Table | None) -> Table:
    """One row a noise level and source, one column a method: final ± standard deviation (best)."""
    import pandas

    rows = []
    for noise in ours["noise"].unique():
        for source, result in (("ours", ours), ("paper", paper)):
            if result is not None and (result["noise"] == noise).any():
                there = result[result["noise"] == noise]
                cells = {row.method: cell(row) for row in there.itertuples()}
                rows.append({"noise": f"{noise:g}", "source": source, **cells})
    return pandas.DataFrame(rows)


# --- claims


def compared(setup: Setup, rows: Table, constant: float = math.nan) -> ComparisonArm:
    """Return how well the networks of one method learned: training accuracy. Of losses what they save of `constant`."""
    ended, failed = rows[~rows["diverged"]], ""
    if not setup.lower_is_better and "size" in rows:  # scenarios in which the median run learned nothing
        reached = rows.groupby(["noise", "size"])["train_accuracy"].median()
        count = int((reached <= setup.chance / 100 + ABOVE_CHANCE).sum())
        failed = f"in {count} of {len(reached)} scenarios" if count else ""
    learnt = 1 - rows["final"].median() / constant if setup.lower_is_better else rows["train_accuracy"].median()
    return ComparisonArm(
        name=str(rows["method"].iloc[0]),
        train_accuracy=float(learnt),
        chance=0.0 if setup.lower_is_better else setup.chance / 100,
        curve=downsample_curve(ended["curve"].to_list()),
        loss_curve=downsample_curve(ended["loss curve"].to_list()) if "loss curve" in ended else (),
        falling=setup.lower_is_better,
        failed=failed,
    )


def compared_methods(setup: Setup, table: Table, *names: str) -> tuple[ComparisonArm, ...]:
    """Return how well the networks of these methods learned, of all without names."""
    groups = {str(name): group for name, group in table.groupby("method", sort=False)}
    return tuple(compared(setup, groups[name]) for name in names or groups)


def _gain(
    setup: Setup, claims: str, mine: Table, theirs: Table, unit: str, constant: float, column: str, **more: Any
) -> Claim:
    """That MGS (rows `mine`) ends better than another method, or than its best epoch. `claims` is "source: says"."""
    source, says = claims.split(": ", 1)
    sign, other = -1 if setup.lower_is_better else 1, str(theirs["method"].iloc[0])
    values = sign * (mine["final"].to_numpy() - theirs[column].to_numpy())
    # where MGS should win because the other learns wrong labels, only MGS must have learned what is compared
    sides = [mine] if other == "Unregularised" else [mine, theirs]
    quantity = f"gain of MGS over {other}{' at its best epoch' if column == 'best' else ''} ({unit})"
    return claim(source, says, quantity, values, above=0.0,
                 compared=tuple(compared(setup, side, constant) for side in sides), **REGULARIZED, **more)  # fmt: skip


def table_claims(setup: Setup, source: str, table: Table, theirs: Table, unit: str, constant: float) -> list[Claim]:
    """At every noise level: MGS ends above the unregularized network, and where the paper has it so, above all others.

    Above their final metric, and above their best epochs; `theirs` is the paper's table. That it ends above losses made
    for wrong labels, which the paper does not have, is a claim of ours.
    """
    sign, lower = (-1, True) if setup.lower_is_better else (1, False)
    first, early = winners(theirs, lower_is_better=lower), beyond_early_stopping(theirs, lower_is_better=lower)
    claims = []
    for noise, group in table.groupby("noise"):
        at = f"{source}: at " + (f"noise of {noise:g} pixels" if lower else f"{100 * noise:.0f} % wrong labels")
        rows = {str(name): each.sort_values("seed") for name, each in group.groupby("method", sort=False)}
        mine, robust = rows.pop("MGS"), [rows.pop(name) for name in ROBUST_LOSSES if name in rows]
        says = f"{at} MGS ends better than without regularization"
        printed_at = theirs[theirs["noise"] == noise].set_index("method")["final"]
        # the size of the lead is the paper's where network and data are
        lead = printed_at["MGS"] - printed_at["Unregularised"] if source == "Table 1" else None
        claims.append(_gain(setup, says, mine, rows["Unregularised"], unit, constant, "final", paper=lead))
        for column, wins, what in (
            ("final", first[noise] == "MGS", "MGS ends best of all methods"),
            ("best", early[noise] > 0, "MGS ends better than the best epoch of every other method"),
        ):
            rival = max(rows.values(), key=lambda each, by=column: sign * each[by].mean())
            if wins:
                claims.append(_gain(setup, f"{at} {what}", mine, rival, unit, constant, column))
        claims += [_gain(setup, f"{at} MGS ends better than {other['method'].iloc[0]}", mine, other, unit, constant,
                         "final", ours=True) for other in robust]  # fmt: skip
        if noise == JUDGED:
            says = f"at {100 * noise:.0f} % wrong labels MGS ends within {DROP:g} points of its own best epoch"
            claims.append(claim(source, says, "best minus final accuracy of MGS", mine["best"] - mine["final"],
                                below=DROP, compared=(compared(setup, mine),)))  # fmt: skip
    return claims


# --- parts


def with_tuning(
    setting: RunSettings, setup: Setup, tuned: Table, specs: Sequence[RunSpec], paper: Mapping[str, str], *,
    numbers: Mapping[str, Any], tables: Mapping[str, Table], **found: Any,
) -> Outcome:  # fmt: skip
    """An outcome of tuned methods: with the strengths that were tried and those that were chosen."""
    # methods whose best strength is the smallest or the largest that was tried
    ends = {str(m): group["chosen"].to_numpy()[[0, -1]].any() and len(group) > 1
            for m, group in tuned.groupby("method", sort=False)}  # fmt: skip
    edge = ", ".join(method for method, at_end in ends.items() if at_end)
    words = (
        f"Each method was tuned once among {setup.n_strengths} strengths on held-out training samples, their labels as "
        f"they are ({setup.folds_scored} of {setup.folds} folds, one seed), then frozen"
        f"{f' (best at the edge of what was tried: {edge})' if edge else ''}."
    )
    known = {"epochs": "not known (supplement lost)", "batch size": "not known", "seeds": "not known", **paper}
    return outcome(
        setting, specs, known, numbers={**numbers, "strengths": protocol.chosen_strengths(tuned)},
        tables={**tables, "Strengths tried": tuned}, verdict=words, **found,
    )  # fmt: skip


def curves_figure(setup: Setup, table: Table, label: str) -> Figure:
    """Test metric along training with its range over runs, one panel a noise level (Figs. A.2 and A.3)."""
    noises = sorted(table["noise"].unique())
    figure, axes = panels(len(noises), width=2.6, height=2.9)
    for axis, noise in zip(axes, noises, strict=True):
        there = table[(table["noise"] == noise) & ~table["diverged"]]
        lines(axis, {name: each["curve"].to_list() for name, each in there.groupby("method", sort=False)},
              colors=setup.colours)  # fmt: skip
        named(axis, title=f"noise {noise:g}", xlabel="epoch", yscale="log" if setup.lower_is_better else "linear")
    named(axes[0], ylabel=label)
    legend(figure)
    return figure


def paper_table(
    setting: RunSettings,
    *,
    name: str,
    number: int,
    source: str,
    unit: str,
    paper: Mapping[str, str],
    own: bool = True,
    also: Sequence[str] = (),
    long: bool = False,
) -> Outcome:
    """Final and best test metric of every method at every level of noise.

    `own` where the network is the paper's; `also` are methods beside the setup's; `long` trains for longer, with the
    strengths that were tuned in the shorter training.
    """
    setup, theirs = make(setting, name, *also, printed=True), printed(number)
    tuned = protocol.tuned(setting, setup)
    path = "data.target_noise" if setup.lower_is_better else "data.label_noise"
    chosen, changes = setup.printed_noises, {}
    if long:
        chosen = setup.long["noises"]
        changes = {"training.epochs": setup.long["times"] * setup.base.training.epochs}
    # the level at which a reproduction is judged is trained first
    levels = sorted((noise for noise in theirs["noise"].unique() if noise in chosen), key=lambda noise: noise != JUDGED)
    table, specs = protocol.scenario_runs(
        setting,
        setup,
        protocol.chosen_strengths(tuned),
        [{path: float(noise), **changes} for noise in levels],
        setup.runs,
    )
    result = means(table)
    shown = theirs if own else None
    numbers: dict[str, Any] = {
        "means": result.to_dict("records"),
        "paper": None if shown is None else shown.to_dict("records"),
        "runs": table.drop(columns=["curve", "loss curve"]).to_dict("records"),
    }
    constant = math.nan
    if setup.lower_is_better:
        numbers["constant_prediction"] = constant = protocol.constant_prediction_loss(setting, setup)
    else:
        numbers |= {"acceptance": acceptance(table), "beyond_early_stopping": beyond_early_stopping(result)}
    return with_tuning(
        setting, setup, tuned, specs, paper, numbers=numbers,
        claims=table_claims(setup, source, table, theirs, unit, constant),
        tables={f"Test {setup.metric} in {unit}: final ± standard deviation (best epoch)":
                beside_the_paper(result, shown)},
        figures={"curves": curves_figure(setup, table, f"test {setup.metric} ({unit})")},
    )  # fmt: skip


def tuning_part(setting: RunSettings) -> Outcome:
    """The tuning of Table 1: held-out score of every strength of every method."""
    setup = make(setting, "lenet5", *ROBUST_LOSSES)
    table = protocol.tuned(setting, setup)
    column = f"held-out {setup.metric}"
    methods = [method for method in setup.methods if method.low != method.high]
    figure, axes = panels(len(methods), width=2.2, height=2.4)
    for axis, method in zip(axes, methods, strict=True):
        rows = table[table["method"] == method.name]
        best = rows[rows["chosen"]]
        axis.errorbar(rows["strength"], rows[column], rows["sd over folds"], color=method.colour, marker="o", ms=4)
        axis.plot(best["strength"], best[column], "o", ms=10, mfc="none", color="k")
        axis.axhline(table[table["method"] == "Unregularised"][column].iloc[0], color="0.6", ls="--", lw=1)
        named(axis, title=method.name, xlabel="strength", xscale="log" if method.logarithmic else "linear")
    named(axes[0], ylabel=column)
    base = setup.with_seed(protocol.TUNING_SEED)
    result = with_tuning(
        setting, setup, table, [base], {}, numbers={"table": table.to_dict("records")}, tables={},
        figures={"strengths": figure},
    )  # fmt: skip
    return replace(result, numbers={**result.numbers, "chosen": result.numbers["strengths"]})
