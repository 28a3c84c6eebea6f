"""`gapscope advise batch-norm` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import gapscope

GRID = """
measures = ["parameter_count"]
[base.data]
train_size = 200
test_size = 50
[base.network]
name = "fully_connected"
[base.network.options]
n_hidden = 1
width = 16
[base.training]
epochs = 4
batch_size = 20
learning_rate = 0.05
[axes]
"network.options.batch_norm" = [true, false]
"""


pytestmark = pytest.mark.usefixtures("without_workers")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("advise")
    (folder / "grid.toml").write_text(GRID)
    assert (
        gapscope("pool", "run", folder / "grid.toml", folder / "pool", "--workers", 1).returncode
        == 0
    )
    result = {}
    for record in folder.glob("pool/runs/*/record.json"):
        options = json.loads(record.read_text())["spec"]["network"]["options"]
        result[options["batch_norm"]] = record.parent / "weights.safetensors"
    return result


def test_prints_a_table_of_80_columns_and_sentences(
    networks: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = gapscope("advise", "batch-norm", networks[True], "--new-batch-size", 100)
    assert done.returncode == 0, done.stderr
    assert (
        "fc1_norm" in done.stdout
        and "batches of 20" in done.stdout
        and "batches of 100" in done.stdout
    )
    text = " ".join(done.stdout.split())
    assert "Ghost batches of 20 restore it" in text and "before output adds as much" in text
    assert "When not to trust this: - " in text
    assert max(map(len, done.stdout.splitlines())) <= 80 and "…" not in done.stdout


def test_prints_json(networks: dict[bool, Path]) -> None:
    done = gapscope(
        "advise", "batch-norm", networks[True], "--batch-size", 10, "--passes", 4, "--json"
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (
        content["batch_size"] == 10
        and content["new_batch_size"] is None
        and content["samples"] == 200
    )
    assert [row["layer"] for row in content["layers"]] == ["fc1_norm"]
    assert content["missing"]["value"] == content["layers"][0]["excess"] > 0
    assert 0 < content["dropout"]["value"] < 0.9 and content["dropout_before"] == ["output"]


@pytest.mark.parametrize(
    ("batch_norm", "options", "message"),
    [
        (False, (), "The network must hold normalization layers"),
        (
            True,
            ("--dropout-before", "fc"),
            "must name layers of the network; got 'fc'. Did you mean",
        ),
    ],
)
def test_errors_are_one_sentence(
    networks: dict[bool, Path], batch_norm: bool, options: tuple[object, ...], message: str
) -> None:
    done = gapscope("advise", "batch-norm", networks[batch_norm], *options)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and message in done.stderr
    assert "Traceback" not in done.stderr


OWN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), (x, (x[:, 0] > 0).long())
"""


def test_a_network_of_a_function_needs_its_batch_size(tmp_path: Path) -> None:
    (tmp_path / "own_norm.py").write_text(OWN)
    source = f"{tmp_path / 'own_norm.py'}:build"
    done = gapscope("advise", "batch-norm", source, "--batch-size", 20, "--samples", 40, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["batch_size"] == 20
    failed = gapscope("advise", "batch-norm", source)
    assert failed.returncode == 1 and "--batch-size" in failed.stderr
