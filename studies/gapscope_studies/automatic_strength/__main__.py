"""`python -m gapscope_studies.automatic_strength`: train what is missing, and write results/automatic_strength."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope_studies.automatic_strength.judging import judged, rows_of, settings


def main() -> None:
    """Run the study at one scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="small", choices=("smoke", "small"))
    parser.add_argument("--work", type=Path, default=Path("study-work/automatic_strength"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--data-root")
    parser.add_argument("--finished-only", action="store_true", help="Judge what is trained, and train nothing.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wanted = settings(given.scale)
    rows = rows_of(wanted, given.work, given.data_root, train_missing=not given.finished_only)
    numbers = judged(rows, wanted["tuned"]) | {"trainings": len(rows)}
    path = given.results / "automatic_strength" / given.scale / "judging.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"numbers": numbers, "settings": wanted, "rows": rows, "environment": environment()}
    write_atomically(path, to_json(content, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
