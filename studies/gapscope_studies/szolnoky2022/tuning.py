"""Every method tuned once, with the same budget, by cross-validation on training data with their noisy labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch

from gapscope.base.randomness import stream_seed
from gapscope.base.specs import Spec
from gapscope.inspection.losses import scores
from gapscope.pools.from_spec import build_network, prepared
from gapscope.training.loop import train
from gapscope_studies.kit.study import Setting
from gapscope_studies.szolnoky2022.kept import kept
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.setups import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TUNING_SEED = 1000


def held_out_scores(spec: Spec, fold: int, folds: int, data_root: str | None) -> dict[str, Any]:
    """Train without one fold of the (corrupted) training samples and score the network on that fold.

    Args:
        spec: What is trained.
        fold: Which fold is held out, 0 to folds - 1.
        folds: Number of folds; the samples are dealt to them at random.
        data_root: Where the data lie.

    Returns:
        Status, and the scores on the fold at the end of training where it did not diverge.
    """
    problem, _ = prepared(spec, data_root)
    generator = torch.Generator().manual_seed(stream_seed(spec.data.seed, "folds"))
    parts = list(torch.randperm(len(problem.train), generator=generator).tensor_split(folds))
    held_out = problem.train.subset(parts.pop(fold))
    network = build_network(spec, problem)
    result = train(network, problem.train.subset(torch.cat(parts)), spec.training, seed=spec.seed)
    return {"status": result.status} | (scores(network, held_out) if result.status == "finished" else {})


def _row(setup: Setup, method: str, strength: float, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    worst = math.inf if setup.lower_is_better else 0.0
    values = [100 * item[setup.metric] if setup.metric == "accuracy" else item[setup.metric]
              for item in found if item["status"] == "finished"]  # fmt: skip
    diverged = len(found) - len(values)
    return {
        "method": method,
        "strength": strength,
        f"held-out {setup.metric}": float(numpy.mean(values)) if not diverged else worst,
        "sd over folds": float(numpy.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "diverged": diverged,
    }


def cross_validated(setting: Setting, setup: Setup) -> Table:
    """Score every strength of every method on held-out training samples of the middle scenario.

    Args:
        setting: Scale, work folder, workers.
        setup: What is trained.

    Returns:
        One row a strength: its score (per cent, or loss) averaged over the folds (the worst where one diverged), and
        whether it was `chosen` for its method.
    """
    import pandas

    base = setup.with_seed(TUNING_SEED)
    tried = [(method, strength) for method in setup.methods for strength in method.strengths(setup.n_strengths)]
    names: dict[tuple[str, float, int], str] = {}
    jobs = {}
    for method, strength in tried:
        spec = method.applied(base, strength)
        for fold in range(setup.folds_scored):
            names[method.name, strength, fold] = name = f"{spec.id}-{fold}-of-{setup.folds}"
            jobs[name] = (spec, fold, setup.folds)
    found = kept(setting, "tuning", held_out_scores, jobs)
    table = pandas.DataFrame(
        _row(setup, method.name, strength, [found[names[method.name, strength, i]] for i in range(setup.folds_scored)])
        for method, strength in tried
    )
    score = table[f"held-out {setup.metric}"] * (-1 if setup.lower_is_better else 1)
    table["chosen"] = score.index.isin(score.groupby(table["method"]).idxmax().to_list())
    return table


def chosen_strengths(table: Table) -> dict[str, float]:
    """Method -> the strength of its best held-out score (the smallest of equals)."""
    best = table[table["chosen"]]
    return dict(zip(best["method"], best["strength"].astype(float), strict=True))


def at_the_edge(table: Table) -> list[str]:
    """Methods whose best strength is the smallest or the largest that was tried."""
    found = []
    for method, group in table.groupby("method", sort=False):
        places = group["chosen"].to_numpy().nonzero()[0]
        if len(group) > 1 and places[0] in (0, len(group) - 1):
            found.append(str(method))
    return found


def description(setup: Setup, table: Table) -> str:
    """One sentence: how the strengths were tuned, and which ones were chosen."""
    chosen = ", ".join(f"{name} {value:g}" for name, value in chosen_strengths(table).items() if value)
    edge = ", ".join(at_the_edge(table))
    return (
        f"Each method was tuned once among {setup.n_strengths} strengths on held-out training samples of the middle "
        f"scenario, their labels as they are ({setup.folds_scored} of {setup.folds} folds), and then frozen: {chosen}"
        f"{f' (at the edge of what was tried: {edge})' if edge else ''}."
    )


def tuning_figure(setup: Setup, table: Table) -> Figure:
    """Held-out score against strength, one panel a method, the unregularised score as a line."""
    from matplotlib.figure import Figure

    methods = [method for method in setup.methods if method.low != method.high]
    figure = Figure(figsize=(2.2 * len(methods), 2.4), layout="constrained")
    column = f"held-out {setup.metric}"
    for axis, method in zip(figure.subplots(1, len(methods), sharey=True, squeeze=False).flat, methods, strict=True):
        rows = table[table["method"] == method.name]
        axis.errorbar(rows["strength"], rows[column], rows["sd over folds"], color=method.colour, marker="o", ms=4)
        best = rows[rows["chosen"]]
        axis.plot(best["strength"], best[column], "o", ms=10, mfc="none", color="k")
        axis.axhline(table[table["method"] == "Unregularised"][column].iloc[0], color="0.6", ls="--", lw=1)
        axis.set_title(method.name, fontsize=9)
        axis.set_xscale("log" if method.logarithmic else "linear")
        axis.set_xticks(rows["strength"].to_list(), [f"{value:g}" for value in rows["strength"]])
        axis.minorticks_off()
        axis.tick_params(which="both", labelsize=7)
        if len(rows) > 4:
            axis.tick_params(axis="x", rotation=90)
    figure.supxlabel("strength", fontsize=9)
    figure.supylabel(column, fontsize=9)
    return figure
