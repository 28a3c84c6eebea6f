"""What was read of every network that was trained: kept beside the code, so that none is trained twice.

`python -m gapscope_studies.expected_accuracy.stored_results WORK` takes up the answers of a work folder; deleting
networks.jsonl trains all of them again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gapscope.base.files import read_json, to_json, write_atomically
from gapscope_studies.expected_accuracy.pools import Configuration

KEPT = Path(__file__).with_name("networks.jsonl")
Row = dict[str, Any]


def job_name(configuration: Configuration) -> str:
    """Name of the job that trains and reads a network; short enough for a file."""
    return configuration.name[:200]


def load_results() -> dict[str, Row]:
    """Name of the job -> what was found, of every network so far."""
    if not KEPT.exists():
        return {}
    lines = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: {key: _number(value) for key, value in line["found"].items()} for line in lines}


def _number(value: Any) -> Any:
    """Infinities and NaN are strings in the file."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def import_results(work: Path) -> int:
    """Add the answers of a work folder to the file, each with its commit and date; return how many were new."""
    known = load_results()
    found = {path.stem: read_json(path)["answer"] for path in sorted((work / "networks").glob("*.json"))}
    found = {name: answer for name, answer in found.items() if name not in known}
    lines = [to_json({"name": name, "found": row}) for name, row in {**known, **found}.items()]
    write_atomically(KEPT, "".join(line + "\n" for line in lines))
    return len(found)


if __name__ == "__main__":
    print(f"{import_results(Path(sys.argv[1]))} networks resumed into {KEPT}")
