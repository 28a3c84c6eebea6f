"""HTML page of one monitored training: alarm, memorization and label issues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput
from gapscope.base.files import check_output, write_output
from gapscope.report.figures import ALARM
from gapscope.report.label_issues import label_issues_section
from gapscope.report.svg import Plot, Scale
from gapscope.results.formatting import format_number, pluralize
from gapscope.results.pages import render_page

if TYPE_CHECKING:
    from gapscope.labels.results import LabelIssues

Rows = Sequence[Mapping[str, float]]

# columns of an alarm (learning, memorization) -> their labels and an explanation
_PAIRS = {
    ("alarm.ordinary", "alarm.canaries"): (
        "labels as given",
        "false labels of the canaries",
        "Probability of the training label. Canaries have a false label on purpose, which can only be memorized; "
        "after an alarm they get their true labels back.",
    ),
    ("alarm.shared_probability", "alarm.own_probability"): (
        "at the neighbours in gradient space",
        "at the sample itself",
        "Probability of the training label. A sample whose neighbours have a lower probability is memorized.",
    ),
}


def _finite(rows: Rows, name: str) -> list[tuple[float, float]]:
    points = [(float(row["epoch"]), float(row.get(name, math.nan))) for row in rows]
    return [point for point in points if math.isfinite(point[1])]


def _render_with_moments(plot: Plot, moments: Mapping[str, int], height: float) -> Markup:
    """Add a vertical line per moment, and render the plot."""
    for kind, epoch in moments.items():
        plot.segment((epoch, plot.y.low), (epoch, height), kind=f"moment {kind}")
    return plot.render()


def _learning_figure(
    rows: Rows, moments: Mapping[str, int], across: Scale
) -> dict[str, Any] | None:
    """Plot learning against memorization, if an alarm recorded both."""
    for (learning, memorization), (first, second, explanation) in _PAIRS.items():
        curves = {"test": _finite(rows, learning), "train": _finite(rows, memorization)}
        if all(curves.values()):
            plot = Plot(
                across,
                Scale(0.0, 1.0),
                label=f"Learning ({first}) and memorization ({second}) by epoch",
                x_label="epoch",
                y_label="probability",
            )
            for kind, points in curves.items():
                plot.curve(points, kind=f"curve {kind}")
            figure = _render_with_moments(plot, moments, 1.0)
            return {"figure": figure, "first": first, "second": second, "explanation": explanation}
    return None


def _number_figures(rows: Rows, moments: Mapping[str, int], across: Scale) -> list[dict[str, Any]]:
    """Return one figure per other number."""
    excluded = {name for pair in _PAIRS for name in pair} | {"epoch", ALARM}
    names = dict.fromkeys(name for row in rows for name in row if name not in excluded)
    figures: list[dict[str, Any]] = []
    for name in names:
        points = _finite(rows, name)
        if points:
            plot = Plot(
                across,
                Scale.around([value for _, value in points]),
                label=f"{name} by epoch",
                x_label="epoch",
            )
            plot.curve(points, kind="curve test")
            last = f"{format_number(points[-1][1])} at the end"
            figure = _render_with_moments(plot, moments, plot.y.high)
            figures.append({"title": name, "count": last, "figure": figure})
    return figures


@check_arguments
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

    The page shows the epochs of the alarm and of the best network, learning against memorization if the alarm records
    both (`canaries`, `shared_learning`), every other number, and suspected label errors.

    Args:
        monitor: The `Monitor`, or the recordings that `Monitor.load` returned.
        path: File to write; its folder must exist.
        title: Title of the page.
        suspects: Result of `gapscope.find_label_issues`, for the monitor or before training.
        images: Training samples by position ([h, w], [1, h, w] or [3, h, w]), to show those of `suspects`.
        classes: Names of the classes; None for their numbers.

    Raises:
        InvalidInput: The monitor has no recordings.
    """
    check_output(path)
    if not hasattr(monitor, "to_dict"):
        raise InvalidInput(
            f"monitor must be a Monitor or what Monitor.load returned; got {type(monitor).__name__}."
        )
    rows: list[dict[str, float]] = monitor.to_dict()["rows"]
    if not rows:
        raise InvalidInput(
            "A training report needs recordings; the monitor has none. Train with it first."
        )
    across = Scale(0.0, max(1.0, *(float(row["epoch"]) for row in rows)))
    # epochs of the alarm, and of the best network according to it
    alarm = getattr(monitor, "alarm", None)
    raised = next((row["epoch"] for row in rows if row.get(ALARM, 0) >= 1), None)
    epochs = {"peak": getattr(alarm, "peak", None), "raised": getattr(alarm, "raised_at", raised)}
    moments = {kind: int(epoch) for kind, epoch in epochs.items() if epoch is not None}
    page = render_page(
        "training.html",
        title=title,
        counts=pluralize(len(rows), "recording"),
        moments=moments,
        learning=_learning_figure(rows, moments, across),
        figures=_number_figures(rows, moments, across),
        suspects=None if suspects is None else label_issues_section(suspects, images, classes),
    )
    return write_output(path, page)
