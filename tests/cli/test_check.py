"""`gapscope check` of a function, a grid, a pool and saved weights; exit codes, JSON, page, and bad input."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gapscope as gs
from gapscope import checks
from gapscope.base.errors import InvalidInput
from gapscope.cli.arguments import read_second
from gapscope.cli.options import NO_ANSWER
from gapscope.cli.wording import in_a_shell
from support.commands import GRID, gapscope

MODELS = """
import torch
import gapscope as gs

def data():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(3, 6, generator=g)[y] + 0.3 * torch.randn(120, 6, generator=g)
    return torch.cat([x, x[:20]]), torch.cat([y, y[:20]])

def build():
    torch.manual_seed(0)
    return torch.nn.Linear(6, 3), data()

def with_state():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    history = gs.train(network, data(), gs.TrainingSpec(epochs=10, momentum=0.9)).history
    return network, initial, history

def triple():
    network, initial, _ = with_state()
    return network, data(), initial

def mapping():
    network, initial, history = with_state()
    return {"network": network, "data": data(), "initial_state": initial, "history": history, "batch_size": 50}

def no_network():
    return None, data()

def misspelled():
    return {"network": None, "data": data(), "initial": {}}

def train(inputs, targets, learning_rate=0.001):
    network = torch.nn.Linear(6, 3)
    gs.train(network, (inputs, targets), gs.TrainingSpec(epochs=4, learning_rate=learning_rate))
    return network

def unlabelled():
    return torch.nn.Linear(6, 3), data()[0]

def regression():
    return torch.nn.Linear(6, 1), (data()[0], data()[0].sum(1, keepdim=True))

def wrong_shape():
    return torch.nn.Linear(5, 3), data()

def raises():
    return {}["missing key"]

def interrupted():
    class Network(torch.nn.Linear):
        calls = 0
        def forward(self, x):
            Network.calls += 1
            if Network.calls > 12:
                raise KeyboardInterrupt
            return super().forward(x)
    torch.manual_seed(0)
    return Network(6, 3), data()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return name


def test_findings_of_a_function_with_their_action(models: str) -> None:
    done = gapscope("check", f"{models}:build", "--only", "GS101,GS105")
    assert done.returncode in (0, NO_ANSWER), done.stderr
    assert (
        "GS101" in done.stdout
        and "20 of 140" in done.stdout
        and "fine         GS105" in done.stdout
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--fail-on", "GS101"], 1),
        (["--fail-on", "gs101,GS105"], 1),
        (["--fail-on", "GS105"], 0),
        (["--fail-on", "GS101", "--ignore", "GS101"], 2),
        (["--only", "GS104", "--fail-on", "GS105"], 2),
        (["--fail-on", ""], 2),
        (["--only", ""], 2),
        (["--only", "GS101,GS110", "--fail-on", "GS110"], 3),
        ([], 0),
    ],
)
def test_the_exit_status_is_that_of_the_named_codes(
    models: str, options: list[str], code: int
) -> None:
    assert (
        gapscope("check", f"{models}:build", "--only", "GS101,GS105", *options).returncode == code
    )


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{k},{k * k},{k % 2}\n" for k in range(40)))
    before = table.read_text()
    other = str(tmp_path / "other.html")
    for command in (
        ["check", str(table), "--html", str(table)],
        ["labels", str(table), "--csv", str(table)],
        ["labels", str(table), "--csv", other, "--html", other],
    ):
        done = gapscope(*command)
        assert (
            done.returncode == 1 and "another file" in done.stderr
        ) or "two outputs" in done.stderr
    assert table.read_text() == before


def test_json_alone_is_on_standard_output(models: str) -> None:
    done = gapscope(
        "check", f"{models}:build", "--json", "--only", "GS101,GS203,GS301", "--html", "page.html"
    )
    (result,) = json.loads(done.stdout)["networks"]
    (finding,) = result["findings"]
    assert (result["network"], result["samples"], finding["code"]) == (
        f"{models}:build",
        140,
        "GS101",
    )
    assert (
        finding["indices"] == list(range(120, 140))
        and finding["explain"] == "gapscope explain GS101"
    )
    assert [row["code"] for row in result["not_checked"]] == ["GS203", "GS301"]
    page = Path("page.html").read_text()
    assert "monitor=" not in page
    assert "GS101" in page and "://" not in page.replace("http://www.w3.org", "")


def test_every_network_of_a_grid_is_named_and_checked(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    untrained = json.loads(gapscope("check", grid, "--json", "--only", "GS104,GS201").stdout)[
        "networks"
    ]
    assert len(untrained) == 2 and all(row["samples"] == 120 for row in untrained)
    shown = gapscope("check", grid, "--only", "GS104").stdout
    assert "label_noise=0.0\n" in shown and "label_noise=0.5\n" in shown


@pytest.mark.thorough
def test_pool_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)
    assert gapscope("pool", "run", "grid.toml", "pool").returncode == 0
    stored = json.loads(gapscope("check", "pool", "--json").stdout)["networks"]
    names = {path.name for path in Path("pool/runs").iterdir()}
    assert {row["network"] for row in stored} == names
    # the record's history says that the network was trained, however little it has learned
    ran = {finding["code"] for finding in [*stored[0]["findings"], *stored[0]["fine"]]}
    assert {"GS201", "GS302", "GS403"} <= ran
    weights = next(Path("pool/runs").glob("*/weights.safetensors"))
    name = weights.parent.name
    for folder in (weights.parent, Path("pool", name)):
        done = gapscope("check", folder, "--only", "GS104", "--json")
        assert json.loads(done.stdout)["networks"][0]["network"] == name, done.stderr
    (one,) = json.loads(gapscope("check", weights, "--json").stdout)["networks"]
    assert one["network"] in names
    assert (
        len(
            json.loads(gapscope("check", "pool", "--json", "--max-networks", "1").stdout)[
                "networks"
            ]
        )
        == 1
    )


def test_load_without_a_checkpoint_is_refused(models: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("")
    for target in (f"{models}:unlabelled", tmp_path, grid):
        done = gapscope("check", target, "--load", f"{models}:load")
        assert done.returncode == 1 and "--load reads checkpoints" in done.stderr


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        ("unlabelled", ["targets"]),
        ("wrong_shape", ["first 8 samples, [8, 6]"]),
        ("raises", ["KeyError", "missing key", "line"]),
        ("nothing", ["nothing"]),
    ],
)
def test_bad_input_is_one_message(models: str, function: str, facts: list[str]) -> None:
    done = gapscope("check", f"{models}:{function}")
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert all(fact in done.stderr for fact in facts), done.stderr


def test_a_table_is_no_test_data_of_tensors(models: str) -> None:
    Path("t.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    for function in ("build", "no_network"):
        done = gapscope("check", f"{models}:{function}", "--test", "t.csv")
        assert done.returncode == 1 and "'test': (inputs, targets)" in done.stderr


def test_an_empty_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    assert str(tmp_path) in gapscope("check", tmp_path).stderr
    assert "none.safetensors" in gapscope("check", tmp_path / "none.safetensors").stderr


def test_an_interrupted_check_keeps_what_is_finished(models: str) -> None:
    done = gapscope("check", f"{models}:interrupted", "--json")
    (result,) = json.loads(done.stdout)["networks"]
    assert "GS101" in {row["code"] for row in result["findings"]}
    assert "interrupted" in {row["reason"] for row in result["not_checked"]}


@pytest.mark.parametrize("function", ["triple", "mapping"])
def test_a_function_may_return_the_initial_state(models: str, function: str) -> None:
    done = gapscope("check", f"{models}:{function}", "--json", "--only", "GS201,GS303")
    assert {row["code"] for row in json.loads(done.stdout)["networks"][0]["fine"]} == {
        "GS201",
        "GS303",
    }


def test_data_alone_are_checked_from_a_function_and_a_file(models: str) -> None:
    rows = ["a,b,label", *(f"{i % 7},{i % 11},{'xy'[i % 2]}" for i in range(80))]
    Path("table.csv").write_text("\n".join(rows))
    for arguments in ([f"{models}:no_network"], ["table.csv", "--target", "label"]):
        done = gapscope("check", *arguments)
        assert "Not judged" in done.stdout or "GS101" in done.stdout
        assert "initial_state=" not in done.stdout
    tested = gapscope(
        "check", "table.csv", "--target", "label", "--test", "table.csv", "--only", "GS101"
    )
    assert "80 of 80 test samples" in " ".join(tested.stdout.split())


def test_advice_is_tried_and_worded_for_the_command_line(models: str) -> None:
    done = gapscope("check", f"{models}:build", "--only", "GS101", "--train", f"{models}:train")
    assert "tried" in done.stdout
    plain = gapscope("check", f"{models}:build", "--only", "GS101,GS201,GS301")
    assert "monitor=" not in plain.stdout and "{..., 'monitor': ...}" in plain.stdout
    assert gapscope("check", f"{models}:misspelled").returncode == 1


def test_a_table_has_no_configuration_to_try_and_json_speaks_the_language_of_the_shell(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{i % 7},{i % 11},{'xy'[i % 2]}" for i in range(80)]
    table.write_text("\n".join(["a,b,label", *rows]))
    failed = gapscope("check", str(table), "--train", "spec")
    assert failed.returncode == 2 and "no training configuration" in " ".join(failed.stderr.split())
    done = gapscope("check", str(table), "--only", "GS104,GS110,GS401", "--json")
    assert "--test" in done.stdout and not PYTHON.search(done.stdout)


# arguments and functions of Python that mean nothing in a shell
PYTHON = re.compile(
    r"\b(initial_state|history|monitor|train_fn|test|batch_size|time_budget|groups)=|gapscope\.learning_curve"
)
# other arguments are named as those of Python
ARGUMENT = re.compile(r"(?<![Ii]n Python, )\b[Pp]ass \w+=")
# in messages of the Python interface alone
NOT_IN_A_SHELL = ("No fix was tried that helps",)


def texts(source: str) -> Iterator[str]:
    """Yield the texts of a module that are no documentation, with `{}` for what is filled in."""
    tree = ast.parse(source)
    seen = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            seen |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen
        ):
            yield node.value


@pytest.mark.thorough
def test_the_advice_of_every_check_is_worded_for_the_command_line() -> None:
    folder = Path(str(checks.__file__)).parent
    advice = [text for path in sorted(folder.glob("*.py")) for text in texts(path.read_text())]
    assert sum(bool(PYTHON.search(text)) for text in advice) >= 10
    left = [text for text in advice if PYTHON.search(in_a_shell(text))]
    assert [text for text in left if not text.startswith(NOT_IN_A_SHELL)] == []
    for path in folder.parent.rglob("*.py"):
        if "cli" not in path.parts:
            advice = [in_a_shell(text) for text in texts(path.read_text())]
            assert not [text for text in advice if ARGUMENT.search(text)], path


@pytest.mark.parametrize("command", ["check", "labels"])
def test_the_labels_of_a_second_table_are_in_the_column_of_the_first(
    tmp_path: Path, command: str
) -> None:
    rows = [(i % 7, i % 11, "xy"[i % 2]) for i in range(80)]
    train, test, unlabelled = (tmp_path / f"{name}.csv" for name in ("train", "test", "unlabelled"))
    train.write_text("\n".join(["a,b,label", *(f"{a},{b},{c}" for a, b, c in rows)]))
    test.write_text("\n".join(["label,b,a", *(f"{c},{b},{a}" for a, b, c in rows[:40])]))
    unlabelled.write_text("\n".join(["a,b", *(f"{a},{b}" for a, b, _ in rows[:40])]))
    done = gapscope(command, str(train), "--test", str(test))
    assert done.returncode in (0, NO_ANSWER), done.stderr
    failed = gapscope(command, str(train), "--test", str(unlabelled))
    assert "no column 'label'" in failed.stderr


def test_the_column_of_labels_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{i % 2},{i * 0.37 % 1:.3f},{i * 0.61 % 1:.3f}" for i in range(60)]
    table.write_text("\n".join(["label,a,b", *rows]))
    refused = gapscope("check", str(table))
    assert refused.returncode == 1
    assert "Pass --target label" in " ".join(refused.stderr.split())
    table.write_text("\n".join(["c,a,b", *rows]))
    shown = gapscope("check", str(table), "--only", "GS101")
    assert "labels are column 'b', the last" in " ".join(shown.stderr.split())


def test_a_table_beside_samples_of_a_pool_says_that_their_encoding_is_not_known() -> None:
    samples = gs.Samples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(InvalidInput, match="encoding is not known"):
        read_second(Path("test.csv"), None, samples)
