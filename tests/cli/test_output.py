"""What commands print: within the width of the screen, and in silence after the reader has left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import gapscope.cli as gapscope_cli
from gapscope.cli.output import print_lines, print_markdown, print_rows
from gapscope.cli.pipes import TolerantStream
from gapscope.cli.wording import in_a_shell
from support.commands import gapscope
from support.json_output import check_json, documented

LINE = "ntk_trace  3319.23  exact  summed squared gradient norms of the outputs of the network"
MODULE = """
import torch
from torch import nn

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


def build():
    torch.manual_seed(0)
    return nn.Linear(4, 2), (X, (X[:, 0] > 0).long())


def other():
    return nn.Linear(4, 2), build()[1]
"""


def test_lines_are_continued_below_their_last_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_lines(f"short\n{LINE}\n  - {'word ' * 20}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "short" and lines[1].startswith("ntk_trace  3319.23  exact  summed")
    assert lines[2].startswith(" " * 27) and max(map(len, lines)) <= 60
    monkeypatch.delenv("COLUMNS")
    print_lines(LINE)
    assert capsys.readouterr().out == f"{LINE}\n"


def test_names_from_files_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a\x1b]0;x\x07\r\x9b2J\u202e[red]\ud800é"
    shown = r"a\x1b]0;x\x07\r\x9b2J\u202e[red]\ud800é"
    monkeypatch.setenv("COLUMNS", "90")
    print_lines(name)
    print_lines(name, err=True)
    print_markdown(name)
    print_rows([{name: name}], name)
    print_rows([{name: name, "b": name, "c": name}], unfolded=[name, "b", "c"])  # one line per cell
    printed = capsys.readouterr()
    assert printed.err == f"{shown}\n" and printed.out.count(shown) == 9
    assert not set(printed.out) & {*name[1:2], "\x07", "\r", "\x9b", "\u202e", "\ud800"}


@pytest.mark.parametrize(
    "command",
    [
        ("measure", "output_models:build", "--measure", "ntk_trace", "--measure", "loss"),
        (
            "compare",
            "output_models:build",
            "output_models:other",
            "--measure",
            "parameter_norm",
            "--measure",
            "loss",
        ),
        ("check", "output_models:build", "--only", "GS101,GS104,GS105,GS203"),
        ("forecast", "output_models:build"),
        ("labels", "output_models:build"),
        ("list", "measures"),
        ("list", "penalties"),
        ("data", "list"),
        ("doctor",),
        ("study", "list"),
        ("study", "claims", "--results", "nowhere"),
        ("explain", "GS102"),
        ("explain",),
        ("leaderboard", "board.csv", "--permutations", "20"),
    ],
)
def test_every_command_fits_sixty_columns(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output_models.py").write_text(MODULE)
    rows = [f"{k / 40},{k % 4},{k % 5},{(k * 7) % 40},{k}" for k in range(40)]
    (tmp_path / "board.csv").write_text(
        "gap,hp.width,hp.depth,m.other,m.a_long_name_of_a_measure\n" + "\n".join(rows)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    done = gapscope(*command)
    sys.modules.pop("output_models", None)
    assert done.returncode in (0, 1, 3) and done.stdout, done.stderr
    assert [line for line in done.stdout.splitlines() if len(line) > 60] == []


@pytest.mark.parametrize(
    "command",
    [
        ("check", "absent:build", "--html", "no/page.html"),
        ("labels", "absent:build", "--html", "no/page.html"),
        ("labels", "absent:build", "--csv", "."),
        ("leaderboard", "absent.csv", "--output", "no/board.json"),
    ],
)
def test_an_output_is_checked_before_the_work(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = gapscope(*command)  # the network does not even exist
    assert done.returncode == 1 and ("no such folder" in done.stderr or "a folder" in done.stderr)


def test_a_stream_whose_reader_has_left_discards_the_rest() -> None:
    reading, writing = os.pipe()
    stream = TolerantStream(os.fdopen(writing, "w"))
    stream.write("seen\n")
    stream.flush()
    assert os.read(reading, 10) == b"seen\n"
    os.close(reading)
    stream.write("lost\n")
    stream.flush()
    stream.write("lost as well\n")
    stream.flush()
    assert stream.writable() and stream.encoding.lower() == "utf-8"
    stream.close()


@pytest.mark.thorough
def test_a_command_goes_on_in_silence_after_its_reader_has_left() -> None:
    command = [
        sys.executable,
        "-c",
        "from gapscope.cli import main; main()",
        "list",
        "measures",
        "--json",
    ]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=True)
    os.close(writing)
    assert done.stderr == b""


def test_only_one_module_prints() -> None:
    folder = Path(gapscope_cli.__file__).parent
    calls = re.compile(r"\b(typer\.(secho|echo)|print|sys\.std\w+\.write)\(")
    assert [p.name for p in sorted(folder.glob("*.py")) if calls.search(p.read_text())] == [
        "output.py"
    ]


def test_messages_are_wrapped_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = gapscope("check", "a_module_that_does_not_exist:build")
    assert done.returncode == 1 and max(map(len, done.stderr.splitlines())) <= 60


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gapscope", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("gapscope ")


def test_paths_that_are_too_long_are_one_message() -> None:
    for arguments in (["check", "a" * 300], ["check", "module:build", "--html", "a" * 300]):
        done = gapscope(*arguments)
        assert done.returncode == 1 and done.stderr.startswith("error: aaa")
        assert "File name too long" in done.stderr and len(done.stderr) < 160


def test_a_full_disk_is_one_message_and_closed_streams_are_none(tmp_path: Path) -> None:
    # one module prints all of the output; the version is printed without loading torch
    command = f'"{sys.executable}" -m gapscope --version'
    for unbuffered in ("", "1"):
        full = subprocess.run(
            f"{command} > /dev/full", shell=True, stderr=subprocess.PIPE, text=True, check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
        message = full.stderr.splitlines()
        assert full.returncode == 1 and len(message) == 1
        assert message[0].startswith("error: The output could not be written")
    closed = subprocess.run(f"{command} >&- 2> err.txt", shell=True, cwd=tmp_path, check=False)
    assert closed.returncode == 0 and (tmp_path / "err.txt").read_text() == ""


def commands(group: Any, prefix: str = "") -> Iterator[str]:
    """Every command that takes --json, from the command line itself."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        elif any("--json" in parameter.opts for parameter in command.params):
            yield f"{prefix}{name}"


def test_the_json_of_every_command_is_documented() -> None:
    assert sorted(commands(typer.main.get_command(gapscope_cli.app))) == sorted(documented())


def test_a_wrong_key_or_type_or_a_missing_key_is_found() -> None:
    right = {"files": [{"path": "a", "bytes": 3}], "notes": []}
    check_json("data fetch", json.dumps(right))
    wrong = (
        {"files": [{"path": "a"}]},
        {"files": [{"path": "a", "bytes": 3.5}]},
        {"files": [], "more": 1},
        {"notes": [1]},
    )
    for content in ([], {}, {"files": []}, *({**right, **keys} for keys in wrong)):
        with pytest.raises(AssertionError):
            check_json("data fetch", json.dumps(content))


def test_advice_of_results_is_in_words_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    advice = (
        "Not measured of a: loss; reasons: .unmeasured. Then pass evidence=gs.rank_measures(POOL)."
    )
    print_lines(advice)
    assert capsys.readouterr().out == (
        "Not measured of a: loss; --json names the reasons. Then pass --evidence POOL.\n"
    )
    print_markdown("`gapscope.learning_curve`")  # pages of codes are about the functions
    assert capsys.readouterr().out == "`gapscope.learning_curve`\n"


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("Use `gapscope.embed`.", "Use `gapscope.embed` in Python."),
        ("Use gapscope.embed.", "Use `gapscope.embed` in Python."),
        ("Use `gapscope.learning_curve`.", "Use `gapscope learning-curve`."),
    ],
)
def test_backticks_enclose_what_stands_in_place_of_a_function(python: str, shell: str) -> None:
    assert in_a_shell(python) == shell


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("Pass time_budget=120.", "Pass --time-budget 120."),
        ("time_budget=0.5 was spent.", "--time-budget 0.5 was spent."),
        ("if they are a part, pass n_training=.", "if they are a part, pass --n-training."),
        ("Pass layer=, another one.", "In Python, pass layer=, another one."),
        (
            'For regression pass gs.Samples(x, y, task="regression").',
            'For regression return gs.Samples(x, y, task="regression") as the data of a module:function.',
        ),
        ("Use gs.learning_curve(train_fn, data).", "Use `gapscope learning-curve`."),
        ("Pass score=None for accuracy", "Omit --score for accuracy"),
    ],
)
def test_advice_names_options(python: str, shell: str) -> None:
    assert in_a_shell(python) == shell
    assert in_a_shell(shell) == shell


def test_typical_errors_name_no_arguments_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spoken.py").write_text(MODULE.replace("randn(60", "randn(160"))
    rows = "\n".join(f"{i % 7},{i % 11},{'Yes' if i % 2 else 'yes'}" for i in range(80))
    (tmp_path / "table.csv").write_text(f"a,b,label\n{rows}")
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    for arguments in (
        ("estimate", "spoken:build"),
        ("measure", "spoken:build", "--measure", "distance_from_initialization"),
        ("labels", "table.csv", "--target", "LABEL"),
        ("forecast", "table.csv"),
        ("compare", "spoken:build", "spoken:other", "--measure", "loss"),
    ):
        done = gapscope(*arguments)
        printed.append(done.stdout + done.stderr)
    assert "--n-training" in printed[0] and "Did you mean 'label'?" in printed[2]
    text = re.sub(
        r"gs\.Samples\(.*?\)|In Python, pass \w+=", "", " ".join(printed), flags=re.DOTALL
    )
    assert not re.findall(r"\b[a-z_]+=(?!=)|\bgs\.\w+|\.str\.", text)
