"""All measures of one ResNet-18 at once against one after the other, by CPU time of this process.

Both are taken in turns, without a budget, on the same samples with the same generators; the ratio is what counts. By
default a narrow ResNet-18 and few images, since curvature and noise on the weights cost hundreds of passes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.measures.registry import measures

# their cost grows faster than the number of samples
LEFT_OUT = ("ntk_logdet", "gradient_neighbours", "kernel_leave_one_out", "training_loss_sum")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one piece of work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure both ways and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--width", type=float, default=1 / 16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("one_pass.json"))
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (3, given.size, given.size)
    network = gs.build("resnet18", input_shape=shape, n_outputs=10, width_multiplier=given.width).eval()
    initial = {name: 0.9 * tensor for name, tensor in network.state_dict().items()}
    data = (torch.rand(given.images, *shape), torch.arange(given.images) % 10)
    chosen = given.only or [name for name in measures() if name not in LEFT_OUT]

    def take(names: list[str]) -> gs.Readings:
        return gs.measure(network, data, names, initial=initial, budget=None, progress=False)

    take(["parameter_count"])
    alone = {name: cpu_seconds(lambda name=name: take([name])) for name in chosen}
    together = cpu_seconds(lambda: take(chosen))
    total = sum(alone.values())
    print(f"one after the other {total:.1f} s, at once {together:.1f} s of CPU: {together / total:.2f}")
    content = {
        "environment": environment(), "images": given.images, "width_multiplier": given.width, "size": given.size,
        "alone": alone, "sum": total, "together": together, "ratio": together / total,
    }  # fmt: skip
    given.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
