"""Studies at smoke scale: a part runs when the first test asks for it, once, whichever process that test is in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gapscope.cli.study import load_study
from gapscope_studies.kit.study import RunSettings, run_study

# parts that `make test` runs: together they use every way in which a study trains, measures, judges and draws
QUICK = {
    "forouzesh2021": ("fig2b", "fig2d", "fig10cd", "fig11d", "fig13", "cifar100"),
    "luo2019": ("fig1a", "fig1b", "table1", "dynamics", "fig2ef", "fig4"),
    "overfitting_alarm": ("tuning",),
    "szolnoky2022": ("tuning", "table1", "bench", "table2_fc", "fig3"),
    "zhao2022": ("fig1", "fig2", "fig3ab", "fig3cd", "fig3e"),
}


def parts(study: str, names: Any = None) -> list[Any]:
    """Names of a study's parts as parameters of a test; those that are not quick are slow."""
    names = [part.name for part in load_study(study).parts] if names is None else names
    return [
        pytest.param(study, name, marks=() if name in QUICK[study] else pytest.mark.slow, id=f"{study}-{name}")
        for name in names
    ]


class SmokeStudy:
    """One study at smoke scale, in a folder that all processes of a test run share; hold `lock` to train in it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.study = load_study(name)
        self.setting = RunSettings(scale="smoke", work=folder / "work", workers=1, say=lambda line: None)
        self.results = folder / "results" / name / "smoke"
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder / "tests.lock")

    def content(self, part: str) -> Any:
        """What a part wrote; it is run if it has not been."""
        with self.lock:
            run_study(self.study, self.setting, self.results.parents[1], parts=[part])
        return json.loads((self.results / f"{part}.json").read_text())

    def page(self, part: str) -> str:
        """The page of a part."""
        self.content(part)
        return (self.results / f"{part}.md").read_text()

    def done(self) -> set[str]:
        """Names of the parts that were run."""
        return {path.stem for path in self.results.glob("*.json")}


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A temporary folder of this test run, the same in all its processes."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
