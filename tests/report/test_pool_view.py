"""Reports of large pools: counts are of all networks, figures of a sample of whole training configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapscope.base.specs import RunSpec
from gapscope.pools import Pool
from gapscope.report import pool_view as module
from gapscope.report import summary, write_report
from gapscope.report.pool_view import make_view
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    pool = Pool(tmp_path_factory.mktemp("large") / "pool")
    for number in range(60):
        noise = 0.1 * (number // 3 % 5)
        changes = {"data.label_noise": noise, "training.batch_size": 8 + number // 15, "seed": number % 3}
        spec = RunSpec().replace(changes)
        accuracy = 0.9 - noise - 0.001 * number
        readings = Readings([Reading(measure="loss", number="loss", value=noise + 0.01 * (number % 7))])
        scores = {"train_loss": 0.1, "test_loss": 0.2, "train_accuracy": 0.98, "test_accuracy": accuracy}
        pool.add(Record(id=spec.id, spec=spec.to_dict(), status="finished", readings=readings, scores=scores))
    pool.add(Record(id="lost", spec={"name": "lost"}, status="failed", message="out of memory"))
    return pool


def test_counts_are_of_all_and_figures_of_whole_recipes(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summary(pool)
    monkeypatch.setattr(module, "MOST_DRAWN", 30)
    view = make_view(pool)
    assert len(view.all_records) == 61 and 27 <= len(view.records) <= 30
    seeds: dict[tuple[float, int], int] = {}
    for record in view.finished:
        key = (record.spec["data"]["label_noise"], record.spec["training"]["batch_size"])
        seeds[key] = seeds.get(key, 0) + 1
    assert set(seeds.values()) == {3}
    drawn = summary(pool)
    assert drawn["status"] == whole["status"] == {"finished": 60, "failed": 1}
    names = [[(row["id"], row["name"], row["gap"]) for row in found["networks"][:60]] for found in (drawn, whole)]
    assert names[0] == names[1]
    # which is best, and how many memorize, is known of all
    assert [s for s in drawn["verdict"] if "best test accuracy" in s or "memorise" in s] == [
        s for s in whole["verdict"] if "best test accuracy" in s or "memorise" in s
    ]


def test_the_page_states_the_sampling(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write_report(pool, tmp_path / "all.html", title="all").read_text()
    assert "sampled at random" not in page
    monkeypatch.setattr(module, "MOST_DRAWN", 30)
    page = write_report(pool, tmp_path / "drawn.html", title="drawn").read_text()
    assert "of them: whole training configurations sampled at random" in page and "out of memory" in page
