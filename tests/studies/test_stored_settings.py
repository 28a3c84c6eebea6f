"""Stored results were made with the committed settings, or their page says what was another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import DataNotFound
from gapscope.base.files import read_json
from gapscope.base.specs import RunSpec
from gapscope.cli.study import load_study
from gapscope_studies.kit.pool import in_words
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.szolnoky2022.setups import make_setup

RESULTS = Path(__file__).parents[2] / "results"
STUDIES = ("forouzesh2021", "luo2019", "szolnoky2022", "zhao2022")
# of luo2019 and zhao2022: they train more than one pool
SEVERAL = {
    "excess",
    "conditions",
    "fig1",
    "fig2",
}
STORED = [
    (name, path.stem)
    for name in STUDIES
    for path in sorted((RESULTS / name / "small").glob("*.json"))
    if not (path.stem in SEVERAL and name in ("luo2019", "zhao2022"))
]


class Captured(Exception):
    """The specs of a part, which ends before anything is trained."""


class Capture(RunSettings):
    """Settings that raise what a part would train or evaluate."""

    def train(self, pool: str, specs: Any, **options: Any) -> Any:
        raise Captured(True, list(specs))

    def cached(self, name: str, jobs: Any) -> Any:
        specs = [
            argument for job in jobs.values() if isinstance(job, partial) for argument in job.args
        ]
        raise Captured(False, [spec for spec in specs if isinstance(spec, RunSpec)])


def settings_of(study: str, part: str, work: Path) -> dict[str, str]:
    """Epochs and batch sizes, and networks and seeds if the part trains them first; empty if it trains nothing."""
    run: Any = load_study(study).part(part).run
    try:
        run(Capture(scale="small", work=work, workers=1, say=lambda line: None))
    except Captured as captured:
        trains, specs = captured.args
        values = {"epochs": in_words(spec.training.epochs for spec in specs)} if specs else {}
        if trains:
            values["networks"] = str(len({spec.id for spec in specs}))
            values["seeds"] = str(len({spec.seed for spec in specs}))
        elif study == "szolnoky2022" and part in ("fig3", "fig4"):  # they tune first
            values["seeds"] = str(
                make_setup(RunSettings(scale="small", work=work), run.keywords["name"]).runs
            )
        return values
    except DataNotFound as missing:
        pytest.skip(str(missing))
    return {}


@pytest.mark.thorough
@pytest.mark.parametrize(("study", "part"), STORED)
def test_a_stored_part_has_the_committed_settings_or_says_so(
    study: str, part: str, tmp_path: Path
) -> None:
    content = read_json(RESULTS / study / "small" / f"{part}.json")
    stored = {row["what"]: row["here"] for row in content["stands_in_for"]}
    if "epochs" not in stored:
        pytest.skip("nothing is trained")
    committed = settings_of(study, part, tmp_path)
    changed = [f"{name} {stored[name]} (now {value})" for name, value in committed.items()
               if name in stored and stored[name] != value]  # fmt: skip
    assert changed == content.get("outdated", [])
