"""The paper's plots: accuracy curves with turning points, clouds of (zeta, kappa), estimates against gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.measures.unit_sparsity import UnitSparsity
from gapscope_studies.zhao2022.analysis import KAPPA, ZETA, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZETA_LABEL, KAPPA_LABEL, GAP_LABEL = "ζ", "κ", "generalization gap"


def _figure(columns: int, *, rows: int = 1, width: float = 3.2, height: float = 2.8) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def curves(found: Mapping[str, UnitSparsity], place: int = 0) -> Figure:
    """E and E_r of one class in each network, with both turning points and the area between them (Figs. 1, 2A).

    Args:
        found: Title -> sparsity of one network.
        place: Which of the classes.

    Returns:
        The figure.
    """
    columns = min(3, len(found))
    figure, axes = _figure(columns, rows=-(-len(found) // columns), height=2.3)
    for axis, (title, item) in zip(axes, found.items(), strict=False):
        n = numpy.arange(item.n_units + 1)
        first, last = item.curves[place].numpy(), item.reversed_curves[place].numpy()
        axis.fill_between(n, first, last, color="0.88")
        axis.plot(n, first, color="C0", label="E, most active first")
        axis.plot(n, last, color="C2", label="E_r, reversed")
        for curve, point, colour in (
            (first, int(item.turning_points[place]), "C0"),
            (last, int(item.reversed_turning_points[place]), "C2"),
        ):
            axis.scatter([point], [curve[point]], color=colour, edgecolors="black", zorder=3, s=28)
        axis.set(title=title, ylim=(-0.04, 1.04))
        axis.title.set_fontsize(9)
    for axis in axes[len(found) :]:
        axis.axis("off")
    figure.supxlabel("units removed", fontsize=9)
    figure.supylabel("accuracy on the class", fontsize=9)
    axes[0].legend(fontsize=6.5, frameon=False)
    return figure


def clouds(found: Mapping[str, UnitSparsity]) -> Figure:
    """(zeta, kappa) of every class, one colour a network (Fig. 2B)."""
    from matplotlib import colormaps

    figure, (axis,) = _figure(1, width=4.6, height=3.6)
    for number, (title, item) in enumerate(found.items()):
        colour = colormaps["rainbow_r"](number / max(1, len(found) - 1))
        axis.scatter(item.class_zeta.numpy(), item.class_kappa.numpy(), s=16, color=colour, label=title)
    axis.set(xlabel=f"{ZETA_LABEL} of a class", ylabel=f"{KAPPA_LABEL} of a class")
    axis.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _mark(axis: Any, table: Table, x: Any, y: Any, **options: Any) -> Any:
    """Networks with batch normalisation as squares, others as circles."""
    drawn = None
    for norm, marker in ((False, "o"), (True, "s")):
        rows = (table["batch_norm"] == norm).to_numpy()
        if rows.any():
            chosen = {key: numpy.asarray(value)[rows] if key == "c" else value for key, value in options.items()}
            drawn = axis.scatter(
                numpy.asarray(x)[rows], numpy.asarray(y)[rows], marker=marker, s=24, edgecolors="0.3", linewidths=0.4,
                label="batch norm" if norm else "no batch norm", **chosen,
            )  # fmt: skip
    return drawn


def pairs(table: Table) -> Figure:
    """(zeta, kappa) of every network, coloured by its gap (Fig. 3A)."""
    figure, (axis,) = _figure(1, width=4.4, height=3.4)
    limits = {"vmin": float(table["gap"].min()), "vmax": float(table["gap"].max()), "cmap": "rainbow_r"}
    drawn = _mark(axis, table, table[ZETA], table[KAPPA], c=table["gap"], **limits)
    figure.colorbar(drawn, ax=axis, label=GAP_LABEL)
    axis.set(xlabel=ZETA_LABEL, ylabel=KAPPA_LABEL)
    if table["batch_norm"].nunique() > 1:
        axis.legend(fontsize=7, frameon=False)
    return figure


def against_gap(table: Table, columns: Mapping[str, str]) -> Figure:
    """The gap against each of some columns (Fig. 3B).

    Args:
        table: The networks.
        columns: Column -> label.

    Returns:
        The figure.
    """
    figure, axes = _figure(len(columns))
    for axis, (name, label) in zip(axes, columns.items(), strict=True):
        _mark(axis, table, table[name], table["gap"], color="C0" if len(columns) < 3 else None)
        axis.set(xlabel=label)
    axes[0].set_ylabel(GAP_LABEL)
    if table["batch_norm"].nunique() > 1:
        axes[0].legend(fontsize=7, frameon=False)
    return figure


def estimates(groups: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str = "") -> Figure:
    """Estimated against true gaps with the line of equality (Fig. 3C, E).

    Args:
        groups: Label -> (true gaps, estimates).
        title: Title.

    Returns:
        The figure.
    """
    figure, (axis,) = _figure(1, width=3.8, height=3.4)
    for number, (label, (true, estimated)) in enumerate(groups.items()):
        axis.scatter(true, estimated, s=20, color=("C0", "C3", "C2", "C4")[number % 4], label=label)
    ends = [min(min(true) for true, _ in groups.values()), max(max(true) for true, _ in groups.values())]
    axis.plot(ends, ends, color="0.5", linestyle="--", linewidth=1)
    axis.set(xlabel=f"true {GAP_LABEL}", ylabel="estimated gap", title=title)
    axis.legend(fontsize=7, frameon=False)
    return figure


def histogram(sums: Mapping[str, Sequence[float]]) -> Figure:
    """Sums of squared residuals over repeated splits (Fig. 3D)."""
    figure, (axis,) = _figure(1, width=4.2, height=3.0)
    largest = max(max(values) for values in sums.values())
    for label, values in sums.items():
        axis.hist(values, bins=numpy.linspace(0, largest, 26).tolist(), alpha=0.6, label=label)
    axis.set(xlabel="sum of squared residuals of the held-out networks", ylabel="splits")
    axis.legend(fontsize=7, frameon=False)
    return figure


def bars(table: Table, label: str, values: str, *, low: str, high: str, title: str = "") -> Figure:
    """Horizontal bars with whiskers, the first row on top.

    Args:
        table: One row a bar.
        label: Column of the labels.
        values: Column of the lengths.
        low: Column of the lower ends.
        high: Column of the upper ends.
        title: Name of the axis.

    Returns:
        The figure.
    """
    figure, (axis,) = _figure(1, width=6.4, height=0.7 + 0.24 * len(table))
    places = numpy.arange(len(table))[::-1]
    axis.barh(places, table[values], color="C0", alpha=0.7)
    axis.hlines(places, table[low], table[high], color="0.2", linewidth=1)
    axis.set_yticks(places, [str(name) for name in table[label]])
    axis.tick_params(labelsize=8)
    axis.set_xlabel(title)
    return figure
