"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gapscope.cli import app
from gapscope.cli.doctor import _data_rows, torchvision_problem
from support.commands import gapscope

CODE = "import sys; from gapscope.cli import main; sys.argv[0] = 'gapscope'; main()"
GRID = """
measures = ["parameter_norm", "distance_from_initialization"]
[base.data]
train_size = 60
test_size = 60
[base.training]
epochs = 3
optimizer = "adam"
learning_rate = 0.01
[axes]
"data.label_noise" = [0.0, 0.3, 0.6]
"network.options.width" = [4, 8, 16, 32]
"""


pytestmark = pytest.mark.usefixtures("without_workers")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "grid.toml").write_text(GRID)
    done = gapscope("pool", "run", folder / "grid.toml", folder / "pool")
    assert done.returncode == 0, done.stderr
    assert "12 networks, 0 done, 12 to run with 2 workers" in done.stdout
    assert "12 finished, 0 diverged, 0 failed" in done.stdout
    assert "[12/12]" in done.stderr and "fully_connected on digits, label noise" in done.stderr
    return folder / "pool"


def test_help_lists_every_verb_and_loads_nothing_heavy() -> None:
    done = gapscope("--help")
    assert done.returncode == 0 and "[[cases]]" in gapscope("pool", "run", "--help").stdout
    assert all(
        verb in done.stdout
        for verb in (
            "demo",
            "measure",
            "compare",
            "study",
            "data",
            "pool",
            "estimate",
            "list",
            "report",
            "doctor",
        )
    )
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", CODE, "--help"], capture_output=True, text=True
    ).stderr
    modules = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in loaded.splitlines()}
    assert "typer" in modules and not modules & {
        "torch",
        "numpy",
        "pandas",
        "sklearn",
        "scipy",
        "matplotlib",
        "pooch",
    }


@pytest.mark.thorough
def test_running_again_does_nothing(pool: Path) -> None:
    done = gapscope("pool", "run", pool.parent / "grid.toml", pool)
    assert done.returncode == 0 and "12 done, 0 to run" in done.stdout
    state = gapscope("pool", "status", pool.parent / "grid.toml", pool)
    assert state.stdout == "12 networks: 12 finished, 0 diverged, 0 failed, 0 started, 0 waiting\n"


def _wait_for_a_checkpoint(folder: Path) -> None:
    deadline = time.monotonic() + 300
    while not list(folder.glob("runs/*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)


def _endless_grid(folder: Path) -> Path:
    (folder / "grid.toml").write_text(GRID.replace("epochs = 3", "epochs = 100000"))
    return folder / "grid.toml"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_prints_how_to_continue(tmp_path: Path, number: signal.Signals) -> None:
    ended = threading.Event()

    def stop() -> None:
        _wait_for_a_checkpoint(tmp_path / "pool")
        os.kill(os.getpid(), number)
        # lost if it came within a callback of the garbage collector, such as that of hypothesis
        while not ended.wait(10):
            os.kill(os.getpid(), number)

    # a process of tests may ignore it
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopper = threading.Thread(target=stop)
        stopper.start()
        done = gapscope("pool", "run", _endless_grid(tmp_path), tmp_path / "pool")
        ended.set()
        stopper.join()
    finally:
        ended.set()
        signal.signal(signal.SIGINT, handler)
    assert done.returncode == 130 and "Run the same command again" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_with_workers_prints_how_to_continue(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [
        sys.executable,
        "-c",
        CODE,
        "pool",
        "run",
        str(_endless_grid(tmp_path)),
        str(tmp_path / "pool"),
    ]
    # a background job inherits an ignored SIGINT, which the command would rightly keep ignoring
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        _wait_for_a_checkpoint(tmp_path / "pool")
        process.send_signal(number)
        message = process.communicate(timeout=300)[1]
    finally:
        process.kill()
    assert (
        process.returncode == 130
        and "Run the same command again" in message
        and "Traceback" not in message
    )


@pytest.mark.thorough
def test_an_estimator_is_fitted_and_applied(pool: Path) -> None:
    done = gapscope("gap", "fit", pool)
    assert done.returncode == 0, done.stderr
    assert "fitted on 12 networks" in done.stdout and "mean gap" in done.stdout
    network = next(pool.glob("runs/*/weights.safetensors"))
    answer = gapscope("gap", "predict", pool, network)
    assert answer.returncode == 0, answer.stderr
    assert (
        answer.stdout.startswith("gap ")
        and "90 % interval" in answer.stdout
        and "in domain: yes" in answer.stdout
    )
    answer = gapscope("gap", "predict", pool, network, "--level", "0.99")
    assert "no interval: fitted on too few networks for an interval of 99 %" in answer.stdout
    foreign = pool.parent / "foreign.toml"
    foreign.write_text(
        GRID.replace('"network.options.width" = [4, 8, 16, 32]', '"network.name" = ["small_cnn"]')
    )
    assert gapscope("pool", "run", foreign, pool.parent / "foreign").returncode == 0
    network = next((pool.parent / "foreign").glob("runs/*/weights.safetensors"))
    answer = gapscope("gap", "predict", pool, network)
    assert (
        answer.returncode == 3
        and "gap: no estimate" in answer.stdout
        and "in domain: no" in answer.stdout
    )


@pytest.mark.thorough
def test_every_reading_command_has_json_output(pool: Path) -> None:
    first, second = sorted(pool.glob("runs/*/weights.safetensors"))[:2]
    status = json.loads(
        gapscope("pool", "status", pool.parent / "grid.toml", pool, "--json").stdout
    )
    assert status["total"] == status["finished"] == 12 and status["unreadable"] == 0
    run = json.loads(gapscope("pool", "run", pool.parent / "grid.toml", pool, "--json").stdout)
    assert (run["finished"], run["failed"]) == (12, 0) and len(
        {row["id"] for row in run["networks"]}
    ) == 12
    measured = json.loads(
        gapscope("measure", first, "--measure", "parameter_count", "--json").stdout
    )
    assert measured["id"] == first.parent.name and measured["unmeasured"] == {}
    compared = json.loads(
        gapscope("compare", first, second, "--measure", "parameter_norm", "--json").stdout
    )
    assert len(compared["rows"]) >= 2
    fitted = json.loads(gapscope("gap", "fit", pool, "--json").stdout)
    assert fitted["networks"] == 12 and {row["model"] for row in fitted["quality"]} >= {
        "estimator",
        "mean gap",
    }
    reported = json.loads(gapscope("report", pool, "--title", "Widths", "--json").stdout)
    assert (
        reported["title"] == "Widths"
        and reported["status"] == {"finished": 12}
        and reported["verdict"]
    )
    assert {row["measure"] for row in reported["measures"]} >= {
        "parameter_norm",
        "distance_from_initialization",
    }
    assert sorted(row["id"] for row in reported["networks"]) == sorted(
        path.name for path in (pool / "runs").iterdir()
    )
    assert all(abs(row["estimate"]["prediction"]) < 1 for row in reported["networks"])
    answers = json.loads(gapscope("gap", "predict", pool, first, second, "--json").stdout)[
        "answers"
    ]
    assert [row["network"] for row in answers] == [str(first), str(second)]


def test_a_pool_of_which_nothing_finished_is_a_failure(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("[base.data]\ntrain_size = 5000\n")
    done = gapscope("pool", "run", grid, tmp_path / "pool")
    assert done.returncode == 1 and "0 finished, 0 diverged, 1 failed" in done.stdout
    assert "train_size must be at most" in done.stderr and "--retry-failed" in done.stderr
    assert gapscope("pool", "run", grid, tmp_path / "pool").returncode == 1


def test_a_damaged_record_is_one_warning_and_hides_no_other(pool: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pool"
    shutil.copytree(pool, copy)
    first = min(copy.glob("runs/*/record.json"))
    first.write_text("{")
    done = gapscope("report", copy)
    assert done.returncode == 0 and "11 networks" in done.stdout
    assert done.stderr.startswith("note: 1 of 12 records") and "\n" not in done.stderr.strip()
    assert "1 unreadable" in gapscope("pool", "status", pool.parent / "grid.toml", copy).stdout


def test_a_record_without_weights_is_no_network(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    (run / "record.json").touch()
    for source in (run, tmp_path / "1"):
        done = gapscope("measure", source)
        assert done.returncode == 1 and f"no weights.safetensors. Delete {run}" in done.stderr


@pytest.mark.parametrize(
    "facts", [5, None, {}, {"spec": 3}, {"spec": {"dat": 1}}, {"spec": {}, "corruption": 1}]
)
def test_weights_with_wrong_metadata_get_one_sentence(tmp_path: Path, facts: object) -> None:
    import torch
    from safetensors.torch import save

    content = save({"a": torch.zeros(1)}, metadata={"facts": json.dumps(facts)})
    (tmp_path / "weights.safetensors").write_bytes(content)
    done = gapscope("measure", tmp_path / "weights.safetensors")
    assert done.returncode == 1 and done.stderr.startswith("error: ")


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


@pytest.mark.thorough
def test_help_has_no_section_of_a_docstring_and_names_no_form_of_table_alone() -> None:
    for path in _commands(typer.main.get_command(app)):
        shown = " ".join(gapscope(*path, "--help").stdout.split())
        assert not re.search(r"\b(Raises|Args|Returns):", shown), path
        assert "Label column of a CSV file" not in shown, path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "absent"), "must be a pool folder; it holds no pool.json"),
        (("pool", "run", "absent.toml", "x"), "there is no such file"),
        (
            ("gap", "predict", "absent", "absent.safetensors"),
            "Run: gapscope gap fit absent, which writes one if",
        ),
        (("gap", "predict", "my pool", "absent.safetensors"), "Run: gapscope gap fit 'my pool', "),
    ],
)
def test_errors_are_one_sentence_without_a_traceback(
    arguments: tuple[str, ...], message: str
) -> None:
    done = gapscope(*arguments)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and message in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_knows_a_torchvision_that_breaks_torch() -> None:
    assert torchvision_problem("0.28.0+cu130", "2.13.0+cpu") is not None
    for fine in ((None, "2.13.0+cpu"), ("0.28.0+cpu", "2.13.0+cpu"), ("0.28.0", "2.13.0+cpu")):
        assert torchvision_problem(*fine) is None
    done = gapscope("doctor", "--json")
    assert done.returncode == 0
    result = {row["what"]: row["found"] for row in json.loads(done.stdout)["rows"]}
    assert (
        result["torch"].startswith(".".join(version("torch").split(".")[:2]))
        and "mlflow-skinny" in result
    )


def test_doctor_lists_data_that_are_missing(tmp_path: Path) -> None:
    rows = {name: (place, state) for name, place, state in _data_rows(str(tmp_path))}
    assert rows["data digits"] == ("found", "ok")
    assert rows["data mnist"] == ("absent", "gapscope data fetch mnist")


def test_lists_as_json() -> None:
    rows = json.loads(gapscope("data", "list", "--json").stdout)["data_sets"]
    assert {"name", "task", "licence", "path"} <= set(rows[0]) and "digits" in {
        row["name"] for row in rows
    }
    assert json.loads(gapscope("data", "fetch", "digits", "--json").stdout) == {
        "files": [],
        "notes": [],
    }
    studies = json.loads(gapscope("study", "list", "--json").stdout)
    assert next(study for study in studies["studies"] if study["name"] == "zhao2022")["parts"]


def test_threads_that_wait_sleep_unless_the_user_decides(tmp_path: Path) -> None:
    code = "import os, sys; from gapscope.cli import main; sys.argv = ['gapscope', '--version']\n"
    code += "try: main()\nfinally: print(os.environ['OMP_WAIT_POLICY'])"
    settings = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    for given in ({}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=settings | given
        )
        assert done.stdout.split()[-1] == given.get("OMP_WAIT_POLICY", "PASSIVE")
