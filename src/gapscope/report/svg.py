"""Responsive SVG plots, coloured by the style sheet of the page.

Positions are percentages of the plot and sizes are pixels, so that on a phone a plot gets narrower but its text, dots
and lines keep their size. Paths cannot have percentages: they are in a stretched inner drawing, where strokes do not
scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from gapscope.report.formatting import format_number
from gapscope.report.scales import Scale

SIDE = 1000


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element with escaped attributes and content (`class_` for class, _ for -).

    Attributes that are None are omitted.

    >>> tag("text", "a < b", text_anchor="end", x="5%")
    Markup('<text text-anchor="end" x="5%">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(content)
    return Markup(f"<{name}{written}>{inner}</{name}>") if inner else Markup(f"<{name}{written}/>")


def _title(text: str) -> tuple[Markup, ...]:
    return (tag("title", text),) if text else ()


def percent(value: float) -> str:
    """Position as SVG wants it."""
    return f"{value:.2f}%"


class Plot:
    """A plot with two axes, to which marks are added one after another.

    Args:
        label: What the figure shows, for those who cannot see it.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        kind: Extra CSS class, for the height.
        y_ticks: Values to mark on the vertical axis; None chooses round ones.
    """

    def __init__(
        self,
        x: Scale,
        y: Scale,
        *,
        label: str,
        x_label: str = "",
        y_label: str = "",
        kind: str = "",
        y_ticks: Sequence[float] | None = None,
    ) -> None:
        self.x, self.y = x, y
        self.label, self.x_label, self.y_label, self.kind = label, x_label, y_label, kind
        self.y_ticks = y.ticks(4) if y_ticks is None else y_ticks
        self.paths: list[Markup] = []
        self.marks: list[Markup] = []

    def dot(self, x: float, y: float, *, kind: str = "dot", title: str = "", radius: float = 4) -> None:
        """Add a dot with a title as tooltip."""
        cx, cy = percent(self.x.percent(x)), percent(100 - self.y.percent(y))
        self.marks.append(tag("circle", *_title(title), class_=kind, cx=cx, cy=cy, r=radius))

    def segment(self, start: tuple[float, float], end: tuple[float, float], *, kind: str) -> None:
        """Add a straight line between two points."""
        (x1, y1), (x2, y2) = start, end
        self.marks.append(
            tag(
                "line",
                class_=kind,
                x1=percent(self.x.percent(x1)),
                y1=percent(100 - self.y.percent(y1)),
                x2=percent(self.x.percent(x2)),
                y2=percent(100 - self.y.percent(y2)),
            )
        )

    def bar(self, left: float, right: float, height: float, *, kind: str = "bar", title: str = "") -> None:
        """Add a bar from the horizontal axis up to `height`."""
        low, high = self.x.percent(left), self.x.percent(right)
        top = 100 - self.y.percent(height)
        self.marks.append(
            tag(
                "rect",
                *_title(title),
                class_=kind,
                x=percent(low),
                y=percent(top),
                width=percent(high - low),
                height=percent(100 - top),
            )
        )

    def _point(self, x: float, y: float) -> str:
        across, down = self.x.percent(x) / 100 * SIDE, (1 - self.y.percent(y) / 100) * SIDE
        return f"{across:.0f} {down:.0f}"

    def curve(self, points: Iterable[tuple[float, float]], *, kind: str, title: str = "") -> None:
        """Add a curve, interrupted at values that are not finite."""
        parts: list[str] = []
        pen = "M"
        for x, y in points:
            if math.isfinite(x) and math.isfinite(y):
                parts.append(f"{pen}{self._point(x, y)}")
                pen = "L"
            else:
                pen = "M"
        self.paths.append(tag("path", *_title(title), class_=kind, d="".join(parts)))

    def cloud(self, points: Iterable[tuple[float, float]], *, kind: str = "cloud") -> None:
        """Add very many dots as one path (about ten bytes each, no titles)."""
        self.paths.append(tag("path", class_=kind, d="".join(f"M{self._point(x, y)}h0" for x, y in points)))

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], *, kind: str = "band") -> None:
        """Add the area between two curves."""
        there = [self._point(x, y) for x, y in zip(xs, low, strict=True)]
        back = [self._point(x, y) for x, y in zip(reversed(xs), reversed(high), strict=True)]
        self.paths.append(tag("path", class_=kind, d="M" + "L".join([*there, *back]) + "Z"))

    def _axes(self) -> list[Markup]:
        drawn: list[Markup] = []
        for value in self.y_ticks:
            at = percent(100 - self.y.percent(value))
            drawn.append(tag("line", class_="grid", x1="0%", x2="100%", y1=at, y2=at))
            drawn.append(
                tag("text", format_number(value), class_="tick", x="0%", dx=-8, y=at, dy="0.35em", text_anchor="end")
            )
        for value in self.x.ticks(4):
            at = percent(self.x.percent(value))
            drawn.append(tag("line", class_="grid", x1=at, x2=at, y1="0%", y2="100%"))
            drawn.append(
                tag("text", format_number(value), class_="tick", x=at, y="100%", dy="1.5em", text_anchor="middle")
            )
        return drawn

    def render(self) -> Markup:
        """The finished figure: the names of the axes as page text around the drawing."""
        inner = tag(
            "svg",
            *self.paths,
            class_="paths",
            viewBox=f"0 0 {SIDE} {SIDE}",
            preserveAspectRatio="none",
            width="100%",
            height="100%",
        )
        drawing = tag(
            "svg", *self._axes(), inner if self.paths else "", *self.marks,
            class_="plot", role="img", width="100%", height="100%", aria_label=self.label,
        )  # fmt: skip
        return tag(
            "div",
            tag("span", self.y_label, class_="y") if self.y_label else "",
            tag("div", drawing, class_="frame"),
            tag("span", self.x_label, class_="x") if self.x_label else "",
            class_=f"figure {self.kind}".strip(),
        )
