"""HTML page of one monitored training: alarm, memorization and label issues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gapscope.base.errors import InvalidInput
from gapscope.report.figures import ALARM
from gapscope.report.formatting import format_number, pluralize
from gapscope.report.label_issues import suspects_section
from gapscope.report.svg import Plot, Scale
from gapscope.report.write import write_page

if TYPE_CHECKING:
    from gapscope.labels.results import LabelIssues

Rows = Sequence[Mapping[str, float]]

# names of what alarms record (shared or true, individual or false) -> their labels and explanation
_PAIRS = {
    ("alarm.ordinary", "alarm.canaries"): (
        "labels as given",
        "false labels of the canaries",
        "Probability of the trained label. Canaries have a false label on purpose, which can only be memorized; "
        "an alarm gives them theirs back.",
    ),
    ("alarm.shared_probability", "alarm.own_probability"): (
        "at the neighbours in gradient space",
        "at the sample itself",
        "Probability of the trained label. A sample whose neighbours have a lower probability is memorized.",
    ),
}


def _finite(rows: Rows, name: str) -> list[tuple[float, float]]:
    points = [(float(row["epoch"]), float(row.get(name, math.nan))) for row in rows]
    return [point for point in points if math.isfinite(point[1])]


def _marked(plot: Plot, moments: Mapping[str, int], height: float) -> Markup:
    """Draw each moment as an upright line."""
    for kind, epoch in moments.items():
        plot.segment((epoch, plot.y.low), (epoch, height), kind=f"moment {kind}")
    return plot.render()


def _learning(rows: Rows, moments: Mapping[str, int], across: Scale) -> dict[str, Any] | None:
    """Plot learning against memorization, if an alarm recorded both."""
    for (learned, memorized), (first, second, words) in _PAIRS.items():
        curves = {"test": _finite(rows, learned), "train": _finite(rows, memorized)}
        if all(curves.values()):
            plot = Plot(across, Scale(0.0, 1.0), label=f"Learning ({first}) and memorization ({second}) by epoch",
                        x_label="epoch", y_label="probability")  # fmt: skip
            for kind, points in curves.items():
                plot.curve(points, kind=f"curve {kind}")
            return {"figure": _marked(plot, moments, 1.0), "first": first, "second": second, "words": words}
    return None


def _number_figures(rows: Rows, moments: Mapping[str, int], across: Scale) -> list[dict[str, Any]]:
    """Every other number, one figure each."""
    shown = {name for pair in _PAIRS for name in pair} | {"epoch", ALARM}
    names = dict.fromkeys(name for row in rows for name in row if name not in shown)
    figures: list[dict[str, Any]] = []
    for name in names:
        points = _finite(rows, name)
        if points:
            plot = Plot(across, Scale.around([value for _, value in points]), label=f"{name} by epoch", x_label="epoch")
            plot.curve(points, kind="curve test")
            last = f"{format_number(points[-1][1])} at the end"
            figures.append({"title": name, "count": last, "figure": _marked(plot, moments, plot.y.high)})
    return figures


def write_training_report(
    monitor: Any,
    path: str | Path,
    *,
    title: str = "One training",
    suspects: LabelIssues | None = None,
    images: Any = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write one HTML page about a monitored training run, and return its path.

    It shows the epochs of the alarm and of the best network, learning against memorization where the alarm records both
    (`canaries` and `shared_learning`), every other number, and the samples whose label is most suspicious.

    Args:
        monitor: The `Monitor`, or recordings that `Monitor.load` returned.
        suspects: What `gs.find_label_issues` returned, given the monitor or before training; None for none.
        images: The training samples by position, to show the suspicious ones; see `gapscope.report.label_issues`.

    Raises:
        InvalidInput: Nothing was recorded.
    """
    rows: list[dict[str, float]] = monitor.to_dict()["rows"]
    if not rows:
        raise InvalidInput("A page about a training needs recordings; the monitor has none. Train with it first.")
    across = Scale(0.0, max(1.0, *(float(row["epoch"]) for row in rows)))
    # the epochs of the alarm, and of the best network by the alarm
    alarm = getattr(monitor, "alarm", None)
    raised = next((row["epoch"] for row in rows if row.get(ALARM, 0) >= 1), None)
    epochs = {"peak": getattr(alarm, "peak", None), "raised": getattr(alarm, "raised_at", raised)}
    moments = {kind: int(epoch) for kind, epoch in epochs.items() if epoch is not None}
    return write_page(
        "training.html",
        path,
        title=title,
        counts=pluralize(len(rows), "recording"),
        moments=moments,
        learning=_learning(rows, moments, across),
        figures=_number_figures(rows, moments, across),
        suspects=None if suspects is None else suspects_section(suspects, images, classes),
    )
