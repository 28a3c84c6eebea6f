"""Short runs of a pool: the part of the time for which workers are held that they train and measure.

    python benchmarks/pool_workers/run.py --engine ray --runs 500 --out benchmarks/results/pool_workers_ray.json
    python benchmarks/pool_workers/run.py --engine local --smallest

Fully connected networks on 600 handwritten digits, each trained for some epochs and measured. By a worker's own clock
training is what the history's epochs say, scores the data's scores after each epoch and at the end, measuring what the
readings say, and rest what remains of a run (loading, building, writing). A worker is held from its first run's
beginning to its last one's end, with all waiting between; starting the workers is reported by itself, as the time from
the call of the engine to a worker's first run. `--profile` prints where one process spends the rest.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gapscope.base.environment import environment
from gapscope.base.specs import RunSpec
from gapscope.pools import engines, run
from gapscope.pools.readings import RunOptions
from gapscope.pools.worker import Job, run_job
from gapscope.results.records import Record

MEASURES = (
    "ntk_trace",
    "output_sensitivity",
    "margin_signature",
    "unit_sparsity",
    "parameter_norm",
)


@dataclass(frozen=True)
class Timed:
    """One run in its worker: seconds of the system's monotonic clock, which all processes of a machine share."""

    worker: int
    begun: float
    ended: float
    processor: float
    training: float
    scores: float
    measuring: float

    @property
    def rest(self) -> float:
        """What is neither training nor measuring."""
        return self.ended - self.begun - self.training - self.scores - self.measuring


def timed_run(job: Job) -> Timed:
    """Done in a worker: one run, and what its time was spent on."""
    spent, inner = [0.0], run.evaluate

    def timed_scores(*given: Any) -> dict[str, float]:
        start = time.monotonic()
        scores = inner(*given)
        spent[0] += time.monotonic() - start
        return scores

    run.evaluate = timed_scores
    begun, processor = time.monotonic(), time.process_time()
    try:
        record, _ = run_job(job)
    finally:
        run.evaluate = inner
    if not isinstance(record, Record) or record.status != "finished" or record.unmeasured:
        raise RuntimeError(f"every run must finish and be measured: {record}")
    training = sum(float(row["seconds"]) for row in record.history)
    by_measure = {reading.measure: reading.seconds for reading in record.readings}
    return Timed(os.getpid(), begun, time.monotonic(), time.process_time() - processor, training, spent[0],
                 sum(by_measure.values()))  # fmt: skip


def jobs(runs: int, epochs: int, folder: Path) -> list[Job]:
    """One job per run, whose specs differ in their seed."""
    options = RunOptions(measures=MEASURES)
    base = {
        "data": {"name": "digits", "train_size": 600}, "network": {"name": "fully_connected"},
        "training": {"epochs": epochs, "batch_size": 50},
    }  # fmt: skip
    specs = [RunSpec.from_dict({**base, "seed": seed}) for seed in range(runs)]
    return [(spec, folder / spec.id, options) for spec in specs]


def shares(found: Sequence[Timed], begun: float, ended: float) -> dict[str, float]:
    """Seconds of all workers together by what they were spent on, and the fractions of the time they were held."""
    workers: dict[int, list[Timed]] = defaultdict(list)
    for item in found:
        workers[item.worker].append(item)
    held = sum(max(i.ended for i in own) - min(i.begun for i in own) for own in workers.values())
    seconds = {
        name: sum(getattr(item, name) for item in found)
        for name in ("training", "scores", "measuring", "rest")
    }
    between = held - sum(item.ended - item.begun for item in found)
    busy = seconds["training"] + seconds["scores"] + seconds["measuring"]
    starting = [min(item.begun for item in own) - begun for own in workers.values()]
    # the first run of a worker loads what the others find there
    first = {min(own, key=lambda item: item.begun) for own in workers.values()}
    later = [item for item in found if item not in first]
    return {
        "runs": len(found), "processes": len(workers), **{f"{k}_seconds": v for k, v in seconds.items()},
        "between_seconds": between, "held_seconds": held, "processor_seconds": sum(item.processor for item in found),
        "share": busy / held, "share_without_scores": (busy - seconds["scores"]) / held,
        "share_after_first": 1 - sum(i.rest for i in later) / sum(i.ended - i.begun for i in later),
        "rest_of_first_seconds": sum(item.rest for item in first) / len(first),
        "rest_of_later_seconds": sum(item.rest for item in later) / len(later),
        "starting_seconds": sum(starting) / len(starting), "clock_seconds": ended - begun,
        "share_of_everything": busy / (len(workers) * (ended - begun)),
    }  # fmt: skip


def measured(engine: str, workers: int, work: list[Job]) -> dict[str, float]:
    """Run the jobs, and say what the workers' time was spent on."""
    begun, results = time.monotonic(), []
    for _, result, error in engines.select_engine(engine)(timed_run, work, workers):
        if error is not None:
            raise error
        results.append(result)
    return shares(results, begun, time.monotonic())


def profile(work: list[Job]) -> None:
    """Print where one process spends the time of a few runs, all that is loaded once left out."""
    import torch

    torch.set_num_threads(1)
    timed_run(work[0])
    profiler, result = cProfile.Profile(), []
    profiler.enable()
    for item in work[1:]:
        result.append(timed_run(item))
    profiler.disable()
    rest, whole = sum(item.rest for item in result), sum(item.ended - item.begun for item in result)
    print(f"rest {rest / len(result):.4f} s a run, {rest / whole:.1%}")
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(70)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=engines.ENGINES, default="local")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--smallest", action="store_true", help="a few runs of one epoch, to see that it runs"
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    runs, epochs = (6, 1) if given.smallest else (given.runs, given.epochs)
    with tempfile.TemporaryDirectory() as folder:
        work = jobs(runs, epochs, Path(folder))
        if given.profile:
            profile(work)
            return
        result = measured(given.engine, given.workers, work)
    content = {
        "title": "time of a pool's workers", "date": datetime.now(UTC).date().isoformat(), "environment": environment(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "engine": given.engine, "workers": given.workers,
        "epochs": epochs, "measures": list(MEASURES), **result,
    }  # fmt: skip
    print(json.dumps(content, indent=1))
    if given.out:
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
