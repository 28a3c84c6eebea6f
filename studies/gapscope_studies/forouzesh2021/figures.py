"""Parts that are figures of the paper, all from one pool of networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy
import pandas

from gapscope.measures.bias_variance import bias_variance
from gapscope.theory.sensitivity import predicted_loss
from gapscope_studies.forouzesh2021.analysis import (
    DRAWS,
    LABELS,
    LOGITS,
    Networks,
    PartResult,
    arms_of,
    by_family,
    log_pearson,
    over_predicted,
    ratio_claim,
    relation,
    relation_claim,
    select_fitted,
    statistic_claim,
)
from gapscope_studies.forouzesh2021.networks import by_draw, compute_outputs
from gapscope_studies.kit.claims import Claim, claim, identity
from gapscope_studies.kit.study import Table

SAME = 1.2  # factor within which two numbers are "the same"
NEAR = {"above": -math.log10(SAME), "below": math.log10(SAME)}  # of log10 of a ratio
# Accuracies are the same within two points: a factor of 1.2 of an error near chance would be fifteen.
NEAR_POINTS = {"above": -2.0, "below": 2.0}
# what the paper had, where its text or the authors' code says it
PAPER = {
    "batch size": "128",
    "seeds": "10",
    "epochs": "until the training loss is 1e-5 in 10 epochs",
}
IMAGES = {"data": "CIFAR-10, 1,000 training and 10,000 test images", **PAPER}
WIDTHS = {**IMAGES, "network": "widths 100 to 500"}
POPULAR = {**IMAGES, "data": "CIFAR-10, 12,800 training images", "network": "widths of 1/4 to 5/4"}
HOUSING = {**PAPER, "data": "Boston housing", "network": "3 to 8 hidden layers, widths 100 to 500"}
TABLE_1_PAPER = {**POPULAR, "data": "CIFAR-10, 50,000 training images"}


# --- test loss against sensitivity: Figs. 1 to 5, appendix F


def _both(
    source: str, says: str, first: Table, second: Table, quantity: str, *, same: bool = False
) -> list[Claim]:
    """Return claims that S and L of the first table are below the second's, or the `same`, with a control.

    From large weights L is the size of the logits: a network of lower L may classify worse. The control (ours) is the
    same statement about the test error.
    """
    bounds: dict[str, Any] = NEAR if same else {"below": 0.0}
    claims = [
        ratio_claim(
            source, says.format(name), first, second, column, f"{name} of {quantity}", **bounds
        )
        for name, column in (("S", "s_after"), ("L", "test_loss"))
    ]
    if "test_accuracy" in first:
        claims.append(
            accuracy_control(source, says.format("test error"), first, second, quantity, same=same)
        )
    return claims


def accuracy_control(
    source: str, says: str, first: Table, second: Table, quantity: str, *, same: bool
) -> Claim:
    """Return the claim that the first table classifies better than the second, or the same."""
    accuracies = [by_draw(table, "test_accuracy")[0].mean(0) for table in (first, second)]
    arms = (*arms_of(first), *arms_of(second))
    bounds = NEAR_POINTS if same else {"above": 0.0}
    return claim(
        source, says, f"points of test accuracy, {quantity.replace(' over ', ' minus ')}",
        100 * (accuracies[0] - accuracies[1]), unit=DRAWS, compared=arms, ours=True, **bounds, **LOGITS,
    )  # fmt: skip


def _nearest(pairs: Iterable[tuple[Any, Any]], sizes: Any) -> tuple[Any, Any]:
    """Return the pair of rows whose sizes have the ratio nearest to 1."""
    return min(pairs, key=lambda pair: abs(sizes[pair[0]] / sizes[pair[1]] - 1))


def convolutions_for_layers(table: Table) -> list[Claim]:
    """Return claims of Fig. 2(a): CNN over fully connected network, by size."""
    cnns = table[table["family"].str.startswith("CNN")]
    others, size = table[table["family"] == "FC, 2 hidden layers"], table["parameters"]
    pairs = [(cnn, (others["parameters"] - size[cnn]).abs().idxmin()) for cnn in cnns.index]
    cnn, other = _nearest(pairs, size)
    says = "at equal parameters a convolution instead of a layer lowers {}"
    claims = _both("Fig. 2(a)", says, table.loc[[cnn]], table.loc[[other]], "CNN over FC")
    cnn, other = cnns["parameters"].idxmax(), others["parameters"].idxmin()
    if size[cnn] > size[other]:
        pair = f"the CNN over the network with 1/{size[cnn] / size[other]:.1f} of its parameters"
        says = "the largest CNN has a lower {} than the smallest fully connected network"
        claims += _both("Fig. 2(a)", says, table.loc[[cnn]], table.loc[[other]], pair)
    return claims


def depth_and_width(table: Table) -> list[Claim]:
    """Return claims of Fig. 2(b): equal (H/2)^M, narrow deep networks against the widest."""
    product = (table["width"] / 2) ** table["n_hidden"]
    depth, deepest = sorted(table["n_hidden"].unique())[-2:]
    shallow, deep = table[table["n_hidden"] == depth], table[table["n_hidden"] == deepest]
    i, j = _nearest(itertools.product(shallow.index, deep.index), product)
    shapes = [
        f"{table.loc[k, 'n_hidden']:.0f} layers of {table.loc[k, 'width']:.0f}" for k in (j, i)
    ]
    says = "equal (H/2)^M give the same {}"
    result = _both(
        "Fig. 2(b)", says, table.loc[[j]], table.loc[[i]], " over ".join(shapes), same=True
    )
    widest = shallow.nlargest(1, "width")
    for width, one in deep[product[deep.index] < 0.99 * float(product[widest.index[0]])].groupby(
        "width"
    ):
        says = f"{deepest:.0f} layers of {width:.0f} have a lower {{}} than {depth:.0f} layers of the largest width"
        result += _both("Fig. 2(b)", says, one, widest, "narrow and deep over wide")
    return result


def deeper_cnns(table: Table) -> list[Claim]:
    """Return claims of Fig. 2(c): deep CNN over one of equal size, and narrowest over widest."""
    by_depth = {depth: group for depth, group in table.groupby("n_conv")}
    size = table["parameters"]
    pairs = [
        (i, j)
        for i in table.index
        for j in table.index
        if table.loc[i, "n_conv"] > table.loc[j, "n_conv"]
    ]
    i, j = _nearest(pairs, size)
    first, second = sorted(by_depth)[:2]
    narrow, wide = by_depth[second]["channels"].idxmin(), by_depth[first]["channels"].idxmax()
    result = []
    for says, deep, shallow in (
        ("at equal parameters the deeper CNN, here the wider one, has the lower {}", i, j),
        ("a narrow CNN has a lower {} than a wide one of one convolution less", narrow, wide),
    ):
        pair = table.loc[[deep, shallow]]
        shapes = (
            f"{row.n_conv:.0f} convolutions of {row.channels:.0f}" for row in pair.itertuples()
        )
        result += _both(
            "Fig. 2(c)", says, table.loc[[deep]], table.loc[[shallow]], " over ".join(shapes)
        )
    return result


def shifts(table: Table, source: str) -> list[Claim]:
    """Return claims of Fig. 2(d, e): S and L of each regularization over those without it."""
    groups = dict(list(table.groupby("family", sort=False)))
    return [
        each
        for family in groups
        if family != "none"
        for each in _both(
            source, f"{family} lowers {{}}", groups[family], groups["none"], f"{family} over none"
        )
    ]


def xavier_alone(table: Table) -> list[Claim]:
    """Return the claim of Fig. 1 without standard normal networks, whose outputs are larger."""
    alone = select_fitted(table[table["initialization"] != "standard_normal"])
    says = "L rises with S among the networks from Xavier uniform weights, one of two clusters nine decades apart"
    return [relation_claim("Fig. 1", says, alone, "s_after", paper=0.9707)]


def initializations(table: Table) -> list[Claim]:
    """Return claims of Fig. 3: S and L from He normal weights over the lowest others."""
    groups = dict(list(table.groupby("family", sort=False)))
    claims = []
    for name, label in (("s_after", "S"), ("test_loss", "L")):
        logs = {
            kind: numpy.log(group[name]).mean()
            for kind, group in groups.items()
            if kind != "he_normal"
        }
        best = min(logs, key=logs.__getitem__)
        claims.append(
            ratio_claim("Fig. 3", f"{label} is lowest from He normal weights", groups["he_normal"], groups[best], name,
                        f"{label} of He normal over {best}", below=0.0)
        )  # fmt: skip
        if name == "test_loss":
            says, quantity = (
                "the test error is lowest from He normal weights",
                f"He normal over {best}",
            )
            claims.append(
                accuracy_control(
                    "Fig. 3", says, groups["he_normal"], groups[best], quantity, same=False
                )
            )
    others = table[table["family"] != "standard_normal"]
    return [
        *claims,
        relation_claim(
            "Fig. 3", "L rises with S without the standard normal networks", others, "s_after"
        ),
    ]


def loss_against_sensitivity(
    networks: Networks, *, source: str, x: str = "s_after", rho: float | None = None, clusters: str = "",
    check: Callable[[Table], list[Claim]] | None = None,
) -> PartResult:  # fmt: skip
    """Relate test loss to S over one grid, with eq. (9) and the claims that `check` returns."""
    table = networks.points
    fitted = select_fitted(table)
    numbers: dict[str, Any] = {"relation": relation(fitted, x)}
    by_equation_9 = x == "s_after" and "train_accuracy" in table
    if by_equation_9:
        numbers["loss_over_eq_9"] = over_predicted(fitted)
    more = {"clusters": fitted[clusters].to_list(), "unit": "clusters"} if clusters else {}
    claims = [relation_claim(source, f"L rises with {LABELS[x]}", fitted, x, paper=rho, **more)]
    claims += [] if check is None else check(table)
    if by_equation_9 and source in ("Fig. 1", "Fig. 2(a)", "Fig. 2(b)", "Fig. 3"):
        claims += near_equation_9(source, fitted)
    return PartResult(
        numbers=numbers, claims=claims, plots={"loss": (x, "test_loss")}, predicted=by_equation_9
    )


def near_equation_9(source: str, table: Table) -> list[Claim]:
    """Return claims that the test loss is near eq. (9), whose log-log slope is 1/2."""
    return [
        claim(source, "L is that of eq. (9) within a factor of 2", "mean |log10 of L over eq. (9)|", _distances(table),
              unit=DRAWS, below=math.log10(2), compared=arms_of(table), **LOGITS),
        statistic_claim(source, "L rises with the root of S, as in eq. (9)", "slope of log L by log S",
                        lambda means: _log_slope(means["s_after"], means["test_loss"]), table, "s_after",
                        "test_loss", paper=0.5, within=1.2, above=0.0),
    ]  # fmt: skip


def _log_slope(x: numpy.ndarray, y: numpy.ndarray) -> float:
    """Return the least-squares slope of log y by log x, NaN where x is constant.

    >>> round(_log_slope(numpy.array([1.0, 4.0, 9.0]), numpy.array([1.0, 2.0, 3.0])), 9)
    0.5
    """
    return float(numpy.polyfit(numpy.log(x), numpy.log(y), 1)[0]) if numpy.ptp(x) > 0 else math.nan


# --- Figs. 10 to 13


def figure_10(networks: Networks) -> PartResult:
    """Relate variance to S, and the squared error to bias + variance (Fig. 10c, d)."""
    parts = []
    for item in networks.configurations:
        outputs, test = compute_outputs(networks.setting, item)
        result = bias_variance(outputs, test.y)
        parts.append(
            {"bias": result.bias, "variance": result.variance, "squared_error": result.mse}
        )
    table = networks.points.join(pandas.DataFrame(parts))
    table["bias_and_variance"] = table["bias"] + table["variance"]
    table["predicted_variance"] = (
        table["s_after"] * table["mean_square_input"] / 0.1**2 * table["outputs"] ** 2
    )
    gap = float((table["bias_and_variance"] / table["squared_error"] - 1).abs().max())
    # with a few runs a variance is hardly known, and the bias takes its share: the runs are the units that count
    n_runs = int(table["runs"].min())
    close = relation_claim("Fig. 10(d)", "the variance over runs rises with S", table, "s_after", "variance",
                           clusters=table.index.to_list())  # fmt: skip
    claims = [
        identity("Fig. 10(c)", "the squared error is bias + variance (an identity: a check of the code)",
                 "largest relative difference", gap, below=1e-6, ours=True),
        replace(close, units=min(close.units, n_runs), unit="runs behind a variance"),
    ]  # fmt: skip
    return PartResult(
        numbers={"variance_and_s": relation(table, "s_after", "variance"),
                 "loss_and_variance": relation(table, "variance"),
                 "variance_over_squared_error": float((table["variance"] / table["squared_error"]).median()),
                 "variance_over_predicted": float((table["variance"] / table["predicted_variance"]).median())},
        claims=claims, points=table,
        plots={"variance": ("s_after", "variance"), "bias-and-variance": ("bias_and_variance", "squared_error")},
    )  # fmt: skip


def figure_11_amount(networks: Networks) -> PartResult:
    """Compare ResNet-18 and 34 on few and on many samples (Fig. 11a, b)."""
    few, many = (
        group.reset_index(drop=True) for _, group in networks.points.groupby("family", sort=False)
    )
    better = statistic_claim(
        "Fig. 11(a, b)", "loss and S match better with many samples than with few",
        "Pearson of the logs with many minus with few",
        lambda columns: log_pearson(columns, "s_after") - log_pearson(columns, "few_s", "few_loss"),
        networks.points, "s_after", "test_loss", "few_s", "few_loss",
        values=numpy.concatenate([by_draw(group, "s_after", "test_loss") for group in (many, few)]),
    )  # fmt: skip
    return PartResult(numbers={"relations": by_family(networks.points)}, claims=[better],
                  plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def _distances(stage: Table) -> numpy.ndarray:
    """Return |log10 of L over eq. (9)| of each draw, averaged over configurations."""
    s, loss = by_draw(stage, "s_after", "test_loss")
    first = stage.iloc[0]
    options = {
        "n_outputs": int(first["outputs"]),
        "input_second_moment": first["mean_square_input"],
    }
    return numpy.abs(numpy.log10(loss / (predicted_loss(1.0, **options) * numpy.sqrt(s)))).mean(0)


def figure_11_stages(networks: Networks) -> PartResult:
    """Relate S and loss at stages of training (Fig. 11d)."""
    table, claims = networks.points, []
    groups = table.groupby(["family", "initialization"], sort=False)
    ratios = {f"{family}, {kind}": over_predicted(group) for (family, kind), group in groups}
    for kind, group in table.groupby("initialization", sort=False):
        first, *_, last = (stage for _, stage in group.groupby("family", sort=False))
        before, after = (_distances(stage) for stage in (first, last))
        claims.append(
            claim("Fig. 11(d)", f"loss and S come closer to eq. (9) with training ({kind})",
                  f"|log10 of L over eq. (9)| after {last['family'].iloc[0]} minus after {first['family'].iloc[0]}",
                  after - before, unit=DRAWS, below=0.0,
                  # stages of training are what is compared: none of them is meant to be its end
                  compared=[replace(one, finished=True) for one in arms_of(last)])
        )  # fmt: skip
    return PartResult(numbers={"relations": by_family(table) | ratios}, claims=claims,
                  plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def figure_12(networks: Networks) -> PartResult:
    """Relate the loss to S of outputs and of probabilities (Fig. 12)."""
    fitted = select_fitted(networks.points)
    lost = statistic_claim(
        "Fig. 12", "the relation is weaker behind the softmax", "Pearson of the logs, raw minus probabilities",
        lambda columns: log_pearson(columns, "s_after") - log_pearson(columns, "s_softmax"), fitted,
        "s_after", "s_softmax", "test_loss",
    )  # fmt: skip
    return PartResult(
        numbers={
            "raw": relation(fitted, "s_after"),
            "probabilities": relation(fitted, "s_softmax"),
        },
        claims=[
            relation_claim("Fig. 12", "L rises with S of the raw outputs", fitted, "s_after"),
            lost,
        ],
        plots={"raw": ("s_after", "test_loss"), "probabilities": ("s_softmax", "test_loss")},
    )


def figure_13(networks: Networks) -> PartResult:
    """Compare S on training inputs with S on test inputs (Fig. 13)."""
    table = networks.points
    same = ratio_claim("Fig. 13", "S on training inputs is that on test inputs", table, table, "s_train",
                       "S on training over S on test inputs", over="s_after", **NEAR)  # fmt: skip
    return PartResult(numbers={"relation": relation(table, "s_after", "s_train")}, claims=[same],
                  plots={"inputs": ("s_after", "s_train")})  # fmt: skip
