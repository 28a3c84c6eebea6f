"""Print the lowest version of every direct dependency that pyproject.toml allows, one pin per line.

A constraints file for pip: `python .ci/lowest.py > lowest.txt; pip install -c lowest.txt .`
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

for requirement in PROJECT["dependencies"]:
    bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
    if bound is None:
        raise SystemExit(
            f"A dependency needs a lower bound, such as numpy>=2.0; got {requirement!r}."
        )
    print(f"{bound[1]}=={bound[2]}")
