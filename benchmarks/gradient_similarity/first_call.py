"""Cost of a penalty's first call, which compares its gradients with autograd, in plain training steps.

    python benchmarks/gradient_similarity/first_call.py --out benchmarks/results/first_call.json

ResNet-18 with batch norm on 64 images of 32 x 32 pixels; CPU seconds of one thread, medians of seven steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json

WIDTHS, STEPS = (0.125, 0.25, 0.5), 7


def measure_width(width: float) -> dict[str, float]:
    """Return the times of a plain step, of the first call with the penalty, and of a later one."""
    torch.manual_seed(0)
    network = gs.build_network("resnet18", input_shape=(3, 32, 32), n_outputs=10, width_multiplier=width).train()
    x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
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
    plain = statistics.median(step(None) for _ in range(STEPS))
    penalty = gs.GradientSimilarityPenalty(0.001)
    first, later = step(penalty), statistics.median(step(penalty) for _ in range(STEPS))
    return {"width": width, "plain_step_seconds": plain, "step": later / plain, "check": (first - later) / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    torch.set_num_threads(1)
    path = parser.parse_args().out
    rows = [measure_width(width) for width in WIDTHS]
    path.write_text(to_json({"environment": environment(), "rows": rows}))


if __name__ == "__main__":
    main()
