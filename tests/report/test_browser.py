"""The report in a real browser: no console error, no horizontal scroll, every figure drawn, dark mode, no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapscope.gap.columns import complete_rows
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.report import write_report, write_training_report
from gapscope.report.label_issues import MAX_ROWS_SHOWN
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
        records, path, title="Digits with noisy labels", estimator=estimator, held_out=estimator.assess(held)
    )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as session:
        yield session


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_shows_everything_without_scrolling_sideways(chromium: Browser, page: Path, width: int, dark: bool) -> None:
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
    rows = chromium.devtools("DOM.querySelectorAll", nodeId=document, selector=".networks tbody tr")["nodeIds"]
    buttons = chromium.devtools("DOM.querySelectorAll", nodeId=document, selector=".networks button")["nodeIds"]
    assert len(rows) == 33 and buttons == []


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_of_a_training_shows_its_pictures_and_fits(chromium: Browser, tmp_path: Path, width: int) -> None:
    path = write_training_report(
        Recordings(range(1, 9), ROWS), tmp_path / "training.html", suspects=make_issues(), images=IMAGES
    )
    chromium.show(path, width=width, height=3000)
    assert chromium.console() == []
    wide, window = chromium.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width
    pictures = chromium.run("""
    const shown = [...document.querySelectorAll(".suspects img")];
    return shown.map((image) => [image.complete, image.naturalWidth, image.getBoundingClientRect().width]);
    """)
    assert len(pictures) == MAX_ROWS_SHOWN
    assert all(complete and pixels == 8 and drawn > 60 for complete, pixels, drawn in pictures)
    assert all(figure["width"] > 100 and figure["marks"] >= 2 for figure in chromium.run(FIGURES))
