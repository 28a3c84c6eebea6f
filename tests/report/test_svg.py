"""Plots: positions, escaping, curves that break where a value is missing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from gapscope.report.svg import Plot, Scale, tag


def _plot() -> Plot:
    return Plot(Scale(0.0, 10.0), Scale(0.0, 1.0), label='a "plot" <of> things', x_label="x & more", y_label="gap")


def _parsed(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot.render())


def test_it_is_xml_whatever_the_texts_are() -> None:
    plot = _plot()
    plot.dot(1, 0.5, title="<script>alert('1')</script> & \"quotes\"")
    root = _parsed(plot)
    titles = [element.text for element in root.iter("title")]
    assert titles == ["<script>alert('1')</script> & \"quotes\""]
    svg = root.find(".//svg")
    assert svg is not None and svg.get("aria-label") == 'a "plot" <of> things'
    assert [span.text for span in root.iter("span")] == ["gap", "x & more"]


def test_marks_stand_where_their_values_are() -> None:
    plot = _plot()
    plot.dot(2.5, 0.75)
    plot.segment((0, 0), (10, 1), kind="diagonal")
    plot.bar(2, 4, 0.5)
    root = _parsed(plot)
    circle, rect = root.find(".//circle"), root.find(".//rect")
    assert circle is not None and (circle.get("cx"), circle.get("cy")) == ("25.00%", "25.00%")
    assert rect is not None
    assert [rect.get(key) for key in ("x", "y", "width", "height")] == ["20.00%", "50.00%", "20.00%", "50.00%"]
    line = root.find(".//line[@class='diagonal']")
    assert line is not None
    assert [line.get(key) for key in ("x1", "y1", "x2", "y2")] == ["0.00%", "100.00%", "100.00%", "0.00%"]


def test_a_curve_breaks_where_a_value_is_not_finite() -> None:
    plot = _plot()
    plot.curve([(0, 0), (1, float("nan")), (2, 1), (3, 1)], kind="fit")
    assert re.search(r'd="M0 1000M200 0L300 0"', plot.render())


def test_a_band_is_closed_and_a_cloud_is_short() -> None:
    plot = _plot()
    plot.band([0, 10], [0, 0], [1, 1])
    plot.cloud([(5, 0.5), (10, 1)])
    text = plot.render()
    assert 'd="M0 1000L1000 1000L1000 0L0 0Z"' in text
    assert 'd="M500 500h0M1000 0h0"' in text
    assert 'preserveAspectRatio="none"' in text


def test_none_leaves_an_attribute_out() -> None:
    assert tag("line", x1=0, title=None) == '<line x1="0"/>'
