"""The report as a file: escaped, self-contained, small, written atomically."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pandas
import pytest

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.prediction.columns import complete_rows
from gapscope.prediction.cross_validation import cross_val_predict
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.report import write_report
from gapscope.results.records import Record, records_to_pandas
from report.synthetic_pool import synthetic_records

READINGS = ("unit_sparsity.zeta", "unit_sparsity.kappa", "output_sensitivity")


def estimated(records: list[Record]) -> tuple[GapEstimator, pandas.DataFrame]:
    """An estimator fitted on two thirds of the networks, and its answers for the rest."""
    table = complete_rows(records_to_pandas(records))
    held = table.iloc[1::3]
    rest = table.drop(held.index)
    estimator = GapEstimator(features=READINGS, log_features=["output_sensitivity"], families=["network.name"])
    estimator.fit(rest, rest["gap"])
    return estimator, estimator.assess(held)


class _Page(HTMLParser):
    """Checks that tags are balanced, and collects elements and text."""

    VOID = frozenset({"meta", "link", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = synthetic_records()
    estimator, answers = estimated(records)
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(records, path, title="Digits & <noise>", estimator=estimator, held_out=answers) == path
    return path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_names_every_part(page: str) -> None:
    parsed = _Page(page)
    ids = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    assert ids == ["pool", "held-out", "ranking", "measures", "curves", "networks", "guide"]
    links = [str(attributes["href"]) for tag, attributes in parsed.elements if tag == "a"]
    assert {link[1:] for link in links} <= set(ids)
    assert len([tag for tag, _ in parsed.elements if tag == "h1"]) == 1


def test_every_text_is_escaped(page: str) -> None:
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Digits &amp; &lt;noise&gt;" in page
    assert page.count("<script>") == 1


def test_it_loads_nothing(page: str) -> None:
    parsed = _Page(page)
    for tag, attributes in parsed.elements:
        assert tag not in ("img", "iframe", "object")
        assert "src" not in attributes
        if tag != "a":
            assert str(attributes.get("href", "data:,")) == "data:,"
    assert not re.search(r"https?://|url\(|@import", page)
    assert "default-src 'none'" in page
    assert len(page.encode()) < 300_000


def test_the_numbers_on_the_page_are_those_of_the_records(page: str) -> None:
    records = synthetic_records()
    parsed = _Page(page)
    gaps = [record.gap for record in records if record.status == "finished"]
    assert "33 networks: 30 finished, 1 diverged, 2 failed" in parsed.text
    assert f"{numpy.median(gaps):.3f}" in parsed.text
    for record in records:
        assert record.id[:8] in parsed.text
    assert "loss not finite in epoch 3" in parsed.text
    assert "out of memory: use a smaller batch, network or chunk size" in parsed.text
    for name in records[0].readings.values():
        assert name in parsed.text
    assert "zeta 0." in parsed.text
    assert "estimated, median standard error 3" in parsed.text
    assert "higher predicts a smaller gap" in parsed.text


def test_the_baselines_stand_beside_the_estimate(page: str) -> None:
    rows = re.findall(
        r'<tr(?: class="own")?><th scope="row">(this estimator|mean gap|parameter_count|train_loss)', page
    )
    assert rows == ["this estimator", "mean gap", "parameter_count", "train_loss"]


@pytest.mark.thorough
def test_cross_validated_answers_for_all_networks_are_shown_too(tmp_path: Path) -> None:
    records = synthetic_records()
    table = complete_rows(records_to_pandas(records))
    answers = cross_val_predict(GapEstimator(features=READINGS), table)
    text = write_report(records, tmp_path / "report.html", title="All", held_out=answers).read_text()
    covered = ((answers["low"] <= answers["target"]) & (answers["target"] <= answers["high"]))[
        answers["verdict"] == "inside"
    ]
    assert f"{covered.sum()} of {len(covered)} intervals hold the true gap" in text


def test_refused_networks_have_a_reason_instead_of_a_number(tmp_path: Path) -> None:
    records = synthetic_records()
    _, answers = estimated(records)
    first = answers.index[0]
    answers.loc[first, ["prediction", "low", "high"]] = numpy.nan
    answers.loc[first, ["verdict", "reason"]] = ["outside", "zeta is 0.9, above <every> fitted network"]
    text = write_report(records, tmp_path / "report.html", title="All", held_out=answers).read_text()
    assert "zeta is 0.9, above &lt;every&gt; fitted network" in text
    assert "1 outside the fitted range" in text


@pytest.mark.parametrize("n", [0, 1, 2])
def test_tiny_pools_have_a_report(tmp_path: Path, n: int) -> None:
    text = write_report(synthetic_records(n), tmp_path / "report.html", title="Tiny").read_text()
    _Page(text)
    assert "out of memory" in text


@pytest.mark.thorough
def test_a_large_pool_stays_small(tmp_path: Path) -> None:
    records = synthetic_records(700)
    path = write_report(records, tmp_path / "report.html", title="Large")
    assert path.stat().st_size < 1_500_000
    text = path.read_text()
    assert re.search(r"The first \d+ of 703\.", text)
    assert "Plotted: " in text


def test_what_is_wrong_is_said_and_the_old_file_stays(tmp_path: Path) -> None:
    records, path = synthetic_records(3), tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(InvalidInput, match="A report needs at least one record; got none"):
        write_report([], path, title="None")
    with pytest.raises(InvalidInput, match="The table must have a column 'prediction'"):
        write_report(records, path, title="None", held_out=records_to_pandas(records))
    columns = {"prediction": [0.1], "low": [0.0], "high": [0.2], "verdict": ["inside"], "reason": [""]}
    with pytest.raises(InvalidInput, match="indexed by ids of finished networks among the records; got 'other'"):
        write_report(records, path, title="None", held_out=pandas.DataFrame(columns, index=["other"]))
    twice = pandas.DataFrame({name: values * 2 for name, values in columns.items()}, index=[records[0].id] * 2)
    with pytest.raises(InvalidInput, match="held_out must have one row per network; got 2 rows of 1 networks"):
        write_report(records, path, title="None", held_out=twice)
    assert path.read_text() == "old"
    with pytest.raises(GapscopeError, match="could not be written"):
        write_report(records, tmp_path / "absent" / "report.html", title="None")
