"""Parts of the study that are a figure of test loss against sensitivity (Figs. 1 to 5, appendix F)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gapscope_studies.forouzesh2021 import grids
from gapscope_studies.forouzesh2021.analysis import (
    Relation,
    Table,
    comparison,
    fitted,
    left_out,
    over_predicted,
    plain,
    point_table,
    relation,
    relation_rows,
    row,
    scatter,
)
from gapscope_studies.forouzesh2021.grids import Configuration
from gapscope_studies.forouzesh2021.runs import points, runs
from gapscope_studies.kit.study import Outcome, Setting

Grid = Callable[[Setting], list[Configuration]]
Check = Callable[[Table], tuple[list[dict[str, Any]], str]]


def _verdict(table: Table, found: Relation, x: str, slope: float) -> str:
    named = "S before training" if x == "s_before" else "S after training"
    theory = "eq. 9: 0.5" if slope == 0.5 else "without bias: 1"
    return (
        f"Log test loss and log {named}: Pearson {found.text()}, slope {found.slope:.2f} "
        f"[{found.slope_low:.2f}, {found.slope_high:.2f}] ({theory}).{left_out(table)}"
    )


def loss_against_sensitivity(
    setting: Setting,
    *,
    grid: Grid,
    x: str = "s_after",
    rho: float | str = "",
    slope: float = 0.5,
    checks: Sequence[Check] = (),
) -> Outcome:
    """Test loss against S over one grid, with the relation, eq. (9), and what else the figure claims.

    Args:
        setting: Where and how large.
        grid: The configurations.
        x: "s_after" or "s_before".
        rho: The paper's correlation.
        slope: The slope that theory has: 0.5 for the cross-entropy, 1 for the squared error.
        checks: Further claims: points -> rows of the comparison, and a sentence.

    Returns:
        Points, relation, figure, verdict.
    """
    table = points(runs(setting, grid(setting)))
    used = fitted(table)
    found = relation(used, x)
    rows = relation_rows("L and S", found, rho, slope)
    verdict, numbers = _verdict(table, found, x, slope), {"relation": plain(found)}
    by_equation_9 = x == "s_after" and "train_accuracy" in table
    if by_equation_9:
        ratio = over_predicted(used)
        rows.append(
            row(
                "L over eq. (9): median, smallest to largest",
                ratio["median"],
                (ratio["smallest"], ratio["largest"]),
                1.0,
            )
        )
        numbers["loss_over_eq_9"] = ratio
    for check in checks:
        more, sentence = check(table)
        rows += more
        verdict += f" {sentence}"
    return Outcome(
        numbers=numbers | {"comparison": rows, "points": table.to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Points (means over runs)": point_table(table, x, "test_loss")},
        figures={"loss": scatter(table, x, predicted=by_equation_9, whiskers=x == "s_after")},
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )


def _means(table: Table) -> Table:
    """Geometric means of S and L of each family."""
    import numpy

    logs = table[["s_after", "test_loss"]].apply(numpy.log).assign(family=table["family"])
    return logs.groupby("family", sort=False).mean().apply(numpy.exp)


def equal_parameters(table: Table) -> tuple[list[dict[str, Any]], str]:
    """Fig. 2(a): the CNN against the fully connected network nearest to it in parameters."""
    cnns = table[table["family"].str.startswith("CNN")]
    others = table[table["family"] == "FC, 2 hidden layers"]
    pairs = [(cnn, others.loc[(others["parameters"] - cnn["parameters"]).abs().idxmin()]) for _, cnn in cnns.iterrows()]
    cnn, other = min(pairs, key=lambda pair: abs(pair[0]["parameters"] / pair[1]["parameters"] - 1))
    ratios = {name: cnn[name] / other[name] for name in ("s_after", "test_loss", "parameters")}
    sentence = (
        f"At {cnn['parameters']:,.0f} (CNN) and {other['parameters']:,.0f} (FC) parameters the CNN has "
        f"{ratios['s_after']:.2g} of the FC's S and {ratios['test_loss']:.2g} of its loss (paper: both lower)."
    )
    return [
        row("S of CNN over FC at equal parameters", ratios["s_after"], paper="< 1"),
        row("L of CNN over FC at equal parameters", ratios["test_loss"], paper="< 1"),
    ], sentence


def equal_products(table: Table) -> tuple[list[dict[str, Any]], str]:
    """Fig. 2(b): two networks of the largest depths with nearly the same (H/2)^M; the paper finds the same S and L."""
    product = (table["width"] / 2) ** table["n_hidden"]
    deep, deeper = sorted(table["n_hidden"].unique())[-2:]
    pairs = [(i, j) for i in table.index[table["n_hidden"] == deep] for j in table.index[table["n_hidden"] == deeper]]
    i, j = min(pairs, key=lambda pair: abs(product[pair[0]] / product[pair[1]] - 1))
    before, s, loss = (table.loc[j, name] / table.loc[i, name] for name in ("s_before", "s_after", "test_loss"))
    shapes = [f"{table.loc[k, 'n_hidden']:.0f} layers of {table.loc[k, 'width']:.0f}" for k in (i, j)]
    names = f"{shapes[1]} over {shapes[0]}"
    sentence = (
        f"{names} ((H/2)^M equal within {abs(product[j] / product[i] - 1):.0%}): S {before:.2f} before and {s:.2f} "
        f"after training, L {loss:.2f} (paper: the same S after training and L)."
    )
    return [
        row(f"S before training of {names}", before),
        row(f"S of {names}", s, paper=1.0),
        row(f"L of {names}", loss, paper=1.0),
    ], sentence


def shifts(table: Table) -> tuple[list[dict[str, Any]], str]:
    """Fig. 2(d, e): S and L of each regularisation over those of the same networks without it (geometric means)."""
    means = _means(table)
    rows, phrases = [], []
    for family in means.index.drop("none"):
        s, loss = (means.loc[family] / means.loc["none"])[["s_after", "test_loss"]]
        trained = table.loc[table["family"] == family, "train_accuracy"].mean()
        rows += [
            row(f"S with {family} over none", s, paper="< 1"),
            row(f"L with {family} over none", loss, paper="< 1"),
        ]
        phrases.append(f"{family} S x {s:.2g}, L x {loss:.2g} (training accuracy {trained:.2f})")
    return rows, f"Against no regularisation: {'; '.join(phrases)}."


def xavier_alone(table: Table) -> tuple[list[dict[str, Any]], str]:
    """Fig. 1 without its standard normal networks, whose outputs are larger by orders of magnitude."""
    alone = table[table["initialization"] != "standard_normal"]
    found = relation(fitted(alone), "s_after")
    sentence = f"Over the networks from Xavier uniform weights alone it is {found.text()}.{left_out(alone)}"
    return relation_rows("L and S, Xavier uniform alone", found), sentence


def initializations(table: Table) -> tuple[list[dict[str, Any]], str]:
    """Fig. 3: S and L from each initialisation; the paper finds both lowest for He normal."""
    means = _means(table)
    rows = []
    for family in means.index:
        rows += [
            row(f"{label}, {family}", means.loc[family, name]) for name, label in (("s_after", "S"), ("test_loss", "L"))
        ]
    lowest = {label: means[name].idxmin() for name, label in (("s_after", "S"), ("test_loss", "L"))}
    rows += [row(f"lowest {label}", name, paper="he_normal") for label, name in lowest.items()]
    scaled = relation(table[table["family"] != "standard_normal"], "s_after")
    sentence = (
        f"Lowest S: {lowest['S']}, lowest L: {lowest['L']} (paper: he_normal for both). Without the standard normal "
        f"networks the correlation is {scaled.text()}."
    )
    return rows + relation_rows("L and S without standard normal", scaled), sentence


figure_1 = partial(loss_against_sensitivity, grid=grids.figure_1, rho=0.9707, checks=[xavier_alone])
figure_2a = partial(loss_against_sensitivity, grid=grids.against_convolutions, checks=[equal_parameters])
figure_2b = partial(loss_against_sensitivity, grid=grids.by_depth, checks=[equal_products])
figure_2c = partial(loss_against_sensitivity, grid=grids.cnns_by_depth)
figure_2d = partial(loss_against_sensitivity, grid=grids.regularized_fully_connected, checks=[shifts])
figure_2e = partial(loss_against_sensitivity, grid=grids.regularized_cnns, checks=[shifts])
figure_3 = partial(loss_against_sensitivity, grid=grids.initialized, checks=[initializations])
figure_4 = partial(loss_against_sensitivity, grid=grids.untrained, x="s_before")
figure_5 = partial(loss_against_sensitivity, grid=grids.housing, slope=1.0)
mnist = partial(loss_against_sensitivity, grid=partial(grids.other_images, name="mnist"))
cifar100 = partial(loss_against_sensitivity, grid=partial(grids.other_images, name="cifar100"))
