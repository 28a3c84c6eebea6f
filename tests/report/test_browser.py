"""The report in a real browser: no console error, no horizontal scroll, every figure drawn, dark mode, no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.checks.trials import Trial, TriedAdvice
from gapscope.gap.columns import complete_rows
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.report import write_report, write_training_report
from gapscope.report.pool_view import MAX_SCROLLED
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.records import records_to_pandas
from gapscope.training.recordings import Recordings
from report.browser import Browser, browser, missing
from report.synthetic_pool import synthetic_records
from report.test_label_issues import IMAGES, ROWS, make_issues

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

FIGURES = """
return [...document.querySelectorAll("svg.plot, svg.strip")].map((svg) => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("circle, rect, path, line:not(.grid):not(.zero)")];
  const drawn = marks.filter((mark) => {
    const size = mark.getBoundingClientRect();
    const style = getComputedStyle(mark);
    const painted = style.fill !== "none" || style.stroke !== "none";
    return painted && (size.width > 0 || size.height > 0);
  });
  return {label: svg.getAttribute("aria-label"), width: box.width, height: box.height, marks: drawn.length};
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = synthetic_records()
    table = complete_rows(records_to_pandas(records))
    held = table.iloc[1::3]
    rest = table.drop(held.index)
    features = ["unit_sparsity.zeta", "unit_sparsity.kappa"]
    estimator = GapEstimator(features=features).fit(rest, rest["gap"])
    path = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report(
        records,
        path,
        title="Digits with noisy labels",
        estimator=estimator,
        held_out=estimator.assess(held),
    )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as session:
        yield session


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_shows_everything_without_scrolling_sideways(
    chromium: Browser, page: Path, width: int, dark: bool
) -> None:
    chromium.show(page, width=width, dark=dark)
    assert chromium.console() == []
    wide, window = chromium.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert window == width
    assert wide <= window
    figures = chromium.run(FIGURES)
    # histogram, estimates, 7 measures and 5 groups of curves; 10 held-out and 8 ranking strips
    assert len(figures) == 14 + 18
    for figure in figures:
        assert figure["label"]
        assert figure["width"] > 100 and figure["height"] > 20, figure
        assert figure["marks"] > 0, figure


def _brightness(colour: str) -> float:
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def test_dark_mode_darkens_the_page_and_lightens_the_figures(chromium: Browser, page: Path) -> None:
    script = """
    const style = (query) => getComputedStyle(document.querySelector(query));
    return [style("body").backgroundColor, style("body").color, style(".tick").fill, style(".fit").stroke];
    """
    chromium.show(page, width=1440)
    light = [_brightness(colour) for colour in chromium.run(script)]
    chromium.show(page, width=1440, dark=True)
    dark = [_brightness(colour) for colour in chromium.run(script)]
    assert light[0] > 230 and dark[0] < 40
    assert light[1] < 60 and dark[1] > 200
    for on_light, on_dark in zip(light[2:], dark[2:], strict=True):
        assert on_light < 130 < on_dark


def test_columns_sort_by_value_and_back(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1440)
    column = """
    const heads = [...document.querySelectorAll(".networks thead th")];
    const head = heads.findIndex((th) => th.textContent === "ntk_trace");
    """
    read = "return [...document.querySelectorAll('.networks tbody tr')].map((row) => row.cells[head].textContent)"
    click = "document.querySelectorAll('.networks thead th')[head].querySelector('button').click();"
    chromium.run(column + click)
    rising = chromium.run(column + read)
    chromium.run(column + click)
    falling = chromium.run(column + read)
    values = [float(text.replace(",", "")) for text in rising if text != "–"]
    assert values == sorted(values) and len(set(values)) > 20
    assert [float(text.replace(",", "")) for text in falling if text != "–"] == values[::-1]
    assert rising[len(values) :] == falling[len(values) :] == ["–"] * 3
    sort = "return document.querySelectorAll('.networks thead th')[head].getAttribute('aria-sort')"
    assert chromium.run(column + sort) == "descending"


def test_without_scripts_nothing_is_missing(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=390, scripts=False)
    assert chromium.devtools("Runtime.evaluate", expression="1")["result"]["value"] == 1
    metrics = chromium.devtools("Page.getLayoutMetrics")["cssContentSize"]
    assert metrics["width"] == 390
    assert metrics["height"] > 8000
    document = chromium.devtools("DOM.getDocument")["root"]["nodeId"]
    rows = chromium.devtools(
        "DOM.querySelectorAll", nodeId=document, selector=".networks tbody tr"
    )["nodeIds"]
    buttons = chromium.devtools(
        "DOM.querySelectorAll", nodeId=document, selector=".networks button"
    )["nodeIds"]
    assert len(rows) == 33 and buttons == []


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_of_a_training_shows_its_pictures_and_fits(
    chromium: Browser, tmp_path: Path, width: int
) -> None:
    path = write_training_report(
        Recordings(range(1, 9), ROWS),
        tmp_path / "training.html",
        suspects=make_issues(),
        images=IMAGES,
    )
    chromium.show(path, width=width, height=3000)
    assert chromium.console() == []
    wide, window = chromium.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width
    pictures = chromium.run("""
    const shown = [...document.querySelectorAll(".suspects img")];
    return shown.map((image) => [image.complete, image.naturalWidth, image.getBoundingClientRect().width]);
    """)
    assert len(pictures) == MAX_SCROLLED
    assert all(complete and pixels == 8 and drawn > 60 for complete, pixels, drawn in pictures)
    assert all(figure["width"] > 100 and figure["marks"] >= 2 for figure in chromium.run(FIGURES))


@pytest.mark.thorough
@pytest.mark.parametrize("width", [390, 500, 1440])
def test_the_page_of_a_check_fits_with_its_account_and_pictures(
    chromium: Browser, tmp_path: Path, width: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    x = torch.randn(3, 1, 8, 8, generator=generator)[labels]
    x = x + 0.5 * torch.randn(240, 1, 8, 8, generator=generator)
    samples = gs.Samples(torch.cat([x, x[:30]]), torch.cat([labels, labels[:30]]))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    gs.train(network, samples, gs.TrainingSpec(epochs=20, learning_rate=0.05))
    result = gs.check(
        network, samples, test=samples, only=["GS101", "GS102", "GS103", "GS401", "GS402"]
    )
    trial = Trial(
        "correct flagged labels", 0.05, IntervalEstimate(0.04, 0.01, 0.07), None, helps=True
    )
    tried = TriedAdvice(
        (trial, Trial("standardize inputs", 0.0)), 0.8, 4.0, note="not tried: " + "x" * 60
    )
    finding = result.findings[0]
    long = replace(finding, evidence=f"column {'wide' * 30}", action=f"drop {'wide' * 30}")
    reason = replace(result.fine[0], evidence="wide" * 30)
    result = replace(
        result, tried=tried, findings=(long, *result.findings), fine=(reason, *result.fine)
    )
    assert result.account is not None and "GS101" in result.codes
    result.write_html(tmp_path / "check.html")
    chromium.show(tmp_path / "check.html", width=width)
    assert chromium.console() == []
    chromium.run("document.querySelectorAll('details').forEach((part) => part.open = true)")
    wide, window = chromium.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width
    script = """
    const box = (query) => document.querySelector(query).getBoundingClientRect();
    const inside = (part) => part.getBoundingClientRect().right <= innerWidth + 0.5;
    return [box(".account").width, box(".account-rows").right, document.querySelectorAll(".pictures img").length,
            [...document.querySelectorAll("main *")].every(inside)];
    """
    bar, right, pictures, is_inside = chromium.run(script)
    assert 200 < bar <= width and right <= width and pictures > 0 and is_inside
