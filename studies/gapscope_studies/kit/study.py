"""What a study is made of, how its parts are run and resumed, and what they leave in results/."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.environment import environment
from gapscope.base.errors import InvalidInput, check_choice, nearest
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.records import Record
from gapscope.base.specs import Spec
from gapscope.pools import Pool

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how large a part is run.

    Attributes:
        scale: "smoke" (seconds), "small" (minutes on two cores, real data) or "paper".
        work: Folder for pools of trained networks; a part that was stopped goes on from what is there.
        workers: Number of processes.
        data_root: Where the data lie; None looks in the usual places.
        say: Called with one line about each finished step.
    """

    scale: str
    work: Path
    workers: int = 2
    data_root: str | None = None
    say: Callable[[str], None] = print

    def choose(self, *, smoke: Any, small: Any, paper: Any) -> Any:
        """Return the value for this scale."""
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def train(self, pool: str, specs: Sequence[Spec], **options: Any) -> list[Record]:
        """Train and measure what is missing of `specs` in the pool of this name; return all their records in order."""
        done = 0

        def tell(record: Record) -> None:
            nonlocal done
            done += 1
            gap = f"gap {record.gap:.3f}" if record.status == "finished" else record.message
            self.say(f"  {pool}: {done} more networks trained ({record.id}: {record.status}, {gap})")

        target = Pool(self.work / pool)
        return target.run(specs, workers=self.workers, data_root=self.data_root, on_record=tell, **options)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one part found.

    Attributes:
        numbers: Everything that was computed, as plain values (paper's figures beside ours).
        tables: Name -> data frame, written as Markdown.
        figures: Name -> matplotlib figure, written as SVG.
        verdict: What holds and what does not, in a few sentences with figures.
        seeds: Seeds that were used.
    """

    numbers: Mapping[str, Any]
    tables: Mapping[str, pandas.DataFrame] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    verdict: str = ""
    seeds: Sequence[int] = ()


@dataclass(frozen=True)
class Part:
    """One table or figure of a paper: its name, what it shows, and the function that makes it."""

    name: str
    title: str
    run: Callable[[Setting], Outcome]


@dataclass(frozen=True)
class Study:
    """All parts of one paper."""

    name: str
    title: str
    reference: str
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        """Look a part up by name.

        Args:
            name: Its name.

        Returns:
            The part.

        Raises:
            InvalidInput: There is none of this name; the nearest is named.
        """
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        raise InvalidInput(f"Study {self.name} has no part {name!r}; it has {', '.join(names)}.{nearest(name, names)}")

    def run(
        self, results: Path, *, scale: str, work: Path, parts: Sequence[str] = (), again: bool = False, **options: Any
    ) -> list[Path]:
        """Run the parts that have no result yet; see `run_study`. `options` are further fields of Setting."""
        return run_study(self, Setting(scale=scale, work=work, **options), results, parts=parts, again=again)


def _markdown_table(table: pandas.DataFrame) -> str:
    """Data frame as a Markdown table; numbers as they are shown, with four digits."""

    def cell(value: Any) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    head = [cell(name) for name in table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def _save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG with its text as text: small, and the same bytes for the same numbers."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def _write(part: Part, outcome: Outcome, folder: Path, facts: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    page = [f"# {part.title}", "", outcome.verdict, ""]
    for name, table in outcome.tables.items():
        page += [f"## {name}", "", _markdown_table(table)]
    for name, figure in outcome.figures.items():
        path = folder / f"{part.name}-{name}.svg"
        _save(figure, path)
        page += [f"![{name}]({path.name})", ""]
    page += [f"Scale {facts['scale']}, seeds {facts['seeds']}, {facts['seconds']:.0f} s, torch "
             f"{facts['environment']['torch']}."]  # fmt: skip
    write_atomically(folder / f"{part.name}.md", "\n".join(page) + "\n")
    content = {**facts, "verdict": outcome.verdict, "numbers": outcome.numbers}
    write_atomically(folder / f"{part.name}.json", to_json(content, indent=1) + "\n")


def _write_index(study: Study, folder: Path, scale: str) -> None:
    lines = [f"# {study.title}", "", study.reference, "", f"Scale: {scale}.", ""]
    for part in study.parts:
        path = folder / f"{part.name}.json"
        if path.exists():
            lines += [f"- [{part.title}]({part.name}.md): {read_json(path)['verdict']}"]
        else:
            lines += [f"- {part.title}: not run at this scale yet"]
    write_atomically(folder / "README.md", "\n".join(lines) + "\n")


def run_study(
    study: Study,
    setting: Setting,
    results: Path,
    *,
    parts: Sequence[str] = (),
    again: bool = False,
) -> list[Path]:
    """Run the parts of a study that have no result yet, and write each to `results/<study>/<scale>/`.

    Args:
        study: The study.
        setting: Scale, work folder, workers, data.
        results: Folder of all results.
        parts: Names of the parts to run; empty runs all.
        again: Whether to run parts that have a result already (trained networks are kept, and the time that the part
            took before is counted in).

    Returns:
        Paths of the JSON files written by this call.
    """
    check_choice("scale", setting.scale, SCALES)
    chosen = [study.part(name) for name in parts] if parts else list(study.parts)
    folder, written = results / study.name / setting.scale, []
    for part in chosen:
        path = folder / f"{part.name}.json"
        if path.exists() and not again:
            setting.say(f"{part.name}: done already ({path})")
            continue
        setting.say(f"{part.name}: {part.title}")
        spent = read_json(path)["seconds"] if path.exists() else 0.0
        start = time.perf_counter()
        outcome = part.run(setting)
        facts = {
            "study": study.name,
            "part": part.name,
            "title": part.title,
            "scale": setting.scale,
            "seeds": list(outcome.seeds),
            "seconds": round(spent + time.perf_counter() - start, 1),
            "workers": setting.workers,
            "environment": environment(),
        }
        _write(part, outcome, folder, facts)
        _write_index(study, folder, setting.scale)
        written.append(path)
    return written
