"""Responsive SVG plots with their scales, coloured by the style sheet of the page.

Positions are percentages of the plot and sizes are pixels, so that on a phone a plot gets narrower but text, dots and
lines keep their size. Paths cannot use percentages; they are in a stretched inner drawing whose strokes do not scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from markupsafe import Markup, escape

from gapscope.results.formatting import format_number


def clip_to_drawable(value: float) -> float:
    """Return the value, clipped to what can be plotted."""
    # squares and differences of larger numbers overflow
    return min(max(value, -1e100), 1e100)


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`.

    >>> Scale(0.0, 2.0).percent(0.5), Scale(1.0, 100.0, logarithmic=True).percent(10.0)
    (25.0, 50.0)
    """

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(
        cls, values: Iterable[float], *, logarithmic: bool = False, padding: float = 0.06
    ) -> Scale:
        """Return a scale around all finite values (positive ones if logarithmic).

        `padding` on each side is a fraction of the range.
        """
        finite = [
            clip_to_drawable(value)
            for value in values
            if math.isfinite(value) and (value > 0 or not logarithmic)
        ]
        if not finite:
            finite = [1.0, 10.0] if logarithmic else [0.0, 1.0]
        low = min(finite)
        high = max(finite)
        if logarithmic:
            margin = padding * math.log(high / low) or math.log(2)
            return cls(low * math.exp(-margin), high * math.exp(margin), logarithmic=True)
        margin = padding * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - margin, high + margin)

    def percent(self, value: float) -> float:
        """Return the position of a value, in percent of the axis."""
        value = clip_to_drawable(value)
        if self.logarithmic:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)

    def at(self, value: float) -> str:
        """Return the position of a value for an SVG attribute."""
        return svg_percent(self.percent(value))

    def value(self, percent: float) -> float:
        """Return the value at a position, in percent of the axis."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** (percent / 100)
        return self.low + (self.high - self.low) * percent / 100

    def ticks(self, about: int = 5) -> list[float]:
        """Return about as many round values inside the scale.

        >>> Scale(-0.03, 0.62).ticks(), Scale(0.5, 2000.0, logarithmic=True).ticks()
        ([0.0, 0.2, 0.4, 0.6], [1.0, 10.0, 100.0, 1000.0])
        """
        # matplotlib's locators would load matplotlib for every report, and return ticks outside the scale too
        if self.logarithmic:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            if len(decades) >= 3:
                return [10.0**k for k in decades][:: math.ceil(len(decades) / about)]
            finer = [
                m * 10.0**k for k in range(decades.start - 1, decades.stop + 1) for m in (1, 2, 5)
            ]
            inside = [value for value in finer if self.low <= value <= self.high]
            if len(inside) >= 2:
                return inside
        step = 10 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


# width and height of the stretched inner drawing
SIDE = 1000


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element with escaped attributes and content (`class_` for class, _ for -).

    Attributes that are None are omitted.

    >>> tag("text", "a < b", text_anchor="end", x="5%")
    Markup('<text text-anchor="end" x="5%">a &lt; b</text>')
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(content)
    if inner:
        return Markup(f"<{name}{attribute_text}>{inner}</{name}>")
    return Markup(f"<{name}{attribute_text}/>")


def _title(text: str) -> tuple[Markup, ...]:
    return (tag("title", text),) if text else ()


def svg_percent(value: float) -> str:
    """Format a position or size for an SVG attribute."""
    return f"{value:.2f}%"


@dataclass(eq=False)
class Plot:
    """Plot with two axes to which marks are added (`kind` is an extra CSS class)."""

    x: Scale
    y: Scale
    _: KW_ONLY
    label: str
    x_label: str = ""
    y_label: str = ""
    kind: str = ""
    y_ticks: Sequence[float] | None = None
    paths: list[Markup] = field(default_factory=list[Markup], init=False)
    marks: list[Markup] = field(default_factory=list[Markup], init=False)

    def _position(self, x: float, y: float) -> tuple[str, str]:
        return self.x.at(x), svg_percent(100 - self.y.percent(y))

    def dot(
        self, x: float, y: float, *, kind: str = "dot", title: str = "", radius: float = 4
    ) -> None:
        """Add a dot with a title as tooltip."""
        cx, cy = self._position(x, y)
        self.marks.append(tag("circle", *_title(title), class_=kind, cx=cx, cy=cy, r=radius))

    def segment(self, start: tuple[float, float], end: tuple[float, float], *, kind: str) -> None:
        """Add a straight line between two points."""
        (x1, y1) = self._position(*start)
        (x2, y2) = self._position(*end)
        self.marks.append(tag("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2))

    def bar(self, left: float, right: float, height: float, *, title: str = "") -> None:
        """Add a bar from the horizontal axis up to `height`."""
        x, y = self._position(left, height)
        width = svg_percent(self.x.percent(right) - self.x.percent(left))
        size = {"width": width, "height": self.y.at(height)}
        self.marks.append(tag("rect", *_title(title), class_="bar", x=x, y=y, **size))

    def _point(self, x: float, y: float) -> str:
        across = self.x.percent(x) / 100 * SIDE
        down = (1 - self.y.percent(y) / 100) * SIDE
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

    def cloud(self, points: Iterable[tuple[float, float]]) -> None:
        """Add very many dots as one path (about ten bytes each, no titles)."""
        self.paths.append(
            tag("path", class_="cloud", d="".join(f"M{self._point(x, y)}h0" for x, y in points))
        )

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """Add the area between two curves."""
        # along the lower curve, and back along the upper one
        lower = [self._point(x, y) for x, y in zip(xs, low, strict=True)]
        upper = [self._point(x, y) for x, y in zip(reversed(xs), reversed(high), strict=True)]
        self.paths.append(tag("path", class_="band", d="M" + "L".join([*lower, *upper]) + "Z"))

    def _axes(self) -> list[Markup]:
        marks: list[Markup] = []
        for value in self.y.ticks(4) if self.y_ticks is None else self.y_ticks:
            at = svg_percent(100 - self.y.percent(value))
            text = format_number(value)
            marks.append(tag("line", class_="grid", x1="0%", x2="100%", y1=at, y2=at))
            marks.append(
                tag(
                    "text", text, class_="tick", x="0%", dx=-8, y=at, dy="0.35em", text_anchor="end"
                )
            )
        for value in self.x.ticks(4):
            at = self.x.at(value)
            text = format_number(value)
            marks.append(tag("line", class_="grid", x1=at, x2=at, y1="0%", y2="100%"))
            marks.append(
                tag("text", text, class_="tick", x=at, y="100%", dy="1.5em", text_anchor="middle")
            )
        return marks

    def render(self) -> Markup:
        """Return the figure, with the names of the axes as page text around the drawing."""
        size: dict[str, object] = {"width": "100%", "height": "100%"}
        stretched = {"viewBox": f"0 0 {SIDE} {SIDE}", "preserveAspectRatio": "none"}
        inner = tag("svg", *self.paths, class_="paths", **stretched, **size) if self.paths else ""
        drawing = tag(
            "svg",
            *self._axes(),
            inner,
            *self.marks,
            class_="plot",
            role="img",
            aria_label=self.label,
            **size,
        )
        return tag(
            "div",
            tag("span", self.y_label, class_="y") if self.y_label else "",
            tag("div", drawing, class_="frame"),
            tag("span", self.x_label, class_="x") if self.x_label else "",
            class_=f"figure {self.kind}".strip(),
        )
