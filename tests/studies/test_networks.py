"""Networks of a grid as a table, what is measured of them and kept, and what they stand in for."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gapscope.base.specs import RunSpec
from gapscope.data import Problem
from gapscope.pools import records_to_pandas
from gapscope_studies.kit.pool import (
    data_hashes,
    evaluate_networks,
    load_network,
    make_arm,
    scale_substitutions,
)
from gapscope_studies.kit.study import RunSettings

SPECS = [
    RunSpec().replace(
        {"data.train_size": 200, "data.test_size": 50, "training.epochs": epochs, "seed": seed}
    )
    for epochs, seed in ((1, 0), (6, 1))
]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> RunSettings:
    return RunSettings(
        scale="smoke", work=tmp_path_factory.mktemp("work"), workers=1, say=lambda line: None
    )


def widest(network: nn.Module, problem: Problem) -> dict[str, Any]:
    sizes = [parameter.shape[0] for parameter in network.parameters()]
    return {"widest": max(sizes), "samples": len(problem.train), "training": network.training}


def test_networks_are_a_table_and_their_probes_another(setting: RunSettings) -> None:
    table = records_to_pandas(setting.train("toy", SPECS, measures=("accuracy",)))
    assert list(table.index) == [spec.id for spec in SPECS] and list(table["seed"]) == [0, 1]
    result = evaluate_networks(setting, "toy", widest, table.index)
    assert result["samples"].tolist() == [200, 200] and result["training"].tolist() == [False] * 2
    assert (
        result["widest"].tolist()
        == [max(p.shape[0] for p in load_network(setting, "toy", SPECS[0].id)[0].parameters())] * 2
    )
    times = {path: path.stat().st_mtime_ns for path in (setting.work / "toy-widest").iterdir()}
    assert len(times) == 2 and evaluate_networks(setting, "toy", widest, table.index).equals(result)
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_how_well_networks_learned_is_read_from_their_records(setting: RunSettings) -> None:
    records = setting.train("toy", SPECS, measures=("accuracy",))
    result = make_arm("short", records, 10)
    assert result.train_accuracy == pytest.approx(
        sum(r.scores["train_accuracy"] for r in records) / 2
    )
    assert (result.chance, result.done) == (0.1, False)  # one of them trained for a single epoch
    assert make_arm("stopped", records, 10, stopped=True).done
    guessing = [replace(records[0], scores={"train_accuracy": 0.1}) for _ in range(2)]
    # one network that learned does not speak for two at chance
    assert make_arm("mixed", [*guessing, records[1]], 10).train_accuracy == 0.1


def test_the_scale_is_read_from_the_specs(setting: RunSettings) -> None:
    noisy = [spec.replace({"data.label_noise": 0.5}) for spec in SPECS]
    rows = scale_substitutions(
        setting, [*SPECS, *noisy], {"data": "CIFAR-10, 50,000 images", "weight decay": "5e-4"}
    )
    here = {row["what"]: (row["paper"], row["here"]) for row in rows}
    assert here["data"] == (
        "CIFAR-10, 50,000 images", "digits, 200 training and 50 test samples, 10 classes, 1 x 8 x 8"
    )  # fmt: skip
    assert (
        here["epochs"] == ("", "1, 6")
        and here["networks"] == ("", "4")
        and here["seeds"] == ("", "2")
    )
    assert here["network"] == ("", "fully_connected") and here["weight decay"] == ("5e-4", "")


def test_hashes_tell_data_apart_and_leave_noise_out(setting: RunSettings) -> None:
    hashes = data_hashes(setting, SPECS)
    assert list(hashes) == ["digits 200+50"] and len(hashes["digits 200+50"]) == 16
    assert (
        data_hashes(setting, [spec.replace({"data.label_noise": 0.5}) for spec in SPECS]) == hashes
    )
    assert data_hashes(setting, [spec.replace({"data.seed": 1}) for spec in SPECS]) != hashes


@pytest.mark.thorough
def test_the_part_of_the_docs_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "add-a-study-part.md").read_text()
    for kind, name in (("python", "toystudy.py"), ("toml", "smoke.toml")):
        (tmp_path / name).write_text(page.split(f"```{kind}\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    study = importlib.import_module("toystudy").STUDY
    [path] = study.run(
        tmp_path / "results", scale="smoke", work=tmp_path, workers=1, say=lambda line: None
    )
    [claim] = json.loads(path.read_text())["claims"]
    assert (claim["outcome"], claim["units"]) == ("open", 6) and "not finished" in claim["reason"]
    assert (
        "| data | MNIST, 60,000 images | digits, 200 training"
        in path.with_suffix(".md").read_text()
    )
