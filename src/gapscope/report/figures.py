"""Figures of the report as SVG, from numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from jaxtyping import Float
from markupsafe import Markup

from gapscope.report.svg import Plot, Scale, clip_to_drawable, tag
from gapscope.results.estimate import percent
from gapscope.results.formatting import format_fixed, format_number
from gapscope.statistics.intervals import student_quantile

Array = numpy.ndarray
# column of a training run's history: 1 once the monitor's alarm is raised, else 0
ALARM = "alarm.raised"


@dataclass(frozen=True)
class Prediction:
    """Held-out network: true gap, estimate, interval, abstention and expected accuracy."""

    name: str
    gap: float
    prediction: float
    low: float
    high: float
    outside: bool
    reason: str = ""
    expected: str = ""

    @property
    def kind(self) -> str:
        """Verdict: "outside" the fitted range, else "held" or "missed" by the interval."""
        if self.outside:
            return "outside"
        if self.low <= self.gap <= self.high:
            return "held"
        return "missed"


def gap_distribution(gaps: Sequence[float], gap_label: str) -> Markup:
    """Plot a histogram of the gaps, with bins of a round width."""
    scale = Scale.around(gaps)
    about = max(6, min(24, 2 * math.ceil(len(gaps) ** 0.5)))
    ticks = scale.ticks(about)
    step = (scale.high - scale.low) / about
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
    first = math.floor(scale.low / step)
    last = math.ceil(scale.high / step)
    edges = [k * step for k in range(first, last + 1)]
    counts, _ = numpy.histogram([clip_to_drawable(gap) for gap in gaps], bins=edges)
    top = Scale(0.0, 1.08 * counts.max())
    integers = sorted({round(tick) for tick in top.ticks(3)})
    plot = Plot(
        Scale(edges[0], edges[-1]),
        top,
        label=f"Histogram of the {gap_label} of {len(gaps)} networks",
        x_label=gap_label,
        y_label="networks",
        y_ticks=integers,
    )
    for left, right, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True):
        if count:
            title = f"{format_number(left)} to {format_number(right)}: {count}"
            plot.bar(left, right, count, title=title)
    return plot.render()


def predicted_against_true(
    predictions: Sequence[Prediction], gap_label: str, level: float
) -> Markup:
    """Plot estimates with intervals against true gaps, and the diagonal.

    An interval contains the true gap if its bar crosses the diagonal. Networks without an estimate are omitted.
    """
    items = [item for item in predictions if math.isfinite(item.prediction)]
    finite_ends = [end for item in items for end in (item.low, item.high) if math.isfinite(end)]
    scale = Scale.around(
        [*(item.gap for item in items), *(item.prediction for item in items), *finite_ends]
    )
    plot = Plot(
        scale,
        scale,
        label=f"Predicted against true gap of {len(items)} held-out networks",
        kind="square",
        x_label=f"true {gap_label}",
        y_label=f"predicted, {percent(level)} interval",
    )
    plot.segment((scale.low, scale.low), (scale.high, scale.high), kind="diagonal")
    for item in items:
        low = max(item.low, scale.low)
        high = min(item.high, scale.high)
        plot.segment((item.gap, low), (item.gap, high), kind=f"interval {item.kind}")
        title = (
            f"{item.name}: true {format_fixed(item.gap)}, predicted {format_fixed(item.prediction)}"
        )
        plot.dot(item.gap, item.prediction, kind=f"dot {item.kind}", title=title, radius=4.5)
    return plot.render()


def _strip(marks: Sequence[Markup], label: str, height: int) -> Markup:
    return tag(
        "svg", *marks, class_="strip", role="img", aria_label=label, width="100%", height=height
    )


def _interval_marks(
    scale: Scale, value: float, ends: tuple[float, float], kind: str, radius: int
) -> list[Markup]:
    """Return an interval as a bar and its value as a dot (neither without a value, no bar without ends)."""
    if not math.isfinite(value):
        return []
    dot = tag("circle", class_=f"dot {kind}", cx=scale.at(value), cy="50%", r=radius)
    if any(map(math.isnan, ends)):
        return [dot]
    x1, x2 = (scale.at(min(max(end, scale.low), scale.high)) for end in ends)
    return [tag("line", class_=f"interval {kind}", x1=x1, x2=x2, y1="50%", y2="50%"), dot]


def interval_strip(item: Prediction, scale: Scale) -> Markup:
    """Plot one row: interval as a bar, estimate as a dot, true gap as a tick."""
    marks = _interval_marks(scale, item.prediction, (item.low, item.high), item.kind, 4)
    at = scale.at(item.gap)
    marks.append(tag("line", class_="truth", x1=at, x2=at, y1="15%", y2="85%"))
    label = f"true gap {format_fixed(item.gap)}, predicted {format_fixed(item.prediction)}"
    return _strip(marks, label, 24)


def correlation_strip(value: float, low: float, high: float, *, baseline: bool) -> Markup:
    """Plot one row of the ranking: a correlation between -1 and 1 with its interval."""
    scale = Scale(-1.0, 1.0)
    marks: list[Markup] = []
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        at = scale.at(tick)
        marks.append(
            tag("line", class_="grid" if tick else "zero", x1=at, x2=at, y1="0%", y2="100%")
        )
    kind = "baseline" if baseline else "measure"
    marks += _interval_marks(scale, value, (low, high), kind, 5)
    label = f"Kendall's tau {format_fixed(value, 2)}, from {format_fixed(low, 2)} to {format_fixed(high, 2)}"
    return _strip(marks, label, 28)


def fit_with_band(
    x: Float[Array, " n"], y: Float[Array, " n"], at: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]] | None:
    r"""Return the least-squares line and the half-width of its pointwise 95 % confidence band.

    $$\hat y(x) \pm t_{n-2}\, s \sqrt{1/n + (x - \bar x)^2 / \textstyle\sum_i (x_i - \bar x)^2}$$

    with $s^2$ the residual sum of squares over n - 2; exact for independent normal residuals. Returns None for fewer
    than three networks or a constant reading.

    >>> line, half = fit_with_band(numpy.array([0.0, 1.0, 2.0]), numpy.array([0.0, 1.0, 2.0]), numpy.array([5.0]))
    >>> line.round(6).tolist(), half.round(6).tolist()
    ([5.0], [0.0])
    """
    from scipy.stats import linregress  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    n = len(x)
    if n < 3:
        return None
    spread = ((x - x.mean()) ** 2).sum()
    if spread <= 1e-24 * (x**2).sum():
        return None
    line: Any = linregress(x, y)
    # the slope's standard error is s / sqrt(spread)
    half = (
        student_quantile(0.95, n - 2) * line.stderr * numpy.sqrt(spread / n + (at - x.mean()) ** 2)
    )
    return line.intercept + line.slope * at, half


def measure_against_gap(
    values: Sequence[float],
    gaps: Sequence[float],
    names: Sequence[str],
    *,
    measure: str,
    units: str,
    logarithmic: bool,
    baseline: bool,
    titled: bool,
) -> Markup:
    """Plot a measure against the gap, with the least-squares line and its 95 % band.

    On a logarithmic axis the line is fitted to the logarithm. `titled` dots have a tooltip (150 bytes instead of 10).
    """
    x = Scale.around(values, logarithmic=logarithmic)
    y = Scale.around(gaps)
    axis = ", ".join(part for part in (units, "log scale" if logarithmic else "") if part)
    plot = Plot(
        x,
        y,
        label=f"{measure} against the gap of {len(values)} networks",
        x_label=axis or measure,
        y_label="gap",
        kind="baseline" if baseline else "",
    )
    across = numpy.linspace(x.percent(min(values)), x.percent(max(values)), 25)
    positions = numpy.array([x.percent(value) for value in values])
    fit = fit_with_band(positions, numpy.array([clip_to_drawable(gap) for gap in gaps]), across)
    if fit is not None:
        line, half = fit
        xs = [x.value(position) for position in across]
        plot.band(xs, (line - half).tolist(), (line + half).tolist())
        plot.curve(zip(xs, line.tolist(), strict=True), kind="fit")
    if titled:
        for value, gap, name in zip(values, gaps, names, strict=True):
            title = f"{name}: {format_number(value)}, gap {format_fixed(gap)}"
            plot.dot(value, gap, title=title, radius=3.5)
    else:
        plot.cloud(zip(values, gaps, strict=True))
    return plot.render()


def training_curves(
    histories: Mapping[str, Sequence[Mapping[str, float]]], score: str, group: str, top: float
) -> Markup:
    """Plot train and test curves of a group of networks, with their alarms.

    `histories` maps networks to one row per epoch, `score` is "accuracy" or "loss", `top` ends the vertical axis.
    """
    epochs = max(float(row["epoch"]) for rows in histories.values() for row in rows)
    plot = Plot(
        Scale(0.0, max(epochs, 1.0)),
        Scale(0.0, top),
        x_label="epoch",
        y_label=score,
        label=f"Train and test {score} by epoch, {group}, {len(histories)} networks",
    )
    for split in ("train", "test"):
        for name, rows in histories.items():
            points = [
                (row["epoch"], row[f"{split}_{score}"]) for row in rows if f"{split}_{score}" in row
            ]
            if points:
                # more than 60 points cannot be told apart
                thinned = points[: -1 : math.ceil(len(points) / 60)]
                plot.curve([*thinned, points[-1]], kind=f"curve {split}", title=f"{name}, {split}")
    for name, rows in histories.items():
        for row in rows:  # the first alarm, on the test curve, else on the training curve
            value = row.get(f"test_{score}", row.get(f"train_{score}", math.nan))
            if row.get(ALARM, 0) >= 1 and math.isfinite(value):
                title = f"{name}: alarm, epoch {row['epoch']:g}"
                plot.dot(float(row["epoch"]), float(value), kind="dot alarm", title=title)
                break
    return plot.render()
