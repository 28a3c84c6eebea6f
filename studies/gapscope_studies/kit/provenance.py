"""Provenance of results: commit of the code, history of the settings."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DECLARED = "changed_after_test_results"


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command ("" outside a repository)."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def commit() -> str:
    """Return the commit of this code, with "+" for changed files ("" outside a repository)."""
    folder = Path(__file__).parents[1]
    result = git(folder, "rev-parse", "HEAD")
    return result + (
        "+"
        if result and git(folder, "status", "--porcelain", "-uno", "--", ".", "../../src")
        else ""
    )


def settings_history(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the commits of each settings file, oldest first, and its declared changes."""
    rows = []
    for path in dict.fromkeys(path.resolve() for path in paths):
        log = git(path.parent, "log", "--follow", "--format=%h %as", "--", path.name)
        commits = [
            dict(zip(("commit", "date"), line.split(), strict=True))
            for line in reversed(log.splitlines())
        ]
        # whether test results had been seen cannot be read off the commits: the file declares it
        declared = tomllib.loads(path.read_text("utf-8")).get(DECLARED, "")
        rows.append({"file": path.name, "commits": commits, DECLARED: declared})
    return rows


def history_in_words(history: Iterable[dict[str, Any]]) -> str:
    """Return one sentence per file on its commits and on changes after test results."""
    texts = []
    for row in history:
        commits = row["commits"]
        dates = sorted({item["date"] for item in commits})
        names = ", ".join(item["commit"] for item in commits)
        when = f"of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
        texts.append(f"`{row['file']}` has {len(commits)} commits {when} ({names})." if commits else
                     f"`{row['file']}` is not in a repository.")  # fmt: skip
        texts.append(
            f"Changed after test results had been seen: {row[DECLARED] or 'nothing that is declared.'}"
        )
    return " ".join(texts)
