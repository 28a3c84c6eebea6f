"""Seconds per network of finished pools, and what a study of many such networks costs on 1, 8 and 64 cores or GPUs.

    python benchmarks/study_costs/run.py POOL... --out benchmarks/results/study_costs.json

Reads what records and histories say of their own time by the clock: training with its scores (`history.jsonl`),
measuring (the readings), and the rest (loading, building, writing). Means over the networks of one architecture, data
set, number of samples and of epochs. A study of n networks on g workers takes n * seconds / g / share hours, where
share is the part of the time that workers are busy; nothing but seconds per network is measured here.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from gapscope.pools import open_pool
from gapscope.results.records import Record

STUDY, WORKERS, BUSY = 10_000, (1, 8, 64), 0.8
Row = dict[str, float]


def spent(record: Record) -> Row:
    """Seconds of one network by what they were spent on."""
    training = sum(float(row.get("seconds", 0.0)) for row in record.history)
    by_measure = {reading.measure: reading.seconds for reading in record.readings}
    measuring = sum(by_measure.values())
    return {"seconds": record.seconds, "training": training, "measuring": measuring,
            "rest": record.seconds - training - measuring, "measures": float(len(by_measure))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pools", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("study_costs.json"))
    given = parser.parse_args()
    groups: dict[str, list[Row]] = defaultdict(list)
    for folder in given.pools:
        for record in open_pool(folder):
            if record.status == "finished" and record.history and record.readings:
                data, epochs = record.spec["data"], record.spec["training"]["epochs"]
                size = data["train_size"] or "all"
                groups[
                    f"{record.spec['network']['name']}, {data['name']}, {size} samples, {epochs} epochs"
                ].append(spent(record))
    result: dict[str, dict[str, float]] = {}
    for name, rows in sorted(groups.items()):
        means = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
        hours = {f"hours on {w}": STUDY * means["seconds"] / w / BUSY / 3600 for w in WORKERS}
        result[name] = {"networks": float(len(rows)), **means, **hours}
    content = {"title": "what studies cost", "study": STUDY, "busy": BUSY, "kinds": result,
               "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
