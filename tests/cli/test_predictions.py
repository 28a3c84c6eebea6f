"""`gapscope estimate`, `forecast` and `learning-curve`: grids, functions, CSV files, interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import gapscope as gs
from gapscope.accuracy.accuracy_after_training import AccuracyEstimate
from gapscope.base.errors import BudgetSpent, InvalidInput
from gapscope.cli import app
from gapscope.cli.learning_curve import _named
from support.commands import GRID, gapscope


def test_grid_rows_are_named_by_what_varies(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    shown = CliRunner().invoke(app, ["forecast", str(path)], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "label_noise=0.5" in shown.output and "twice the data" in shown.output
    rows = json.loads(
        CliRunner().invoke(app, ["forecast", str(path), "--json", "--samples", "40"]).stdout
    )["forecasts"]
    assert rows[0]["score"] > rows[1]["score"] and rows[0]["curve"][-2]["samples"] == 40


def test_csv_with_string_labels(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "a,b,label\n"
        + "".join(f"{i + i % 3},{i % 5},{'high' if i > 20 else 'low'}\n" for i in range(40))
    )
    shown = CliRunner().invoke(app, ["forecast", str(path)])
    assert shown.exit_code == 0 and "RBF ridge" in shown.output and "0 = 'high'" in shown.output


def test_held_out_targets_have_the_name_of_their_column(tmp_path: Path) -> None:
    table, output = tmp_path / "table.csv", tmp_path / "out.csv"
    frame = pandas.DataFrame({"size": [k % 9 + 0.5 for k in range(60)]})
    frame.assign(price=2.5 * frame["size"]).to_csv(table, index=False)
    done = CliRunner().invoke(app, ["out-of-sample", str(table), "--output", str(output)])
    assert done.exit_code == 0, done.exception
    assert list(pandas.read_csv(output)) == ["sample", "price", "given price"]
    frame = pandas.read_csv(table)
    predictions = pandas.read_csv(output, index_col="sample")
    issues = gs.find_label_issues(None, frame, target="price", pred_probs=predictions)
    assert issues.samples is not None and len(issues.samples) == 60


def test_a_grid_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    with pytest.raises(InvalidInput, match="is a TOML grid"):
        CliRunner().invoke(app, ["out-of-sample", str(path)], catch_exceptions=False)


def test_an_interruption_shows_finished_rows_and_ends_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapscope.accuracy.loo_rows.kernel_leave_one_out", stop)
    (tmp_path / "grid.toml").write_text(GRID)
    result = CliRunner().invoke(app, ["forecast", str(tmp_path / "grid.toml"), "--json"])
    assert result.exit_code == 130
    (row,) = json.loads(result.stdout)["forecasts"]
    assert [each["method"] for each in row["rows"]][-1] == "last hidden features"


OWN = """
import torch


def recipe(x, y):
    return torch.nn.Linear(2, 2)


def mine():
    return recipe, (torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)
"""


def test_one_row_per_spec_and_a_second_call_reads_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    cache = ["--cache-dir", str(tmp_path / "cache")]
    rows = json.loads(
        CliRunner().invoke(app, ["learning-curve", str(path), "--json", *cache]).stdout
    )["curves"]
    assert len(rows) == 2 and all(row["low"] <= row["score"] <= row["high"] for row in rows)
    answers = sorted((tmp_path / "cache").rglob("*.json"))
    times = [answer.stat().st_mtime_ns for answer in answers if answer.name != "twin.json"]
    shown = CliRunner().invoke(app, ["learning-curve", str(path), *cache], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "90 % interval" in shown.output and f"{rows[0]['score']:.3f}" in shown.output
    # the rows are named by what differs between them, and nothing is cut without a terminal
    assert [row["name"] for row in rows] == ["label_noise=0.0", "label_noise=0.5"]
    assert all(row["name"] in shown.output for row in rows) and "…" not in shown.output
    assert times == [answer.stat().st_mtime_ns for answer in answers if answer.name != "twin.json"]


def test_a_training_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_recipe.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = CliRunner().invoke(app, ["learning-curve", "own_recipe:mine"])
    assert shown.exit_code == 0, shown.output
    assert "Predicted accuracy with all 60 samples" in shown.output
    assert (tmp_path / "gapscope-learning-curve" / "own_recipe.mine" / "twin.json").exists()


@pytest.mark.parametrize("name", ["estimator", "train"])
def test_what_is_trained_needs_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"lone_{name}.py").write_text(
        "from sklearn.linear_model import Ridge\n"
        "estimator = Ridge()\ndef train(x, y): return estimator.fit(x, y)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    failed = CliRunner().invoke(app, ["learning-curve", f"lone_{name}:{name}"])
    assert "without training data" in str(failed.exception) and "--data" in str(failed.exception)
    failed = CliRunner().invoke(app, ["learning-curve", str(tmp_path)])
    assert "is a folder" in str(failed.exception)


def test_a_function_that_returns_an_estimator_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "returned.py").write_text(
        "from sklearn.linear_model import Ridge\nclass Own: pass\ndef one(x): return x\n"
        "def estimator(): return Ridge()\ndef train(x=0, y=0): return Ridge().fit(x, y)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(_named(Path("returned:estimator"))).__name__ == "Ridge"
    assert all(callable(_named(Path(f"returned:{name}"))) for name in ("train", "one"))
    with pytest.raises(InvalidInput, match="the class Own"):
        _named(Path("returned:Own"))


@pytest.mark.thorough
def test_a_training_function_or_estimator_with_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_estimator.py").write_text(
        "from sklearn.linear_model import LogisticRegression\nfrom sklearn.metrics import f1_score\n"
        "estimator = LogisticRegression()\n"
        "def train(x, y): return estimator.fit(x, y)\n"
        "def f1(model, x, y): return f1_score(y, model.predict(x), average='macro')\n"
    )
    rows = [f"{i % 7},{(i % 7) > 3},{i // 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(90)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,patient,label", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = ["--data", "table.csv", "--target", "label", "--json"]
    for options in (
        ["own_estimator:estimator"],
        ["own_estimator:train", "--score", "own_estimator:f1"],
    ):
        shown = CliRunner().invoke(app, ["learning-curve", *options, *table, "--groups", "patient"])
        assert shown.exit_code == 0, shown.output
        (curve,) = json.loads(shown.stdout)["curves"]
        assert curve["score"] > 0.95 and curve["score_name"] == (
            "f1" if "--score" in options else "accuracy"
        )
    assert (
        CliRunner()
        .invoke(app, ["learning-curve", "own_estimator:train", "--groups", "patient"])
        .exit_code
        == 2
    )
    # another score, table or seed is another curve, in a folder of its own
    pandas.read_csv("table.csv").to_json("table.jsonl", orient="records", lines=True)
    for others in (["--score", "f1_macro"], ["--seed", "1"], ["--data", "table.jsonl"]):
        shown = CliRunner().invoke(
            app,
            ["learning-curve", "own_estimator:estimator", *table, "--groups", "patient", *others],
        )
        assert shown.exit_code == 0, shown.exception
    wrong = CliRunner().invoke(
        app, ["learning-curve", "own_estimator:train", *table, "--groups", "patent"]
    )
    assert "'patient'" in str(wrong.exception)


@pytest.mark.parametrize("option", ["--target", "--groups"])
def test_columns_without_a_table_say_where_it_goes(option: str) -> None:
    shown = CliRunner().invoke(app, ["learning-curve", "m:train", option, "a"], terminal_width=300)
    assert shown.exit_code == 2
    words = " ".join(shown.output.replace("│", " ").split())
    assert "gapscope learning-curve my_models:train --data table.csv" in words


def test_a_function_that_returns_a_network_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(OWN.replace("return recipe,", "return recipe(0, 0),"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, ["learning-curve", "own_network:mine"])
    assert done.exit_code == 1 and "must return (train_fn, data)" in str(done.exception)


def test_a_table_alone_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,x\n")
    done = CliRunner().invoke(app, ["learning-curve", str(tmp_path / "t.csv")])
    assert done.exit_code == 1 and "--data" in str(done.exception)


def test_an_unknown_data_set_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace('"digits"', '"digtis"'))
    for command in (["learning-curve"], ["forecast"], ["pool", "run"]):
        folder = [str(tmp_path / "pool")] if command[0] == "pool" else []
        done = CliRunner().invoke(app, [*command, str(tmp_path / "grid.toml"), *folder])
        assert done.exit_code == 1 and "Did you mean 'digits'" in str(done.exception)
        assert "to run" not in done.output and not (tmp_path / "pool").exists()
    done = CliRunner().invoke(app, ["forecast", str(tmp_path / "none.csv")])
    assert done.exit_code and "no such file" in str(done.exception)


def test_an_interruption_shows_what_is_finished_and_trains_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapscope.accuracy import subset_problems

    train, calls = subset_problems.run_configuration, 0

    def stopped(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return train(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(subset_problems, "run_configuration", stopped)
    (tmp_path / "grid.toml").write_text(GRID)
    command = [
        "learning-curve",
        str(tmp_path / "grid.toml"),
        "--cache-dir",
        str(tmp_path / "runs"),
        "--json",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 130 and calls == 2
    (row,) = json.loads(result.stdout)["curves"]
    assert row["interrupted"] and len(row["trainings"]) == 1


FACTORY = """
import torch
import gapscope as gs
from support.commands import GRID, gapscope

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


def test_networks_without_an_estimate_do_not_end_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: dict[str, Exception] = {"short": BudgetSpent("too long"), "wrong": InvalidInput("no")}

    def estimate(network: str, data: object, **_: object) -> AccuracyEstimate:
        if network in errors:
            raise errors[network]
        return AccuracyEstimate(
            task="classification",
            score=0.5,
            samples=4,
            initial="given",
            readings={"train_accuracy": 1.0},
        )

    monkeypatch.setattr(
        "gapscope.cli.estimate.load_network", lambda path, *_: (str(path), None, None)
    )
    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.estimate_accuracy", estimate)
    done = gapscope("estimate", "short", "fine", "--json")
    first, second = json.loads(done.stdout)["networks"]
    assert first["abstained_because"] == "too long" and first["score"] is None
    assert second["score"] == 0.5 and not second["abstained_because"]
    assert done.returncode == 3 and gapscope("estimate", "fine", "wrong").returncode == 1
    alone = gapscope("estimate", "short")
    assert alone.returncode == 3 and "error: too long" in alone.stderr


@pytest.mark.parametrize("command", ["measure", "report", "compare"])
def test_a_command_that_is_stopped_says_so(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("measure.record_from_argument", "measure.load_network", "report._estimates"):
        monkeypatch.setattr(f"gapscope.cli.{name}", stop)
    monkeypatch.setattr("gapscope.report.pool_view.PoolView", stop)
    (tmp_path / "runs").mkdir()
    networks = [str(tmp_path), str(tmp_path / "other")][: 2 if command == "compare" else 1]
    done = gapscope(command, *networks)
    assert done.returncode == 130 and "stopped; nothing is saved." in done.stderr, done


def test_an_estimate_as_text_and_json(factory: str) -> None:
    done = CliRunner().invoke(app, ["estimate", f"{factory}:digits"])
    assert done.exit_code == 0, done.output
    assert "Estimated accuracy: " in done.output
    message = CliRunner().invoke(
        app, ["estimate", "--json", f"{factory}:digits", "--label-noise", "0"]
    )
    answer = json.loads(message.stdout)["networks"][0]
    assert answer["score"] == answer["clean_labels"]["value"] and answer["initial"] == "resampled"


def test_an_abstention_has_a_reason_and_exit_code_2(factory: str) -> None:
    done = CliRunner().invoke(app, ["estimate", f"{factory}:meaningless"])
    assert (
        done.exit_code == 3
        and "No answer: before training its gradients predict no better" in done.output
    )


@pytest.mark.thorough
def test_an_estimator_file_shifts_the_estimate(factory: str) -> None:
    command = ["estimate", "--json", f"{factory}:digits"]
    before = json.loads(CliRunner().invoke(app, command).stdout)["networks"][0]
    row = before["readings"] | {"accuracy": before["score"] - 0.1}
    estimator = gs.fit_accuracy_estimator(pandas.DataFrame([row] * 3))
    estimator.save("own.json")
    after = json.loads(CliRunner().invoke(app, [*command, "--estimator", "own.json"]).stdout)[
        "networks"
    ][0]
    shift = estimator.shifts["like_training"]
    assert shift < 0
    assert after["score"] == pytest.approx(before["score"] + shift)


def test_pipelines_that_encode_get_the_raw_columns_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_pipelines.py").write_text(
        "from sklearn.compose import make_column_transformer\n"
        "from sklearn.feature_extraction.text import TfidfVectorizer\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import OneHotEncoder\n"
        "texts = make_pipeline(TfidfVectorizer(), LogisticRegression())\n"
        "hues = make_column_transformer((OneHotEncoder(), ['hue']))\n"
        "columns = make_pipeline(hues, LogisticRegression())\n"
    )
    lines = [f"{'apple' if k % 2 else 'pear'} number {k},{k % 2}" for k in range(80)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]))
    lines = [f"{'red' if k % 2 else 'green'},{k},{k % 2}" for k in range(80)]
    (tmp_path / "hues.csv").write_text("\n".join(["hue,size,label", *lines]))
    for name, table in (("texts", "texts.csv"), ("columns", "hues.csv")):
        done = CliRunner().invoke(
            app, ["learning-curve", f"own_pipelines:{name}", "--data", table, "--json"]
        )
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["curves"][0]["score"] > 0.9
