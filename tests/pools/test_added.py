"""Networks added to a pool: none is lost, none leaves the pool, and what was measured stays."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gapscope as gs
from gapscope.base.errors import DamagedFile, InvalidInput
from gapscope.pools import Pool
from gapscope.pools.added import added_id
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record


def network(
    name: str = "net", *, loss: float = 0.5, settings: dict[str, object] | None = None
) -> Record:
    spec = {"name": name, "network": {"name": "mlp"}} | ({"hp": settings} if settings else {})
    scores = {"train_loss": loss, "train_accuracy": 0.75}
    return Record(id=added_id(name, settings or {}), spec=spec, status="finished", scores=scores)


def reading(measure: str, value: float) -> Reading:
    return Reading(measure=measure, number=measure, value=value)


def test_another_network_of_the_same_name_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    pool.add(network())
    with pytest.raises(InvalidInput, match=r"train_loss 0\.5"):
        pool.add(network(loss=0.25))
    assert [record.scores["train_loss"] for record in pool] == [0.5]
    pool.add(network(loss=0.25), replace=True)
    assert [record.scores["train_loss"] for record in pool] == [0.25]


def test_the_same_network_keeps_the_readings_and_scores_that_the_new_record_lacks(
    tmp_path: Path,
) -> None:
    pool, first = Pool(tmp_path / "pool"), network()
    tested = dataclasses.replace(
        first, scores={**first.scores, "test_loss": 0.75, "test_accuracy": 0.5}
    )
    pool.add(dataclasses.replace(tested, readings=Readings([reading("a", 1.0), reading("b", 2.0)])))
    again = network(loss=0.5 * (1 + 1e-6))  # another device
    pool.add(
        dataclasses.replace(again, readings=Readings([reading("b", 3.0)]), unmeasured={"c": "why"})
    )
    (record,) = pool
    assert {each.name: each.value for each in record.readings} == {"a": 1.0, "b": 3.0}
    assert record.gap == 0.25 and record.unmeasured == {"c": "why"}


@pytest.mark.parametrize("stated", [False, True])
def test_accuracies_of_two_data_sets_are_compared_if_a_setting_states_them(
    tmp_path: Path, stated: bool
) -> None:
    pool = Pool(tmp_path / "pool")
    for width in range(3):
        for name, inputs, classes in (("a", 4, 3), ("b", 5, 2)):
            x = torch.randn(12, inputs)
            data = (x, torch.arange(12) % classes)
            record = gs.record_network(
                torch.nn.Linear(inputs, classes),
                data,
                test=data,
                name=f"{name}{width}",
                settings={"width": width} | ({"data": name} if stated else {}),
                measures=["parameter_norm"],
            )
            assert record.spec["data_form"] == f"{inputs} inputs and {classes} classes"
            # their accuracies must differ for a leaderboard
            scores = {**record.scores, "test_accuracy": 0.1 * width + 0.01 * classes}
            pool.add(dataclasses.replace(record, scores=scores))
    if stated:
        assert gs.rank_measures(pool, n_permutations=20, n_bootstrap=20).networks == 6
        return
    with pytest.raises(InvalidInput, match=r"with 4 inputs and 3 classes.*settings="):
        gs.rank_measures(pool)


def test_images_passed_flat_are_the_same_data(tmp_path: Path) -> None:
    x, y = torch.randn(8, 1, 3, 3), torch.arange(8) % 2
    flat = gs.record_network(torch.nn.Linear(9, 2), (x.flatten(1), y), name="a", measures=[])
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 2))
    image = gs.record_network(network, (x, y), name="b", measures=[])
    assert flat.spec["data_form"] == image.spec["data_form"]


def test_settings_passed_later_do_not_make_a_second_network(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    pool.add(dataclasses.replace(network(), readings=Readings([reading("a", 1.0)])))
    pool.add(network(settings={"width": 8}))
    (record,) = pool
    assert record.spec["hp"] == {"width": 8} and record.readings["a"].value == 1.0
    pool.add(network(settings={"width": 16}, loss=0.3))
    assert len(pool) == 2


def test_missing_scores_and_failures_are_no_difference(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    pool.add(dataclasses.replace(network(), status="failed", scores={}))
    pool.add(network(loss=math.nan))
    pool.add(network(loss=math.nan))
    assert [record.status for record in pool] == ["finished"]


@pytest.mark.parametrize(
    "name", ["../../evil", "..", ".", "", "/etc/evil", "a/b", "a\\b", "a\0", ".hidden", "a" * 5000]
)
def test_an_id_outside_the_pool_is_refused(tmp_path: Path, name: str) -> None:
    pool = Pool(tmp_path / "deep" / "pool")
    with pytest.raises(InvalidInput, match="id of a record"):
        pool.add(Record(id=name, spec={}, status="finished"))
    with pytest.raises(InvalidInput, match="id of a record"):
        pool.get_record(name)
    assert not list(tmp_path.rglob("record.json"))


def test_a_record_with_a_foreign_id_is_not_read(tmp_path: Path) -> None:
    Record(id="../evil", spec={}, status="finished").write(tmp_path)
    with pytest.raises(DamagedFile, match="id of a record"):
        Record.read(tmp_path)


def test_settings_are_numbers_of_any_library_and_nothing_else() -> None:
    network, data = torch.nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2)
    first, second = (
        gs.record_network(network, data, name="a", settings=settings, measures=["parameter_norm"])
        for settings in (
            {"lr": 0.5, "widths": [1, 2]},
            {"lr": np.float32(0.5), "widths": torch.tensor([1, 2])},
        )
    )
    assert first.id == second.id and first.spec == second.spec
    with pytest.raises(InvalidInput, match=r"settings\.optimizer must be"):
        gs.record_network(network, data, name="a", settings={"optimizer": torch.optim.SGD})


def test_the_axes_of_a_grid_may_be_arrays() -> None:
    numbers: Any = np.arange(1, 4)
    grid = gs.Grid(axes={"training.epochs": numbers})
    assert grid == gs.Grid(axes={"training.epochs": [1, 2, 3]})
    assert [spec.training.epochs for spec in grid] == [1, 2, 3]


def test_a_wrapped_network_has_the_architecture_of_its_own_class(tmp_path: Path) -> None:
    net = torch.nn.Linear(4, 2)
    data = torch.randn(20, 4), torch.arange(20) % 2
    pool = Pool(tmp_path)
    wrapped = net, torch.nn.DataParallel(net), torch.compile(net, backend="eager")
    for number, each in enumerate(wrapped):
        pool.add(each, data, name=f"net {number}", measures=["parameter_count"])  # type: ignore[arg-type]
    assert [record.spec["network"]["name"] for record in pool.records()] == ["Linear"] * 3
