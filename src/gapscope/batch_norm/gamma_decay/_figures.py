"""Figures with one panel a layer, over the batch size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels_over_batch_size(layers: Iterable[str]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and one panel for each different layer, its horizontal axis a logarithmic batch size."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(layers))
    figure = Figure(figsize=(3.2 * len(names), 3.2), layout="constrained")
    panels = dict(zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True))
    for name, panel in panels.items():
        panel.set_xscale("log", base=2)
        panel.set(title=name, xlabel="batch size")
    return figure, panels


def label_first(panels: dict[str, Axes], quantity: str) -> None:
    """Give the first panel the name of the vertical axis and the legend of all."""
    first = next(iter(panels.values()))
    first.set_ylabel(quantity)
    first.legend()
