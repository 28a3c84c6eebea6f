"""The figures of all studies: scatter, lines with a band, points with intervals, heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gapscope_studies.kit.statistics import Interval, Values

MARKERS = "osD^vP*X<>"


# inches of a page's text: what is wider is shrunk by the browser, and its labels with it
WIDEST = 7.3


def panels(n: int, *, width: float = 3.6, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """A figure of n panels, in as many columns as are legible on a page."""
    columns = min(n, max(1, int(WIDEST // width)))
    rows = -(-n // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[n:]:
        axis.set_visible(False)
    return figure, axes[:n]


def set_labels(axis: Axes, **texts: Any) -> None:
    """Set title, labels and scales, in the sizes of all figures."""
    axis.set(**texts)
    axis.title.set_fontsize(10)
    axis.xaxis.label.set_fontsize(9)
    axis.yaxis.label.set_fontsize(9)
    axis.tick_params(which="both", labelsize=8)


def legend(figure: Figure, title: str = "") -> None:
    """One legend for all panels, below them."""
    labels: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    if labels:
        figure.legend(
            list(labels.values()), list(labels), loc="outside lower center", ncols=min(4, len(labels)), fontsize=8,
            frameon=False, title=title or None,
        )  # fmt: skip


def scatter(
    axis: Axes,
    groups: Mapping[str, tuple[Values, Values]],
    hollow: Mapping[str, Sequence[bool]] | None = None,
) -> None:
    """One colour and marker a group of points. Hollow ones did not fit their data."""
    for number, (name, (x, y)) in enumerate(groups.items()):
        color, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        open_ones = np.array((hollow or {}).get(name, [False] * len(x)), dtype=bool)
        a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        axis.scatter(a[~open_ones], b[~open_ones], s=26, marker=marker, color=color, linewidths=0.9, label=name)
        axis.scatter(a[open_ones], b[open_ones], s=26, marker=marker, facecolors="none", edgecolors=color)


def lines(
    axis: Axes,
    curves: Mapping[str, Any],
    x: Values | None = None,
    *,
    style: str = "-",
    colors: Mapping[str, str] | None = None,
) -> None:
    """Plot means over runs of values [runs, steps], with bands from smallest to largest.

    Each name has a colour.
    """
    for number, (name, values) in enumerate(curves.items()):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        if not values.size:
            continue
        steps = np.arange(1, values.shape[1] + 1) if x is None else np.asarray(x)
        color = (colors or {}).get(name, f"C{number}")
        axis.plot(steps, values.mean(0), style, color=color, lw=1.3, ms=4, label=name)
        if len(values) > 1:
            axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)


def points(
    axis: Axes, rows: Mapping[str, Interval], *, shift: float = 0.0, marker: str = "o", color: str = "black",
    label: str | None = None,
) -> None:  # fmt: skip
    """One row a name, from the top: its value with its interval."""
    places = np.arange(len(rows))[::-1] + shift
    for place, result in zip(places, rows.values(), strict=True):
        if np.isfinite([result.low, result.high]).all():
            axis.plot([result.low, result.high], [place, place], color=color, lw=1.5)
    axis.plot([result.value for result in rows.values()], places, marker, color=color, ms=5, label=label)
    axis.set_yticks(np.arange(len(rows))[::-1], list(rows), fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def heat_map(axis: Axes, values: Any, rows: Sequence[str], columns: Sequence[str], *, digits: int = 2) -> None:
    """A table of numbers as colours, with the numbers in it."""
    grid = np.asarray(values, dtype=float)
    axis.imshow(grid, aspect="auto", cmap="viridis")
    middle = np.nanmean(grid)
    for (i, j), value in np.ndenumerate(grid):
        color = "white" if value < middle else "black"
        axis.text(j, i, f"{value:.{digits}f}", ha="center", va="center", fontsize=8, color=color)
    axis.set_xticks(range(len(columns)), list(columns), fontsize=8)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
