"""Forecasts before a tiny BERT is fine-tuned to classify source lines by Python package.

Protocol, fixed before the first fine-tune: bytes as tokens, lines of 20 to 64 characters of five installed packages, a
BERT of two layers and 64 units pretrained here on masked bytes of other lines. Adam trains LoRA adapters of rank 4 on
queries and values with a new head, or all weights. The learning rate is the one of two with the best accuracy on a
fifth of the lines of seed 0. Truth: accuracy on 1,000 other lines.
"""

from __future__ import annotations

import importlib.util
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.measures.kernel_leave_one_out import loo_from_kernel
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    find_row,
    rms_error,
    scale_rows,
    to_numbers,
    to_table,
)
from gapscope_studies.kit.study import Outcome, RunSettings, Table

PACKAGES = ("numpy", "scipy", "pandas", "sklearn", "matplotlib")
LENGTH, MASK, PAD, VOCABULARY = 64, 1, 0, 128
LINES, STEPS, BATCH, MASKED = 8000, 3000, 64, 0.15
SIZES, SEEDS, TEST, POOL, EPOCHS, RATES = (300, 1000), 3, 1000, 2000, 30, (0.001, 0.005)
METHODS = ("LoRA", "all weights")
TRUTH = "accuracy reached"


def _lines(package: str) -> list[str]:
    """Return the distinct source lines of a package, in random order."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    distinct: set[str] = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="ignore")
        distinct.update(line.strip() for line in text.splitlines() if line.isascii())
    lines = sorted(line for line in distinct if 20 <= len(line) <= LENGTH and package not in line)
    order = np.random.default_rng(derive_seed(0, package)).permutation(len(lines))[:LINES]
    return [lines[i] for i in order]


def encoded_lines() -> tuple[Tensor, Tensor]:
    """Return the bytes [n, 64] and packages [n] of lines unique to a package, in random order."""
    texts = [_lines(package) for package in PACKAGES]
    shared = {
        line
        for i, lines in enumerate(texts)
        for line in lines
        if any(line in set(t) for t in texts[:i])
    }
    pairs = [
        (line, label) for label, lines in enumerate(texts) for line in lines if line not in shared
    ]
    ids = torch.tensor([[*line.encode(), *[PAD] * (LENGTH - len(line))] for line, _ in pairs])
    labels = torch.tensor([label for _, label in pairs])
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    return ids[order], labels[order]


def _config(**options: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options,
    )  # fmt: skip


def _prepare(folder: Path) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return all lines, their packages, and pretrained encoder weights, cached in a folder."""
    lines, weights = folder / "lines.safetensors", folder / "bert.safetensors"
    if not lines.exists():
        folder.mkdir(parents=True, exist_ok=True)
        ids, labels = encoded_lines()
        save_file({"ids": ids, "labels": labels}, lines)
    data = load_file(lines)
    if not weights.exists():
        save_file(_pretrain(data["ids"][TEST + POOL :]), weights)
    return data["ids"], data["labels"], load_file(weights)


def _pretrain(ids: Tensor) -> dict[str, Tensor]:
    from transformers import BertForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "BERT"))
        network = BertForMaskedLM(_config())
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(STEPS):
            batch = ids[torch.randint(len(ids), (BATCH,))]
            is_masked = (torch.rand(batch.shape) < MASKED) & (batch != PAD)
            inputs = _batch(batch.masked_fill(is_masked, MASK), batch.masked_fill(~is_masked, -100))
            optimizer.zero_grad()
            network(**inputs).loss.backward()
            optimizer.step()
    state = network.bert.state_dict()
    return {
        name: tensor.contiguous() for name, tensor in state.items() if "position_ids" not in name
    }


def _network(method: str, state: dict[str, Tensor], seed: int) -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import BertForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        network: Any = BertForSequenceClassification(_config(num_labels=len(PACKAGES)))
        network.bert.load_state_dict(state, strict=False)
        if method == "LoRA":
            adapters = LoraConfig(
                r=4, target_modules=["query", "value"], modules_to_save=["classifier"]
            )
            network = get_peft_model(network, adapters)
    return network.eval()


def _batch(ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def _accuracy(network: nn.Module, ids: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        logits = torch.cat(
            [
                network(**_batch(part, labels[:1].expand(len(part)))).logits
                for part in ids.split(200)
            ]
        )
    return float((logits.argmax(1) == labels).double().mean())


def _fine_tune(network: nn.Module, ids: Tensor, labels: Tensor, rate: float, seed: int) -> None:
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], rate)
    generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
    network.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(ids), generator=generator).split(25):
            optimizer.zero_grad()
            network(**_batch(ids[rows], labels[rows])).loss.backward()
            optimizer.step()
    network.eval()


def sign_gradient_accuracy(network: nn.Module, ids: Tensor, labels: Tensor) -> float:
    r"""Return the leave-one-out accuracy of the sign-gradient kernel, the kernel of Adam.

    $\sum_c J_c \operatorname{sign}(J_c)^\top$ (Malladi et al. 2023, arXiv:2210.05643, definition 3.4), symmetrized.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    kernel = torch.zeros(len(ids), len(ids))
    logits = [
        network(**_batch(ids[i : i + 1], labels[i : i + 1])).logits[0] for i in range(len(ids))
    ]
    for c in range(len(PACKAGES)):
        rows = torch.stack([
            torch.cat([g.flatten() for g in torch.autograd.grad(each[c], parameters, retain_graph=True)])
            for each in logits
        ])  # fmt: skip
        kernel += rows @ rows.sign().T
    head = nn.Linear(1, len(PACKAGES))  # only its number of outputs matters
    return loo_from_kernel((kernel + kernel.T) / 2, head, torch.zeros(len(ids), 1), labels).accuracy


def _rows(n: int, seed: int) -> Tensor:
    """Return the rows of a training set, between those of the test and of pretraining."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "lines"))
    return TEST + torch.randperm(POOL, generator=generator)[:n]


def choose_rate(method: str, n: int, folder: Path) -> float:
    """Return the learning rate with the best accuracy on a fifth of the lines of seed 0."""
    torch.set_num_threads(1)
    ids, labels, state = _prepare(folder)
    part, held_out = _rows(n, 0).split([4 * n // 5, n - 4 * n // 5])

    def reached(rate: float) -> float:
        network = _network(method, state, 0)
        _fine_tune(network, ids[part], labels[part], rate, 0)
        return _accuracy(network, ids[held_out], labels[held_out])

    return max(RATES, key=reached)


def run_fine_tune(method: str, n: int, seed: int, rate: float, folder: Path) -> dict[str, Any]:
    """Return the forecast before a fine-tune, its baselines, and the accuracy reached."""
    torch.set_num_threads(1)
    ids, labels, state = _prepare(folder)
    rows, network = _rows(n, seed), _network(method, state, seed)
    start = time.process_time()
    forecast = gs.forecast_accuracy(network, _batch(ids[rows], labels[rows]), seed=seed)
    seconds = time.process_time() - start
    signs = sign_gradient_accuracy(network, ids[rows], labels[rows])
    start = time.process_time()
    _fine_tune(network, ids[rows], labels[rows], rate, seed)
    fine_tune_seconds = time.process_time() - start
    by_method = {row.name: row.score for row in forecast.rows}
    return {"way": method, "n": n, "seed": seed, TRUTH: _accuracy(network, ids[:TEST], labels[:TEST]),
            "training accuracy": _accuracy(network, ids[rows], labels[rows]), "forecast": forecast.score,
            "NTK of signs": signs, "seconds": seconds,
            "fine_tune_seconds": fine_tune_seconds, **by_method}  # fmt: skip


def text(setting: RunSettings) -> Outcome:
    """Evaluate the forecast, its rows and the sign-gradient kernel."""
    sizes, seeds = setting.choose(smoke=((100,), 1), small=(SIZES, SEEDS), paper=(SIZES, 10))
    folder = setting.work / "pretrained text"
    rates = setting.cached("text rates", {
        f"{method} n {n}": partial(choose_rate, method, n, folder) for method in METHODS for n in sizes
    })  # fmt: skip
    answers = setting.cached("text", {
        f"{method} n {n} seed {seed}": partial(run_fine_tune, method, n, seed, rates[f"{method} n {n}"], folder)
        for method in METHODS for n in sizes for seed in range(seeds)
    })  # fmt: skip
    table = pandas.DataFrame(answers.values())
    columns = ["way", "n", "seed", TRUTH, "training accuracy", "seconds", "fine_tune_seconds"]
    means: Table = table.groupby("way").mean(numeric_only=True)
    rows = []
    for name in table.columns.drop(columns):
        errors = table[name] - table[TRUTH]
        rows.append({
            "prediction before the fine-tune": name,
            # methods and sizes share lines: the seeds of the lines are the units
            "error": rms_error(errors, table["seed"].tolist()).within(0, math.inf),
            "bias": float(errors.mean()),
            **{f"mean, {method}": float(means.loc[method, name]) for method in METHODS},
        })  # fmt: skip
    rows.sort(key=lambda row: row["error"].value)
    reached = {method: float(means.loc[method, TRUTH]) for method in METHODS}
    error = find_row(rows, "prediction before the fine-tune", "forecast")["error"]
    networks = table.round(4).to_dict("list")
    return Outcome(
        numbers={"rows": to_numbers(rows), "reached": reached, "networks": networks, "rates": rates},
        claims=[
            error_claim("the forecast before a fine-tune of text errs by less than a tenth of the accuracy",
                        "root mean squared error", error, below=0.1, unit="draws of lines")
        ],
        tables={"Predictions before a fine-tune": to_table(rows)},
        verdict="Accuracy reached, mean: " + ", ".join(f"{name} {value:.3f}" for name, value in reached.items()) + ".",
        stands_in_for=scale_rows({
            "text": "source lines of " + ", ".join(PACKAGES),
            "network": "BERT of two layers and 64 units, pretrained here",
        }),
        seeds=list(range(seeds)),
        data={"lines": "of the installed versions"},
    )  # fmt: skip
