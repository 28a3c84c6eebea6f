"""Large networks with random weights: what measures and one step of the penalty cost, and how sure the probes are.

    python benchmarks/large_networks/run.py --out benchmarks/results/large_networks.json
    python benchmarks/large_networks/run.py --smallest --out small.json

ResNet-50 and ViT-B/16 at 224 pixels with 1,000 classes, BERT-base with 1,000 classes and GPT-2 with its vocabulary of
50,257 outputs (64 tokens each), built by transformers from a config; nothing is downloaded. Sensitivity, margins and
sparsity of the latter two are those of the part behind the embedding of tokens. Each cell, a network and a
measure, runs in a process of its own, one thread, and is one entry of the file: a run that was stopped continues,
and tries cells again that were too long.
Seconds are of the processor (and of the clock); memory is the peak of the whole process above that of the loaded
network. A cell that takes longer than --limit seconds of the clock, or more than --memory GiB, is stopped, and says so.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SAMPLES, TOKENS, CLASSES = 4, 64, 1000
NETWORKS = ("ResNet-50", "ViT-B/16", "BERT-base", "GPT-2")


# how names end of the layer whose units are ablated: the activation of the last block
ACTIVATIONS = (".activation", ".mlp.activation_fn", ".intermediate", ".mlp.act")


def _images(name: str, small: bool) -> tuple[Any, int]:
    import transformers

    t: Any = transformers
    if name == "ResNet-50":
        sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8} if small else {}
        return t.ResNetForImageClassification(
            t.ResNetConfig(num_labels=CLASSES, **sizes)
        ), 32 if small else 224
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2} if small else {}
    side = 32 if small else 224
    return t.ViTForImageClassification(
        t.ViTConfig(image_size=side, num_labels=CLASSES, **sizes)
    ), side


def _tokens(name: str, small: bool) -> Any:
    import transformers

    t: Any = transformers
    if name == "BERT-base":
        sizes = (
            {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2} if small else {}
        )
        return t.BertForSequenceClassification(t.BertConfig(num_labels=CLASSES, **sizes))
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2} if small else {}
    return t.GPT2LMHeadModel(t.GPT2Config(use_cache=False, **sizes))


def network_and_inputs(name: str, small: bool) -> tuple[Any, Any]:
    """The network, which returns logits, and inputs for it: images, or ids of tokens (also taken as embeddings)."""
    import torch

    class Logits(torch.nn.Module):
        """A network of transformers that returns a tensor; of a language model the outputs for the next token."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            given = (
                {"inputs_embeds": x}
                if x.ndim == 3
                else {"pixel_values" if x.ndim == 4 else "input_ids": x}
            )
            if name != "GPT-2":
                return self.model(**given).logits
            return self.model(**given, logits_to_keep=1).logits[:, -1]

    torch.manual_seed(0)
    if name in ("BERT-base", "GPT-2"):
        model, inputs = _tokens(name, small), torch.randint(1000, 20_000, (SAMPLES, TOKENS))
    else:
        model, side = _images(name, small)
        inputs = torch.rand(SAMPLES, 3, side, side)
    for module in model.modules():
        if isinstance(
            module, torch.nn.BatchNorm2d
        ):  # zero where a residual branch ends: it would be a dead layer
            torch.nn.init.ones_(module.weight)
    return Logits(model).eval(), inputs


def continuous(network: Any, x: Any) -> Any:
    """Inputs that can be shifted and differentiated: of tokens, their embeddings."""
    return x if x.is_floating_point() else network.model.get_input_embeddings()(x).detach()


def _plain_step(network: Any, x: Any) -> dict[str, float]:
    import torch

    loss = torch.nn.functional.cross_entropy(network(x), torch.arange(len(x)))
    loss.backward()
    return {"value": float(loss)}


def _penalty_step(network: Any, x: Any) -> dict[str, float]:
    import torch

    from gapscope import GradientSimilarityPenalty

    penalty, y = GradientSimilarityPenalty(0.001), torch.arange(len(x))

    def step() -> float:
        started = time.process_time()
        network.zero_grad()
        outputs, value = penalty.forward_with_penalty(network, x, y)
        (torch.nn.functional.cross_entropy(outputs, y) + value).backward()
        return time.process_time() - started

    # the first step also looks, once, whether the network's derivatives are what the layers' rules say
    first, later = step(), step()
    return {"value": first / later, "first_seconds": first, "later_seconds": later}


def _estimate(found: Any) -> dict[str, float]:
    error = getattr(found, "standard_error", None)
    value = float(found)
    return {"value": value} | ({} if error is None else {"relative_error": abs(error / value)})


def _trace(network: Any, x: Any, **options: Any) -> dict[str, float]:
    from gapscope.measures.ntk import ntk_trace

    return _estimate(ntk_trace(network, x, method="probe", **options))


def _half(network: Any, x: Any) -> dict[str, float]:
    return _trace(network.bfloat16(), x.bfloat16() if x.is_floating_point() else x)


def _read(name: str, network: Any, x: Any, **options: Any) -> dict[str, float]:
    import torch

    import gapscope as gs

    x = continuous(network, x)
    with torch.no_grad():
        y = network(x).argmax(1)
    result = gs.measure(network, (x, y), [name], options={name: options} if options else None)
    values = {reading.name: reading for reading in result}
    first = next(iter(values.values()), None)
    if first is None:
        return {"why": result.unmeasured[name]}  # pyright: ignore[reportReturnType]
    error = first.standard_error
    return {"value": first.value, "numbers": len(values)} | (
        {} if not error else {"relative_error": abs(error / first.value)}
    )


def _sparsity(network: Any, x: Any) -> dict[str, float]:
    names = [name for name, _ in network.named_modules()]
    last = next(name for name in reversed(names) if name.endswith(ACTIVATIONS))
    return _read(
        "unit_sparsity",
        network,
        x,
        layers=last,
        unit_axis=1 if last.endswith(ACTIVATIONS[0]) else -1,
    )


def _sampled_labels(network: Any, x: Any) -> dict[str, float]:
    from gapscope.measures.curvature import fisher_trace

    return _estimate(fisher_trace(network, x, None, labels="sampled"))


def _penalty_by_sample(network: Any, x: Any) -> dict[str, float]:
    """What a loop over batches of one sample, whose gradients add up, takes for one of them."""
    return _penalty_step(network, x[:1])


CELLS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "forward and backward pass": _plain_step,
    "trace, class probe": lambda network, x: _trace(network, x),
    "trace with sampled labels": _sampled_labels,
    "training step with the trace penalty": _penalty_step,
    "training step with the trace penalty, one sample at a time": _penalty_by_sample,
    "output sensitivity": lambda network, x: _read("output_sensitivity", network, x),
    "margins": lambda network, x: _read("margin_signature", network, x),
    "trace, Rademacher probe": lambda network, x: _trace(network, x, probe="rademacher"),
    "unit sparsity": _sparsity,
    "trace, class probe, bfloat16": _half,
    "trace, 8 Rademacher probes": lambda network, x: _trace(
        network, x, probe="rademacher", draws=8
    ),
}


def peak() -> float:
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cell(network_name: str, work: str, small: bool) -> dict[str, Any]:
    """Run one cell in this process."""
    import torch

    torch.set_num_threads(1)
    network, x = network_and_inputs(network_name, small)
    with torch.no_grad():
        network(x[:1])
    before, started, clock = peak(), time.process_time(), time.perf_counter()
    result = CELLS[work](network, x)
    return {
        **result, "seconds": time.process_time() - started, "clock_seconds": time.perf_counter() - clock,
        "megabytes": peak() - before, "loaded_megabytes": before,
    }  # fmt: skip


def run(network: str, work: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one cell in a process of its own."""
    limit = f'ulimit -v {int(arguments.memory * 2**20)}; exec "$@"'
    command = [
        sys.executable,
        __file__,
        "--cell",
        network,
        work,
        *(["--smallest"] if arguments.smallest else []),
    ]
    try:
        done = subprocess.run(
            ["bash", "-c", limit, "cell", *command],
            capture_output=True,
            text=True,
            timeout=arguments.limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"stopped": f"longer than {arguments.limit:g} s of the clock"}
    if done.returncode:
        return {
            "stopped": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][
                :300
            ]
        }
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("large_networks.json"))
    parser.add_argument(
        "--smallest", action="store_true", help="small networks, to see that it runs"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of the clock a cell")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB of address space a cell")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--works", nargs="*", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        network, work = arguments.cell
        print(json.dumps(cell(network, work, arguments.smallest)))
        return
    result: dict[str, Any] = (
        json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cells": {}}
    )
    for work in arguments.works:
        for network in arguments.networks:
            cells = result["cells"].setdefault(network, {})
            if "seconds" not in cells.get(work, {}):  # one that was stopped is tried again
                cells[work] = run(network, work, arguments)
                print(network, work, cells[work], flush=True)
                from gapscope.base.environment import environment

                result |= {"title": "large networks", "samples": SAMPLES, "tokens": TOKENS, "classes": CLASSES,
                          "date": datetime.now(UTC).date().isoformat(), "environment": environment()}  # fmt: skip
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
