"""Figures of all studies: scatter, lines with a band, points with intervals, heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gapscope_studies.kit.statistics import Interval, Values

MARKERS = "osD^vP*X<>"
MAX_WIDTH = 7.3  # inches of a page's text: a browser shrinks what is wider, and its labels with it


def panels(n: int, *, width: float = 3.6, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """Return a figure of n panels, in as many columns as are legible on a page."""
    columns = min(n, max(1, int(MAX_WIDTH // width)))
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
    """Add one legend for all panels below them."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        style: Any = {
            "loc": "outside lower center",
            "fontsize": 8,
            "frameon": False,
            "title": title or None,
        }
        figure.legend([*handles.values()], [*handles], ncols=min(4, len(handles)), **style)


def scatter(
    axis: Axes,
    groups: Mapping[str, tuple[Values, Values]],
    hollow: Mapping[str, Sequence[bool]] | None = None,
) -> None:
    """Plot groups of points by colour and marker, hollow if they did not fit their data."""
    for number, (name, (x, y)) in enumerate(groups.items()):
        color, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        is_hollow = np.array((hollow or {}).get(name, [False] * len(x)), dtype=bool)
        a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        axis.scatter(
            a[~is_hollow],
            b[~is_hollow],
            s=26,
            marker=marker,
            color=color,
            linewidths=0.9,
            label=name,
        )
        axis.scatter(
            a[is_hollow], b[is_hollow], s=26, marker=marker, facecolors="none", edgecolors=color
        )


def lines(
    axis: Axes,
    curves: Mapping[str, Any],
    x: Values | None = None,
    style: str = "-",
    colors: Mapping[str, str] | None = None,
) -> None:
    """Plot means over runs of values [runs, steps], with bands from smallest to largest."""
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
    """Plot one value per row with its interval, from the top."""
    heights = np.arange(len(rows))[::-1] + shift
    for height, row in zip(heights, rows.values(), strict=True):
        if np.isfinite([row.low, row.high]).all():
            axis.plot([row.low, row.high], [height, height], color=color, lw=1.5)
    axis.plot([row.value for row in rows.values()], heights, marker, color=color, ms=5, label=label)
    axis.set_yticks(np.arange(len(rows))[::-1], list(rows), fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def heat_map(
    axis: Axes, values: Any, rows: Sequence[str], columns: Sequence[str], *, digits: int = 2
) -> None:
    """Plot a table of numbers as colours, with the numbers in it."""
    grid = np.asarray(values, dtype=float)
    axis.imshow(grid, aspect="auto", cmap="viridis")
    middle = np.nanmean(grid)
    for (i, j), value in np.ndenumerate(grid):
        color = "white" if value < middle else "black"
        axis.text(j, i, f"{value:.{digits}f}", ha="center", va="center", fontsize=8, color=color)
    axis.set_xticks(range(len(columns)), list(columns), fontsize=8)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=8)
