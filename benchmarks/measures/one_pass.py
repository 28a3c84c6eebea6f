"""All measures of one ResNet-18 at once against one after the other, by CPU time of this process.

In every round each measure is taken alone, then all are taken together; every other round begins with the latter. All
on the same samples with the same generators, after a first turn on two samples that pays for imports; the ratio is
what counts. Every number of both ways is compared. A last turn takes each measure while all shared work is kept
already: what it takes then cannot be shared, and the sum of that is the floor.

Without `--budget` all is exact on all samples. With it one plan for the budget says how many samples each measure
gets, and both ways take that plan; what making it took is stated beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import TrainingSpec
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.validation import ready
from gapscope.measures.budget import Plan, plan_budget
from gapscope.measures.measurement import evaluate_on_subset
from gapscope.measures.registry import get_measure, list_measures
from gapscope.training.loop import train

# their cost grows faster than the number of samples, or they need no network
LEFT_OUT = ("ntk_logdet", "gradient_neighbours", "kernel_leave_one_out", "training_loss_sum")


@dataclass(frozen=True)
class Planned:
    """What is taken within a budget: names, how to take some of them, the plan, and the seconds that it took."""

    names: list[str]
    take: Callable[[Sequence[str]], dict[str, float]]
    plan: Plan
    seconds: float


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one piece of work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def images(n: int, size: int) -> tuple[Tensor, Tensor]:
    """Images of CIFAR-10, cut to a corner of `size` pixels, with their labels."""
    train_split = gs.load_dataset("cifar10").train
    assert train_split.targets is not None
    return train_split.inputs[:n, :, :size, :size].contiguous(), train_split.targets[:n]


def rounds(
    chosen: Sequence[str], take: Callable[[Sequence[str]], Any], count: int
) -> list[dict[str, Any]]:
    """Both ways in turns."""
    result = []
    for number in range(count):
        values: list[dict[str, float]] = [{}, {}]

        def taken_into(names: Sequence[str], way: int, values: Any = values) -> float:
            return cpu_seconds(lambda: values[way].update(take(names)))

        together = [taken_into(chosen, 0)] if number % 2 else []
        alone = {name: taken_into([name], 1) for name in chosen}
        together = together or [taken_into(chosen, 0)]
        total = sum(alone.values())
        result.append(
            {"alone": alone, "sum": total, "together": together[0], "ratio": together[0] / total,
             "furthest": furthest(*values)}
        )  # fmt: skip
        print(
            f"round {number}: one after the other {total:.1f} s, at once {together[0]:.1f} s: {result[-1]['ratio']:.2f}"
        )
    return result


def planned_taking(
    network: Any, data: Any, initial: Any, chosen: Sequence[str], budget: float
) -> Planned:
    """Plan once for a budget; the names that fit, and what takes some of them as planned."""
    result, history = ready(network, as_samples(data)), ()

    evaluate = partial(evaluate_on_subset, initial_state=initial, history=history)
    items = [get_measure(name) for name in chosen]
    start = time.process_time()
    with eager_mode(), memo_scope():
        plan = plan_budget(items, result, evaluate, budget=budget, options={}, dispensable=chosen)
    spent = time.process_time() - start

    def take(names: Sequence[str]) -> dict[str, float]:
        values = {}
        with eager_mode(), memo_scope():
            for item in map(get_measure, names):
                share = plan.shares[item.name]
                values |= evaluate(item, result, share).values()
        return values

    return Planned(list(plan.shares), take, plan, spent)


def furthest(together: Mapping[str, float], alone: Mapping[str, float]) -> dict[str, Any]:
    """The number that differs most between both ways, relative to itself."""
    off = {
        name: abs(value - alone[name]) / (abs(alone[name]) or 1.0)
        for name, value in together.items()
        if math.isfinite(value)
    }
    worst = max(off, key=off.__getitem__)
    return {"number": worst, "relative_difference": off[worst]}


def unshared(chosen: Sequence[str], take: Callable[[Sequence[str]], Any]) -> dict[str, float]:
    """What each measure takes while all shared work is kept already."""
    with memo_scope():
        take(chosen)
        return {name: cpu_seconds(lambda name=name: take([name])) for name in chosen}


def main() -> None:
    """Measure both ways and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--width", type=float, default=1 / 16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument(
        "--epochs", type=int, default=0, help="Epochs of training before it is measured."
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=None, help="Seconds for all; none takes all on all samples."
    )
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("one_pass.json"))
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (3, given.size, given.size)
    network = gs.build_network(
        "resnet18", input_shape=shape, n_outputs=10, width_multiplier=given.width
    )
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    data = images(given.images, given.size)
    if given.epochs:
        train(
            network,
            Samples(*data),
            TrainingSpec(optimizer="adam", learning_rate=0.003, epochs=given.epochs),
        )
    else:
        initial = {name: 0.9 * tensor for name, tensor in initial.items()}
    network.eval()
    chosen = given.only or [name for name in list_measures() if name not in LEFT_OUT]

    def take(names: Sequence[str], samples: Any = data) -> dict[str, float]:
        result = gs.measure(
            network, samples, list(names), initial_state=initial, time_budget=None, progress=False
        )
        return dict(result.values())

    for name in chosen:
        try:
            take([name], (data[0][:2], data[1][:2]))
        except GapscopeError as error:
            print(f"{name} has no value for two samples: {error}")
    within: dict[str, Any] = {}
    taking: Callable[[Sequence[str]], dict[str, float]] = take
    if given.budget is not None:
        found_plan = planned_taking(network, data, initial, chosen, given.budget)
        chosen, taking = found_plan.names, found_plan.take
        shares = {name: found_plan.plan.shares[name].n for name in chosen}
        within = {
            "samples": shares,
            "left_out": dict(found_plan.plan.failed),
            "plan_seconds": found_plan.seconds,
        }
        print(
            f"plan after {found_plan.seconds:.0f} s: {shares}; left out: {list(within['left_out'])}",
            flush=True,
        )
    result = rounds(chosen, taking, given.rounds)
    floor = unshared(chosen, taking)
    ratio, least = statistics.median(row["ratio"] for row in result), sum(floor.values())
    total = statistics.median(row["sum"] for row in result)
    print(
        f"median ratio {ratio:.2f}; what cannot be shared takes {least:.1f} s, {least / total:.2f} of the sum"
    )
    row = {
        "environment": environment(), "images": given.images, "width_multiplier": given.width, "size": given.size,
        "epochs": given.epochs, "budget": given.budget, "within_budget": within,
        "accuracy": take(["accuracy"])["accuracy"], "ratio": ratio, "floor": least / total, "rounds": result,
        "unshared": floor,
    }  # fmt: skip
    path = given.output
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    key = ("images", "width_multiplier", "size", "epochs", "budget")
    kept = [
        other for other in known if [other.get(name) for name in key] != [row[name] for name in key]
    ]
    path.write_text(json.dumps({"rows": [*kept, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
