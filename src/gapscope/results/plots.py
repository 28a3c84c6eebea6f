"""Figures of results (matplotlib is imported on first use)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def axes_or_new(axes: Any, *, width: float = 7.0, height: float = 4.0) -> Any:
    """Return `axes`, or those of a new figure."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def panels(names: Sequence[str], *, width: float = 7.0, height: float = 1.8, sharex: bool = True) -> list[Any]:
    """Return the axes of a new figure, one below the other, one per name."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(
        len(names), 1, sharex=sharex, squeeze=False, figsize=(width, height * len(names)), layout="constrained"
    )
    for panel, name in zip(axes[:, 0], names, strict=True):
        panel.set_ylabel(name, rotation=0, ha="right", va="center")
    return list(axes[:, 0])


def plot_estimates(true: Any, assessed: Any, level: float, axes: Any = None) -> Any:
    """Plot estimated against true numbers with intervals and the diagonal.

    `assessed` has one row per true number, with prediction, low, high and verdict ("inside" or "outside").
    """
    axes = axes_or_new(axes, width=5.0, height=5.0)
    estimates, low, high = (assessed[name].to_numpy(dtype=float) for name in ("prediction", "low", "high"))
    inside = (assessed["verdict"] == "inside").to_numpy()
    for chosen, colour, label in ((inside, "tab:blue", "estimated"), (~inside, "tab:grey", "unlike the fitted ones")):
        if chosen.any():
            at, value = true[chosen], estimates[chosen]
            # no bar where too few networks were fitted for an interval
            ends = [(value - low[chosen]).clip(0), (high[chosen] - value).clip(0)]
            ends = [[end if math.isfinite(end) else 0.0 for end in side] for side in ends]
            axes.errorbar(at, value, yerr=ends, fmt="o", color=colour, label=label, markersize=4, linewidth=1)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.set_xlabel("true gap")
    axes.set_ylabel(f"estimated gap, {level:.0%} interval")
    axes.legend(fontsize=8)
    return axes


def plot_lines(
    epochs: Sequence[int], columns: Mapping[str, Sequence[float]], *, marked: Mapping[str, int]
) -> list[Any]:
    """Plot each number over epochs in its own panel, with lines at the epochs of `marked` events."""
    drawn = panels(list(columns))
    for axes, values in zip(drawn, columns.values(), strict=True):
        axes.plot(epochs, values, marker="." if len(epochs) < 40 else None)
        for style, (name, epoch) in zip(("--", ":"), marked.items(), strict=False):
            axes.axvline(epoch, color="tab:red", linestyle=style, label=name)
    if drawn:
        drawn[-1].set_xlabel("epoch")
        if marked:
            drawn[0].legend(fontsize=8)
    return drawn
