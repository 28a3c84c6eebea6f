"""Shared analysis: gap models, claims about networks of a pool, a scatter plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy
from matplotlib.figure import Figure

from gapscope.gap.gap_estimator import GapEstimator
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve, relation
from gapscope_studies.kit.plots import panels, scatter, set_labels
from gapscope_studies.kit.statistics import pearson
from gapscope_studies.kit.study import Table

ZETA, KAPPA = "unit_sparsity.zeta", "unit_sparsity.kappa"
NAMES = {ZETA: "zeta", KAPPA: "kappa"}
# the paper's sign of the correlation with the gap
SIGNS = {ZETA: 1, KAPPA: -1}
FEATURES = ("lower_fence", "lower_quartile", "median", "upper_quartile", "upper_fence")
MARGINS = [
    f"margin_signature.{tap}.{feature}"
    for tap in ("input", "h1", "h2", "h3")
    for feature in FEATURES
]
PAPER = {
    "data": "CIFAR-100, 50,000 training and 10,000 test images",
    "network": "VGG-16, 512 units in its last convolution",
    "networks": "80",
    "batch size": "128 to 512",
    "epochs": "until the training accuracy is .97",
}

# the paper's model (gap = a zeta + b kappa + c, least squares); Jiang et al. 2019 (twenty logarithmic quartile
# features); and the mean gap, which ignores the network
sparsity_model = partial(GapEstimator, features=[ZETA, KAPPA])
margin_model = partial(GapEstimator, features=MARGINS)
mean_gap = partial(GapEstimator, features=[])


def format_coefficient(row: Mapping[str, Any], coefficient: str = "pearson") -> str:
    """Return a coefficient of `correlations` with its interval, or a dash.

    >>> format_coefficient({"pearson": 0.5, "pearson_low": 0.2, "pearson_high": 0.75})
    '0.50 [0.20, 0.75]'
    """
    value, low, high = (float(row[coefficient + end]) for end in ("", "_low", "_high"))
    return "–" if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def arms_of(
    table: Table, by: str = "corruption", name: str = "{:.0%} corrupted"
) -> tuple[ComparisonArm, ...]:
    """Return the fit of each group's networks to their (corrupted) labels, for the guard.

    Training of a noise level has ended where every network fits its labels, the paper's own criterion.
    """
    return tuple(
        ComparisonArm(
            name=name.format(level),
            train_accuracy=float(group["train_accuracy"].mean()),
            chance=float(group["chance"].iloc[0]),
            curve=downsample_curve(group["curve"].to_list()),
            finished=True
            if by == "corruption" and (group["train_accuracy"] >= MIN_TRAIN_ACCURACY).all()
            else None,
        )
        for level, group in table.groupby(by)
    )


def cluster_fields(
    table: Table, cluster: str = "corruption", unit: str = "noise levels"
) -> dict[str, Any]:
    """Return fields of a claim whose units are noise levels.

    Networks of one noise level share corrupted labels and most of their gap.
    """
    return {"clusters": table[cluster].to_list(), "unit": unit, "compared": arms_of(table)}


def bound_of(sign: int) -> dict[str, Any]:
    """Return the bound of a claim that a number has this sign."""
    return {"above": 0.0} if sign > 0 else {"below": 0.0}


def sign_claims(
    source: str, table: Table, units: Mapping[str, str] | None = None, **more: Any
) -> list[Claim]:
    """Return claims that the gap rises with zeta and falls with kappa."""
    return [
        relation(source, f"the gap {'rises' if sign > 0 else 'falls'} with {NAMES[name]}",
                 f"Pearson of the gap and {NAMES[name]}", pearson, table[name], table["gap"], **bound_of(sign),
                 **cluster_fields(table, **units or {}), **more)
        for name, sign in SIGNS.items()
    ]  # fmt: skip


def error_claim(
    source: str, says: str, table: Table, model: GapEstimator, other: GapEstimator,
    units: Mapping[str, str] | None = None,
) -> Claim:  # fmt: skip
    """Return the claim that one model errs less than another on held-out networks."""
    errors = [numpy.abs(each.fit(table, table["gap"]).residuals_) for each in (model, other)]
    return claim(source, says, "mean difference of absolute errors", errors[0] - errors[1], below=0.0,
                 **cluster_fields(table, **units or {}))  # fmt: skip


def scatter_pairs(table: Table, pairs: Sequence[tuple[str, str]]) -> Figure:
    """Plot pairs of columns, one colour per noise level (hollow: batch normalization)."""
    figure, axes = panels(len(pairs), height=3.0)
    groups = {f"{level:.0%} corrupted": group for level, group in table.groupby("corruption")}
    hollow = {name: group["batch_norm"].to_list() for name, group in groups.items()}
    labels = {**NAMES, "gap": "generalization gap"}
    for axis, (x, y) in zip(axes, pairs, strict=True):
        scatter(axis, {name: (group[x], group[y]) for name, group in groups.items()}, hollow)
        set_labels(axis, xlabel=labels.get(x, x), ylabel=labels.get(y, y))
    axes[0].legend(fontsize=7, frameon=False)
    return figure
