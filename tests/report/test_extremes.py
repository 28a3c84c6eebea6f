"""Pages of pools with numbers at the end of the floats, long names, many readings and many messages."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from gapscope.report import write_report
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record
from report.synthetic_pool import synthetic_records


def with_value(record: Record, name: str, value: float) -> Record:
    reading = Reading(measure=name, number=name, value=value)
    return dataclasses.replace(record, readings=Readings([*record.readings, reading]))


@pytest.mark.parametrize("size", [1.7e308, 1e300, 1e155, 5e-324])
@pytest.mark.parametrize("signs", [(1, -1), (1, 1)])
def test_extreme_readings_are_drawn(tmp_path: Path, size: float, signs: tuple[int, int]) -> None:
    records = [
        with_value(r, "odd", size * signs[k % 2] / (1 + k % 3)) for k, r in enumerate(synthetic_records(12)[:12])
    ]
    page = write_report(records, tmp_path / "r.html", title="x").read_text()
    assert "odd" in page and '="nan' not in page.lower() and '="inf' not in page.lower()


@pytest.mark.parametrize("size", [1.7e308, 1e300, 1e101])
def test_extreme_gaps_are_drawn(tmp_path: Path, size: float) -> None:
    records = []
    for k, record in enumerate(synthetic_records(12)[:12]):
        scores = {"train_loss": 0.1, "test_loss": size / (1 + k)}
        records.append(dataclasses.replace(record, scores=scores))
    page = write_report(records, tmp_path / "r.html", title="x").read_text().lower()
    assert "nan" not in [word.strip("\"'%;") for line in page.split('="') for word in line.split('"')[:1]]
    assert math.isfinite(records[0].gap)


@pytest.mark.thorough
def test_pages_stay_small(tmp_path: Path) -> None:
    records = synthetic_records(6)
    message = [Record(id=f"{k:016x}", spec={}, status="failed", message=f"{k} " + "x" * 390) for k in range(2000)]
    page = write_report([*records, *message], tmp_path / "r.html", title="x")
    assert page.stat().st_size < 1.5e6 and "And 1953 other messages." in page.read_text()
    for k in range(400):
        records[:6] = [with_value(record, f"m{k}", record.gap + k) for record in records[:6]]
    page = write_report(records, tmp_path / "r.html", title="x")
    assert page.stat().st_size < 1.5e6 and "more, not plotted" in page.read_text()
    long = [dataclasses.replace(r, spec={**r.spec, "network": {"name": "n" * 5000 + str(k)}}) for k, r in
            enumerate(synthetic_records(40))]  # fmt: skip
    assert write_report(long, tmp_path / "r.html", title="x").stat().st_size < 1.5e6
