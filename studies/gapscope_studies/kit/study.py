"""Studies: their parts, running and resuming them, and their results."""

from __future__ import annotations

import itertools
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.environment import environment
from gapscope.base.errors import check_choice
from gapscope.base.files import read_json
from gapscope.base.specs import RunSpec
from gapscope.pools import Grid, Pool
from gapscope.pools.jobs import run_cached
from gapscope.results.records import Record
from gapscope_studies.kit.claims import Claim
from gapscope_studies.kit.data import check_complete
from gapscope_studies.kit.page import rewrite, write_index, write_part
from gapscope_studies.kit.provenance import commit, settings_history

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from gapscope.data.catalogue import Source
    from gapscope_studies.kit.summary import Finding

SCALES = ("smoke", "small", "paper")
Table = Any  # a pandas.DataFrame, whose own annotations allow each column to be a table


def _ignore(line: str) -> None:
    pass


def _time(function: Callable[[], Any]) -> dict[str, Any]:
    start = time.perf_counter()
    answer = function()
    return {"seconds": round(time.perf_counter() - start, 3), "answer": answer}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run: scale, folders and workers (picklable, silent in workers)."""

    scale: str  # "smoke" (seconds), "small" (minutes on two cores, real data) or "paper"
    work: Path  # folder of trained networks and cached results, from which a stopped run resumes
    workers: int = 2
    data_root: str | None = None
    device: str = "cpu"  # of the networks that pools train
    say: Callable[[str], None] = print  # called with one line about each finished step
    # seconds of every network and job of a part by name, cached ones included
    spent: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    # files that were read
    settings: list[Path] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self) -> Any:
        names = ("scale", "work", "data_root", "device")
        return partial(
            RunSettings, **{name: getattr(self, name) for name in names}, workers=1, say=_ignore
        ), ()

    def choose(self, *, smoke: Any, small: Any, paper: Any) -> Any:
        """Return the value for this scale."""
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def read(self, folder: Path | str, name: str = "") -> dict[str, Any]:
        """Return `<name>.toml` (default: the scale) from a folder or from the folder of a file."""
        folder = Path(folder)
        path = (folder.parent if folder.is_file() else folder) / f"{name or self.scale}.toml"
        self.settings.append(path)
        return tomllib.loads(path.read_text(encoding="utf-8"))

    def grid(self, folder: Path | str, name: str) -> list[RunSpec]:
        """Return the specs of table [grids.NAME] of `<scale>.toml`. See `gapscope.pools.Grid`."""
        grids = self.read(folder)["grids"]
        check_choice("grid", name, list(grids))
        return list(Grid.from_dict(grids[name], f"{self.scale}.toml: grids.{name}"))

    def _check_data(self, specs: Sequence[RunSpec]) -> None:
        """Raise before hours of tuning or training if the data of the paper's scale are missing or partial."""
        if self.scale == "paper":
            check_complete(specs, self.data_root)

    def train(self, pool: str, specs: Sequence[RunSpec], **options: Any) -> list[Record]:
        """Train and measure missing `specs` in a pool, and return all their records in order."""
        done = itertools.count(1)

        def report(record: Record) -> None:
            gap = f"gap {record.gap:.3f}" if record.status == "finished" else record.message
            self.say(
                f"  {pool}: {next(done)} more networks trained ({record.id}: {record.status}, {gap})"
            )

        self._check_data(specs)
        machine = {"workers": self.workers, "data_root": self.data_root, "device": self.device}
        records = Pool(self.work / pool).run(specs, on_record=report, **machine | options)
        self.spent.update({f"{pool}/{record.id}": record.seconds for record in records})
        return records

    def cached(self, name: str, jobs: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return the results of picklable functions, cached in `work`/`name`. See `run_cached`."""
        arguments = [argument for job in jobs.values() for argument in getattr(job, "args", ())]
        self._check_data([argument for argument in arguments if isinstance(argument, RunSpec)])
        jobs = {key: partial(_time, job) for key, job in jobs.items()}
        results = run_cached(
            jobs, self.work / name, workers=self.workers,
            on_done=lambda job, number, total: self.say(f"  {name}: {number} of {total}"),
        )  # fmt: skip
        self.spent.update(
            {f"{name}/{key}": float(result["seconds"]) for key, result in results.items()}
        )
        return {key: result["answer"] for key, result in results.items()}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of one part."""

    numbers: Mapping[str, Any]  # everything that was computed, as JSON-serializable values
    claims: Sequence[Claim] = ()
    stands_in_for: Sequence[
        Mapping[str, str]
    ] = ()  # rows "what", "paper", "here" (see `pool.scale_substitutions`)
    tables: Mapping[str, pandas.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    verdict: str = ""  # one or two sentences that a reader must know besides the claims
    seeds: Sequence[int] = ()
    data: Mapping[str, str] = field(default_factory=dict)  # data set -> hash of the samples used


@dataclass(frozen=True)
class Part:
    """One table or figure of a paper, or a part of our own."""

    name: str  # of its files in results/
    title: str
    run: Callable[[RunSettings], Outcome]
    says: str = ""  # statement of the paper: a claim that is "not run" until the part has a result
    ours: bool = False  # the part is not the paper's: it claims nothing before it has a result


@dataclass(frozen=True)
class Study:
    """Parts of one paper, the claims that no part tests, and the sentences of its findings.

    `data_sets` are those that `gapscope.load_dataset` loads by name in addition to its own.
    """

    name: str
    title: str
    reference: str
    parts: tuple[Part, ...]
    untested: tuple[Claim, ...] = ()
    findings: tuple[Finding, ...] = ()
    data_sets: tuple[Source, ...] = ()

    def part(self, name: str) -> Part:
        """Return the part of this name."""
        parts = {part.name: part for part in self.parts}
        check_choice(f"part of study {self.name}", name, list(parts))
        return parts[name]

    def claims(self, results: Path) -> list[tuple[str, str, bool]]:
        """Return outcome, sentence, and origin (ours or not) of every claim from stored results."""
        from gapscope_studies.kit.summary import rows_of

        return [
            (row.claim.outcome, row.claim.sentence, row.claim.ours)
            for row in rows_of(self, results)
        ]

    def rewrite_pages(self, results: Path) -> None:
        """Rewrite the stored pages and their index from the JSON files."""
        for scale in SCALES:
            folder = results / self.name / scale
            stored = [part.name for part in self.parts if (folder / f"{part.name}.json").exists()]
            for name in stored:
                rewrite(folder, name)
            if stored:
                write_index(folder, self, scale)

    @staticmethod
    def write_overview(studies: Sequence[Study], results: Path) -> None:
        """Write the pages about all studies."""
        from gapscope_studies.kit.overview import write_overview

        write_overview(studies, results)

    def run(
        self,
        results: Path,
        *,
        scale: str,
        work: Path,
        parts: Sequence[str] = (),
        again: bool = False,
        **options: Any,
    ) -> list[Path]:
        """Run the parts without a result. `options` are further fields of `RunSettings`."""
        return run_study(
            self, RunSettings(scale=scale, work=work, **options), results, parts=parts, again=again
        )


def _time_in_words(folder: Path, part: str, scale: str) -> str:
    """Return how long the stored run of a part took at this scale, else at the small one."""
    for stored in dict.fromkeys((scale, "small")):
        path = folder / stored / f"{part}.json"
        content = read_json(path) if path.exists() else {}
        seconds = content.get("seconds_of_runs") or content.get("seconds")
        if seconds:
            return f"{float(seconds) / 3600:.2g} h of one core when last run at the scale {stored}"
    return "not timed yet"


def run_study(
    study: Study,
    setting: RunSettings,
    results: Path,
    *,
    parts: Sequence[str] = (),
    again: bool = False,
) -> list[Path]:
    """Run parts without a result, and return the JSON files that were written.

    They are written to `results/<study>/<scale>/`. With `again` parts with a result are run, too: they load the cached
    networks, and the seconds of earlier runs are added.
    """
    check_choice("scale", setting.scale, SCALES)
    folder, written = results / study.name / setting.scale, []
    for part in [study.part(name) for name in parts] or study.parts:
        path = folder / f"{part.name}.json"
        if path.exists() and not again:
            setting.say(f"{part.name}: done already ({path})")
            continue
        setting.say(
            f"{part.name}: {part.title} ({_time_in_words(results / study.name, part.name, setting.scale)})"
        )
        spent = read_json(path)["seconds"] if path.exists() else 0.0
        start = time.perf_counter()
        setting.spent.clear()
        setting.settings.clear()
        outcome = part.run(setting)
        content = {
            "study": study.name,
            "part": part.name,
            "title": part.title,
            "scale": setting.scale,
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seeds": list(outcome.seeds),
            "seconds": round(spent + time.perf_counter() - start, 1),
            "runs": len(setting.spent),
            "seconds_of_runs": round(sum(setting.spent.values()), 1),
            "workers": setting.workers,
            "device": setting.device,
            "data": dict(outcome.data),
            "settings": settings_history(setting.settings),
            "environment": environment(),
            "says": part.says,
            "stands_in_for": [dict(row) for row in outcome.stands_in_for],
            "claims": [claim.to_dict() for claim in outcome.claims],
            "verdict": outcome.verdict,
            "numbers": outcome.numbers,
        }
        write_part(folder, content, outcome.tables, outcome.figures)
        write_index(folder, study, setting.scale)
        written.append(path)
    return written
