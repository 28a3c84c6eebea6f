"""Networks of one architecture trained in one stack beside one after the other, as ratios.

    python benchmarks/stacked_training/run.py --rounds 5 --out stacked.json
    python benchmarks/stacked_training/run.py --smallest

One process, one thread, CPU time, interleaved: every round trains the same networks for one epoch in both ways, on
batches of its own; the trial by which `train_many` chooses is outside the clock, and is reported by itself.
Reported are medians of the time of a step of all networks, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gapscope.base.environment import environment
from gapscope.base.specs import PenaltySpec, TrainingSpec
from gapscope.networks import build_network
from gapscope.training.loop import Training
from gapscope.training.multi_training import train_many
from gapscope.training.stack import Stack

PENALTY = (PenaltySpec(name="gradient_similarity", options={"strength": 0.001}),)
CASES: dict[str, dict[str, Any]] = {
    "LeNet-5, batch 8": {"name": "lenet5", "batch_size": 8},
    "LeNet-5, batch 32": {"name": "lenet5", "batch_size": 32},
    "LeNet-5 with batch norm, batch 8": {"name": "lenet5", "batch_size": 8, "options": {"batch_norm": True}},
    "LeNet-5 with dropout, batch 8": {"name": "lenet5", "batch_size": 8, "options": {"dropout": 0.3}},
    "LeNet-5 with the trace penalty, batch 8": {"name": "lenet5", "batch_size": 8, "penalties": PENALTY},
    "fully connected 784-100-10, batch 8": {"name": "fully_connected", "batch_size": 8, "options": {"width": 100}},
    "fully connected 784-100-10, batch 50": {"name": "fully_connected", "batch_size": 50, "options": {"width": 100}},
}


def networks(count: int, name: str, options: dict[str, Any]) -> list[nn.Module]:
    return [
        build_network(
            name, input_shape=(1, 28, 28), n_outputs=10, generator=torch.Generator().manual_seed(seed), **options
        )
        for seed in range(count)
    ]


def seconds_of(action: Any) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def compared(
    count: int, steps: int, rounds: int, *, name: str, batch_size: int, options: Any = None, penalties: Any = ()
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(steps * batch_size, 1, 28, 28, generator=generator), torch.arange(steps * batch_size) % 10
    settings = TrainingSpec(batch_size=batch_size, epochs=1, penalties=penalties, learning_rate=0.01)
    alone, stacked = [], []
    for number in range(rounds + 1):
        both = [
            [Training(network, (x, y), settings, seed=seed) for seed, network in enumerate(made)]
            for made in (networks(count, name, options or {}), networks(count, name, options or {}))
        ]

        def one_by_one(trainings: list[Training] = both[0]) -> None:
            for training in trainings:
                training.run.train_epoch(training.samples)

        def in_a_stack(trainings: list[Training] = both[1]) -> None:
            streams = [torch.Generator() for _ in trainings]
            stack = Stack([item.run for item in trainings], [item.samples for item in trainings], streams)
            stack.train_epoch()
            stack.close()

        taken = seconds_of(one_by_one), seconds_of(in_a_stack)
        if number:
            alone.append(taken[0] / steps)
            stacked.append(taken[1] / steps)
    made = networks(count, name, options or {})
    whole = seconds_of(lambda: train_many(made, (x, y), settings, stack="auto"))
    each, ratio = statistics.median(alone), statistics.median(s / a for s, a in zip(stacked, alone, strict=True))
    return {
        "one after the other, milliseconds a step of all": round(1e3 * each, 2),
        "in a stack, milliseconds a step of all": round(1e3 * statistics.median(stacked), 2),
        "ratio": round(ratio, 3),
        "choosing, in steps of all one after the other": round(max(0.0, whole / each - steps * min(1.0, ratio)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smallest", action="store_true", help="three networks and one round: does it run?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count, steps, rounds = (3, 2, 1) if options.smallest else (options.networks, options.steps, options.rounds)
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment("cpu"),
        "networks": count,
        "steps": steps,
        "rounds": rounds,
        "cases": {name: compared(count, steps, rounds, **case) for name, case in CASES.items()},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
