"""Figures, scales, plots and pictures against independent numbers."""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gapscope.report.figures import (
    Prediction,
    correlation_strip,
    fit_with_band,
    gap_distribution,
    measure_against_gap,
    predicted_against_true,
    training_curves,
)
from gapscope.report.svg import Plot, Scale
from gapscope.results.result import data_uri


@pytest.mark.thorough
def test_the_band_is_that_of_statsmodels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import statsmodels.api as sm
    rng = numpy.random.default_rng(0)
    x, at = rng.uniform(0, 5, 20), numpy.linspace(-1, 6, 7)
    y = 1 + 0.3 * x + rng.normal(size=20)
    frame = (
        sm.OLS(y, sm.add_constant(x))
        .fit()
        .get_prediction(sm.add_constant(at))
        .summary_frame(alpha=0.05)
    )
    result = fit_with_band(x, y, at)
    assert result is not None
    line, half = result
    numpy.testing.assert_allclose(line, frame["mean"], rtol=1e-10)
    numpy.testing.assert_allclose(line - half, frame["mean_ci_lower"], rtol=1e-10)


def test_the_histogram_counts_every_network_once() -> None:
    gaps = numpy.random.default_rng(0).normal(0.3, 0.2, 137).tolist()
    counts = [
        int(text)
        for text in re.findall(r"<title>[^<]*: (\d+)</title>", gap_distribution(gaps, "gap"))
    ]
    assert sum(counts) == 137 and len(counts) > 5
    one = gap_distribution([0.25], "gap")
    assert one.count("<rect") == 1


def test_an_interval_that_misses_looks_different() -> None:
    items = [
        Prediction("a", 0.3, 0.35, 0.2, 0.5, False),
        Prediction("b", 0.6, 0.3, 0.2, 0.4, False),
        Prediction("c", 0.9, 0.3, 0.2, 0.4, True),
        Prediction("d", 0.5, numpy.nan, numpy.nan, numpy.nan, True),
        Prediction("e", 0.4, 0.4, -numpy.inf, numpy.inf, False),
    ]
    text = predicted_against_true(items, "gap", 0.9)
    assert [text.count(f'class="dot {kind}"') for kind in ("held", "missed", "outside")] == [
        2,
        1,
        1,
    ]
    assert "nan" not in text and "inf%" not in text
    assert "b: true 0.600, predicted 0.300" in text and "predicted, 90 % interval" in text


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("logarithmic", [True, False])
def test_a_measure_is_plotted_with_line_and_band(titled: bool, logarithmic: bool) -> None:
    values = [10.0**k for k in range(5)]
    text = measure_against_gap(
        values, [0.1, 0.2, 0.3, 0.4, 0.5], list("abcde"), measure="norm", units="weights",
        logarithmic=logarithmic, baseline=False, titled=titled,
    )  # fmt: skip
    assert text.count('class="fit"') == text.count('class="band"') == 1
    assert text.count("<circle") == (5 if titled else 0)
    assert ("log scale" in text) == logarithmic
    line = re.search(r'class="fit" d="M([^"]*)"', text)
    assert line is not None
    points = [tuple(map(int, point.split())) for point in line.group(1).split("L")]
    slopes = numpy.diff([y for _, y in points]) / numpy.diff([x for x, _ in points])
    assert numpy.allclose(slopes, slopes[0], atol=0.05)
    # the gap is linear in the logarithm: only there the line starts at the first network, 6 % above the axis
    assert (abs(points[0][1] - 1000 * (1 - 0.06 / 1.12)) < 3) == logarithmic


def test_a_correlation_without_a_value_draws_no_dot() -> None:
    assert "<circle" not in correlation_strip(numpy.nan, numpy.nan, numpy.nan, baseline=False)
    assert 'cx="75.00%"' in correlation_strip(0.5, 0.2, 0.7, baseline=True)


def test_the_first_alarm_of_each_network_is_marked_on_its_test_curve() -> None:
    curve = {"train_accuracy": 0.9, "test_accuracy": 0.5}
    rows = [{"epoch": float(k), "alarm.raised": float(k >= 3)} | curve for k in range(1, 5)]
    without = [{"epoch": float(k), "train_accuracy": 0.9, "alarm.raised": 0.0} for k in range(1, 5)]
    text = training_curves({"net": rows, "quiet": without}, "accuracy", "all", 1.0)
    result = re.findall(r'<circle class="dot alarm" cx="([^"]*)" cy="([^"]*)"', text)
    assert len(result) == text.count("<circle") == 1 and "net: alarm, epoch 3" in text
    assert result[0] == ("75.00%", "50.00%")


def test_curves_are_thinned_but_keep_their_end() -> None:
    rows = [
        {"epoch": float(k), "train_accuracy": k / 1000, "test_accuracy": 0.5}
        for k in range(1, 1001)
    ]
    text = training_curves({"net": rows}, "accuracy", "all", 1.0)
    paths = re.findall(r'class="curve (\w+)" d="([^"]*)"', text)
    assert [kind for kind, _ in paths] == ["train", "test"]
    assert all(len(path.split("L")) <= 62 for _, path in paths)
    assert paths[0][1].endswith("L1000 0")


def _plot() -> Plot:
    return Plot(
        Scale(0.0, 10.0),
        Scale(0.0, 1.0),
        label='a "plot" <of> things',
        x_label="x & more",
        y_label="gap",
    )


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
    assert [rect.get(key) for key in ("x", "y", "width", "height")] == [
        "20.00%",
        "50.00%",
        "20.00%",
        "50.00%",
    ]
    line = root.find(".//line[@class='diagonal']")
    assert line is not None
    assert [line.get(key) for key in ("x1", "y1", "x2", "y2")] == [
        "0.00%",
        "100.00%",
        "100.00%",
        "0.00%",
    ]


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


VALUES = st.lists(
    st.floats(min_value=-1e6, max_value=1e6).filter(lambda v: abs(v) > 1e-6),
    min_size=1,
    max_size=20,
)


def check_scale(scale: Scale, values: list[float], about: int) -> list[float]:
    ticks = scale.ticks(about)
    assert all(-1e-9 <= scale.percent(value) <= 100 + 1e-9 for value in values)
    assert all(-1e-6 <= scale.percent(tick) <= 100 + 1e-6 for tick in ticks) and ticks == sorted(
        set(ticks)
    )
    return ticks


@given(values=VALUES, about=st.integers(2, 8))
def test_linear(values: list[float], about: int) -> None:
    assert len(check_scale(Scale.around(values), values, about)) <= about + 1


@given(values=st.lists(st.floats(min_value=1e-12, max_value=1e12), min_size=1, max_size=20))
def test_logarithmic(values: list[float]) -> None:
    assert 1 <= len(check_scale(Scale.around(values, logarithmic=True), values, 4)) <= 8


def test_equal_values_and_nothing_at_all_still_make_an_axis() -> None:
    assert Scale.around([5.0, 5.0]).percent(5.0) == pytest.approx(50)
    assert Scale.around([0.0]).percent(0.0) == pytest.approx(50)
    assert Scale.around([3.0], logarithmic=True).percent(3.0) == pytest.approx(50)
    assert Scale.around([math.nan, math.inf]).high > 1
    assert Scale.around([-1.0, 0.0], logarithmic=True).low > 0


def test_many_decades_are_thinned_and_few_are_filled() -> None:
    assert Scale(1e-9, 1e9, logarithmic=True).ticks(4) == [1e-9, 1e-4, 1e1, 1e6]
    assert Scale(1.0, 30.0, logarithmic=True).ticks() == [1, 2, 5, 10, 20]
    assert Scale(2.1, 4.9, logarithmic=True).ticks(4) == [3.0, 4.0]


def read_uri(uri: str) -> numpy.ndarray:
    content = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return numpy.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("make", [numpy.asarray, torch.as_tensor, numpy.ndarray.tolist])
def test_a_sample_is_stretched_from_black_to_white(make: Any) -> None:
    grey = make(numpy.array([[[-1.0, 0.0], [1.0, 3.0]]]))
    assert read_uri(data_uri(grey)).tolist() == [[0, 64], [128, 255]]
    colour = make(numpy.stack([numpy.full((4, 6), value) for value in (0.0, 0.5, 1.0)]))
    assert read_uri(data_uri(colour)).shape == (4, 6, 3) and read_uri(data_uri(colour))[
        0, 0
    ].tolist() == [0, 128, 255]
    assert read_uri(data_uri(make(numpy.ones((2, 2))))).tolist() == [[0, 0], [0, 0]]


def test_numbers_that_are_not_finite_are_black_and_large_images_small() -> None:
    image = numpy.linspace(0, 1, 200 * 130).reshape(200, 130)
    image[0, 0] = numpy.nan
    read_back = read_uri(data_uri(image))
    assert read_back.shape == (50, 33) and read_back[0, 0] == 0


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [
        ((8, 8), True),
        ((1, 8, 8), True),
        ((3, 8, 8), True),
        ((4, 8, 8), False),
        ((8,), False),
        ((1, 1), False),
    ],
)
def test_what_is_an_image(shape: tuple[int, ...], drawn: bool) -> None:
    assert bool(data_uri(numpy.zeros(shape))) is drawn
