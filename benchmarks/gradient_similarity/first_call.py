"""Cost of a penalty's first call, which compares its gradients with autograd, in plain training steps.

    python benchmarks/gradient_similarity/first_call.py --out benchmarks/results/first_call.json

ResNet-18 on images of 32 x 32 pixels; CPU seconds of one thread. Five fresh networks, each with a fresh penalty: its
first call, then three plain and three later steps, interleaved; medians. `step` is a later one, `check` what the first
one takes in addition. The imports of a process's first call (a second or less) are not part of it.

`floor` is the ratio of the multiplications of convolutions and linear layers alone. A plain step makes three times
those of the forward pass: forward, by the input, by the weight. A step with a probe makes nine times: forward, first
derivative by the input, gradient of each sample by the weight and two for its derivatives, two for those of the first
derivative, two for the loss. The first layer needs no derivative by its input: two and four times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json

NETWORKS, STEPS = 5, 3
# width, samples, normalization
CASES = (
    (0.125, 64, "batch"),
    (0.25, 64, "batch"),
    (0.5, 64, "batch"),
    (0.25, 32, "batch"),
    (0.25, 32, "group"),
    (0.25, 64, "group"),
)


def floor(network: nn.Module, x: Tensor) -> float:
    """Return the multiplications of a step with the penalty, in those of a plain step."""
    counts: list[int] = []

    def count(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts.append(output.numel() * layer.weight[0].numel())

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    first, rest = counts[0], sum(counts[1:])
    return (9 * rest + 4 * first) / (3 * rest + 2 * first)


def measure_network(
    width: float, samples: int, normalization: str
) -> tuple[float, list[float], list[float], float]:
    """Return the seconds of a fresh penalty's first call, of plain steps and of later ones, and the floor."""
    torch.manual_seed(0)
    options = {"width_multiplier": width, "normalization": normalization}
    network = gs.build_network("resnet18", input_shape=(3, 32, 32), n_outputs=10, **options).train()
    x, y = torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,))
    optimizer = torch.optim.SGD(network.parameters(), 0.01)

    def step(penalty: gs.GradientSimilarityPenalty | None) -> float:
        start = time.process_time()
        optimizer.zero_grad()
        if penalty is None:
            loss = nn.functional.cross_entropy(network(x), y)
        else:
            outputs, value = penalty.forward_with_penalty(network, x, y)
            loss = nn.functional.cross_entropy(outputs, y) + value
        loss.backward()
        optimizer.step()
        return time.process_time() - start

    step(None)
    penalty = gs.GradientSimilarityPenalty(0.001)
    first = step(penalty)
    pairs = [(step(None), step(penalty)) for _ in range(STEPS)]
    return first, [plain for plain, _ in pairs], [later for _, later in pairs], floor(network, x)


def measure_case(width: float, samples: int, normalization: str) -> dict[str, float | int | str]:
    """Return the times of a plain step, of the first call with the penalty, and of a later one."""
    case = (width, samples, normalization)
    firsts, plains, laters, floors = zip(
        *(measure_network(*case) for _ in range(NETWORKS)), strict=True
    )
    first = statistics.median(firsts)
    plain = statistics.median(seconds for some in plains for seconds in some)
    later = statistics.median(seconds for some in laters for seconds in some)
    times = {"plain_step_seconds": plain, "step": later / plain, "check": (first - later) / plain}
    times["floor"] = floors[0]
    return {"width": width, "samples": samples, "normalization": normalization} | times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    torch.set_num_threads(1)
    path = parser.parse_args().out
    measure_network(0.125, 8, "batch")  # imports
    rows = [measure_case(*case) for case in CASES]
    path.write_text(to_json({"environment": environment("cpu"), "first_calls": rows}))


if __name__ == "__main__":
    main()
