"""`gapscope estimate NETWORK`: an answer without a pool, and a table of known networks that moves it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

from gapscope.cli import app

FACTORY = """
import torch
import gapscope as gs

def digits(wrong=0.0):
    train = gs.load_dataset("digits").train.subset(torch.arange(120))
    labels = train.targets if not wrong else train.targets[torch.randperm(120, generator=torch.Generator())]
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=32)
    training = {"optimizer": "adam", "learning_rate": 0.005, "epochs": 20, "batch_size": 20}
    gs.train(network, gs.Samples(train.inputs, labels), gs.TrainingSpec.from_dict(training))
    return network, (train.inputs, labels)

def meaningless():
    return digits(wrong=1.0)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"networks_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_network_is_answered_at_once(factory: str) -> None:
    done = CliRunner().invoke(app, ["estimate", f"{factory}:digits"])
    assert done.exit_code == 0, done.output
    assert "expect " in done.output and "on new data like the training data" in done.output
    told = CliRunner().invoke(app, ["estimate", "--json", f"{factory}:digits", "--label-noise", "0"])
    answer = json.loads(told.stdout)[0]
    assert answer["like_training"] == answer["clean"] and answer["initial"] == "resampled"


def test_a_refusal_says_why_and_ends_with_2(factory: str) -> None:
    done = CliRunner().invoke(app, ["estimate", f"{factory}:meaningless"])
    assert done.exit_code == 2 and "no answer: before training its gradients predict no better" in done.output


def test_a_table_of_known_networks_moves_the_answer(factory: str) -> None:
    asked = ["estimate", "--json", f"{factory}:digits"]
    before = json.loads(CliRunner().invoke(app, asked).stdout)[0]
    row = before["readings"] | {"accuracy": before["like_training"]["value"] - 0.1}
    pandas.DataFrame([row] * 3).to_csv("known.csv", index=False)
    done = CliRunner().invoke(app, ["gap", "fit", "known.csv"])
    assert done.exit_code == 0, done.output
    assert "fitted on 3 known networks: every answer moves by -0.0" in done.output and Path("known.json").exists()
    after = json.loads(CliRunner().invoke(app, [*asked, "--estimator", "known.json"]).stdout)[0]
    told = json.loads(CliRunner().invoke(app, ["gap", "fit", "known.csv", "--json"]).stdout)
    assert after["like_training"]["value"] == pytest.approx(before["like_training"]["value"] + told["shift"])
    absent = CliRunner().invoke(app, ["gap", "fit", "absent.csv"])
    assert absent.exit_code != 0 and "no such file" in str(absent.exception)


def test_the_verbs_that_moved_name_their_new_place() -> None:
    for verb in ("fit", "predict"):
        assert CliRunner().invoke(app, ["gap", verb, "--help"]).exit_code == 0
        moved = CliRunner().invoke(app, ["estimate", verb, "pool"])
        assert moved.exit_code == 1 and f"is now gapscope gap {verb}" in str(moved.exception)
