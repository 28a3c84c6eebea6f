"""CPU seconds and peak memory of every verb with `time_budget=`, for networks and data as users bring them.

    HF_HUB_OFFLINE=1 python benchmarks/time_budgets/run.py --out benchmarks/results/time_budgets.json

Needs the packages of tests/pretrained.txt, and flowers12, trash6 and banking77 below GAPSCOPE_DATA. Each cell, a case
and a verb with a budget, runs in a process of its own, one thread; imports and the building of the case do not count. A
run that was stopped continues. A cell is stopped at three times its budget.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUDGETS = (30, 60)
# verbs that may exceed their budget by this factor
TOLERANCE = 1.2
STOPPED_AT = 3


def minilm() -> tuple[Any, Any]:
    """Return MiniLM with a new head, and 400 questions to a bank."""
    import torch

    from gapscope_studies.pretrained.features import build_text_encoder, load
    from gapscope_studies.pretrained.ntk import with_head
    from gapscope_studies.pretrained.ntk_forecast import TextClassifier

    texts, y, _ = load("banking77", "texts", 400, 1)
    encoder, tokenizer = build_text_encoder(pretrained=True)
    encoder.pooler = None
    tokens = tokenizer(
        texts[:400], padding=True, truncation=True, max_length=48, return_tensors="pt"
    )
    x = torch.stack([tokens["input_ids"], tokens["attention_mask"]], 1)
    classes, y = y[:400].unique(return_inverse=True)
    return with_head(TextClassifier(encoder), len(classes), 0), (x, y)


def resnet50() -> tuple[Any, Any]:
    """Return ResNet-50 with random weights, and 300 photographs of waste of 64 pixels."""
    import torch
    import transformers

    from gapscope_studies.pretrained.features import load

    x, y, _ = load("trash6", "photographs", 300, 1)
    x = torch.nn.functional.interpolate(x[:300], (64, 64), mode="area")
    torch.manual_seed(0)
    t: Any = transformers
    return t.ResNetForImageClassification(t.ResNetConfig(num_labels=6)), (x, y[:300])


def efficientnet() -> tuple[Any, Any]:
    """Return EfficientNet-Lite0 with a new head, and 720 photographs of flowers of 160 pixels."""
    import torch

    import gapscope as gs
    from gapscope.data.location import data_root
    from gapscope_studies.pretrained.features import build
    from gapscope_studies.pretrained.ntk import with_head

    photographs = gs.data.ImageFolder(data_root() / "flowers12" / "train", side=160)
    x = torch.stack([picture for picture, _ in photographs])
    y = torch.tensor([label for _, label in photographs.samples])
    return with_head(build("EfficientNet-Lite0"), int(y.max()) + 1, 0), (2 * x - 1, y)


def wide_table() -> tuple[Any, Any]:
    """Return a fully connected network with batch norm, and 2,000 rows of 20,000 columns."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 20_000, generator=generator)
    y = (x[:, :10].sum(1) + torch.randn(2000, generator=generator) > 0).long()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20_000, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)), (
        x,
        y,
    )


def many_classes() -> tuple[Any, Any]:
    """Return a fully connected network with batch norm, and 5,000 rows of 1,000 classes."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    y = torch.arange(5000) % 1000
    x = torch.randn(1000, 32, generator=generator)[y] + 0.3 * torch.randn(
        5000, 32, generator=generator
    )
    torch.manual_seed(0)
    layers = [
        nn.Linear(32, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Linear(256, 1000)), (x, y)


CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "MiniLM, 400 texts": minilm,
    "ResNet-50, 300 images": resnet50,
    "EfficientNet-Lite0, 720 photographs": efficientnet,
    "2,000 rows of 20,000 columns": wide_table,
    "1,000 classes": many_classes,
}


def _rank(network: Any, data: Any, budget: float) -> Any:
    import copy

    import gapscope as gs

    return gs.rank_networks({"a": network, "b": copy.deepcopy(network)}, data, time_budget=budget)


def _verb(name: str) -> Callable[[Any, Any, float], Any]:
    def run(network: Any, data: Any, budget: float) -> Any:
        import gapscope as gs

        return getattr(gs, name)(network, data, time_budget=budget)

    return run


def _advise(network: Any, data: Any, budget: float) -> Any:
    import gapscope as gs

    return gs.advise_batch_norm(
        network, data, batch_size=32, new_batch_size=128, time_budget=budget
    )


VERBS: dict[str, Callable[[Any, Any, float], Any]] = {
    name: _verb(name)
    for name in (
        "forecast_accuracy",
        "find_label_issues",
        "estimate_label_noise",
        "estimate_accuracy",
        "check",
        "measure",
    )
} | {"rank_networks": _rank, "advise_batch_norm": _advise}


def cell(case: str, verb: str, budget: float) -> dict[str, Any]:
    """Run one verb in this process, and return its cost and its answer."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    network, data = CASES[case]()
    network.eval()
    import gapscope as gs

    # what is imported at a first call
    first = gs.build_network("fully_connected", input_shape=(4,), n_outputs=2)
    gs.forecast_accuracy(first, (torch.randn(20, 4), torch.arange(20) % 2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    limit = math.ceil(start + STOPPED_AT * budget)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    try:
        answer = str(VERBS[verb](network, data, budget))
        kind = "answer"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
        kind = "error"
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "megabytes": (peak - before) / 1024,
        "peak_megabytes": peak / 1024,
        kind: answer[:1500],
    }


def _run(case: str, verb: str, budget: float) -> dict[str, Any]:
    """Run one cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", case, verb, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == -signal.SIGXCPU:
        return {"stopped": STOPPED_AT * budget}
    if done.returncode:
        return {"error": f"exit status {done.returncode}: {done.stderr[-300:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def _outcome(cell: dict[str, Any]) -> str:
    """Return the CPU seconds of a cell, marked if there was no answer, or that it was stopped."""
    if "stopped" in cell:
        return f"stopped at {cell['stopped']:.0f}"
    if "seconds" not in cell:
        return "failed"
    return f"{cell['seconds']:.1f}{' (no answer)' if 'error' in cell else ''}"


def summarize(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per case and verb: outcome by budget, "-" for cells that have not been run, and peak memory."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        for verb in VERBS:
            of_budget = {
                cell["budget"]: cell
                for cell in cells
                if (cell["case"], cell["verb"]) == (case, verb)
            }
            if of_budget:
                peak = max(cell.get("peak_megabytes", 0.0) for cell in of_budget.values()) / 953.7
                outcomes = {f"{budget} s": _outcome(of_budget[budget]) if budget in of_budget else "–"
                            for budget in BUDGETS}  # fmt: skip
                rows.append(
                    {"case": case, "verb": verb, **outcomes, "peak": f"{peak:.1f}" if peak else "–"}
                )
    return rows


def main() -> None:
    """Run the missing cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("time_budgets.json"))
    parser.add_argument("--budgets", type=float, nargs="*", default=list(BUDGETS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="parts of names")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS))
    parser.add_argument("--again", action="store_true", help="repeat finished cells")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        case, verb, budget = arguments.cell
        print(json.dumps(cell(case, verb, float(budget))))
        return
    from gapscope.base.environment import environment

    cells: list[dict[str, Any]] = []
    if arguments.out.exists():
        cells = json.loads(arguments.out.read_text())["cells"]
    for budget in arguments.budgets:
        for case in CASES:
            if not any(part in case for part in arguments.cases):
                continue
            for verb in arguments.verbs:
                key = {"case": case, "verb": verb, "budget": budget}
                old = [row for row in cells if {name: row[name] for name in key} == key]
                if old and not arguments.again:
                    continue
                row = key | _run(case, verb, budget)
                print({name: value for name, value in row.items() if name != "answer"}, flush=True)
                cells = [other for other in cells if other not in old] + [row]
                content = {"title": "time budgets", "tolerance": TOLERANCE, "cells": cells,
                           "run": len(cells), "planned": len(BUDGETS) * len(CASES) * len(VERBS),
                           "summary": summarize(cells),
                           "environment": environment()}  # fmt: skip
                arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
