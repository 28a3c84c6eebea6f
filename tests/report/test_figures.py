"""Figures against independent numbers: histogram counts, least-squares line and band, intervals."""

from __future__ import annotations

import re
import warnings

import numpy
import pytest

from gapscope.report.figures import (
    Prediction,
    correlation_strip,
    fit_with_band,
    gap_distribution,
    measure_against_gap,
    predicted_against_true,
    training_curves,
)


@pytest.mark.thorough
def test_the_band_is_that_of_statsmodels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import statsmodels.api as sm
    rng = numpy.random.default_rng(0)
    x, at = rng.uniform(0, 5, 20), numpy.linspace(-1, 6, 7)
    y = 1 + 0.3 * x + rng.normal(size=20)
    frame = sm.OLS(y, sm.add_constant(x)).fit().get_prediction(sm.add_constant(at)).summary_frame(alpha=0.05)
    found = fit_with_band(x, y, at)
    assert found is not None
    line, half = found
    numpy.testing.assert_allclose(line, frame["mean"], rtol=1e-10)
    numpy.testing.assert_allclose(line - half, frame["mean_ci_lower"], rtol=1e-10)


def test_there_is_no_line_through_two_networks_or_a_constant_reading() -> None:
    y = numpy.array([0.1, 0.2, 0.3])
    assert fit_with_band(y[:2], y[:2], y) is None
    assert fit_with_band(numpy.full(3, 7.0), y, y) is None


def test_the_histogram_counts_every_network_once() -> None:
    gaps = numpy.random.default_rng(0).normal(0.3, 0.2, 137).tolist()
    counts = [int(text) for text in re.findall(r"<title>[^<]*: (\d+)</title>", gap_distribution(gaps, "gap"))]
    assert sum(counts) == 137 and len(counts) > 5
    one = gap_distribution([0.25], "gap")
    assert one.count("<rect") == 1


def test_an_interval_that_misses_looks_different() -> None:
    items = [
        Prediction("a", "a", 0.3, 0.35, 0.2, 0.5, False),
        Prediction("b", "b", 0.6, 0.3, 0.2, 0.4, False),
        Prediction("c", "c", 0.9, 0.3, 0.2, 0.4, True),
        Prediction("d", "d", 0.5, numpy.nan, numpy.nan, numpy.nan, True),
        Prediction("e", "e", 0.4, 0.4, -numpy.inf, numpy.inf, False),
    ]
    text = predicted_against_true(items, "gap", 0.9)
    assert [text.count(f'class="dot {kind}"') for kind in ("held", "missed", "outside")] == [2, 1, 1]
    assert "nan" not in text and "inf%" not in text
    assert "b: true 0.600, predicted 0.300" in text


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("logarithmic", [True, False])
def test_a_measure_is_drawn_with_line_and_band(titled: bool, logarithmic: bool) -> None:
    values = [10.0**k for k in range(5)]
    text = measure_against_gap(
        values, [0.1, 0.2, 0.3, 0.4, 0.5], list("abcde"), measure="norm", units="weights", gap_label="gap",
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
    found = re.findall(r'<circle class="dot alarm" cx="([^"]*)" cy="([^"]*)"', text)
    assert len(found) == text.count("<circle") == 1 and "net: alarm, epoch 3" in text
    assert found[0] == ("75.00%", "50.00%")


def test_curves_are_thinned_but_keep_their_end() -> None:
    rows = [{"epoch": float(k), "train_accuracy": k / 1000, "test_accuracy": 0.5} for k in range(1, 1001)]
    text = training_curves({"net": rows}, "accuracy", "all", 1.0)
    paths = re.findall(r'class="curve (\w+)" d="([^"]*)"', text)
    assert [kind for kind, _ in paths] == ["train", "test"]
    assert all(len(path.split("L")) <= 62 for _, path in paths)
    assert paths[0][1].endswith("L1000 0")
