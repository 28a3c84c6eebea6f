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


class SmokeStudy:
    """One study at smoke scale, in a folder that all processes of a test run share; hold `lock` to train in it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.study = load_study(name)
        self.setting = RunSettings(
            scale="smoke", work=folder / "work", workers=1, say=lambda line: None
        )
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
