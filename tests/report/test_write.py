"""The report as a file: escaped, self-contained, small, written atomically, whatever the records hold."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.specs import RunSpec
from gapscope.gap.columns import complete_rows
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.pools import Pool
from gapscope.report import pool_view as module
from gapscope.report import summary, write_report
from gapscope.report.pool_view import PoolView
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from report.synthetic_pool import synthetic_records
from support.commands import GRID, gapscope

READINGS = ("unit_sparsity.zeta", "unit_sparsity.kappa", "output_sensitivity")


def estimated(records: list[Record]) -> tuple[GapEstimator, pandas.DataFrame]:
    """An estimator fitted on two thirds of the networks, and its answers for the rest."""
    table = complete_rows(records_to_pandas(records))
    held = table.iloc[1::3]
    rest = table.drop(held.index)
    estimator = GapEstimator(
        features=READINGS, log_features=["output_sensitivity"], families=["network.name"]
    )
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
    assert (
        write_report(records, path, title="Digits & <noise>", estimator=estimator, held_out=answers)
        == path
    )
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


def test_networks_without_an_estimate_have_a_reason(tmp_path: Path) -> None:
    records = synthetic_records()
    _, answers = estimated(records)
    first = answers.index[0]
    answers.loc[first, ["prediction", "low", "high"]] = numpy.nan
    answers.loc[first, ["verdict", "reason"]] = [
        "outside",
        "zeta is 0.9, above <every> fitted network",
    ]
    text = write_report(
        records, tmp_path / "report.html", title="All", held_out=answers
    ).read_text()
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


def test_wrong_input_is_an_error_and_the_old_file_stays(tmp_path: Path) -> None:
    records, path = synthetic_records(3), tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(InvalidInput, match="record; got none"):
        write_report([], path, title="None")
    with pytest.raises(InvalidInput, match="column 'prediction'"):
        write_report(records, path, title="None", held_out=records_to_pandas(records))
    columns = {
        "prediction": [0.1],
        "low": [0.0],
        "high": [0.2],
        "verdict": ["inside"],
        "reason": [""],
    }
    with pytest.raises(InvalidInput, match="records; got 'other'"):
        write_report(
            records, path, title="None", held_out=pandas.DataFrame(columns, index=["other"])
        )
    twice = pandas.DataFrame(
        {name: values * 2 for name, values in columns.items()}, index=[records[0].id] * 2
    )
    with pytest.raises(InvalidInput, match="per network; got 2"):
        write_report(records, path, title="None", held_out=twice)
    assert path.read_text() == "old"
    with pytest.raises(GapscopeError, match="absent"):
        write_report(records, tmp_path / "absent" / "report.html", title="None")


def with_value(record: Record, name: str, value: float) -> Record:
    reading = Reading(measure=name, number=name, value=value)
    return dataclasses.replace(record, readings=Readings([*record.readings, reading]))


@pytest.mark.parametrize("size", [1.7e308, 1e300, 1e155, 5e-324])
@pytest.mark.parametrize("signs", [(1, -1), (1, 1)])
def test_extreme_readings_are_plotted(tmp_path: Path, size: float, signs: tuple[int, int]) -> None:
    records = [
        with_value(r, "odd", size * signs[k % 2] / (1 + k % 3))
        for k, r in enumerate(synthetic_records(12)[:12])
    ]
    page = write_report(records, tmp_path / "r.html", title="x").read_text()
    assert "odd" in page and '="nan' not in page.lower() and '="inf' not in page.lower()


@pytest.mark.parametrize("size", [1.7e308, 1e300, 1e101])
def test_extreme_gaps_are_plotted(tmp_path: Path, size: float) -> None:
    records = []
    for k, record in enumerate(synthetic_records(12)[:12]):
        scores = {"train_loss": 0.1, "test_loss": size / (1 + k)}
        records.append(dataclasses.replace(record, scores=scores))
    page = write_report(records, tmp_path / "r.html", title="x").read_text().lower()
    assert "nan" not in [
        word.strip("\"'%;") for line in page.split('="') for word in line.split('"')[:1]
    ]
    assert math.isfinite(records[0].gap)


@pytest.mark.thorough
def test_pages_stay_small(tmp_path: Path) -> None:
    records = synthetic_records(6)
    message = [
        Record(id=f"{k:016x}", spec={}, status="failed", message=f"{k} " + "x" * 390)
        for k in range(2000)
    ]
    page = write_report([*records, *message], tmp_path / "r.html", title="x")
    assert page.stat().st_size < 1.5e6 and "And 1953 other messages." in page.read_text()
    for k in range(400):
        records[:6] = [with_value(record, f"m{k}", record.gap + k) for record in records[:6]]
    page = write_report(records, tmp_path / "r.html", title="x")
    assert page.stat().st_size < 1.5e6 and "more, not plotted" in page.read_text()
    long = [dataclasses.replace(r, spec={**r.spec, "network": {"name": "n" * 5000 + str(k)}}) for k, r in
            enumerate(synthetic_records(40))]  # fmt: skip
    assert write_report(long, tmp_path / "r.html", title="x").stat().st_size < 1.5e6


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    pool = Pool(tmp_path_factory.mktemp("large") / "pool")
    for number in range(60):
        noise = 0.1 * (number // 3 % 5)
        changes = {
            "data.label_noise": noise,
            "training.batch_size": 8 + number // 15,
            "seed": number % 3,
        }
        spec = RunSpec().replace(changes)
        accuracy = 0.9 - noise - 0.001 * number
        readings = Readings(
            [Reading(measure="loss", number="loss", value=noise + 0.01 * (number % 7))]
        )
        scores = {
            "train_loss": 0.1,
            "test_loss": 0.2,
            "train_accuracy": 0.98,
            "test_accuracy": accuracy,
        }
        pool.add(
            Record(
                id=spec.id, spec=spec.to_dict(), status="finished", readings=readings, scores=scores
            )
        )
    pool.add(Record(id="lost", spec={"name": "lost"}, status="failed", message="out of memory"))
    return pool


def test_counts_use_all_networks_and_figures_whole_configurations(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = summary(pool)
    monkeypatch.setattr(module, "MAX_POINTS", 30)
    view = PoolView(pool)
    assert len(view.all_records) == 61 and 27 <= len(view.records) <= 30
    seeds: dict[tuple[float, int], int] = {}
    for record in view.finished:
        key = (record.spec["data"]["label_noise"], record.spec["training"]["batch_size"])
        seeds[key] = seeds.get(key, 0) + 1
    assert set(seeds.values()) == {3}
    sampled = summary(pool)
    assert sampled["status"] == whole["status"] == {"finished": 60, "failed": 1}
    names = [
        [(row["id"], row["name"], row["gap"]) for row in result["networks"][:60]]
        for result in (sampled, whole)
    ]
    assert names[0] == names[1]
    # which is best, and how many memorize, is known of all
    assert [s for s in sampled["verdict"] if "est test accuracy" in s or "memorized by" in s] == [
        s for s in whole["verdict"] if "est test accuracy" in s or "memorized by" in s
    ]


def test_the_page_states_the_sampling(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write_report(pool, tmp_path / "all.html", title="all").read_text()
    assert "sampled at random" not in page
    monkeypatch.setattr(module, "MAX_POINTS", 30)
    page = write_report(pool, tmp_path / "sampled.html", title="sampled").read_text()
    assert (
        "of them: whole training configurations sampled at random" in page
        and "out of memory" in page
    )


def test_findings_come_before_the_figures_and_are_escaped(tmp_path: Path) -> None:
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    result = gs.check(
        nn.Linear(4, 2), (torch.cat([x, x[:10]]), torch.cat([y, y[:10]])), only=["GS101", "GS203"]
    )
    record = Record(id="<i>a</i>", spec={}, status="failed", message="out of memory")
    page = write_report(
        [record], tmp_path / "r.html", title="One", check=(record.id, result)
    ).read_text()
    (finding,) = result.findings
    start = page.index("What to do next")
    assert start < page.index('id="pool"') and finding.evidence in page
    section = page[start : page.index("</section>", start)]
    assert "GS101" in section and re.search(re.escape(finding.action), section, re.IGNORECASE)
    assert "GS203" in section and "<i>a</i>" not in page


@pytest.mark.thorough
def test_the_command_checks_the_most_accurate_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)
    assert gapscope("pool", "run", "grid.toml", "pool").returncode == 0
    assert gapscope("report", "pool").returncode == 0
    assert "What to do next" in Path("pool/report.html").read_text()
    assert gapscope("report", "pool", "--no-checks").returncode == 0
    assert "What to do next" not in Path("pool/report.html").read_text()
    for path in Pool("pool").folder.glob("runs/*/weights.safetensors"):
        path.unlink()
    assert gapscope("report", "pool").returncode == 0
    assert "What to do next" not in Path("pool/report.html").read_text()
