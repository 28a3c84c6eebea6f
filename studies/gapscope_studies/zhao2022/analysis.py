"""Shared analysis: gap models, repeated splits, correlations, claims, plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY
from gapscope.pools.from_spec import prepared
from gapscope.prediction.correlations import correlations
from gapscope.prediction.cross_validation import baselines, cross_val_predict
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve, relation
from gapscope_studies.kit.plots import named, panels, scatter
from gapscope_studies.kit.statistics import pearson
from gapscope_studies.kit.study import RunSettings, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZETA, KAPPA = "unit_sparsity.zeta", "unit_sparsity.kappa"
NAMES = {ZETA: "zeta", KAPPA: "kappa"}
# the paper's sign of the correlation with the gap
SIGNS = {ZETA: 1, KAPPA: -1}
TAPS = ("input", "h1", "h2", "h3")
FEATURES = ("lower_fence", "lower_quartile", "median", "upper_quartile", "upper_fence")
MARGINS = tuple(f"margin_signature.{tap}.{feature}" for tap in TAPS for feature in FEATURES)
MEDIAN_MARGINS = tuple(f"margin_signature.{tap}.median" for tap in TAPS)
TEST_SHARE = 0.1


def sparsity_model() -> GapEstimator:
    """The paper's: gap = a zeta + b kappa + c, least squares."""
    return GapEstimator(features=[ZETA, KAPPA])


def margin_model(kind: str = "linear") -> GapEstimator:
    """Jiang et al. 2019: least squares on the twenty logarithmic quartile features, or its ridge."""
    return GapEstimator(features=list(MARGINS), kind=kind)


def sum_of_squares(estimator: GapEstimator, table: Table) -> tuple[float, float]:
    """Fit on all networks. Pearson between estimate and gap, and the sum of squared residuals (Figs. 4 to 6)."""
    gap = table["gap"].to_numpy(dtype=float)
    estimate = estimator.fit(table, gap).predict(table)
    spread = estimate.std() > 1e-12 and gap.std() > 1e-12
    return float(numpy.corrcoef(estimate, gap)[0, 1]) if spread else math.nan, float(((estimate - gap) ** 2).sum())


def repeated_splits(estimator: GapEstimator, table: Table, n_splits: int = 100) -> dict[str, Any]:
    """Random 90/10 splits, as in Fig. 3D, beside the plain baselines on the same splits.

    `ssr` of each split's held-out networks, its median and maximum, `rmse` of the model ("estimator") and of the
    baselines over all held-out networks, `fit_pearson` (mean over splits), `n` and `held_out` networks.
    """
    options: dict[str, Any] = {"scheme": "splits", "n_splits": n_splits, "test_share": TEST_SHARE}
    models = {"estimator": estimator, **baselines(table)}
    found: dict[str, Table] = {name: cross_val_predict(model, table, **options) for name, model in models.items()}
    squares = {name: (rows["prediction"] - rows["target"]) ** 2 for name, rows in found.items()}
    own = found["estimator"]
    sums = squares["estimator"].groupby(own["split"], sort=False).sum()
    return {
        "n": len(table),
        "held_out": int(own["split"].value_counts().iloc[0]),
        "ssr": sums.tolist(),
        "median_ssr": float(sums.median()),
        "largest_ssr": float(sums.max()),
        "rmse": {name: float(numpy.sqrt(values.mean())) for name, values in squares.items()},
        "fit_pearson": float(own.groupby("split", sort=False)["fit_pearson"].first().mean()),
    }


def related(table: Table, measures: Sequence[str], target: str = "gap") -> Table:
    """Correlations of measures with the gap, with 95 % bootstrap intervals over networks, without a baseline row."""
    return correlations(table, list(measures), target=target, baseline=None)


def with_interval(row: Mapping[str, Any], coefficient: str = "pearson") -> str:
    """A coefficient of a row of `related` and its interval in one phrase. A dash where there is none.

    >>> with_interval({"pearson": 0.5, "pearson_low": 0.2, "pearson_high": 0.75})
    '0.50 [0.20, 0.75]'
    """
    value, low, high = (float(row[coefficient + end]) for end in ("", "_low", "_high"))
    return "–" if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def centred(table: Table, columns: Sequence[str], group: str = "family") -> Table:
    """The table with these columns and the gap measured from the mean of their group."""
    names = [*columns, "gap"]
    return table.assign(**{name: table[name] - table.groupby(group)[name].transform("mean") for name in names})


# --- claims: networks of one noise level share corrupted labels and most of their gap; they are one cluster


def learnt(table: Table, chance: float) -> tuple[ComparisonArm, ...]:
    """Return how well the networks of each noise level fit their (corrupted) labels, for the guard.

    Training is over where every network fits, which is the paper's own end of it; else the curve tells.
    """
    return tuple(
        ComparisonArm(
            name=f"{level:.0%} corrupted",
            train_accuracy=float(group["train_accuracy"].mean()),
            chance=chance,
            curve=downsample_curve(group["curve"].to_list()) if "curve" in group else (),
            finished=True if (group["train_accuracy"] >= MIN_TRAIN_ACCURACY).all() else None,
        )
        for level, group in table.groupby("corruption")
    )


def chance_of(setting: RunSettings, specs: Sequence[RunSpec]) -> float:
    """Accuracy of guessing."""
    return 1 / prepared(specs[0], setting.data_root)[0].n_outputs


def of_sign(sign: int) -> dict[str, Any]:
    """Return what a claim says of a number that is to have this sign."""
    return {"above": 0.0} if sign > 0 else {"below": 0.0}


def sign_claims(
    source: str, table: Table, chance: float, *, cluster: str = "corruption", unit: str = "noise levels", **more: Any
) -> list[Claim]:
    """That the gap rises with zeta and falls with kappa. `more` are fields of both claims."""
    clusters, compared = table[cluster].to_list(), learnt(table, chance)
    return [
        relation(source, f"the gap {'rises' if sign > 0 else 'falls'} with {NAMES[name]}",
                 f"Pearson of the gap and {NAMES[name]}", pearson, table[name], table["gap"], clusters=clusters,
                 unit=unit, **of_sign(sign), compared=compared, **more)
        for name, sign in SIGNS.items()
    ]  # fmt: skip


def errs_less(
    source: str, says: str, table: Table, model: GapEstimator, rival: GapEstimator, chance: float,
    *, cluster: str = "corruption", unit: str = "noise levels", **more: Any,
) -> Claim:  # fmt: skip
    """That one model errs less than another on a network that was left out of the fit."""
    errors = [numpy.abs(each.fit(table, table["gap"]).residuals_) for each in (model, rival)]
    return claim(source, says, "mean difference of absolute errors", errors[0] - errors[1], below=0.0, unit=unit,
                 clusters=table[cluster].to_list(), compared=learnt(table, chance), **more)  # fmt: skip


def ssr_claim(
    source: str, says: str, table: Table, model: GapEstimator, paper: float, compared: Sequence[ComparisonArm], *,
    count: int,
) -> Claim:  # fmt: skip
    """That the sum of squared residuals of `count` left-out networks is the paper's."""
    residuals = model.fit(table, table["gap"]).residuals_
    return claim(source, says, f"sum of squared residuals of {count} left-out networks", count * residuals**2,
                 paper=paper, unit="noise levels", clusters=table["corruption"].to_list(),
                 compared=compared)  # fmt: skip


def ssr_per_draw(model: GapEstimator, table: Table, draws: Sequence[Sequence[RunSpec]]) -> list[float]:
    """Return the sum of squared residuals of the model fitted to each draw of the networks."""
    drawn = (table[table.index.isin([spec.id for spec in draw])] for draw in draws)
    return [sum_of_squares(model, networks_of_draw)[1] for networks_of_draw in drawn]


def mean_gap() -> GapEstimator:
    """The baseline that knows nothing of a network."""
    return GapEstimator(features=[])


# --- plots


def by_corruption(table: Table, x: str, y: str) -> dict[str, tuple[Any, Any]]:
    """Points of a scatter plot, a group a noise level."""
    return {f"{level:.0%} corrupted": (group[x], group[y]) for level, group in table.groupby("corruption")}


def scatters(table: Table, pairs: Sequence[tuple[str, str]]) -> Figure:
    """One panel a pair of columns, a colour a noise level. Hollow points have batch normalization."""
    figure, axes = panels(len(pairs), height=3.0)
    hollow = {f"{level:.0%} corrupted": group["batch_norm"].to_list() for level, group in table.groupby("corruption")}
    for axis, (x, y) in zip(axes, pairs, strict=True):
        scatter(axis, by_corruption(table, x, y), hollow)
        labels = {**NAMES, "gap": "generalization gap"}
        named(axis, xlabel=labels.get(x, x), ylabel=labels.get(y, y))
    axes[0].legend(fontsize=7, frameon=False)
    return figure


def estimates(groups: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Estimated against true gaps, with the line of equality (Fig. 3C, E)."""
    figure, (axis,) = panels(1, width=3.8, height=3.4)
    scatter(axis, groups)
    ends = [min(min(true) for true, _ in groups.values()), max(max(true) for true, _ in groups.values())]
    axis.plot(ends, ends, "--", color="0.5", lw=1)
    named(axis, xlabel="true generalization gap", ylabel="estimated gap")
    axis.legend(fontsize=7, frameon=False)
    return figure
