"""Every kind of stored file, damaged in every way, met by every command: a result or one sentence, never a traceback.

`make test` takes a fraction of the table, `make slow` all of it. What counts is that no other exception gets through,
that no command waits for ever, and that one damaged file never hides the networks beside it.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy
import pandas
import pytest

from gapscope.base.errors import GapscopeError
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.pools import Grid, Pool
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.training.loop import train
from support.commands import Done, gapscope
from torture.damages import BYTES, Damage, json_damages, tensor_damages

GRID = """
measures = ["accuracy", "parameter_norm"]
[base.data]
train_size = 40
test_size = 20
[base.training]
epochs = 3
momentum = 0.9
[base.network]
options = { width = 4 }
[axes]
"seed" = [0, 1]
"""
FILES = ("record.json", "history.jsonl", "weights.safetensors", "checkpoint.safetensors", "pool.json", "estimator.json",
         "grid.toml")  # fmt: skip
SHARE = 6


pytestmark = pytest.mark.usefixtures("without_workers")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks with an estimator, and what the first left after its second epoch."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "grid.toml").write_text(GRID)
    assert gapscope("pool", "run", folder / "grid.toml", folder / "two").returncode == 0
    rng = numpy.random.default_rng(0)
    readings = pandas.DataFrame(
        {"accuracy": rng.random(8), "parameter_norm": 4 + 8 * rng.random(8)}
    )
    GapEstimator(features=tuple(readings.columns.astype(str))).fit(readings, rng.random(8)).save(
        folder / "two" / "estimator.json"
    )
    spec = next(iter(Grid.from_toml(folder / "grid.toml")))
    problem, _ = prepare_data(spec, None)
    short = spec.replace({"training.epochs": 2}).training
    train(
        network_from_spec(spec, problem),
        problem.train,
        short,
        seed=spec.seed,
        test=problem.test,
        folder=folder,
    )
    return folder


def damages_of(file: str, whole: Path) -> dict[str, Damage]:
    run = min((whole / "two/runs").iterdir())
    if file == "record.json":
        return BYTES | json_damages(run / file, depth=2)
    if file == "history.jsonl":
        return BYTES | json_damages(run / file, depth=1, lines=True)
    if file in ("pool.json", "estimator.json"):
        return BYTES | json_damages(whole / "two" / file, depth=2)
    if file == "grid.toml":
        return BYTES
    return BYTES | tensor_damages(whole / file if file.startswith("checkpoint") else run / file)


class Torture:
    """A copy of the small pool in which one file is damaged, and the commands that meet it."""

    def __init__(self, whole: Path, folder: Path, file: str, damage: Damage) -> None:
        self.pool, self.grid, self.file = folder / "pool", folder / "grid.toml", file
        shutil.copytree(whole / "two", self.pool)
        shutil.copy(whole / "grid.toml", self.grid)
        self.run = self.pool / "runs" / next(iter(Grid.from_toml(self.grid))).id
        self.victim = {
            "pool.json": self.pool,
            "estimator.json": self.pool,
            "grid.toml": folder,
        }.get(file, self.run) / file
        if file == "checkpoint.safetensors":  # of a network that is not finished
            (self.run / "record.json").unlink()
            for name in (file, "history.jsonl"):
                shutil.copy(whole / name, self.run)
        damage(self.victim)

    def commands(self) -> dict[str, Callable[[], object]]:
        weights = self.run / "weights.safetensors"
        return {
            "status": lambda: gapscope("pool", "status", self.grid, self.pool),
            "missing": lambda: Pool(self.pool).missing(
                Grid.from_toml(self.grid), measures=["accuracy"]
            ),
            "table": lambda: Pool(self.pool).to_pandas(),
            "report": lambda: gapscope("report", self.pool),
            "fit": lambda: gapscope(
                "gap", "fit", self.pool, "--output", self.pool / "estimator.json"
            ),
            "predict": lambda: gapscope("gap", "predict", self.pool, weights),
            "measure": lambda: gapscope("measure", weights, "--measure", "parameter_norm"),
            "more measures": lambda: Pool(self.pool).run(
                Grid.from_toml(self.grid), measures=["loss"]
            ),
            "run": lambda: gapscope("pool", "run", self.grid, self.pool),
        }

    def outcome(self, command: str) -> str:
        """Result of a command: "works", "clear" (one sentence) or "raw" with what came through."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                done = self.commands()[command]()
            except (GapscopeError, SystemExit):
                return "clear"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | pytest.fail.Exception):
                    raise
                return f"raw: {type(error).__name__}: {str(error)[:150]}"
        if isinstance(done, Done) and "Traceback" in done.stderr:
            return f"raw: {done.stderr[-150:]}"
        return "clear" if isinstance(done, Done) and done.returncode else "works"


def tortured(
    whole: Path, folder: Path, cases: list[tuple[str, str]]
) -> tuple[Counter[str], list[str]]:
    """Meet each damage with each command; return the counts of outcomes, and what went wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    tables = {file: damages_of(file, whole) for file in FILES}
    for number, (file, name) in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        torture = Torture(whole, place, file, tables[file][name])
        for command in torture.commands():
            outcome = torture.outcome(command)
            counts[outcome.partition(":")[0]] += 1
            if outcome.startswith("raw"):
                wrong.append(f"{file}, {name}, {command}: {outcome}")
        other = max((torture.pool / "runs").iterdir(), key=lambda run: run != torture.run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            if torture.victim.name != "pool.json" and other.name not in {
                record.id for record in Pool(torture.pool)
            }:
                wrong.append(f"{file}, {name}: the other network is hidden")
        shutil.rmtree(place, ignore_errors=True)
    return counts, wrong


@pytest.fixture(scope="module")
def table(whole: Path) -> list[tuple[str, str]]:
    return [(file, name) for file in FILES for name in damages_of(file, whole)]


@pytest.mark.thorough
def test_all_commands_work_where_nothing_is_damaged(whole: Path, tmp_path: Path) -> None:
    """Else the tables would count refusals that have nothing to do with the damage."""
    torture = Torture(whole, tmp_path, "estimator.json", lambda path: None)
    # two networks are too few for `fit`; everything else must work
    outcomes = {
        command: torture.outcome(command) for command in torture.commands() if command != "fit"
    }
    assert set(outcomes.values()) == {"works"}, outcomes


@pytest.mark.thorough
def test_a_share_of_the_damages_ends_well(
    whole: Path, table: list[tuple[str, str]], tmp_path: Path
) -> None:
    share = random.Random(0).sample(table, SHARE)
    counts, wrong = tortured(whole, tmp_path, share)
    assert not wrong, "\n".join(wrong)
    assert counts["works"] > SHARE and counts["clear"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", FILES)
def test_every_damage_ends_well(
    whole: Path, table: list[tuple[str, str]], tmp_path: Path, file: str
) -> None:
    cases = [case for case in table if case[0] == file]
    counts, wrong = tortured(whole, tmp_path, cases)
    print(f"{file}: {len(cases)} damages, {dict(counts)}")
    assert not wrong, "\n".join(wrong)
