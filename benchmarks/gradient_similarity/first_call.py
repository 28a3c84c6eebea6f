"""Cost of a penalty's first call, which compares its gradients with autograd, in plain training steps.

    python benchmarks/gradient_similarity/first_call.py --out benchmarks/results/first_call.json

ResNet-18 on images of 32 x 32 pixels; CPU seconds of one thread, medians of seven steps, interleaved. `step` is a later
one, `check` what the first one takes in addition.

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

STEPS = 7
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


def measure_case(width: float, samples: int, normalization: str) -> dict[str, float | int | str]:
    """Return the times of a plain step, of the first call with the penalty, and of a later one."""
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
    plain, later = (statistics.median(column) for column in zip(*pairs, strict=True))
    times = {"plain_step_seconds": plain, "step": later / plain, "check": (first - later) / plain}
    times["floor"] = floor(network, x)
    return {"width": width, "samples": samples, "normalization": normalization} | times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    torch.set_num_threads(1)
    path = parser.parse_args().out
    rows = [measure_case(*case) for case in CASES]
    path.write_text(to_json({"environment": environment("cpu"), "first_calls": rows}))


if __name__ == "__main__":
    main()
