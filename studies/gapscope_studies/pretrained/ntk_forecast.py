"""Forecasts by features and by the projected NTK of large networks, beside a linear probe and a full fine-tune."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.randomness import derive_seed
from gapscope_studies.pretrained.cells import probe, split
from gapscope_studies.pretrained.features import build, build_text_encoder, load, pixels
from gapscope_studies.pretrained.ntk import ProjectedGradients, ridge_accuracies, with_head


class TextClassifier(nn.Module):
    """A sentence encoder with a linear head on the mean over tokens; inputs are token numbers and masks [n, 2, T]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, 1)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [n, k]."""
        ids, mask = x.unbind(1)
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(hidden)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


def start(
    network: str, x: Any, n_classes: int, settings: dict[str, Any], seed: int
) -> tuple[nn.Module, Tensor]:
    """Return a pretrained network with a new head, and inputs in its form."""
    if network != "MiniLM":
        return with_head(build(network), n_classes, seed), pixels(network, x, settings["side"])
    encoder, tokenizer = build_text_encoder(pretrained=True)
    encoder.pooler = None  # not used
    limit = settings["max_tokens"]
    tokens = tokenizer(x, padding=True, truncation=True, max_length=limit, return_tensors="pt")
    return with_head(TextClassifier(encoder), n_classes, seed), torch.stack([tokens["input_ids"],
                                                                           tokens["attention_mask"]], 1)  # fmt: skip


def head_of(network: nn.Module) -> nn.Linear:
    """Return the last linear layer."""
    return [module for module in network.modules() if isinstance(module, nn.Linear)][-1]


def evaluate(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden features and outputs in evaluation mode."""
    hidden: list[Tensor] = []
    handle = head_of(network).register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    with handle, torch.no_grad():
        outputs = torch.cat([network(part) for part in x.split(50)])
    return torch.cat(hidden), outputs


def fine_tune(
    network: nn.Module, x: Tensor, y: Tensor, settings: dict[str, Any], rate: float, seed: int
) -> None:
    """Train all layers, batch norm in evaluation mode."""
    head = {id(parameter) for parameter in head_of(network).parameters()}
    groups = [{"params": [p for p in network.parameters() if id(p) not in head], "lr": rate},
              {"params": list(head_of(network).parameters()), "lr": settings["head_rate"]}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = settings["epochs"] * -(-len(x) // settings["batch"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings["epochs"]):
        for rows in torch.randperm(len(x), generator=generator).split(settings["batch"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()


def projected_kernel(
    network: nn.Module, x: Tensor, n_classes: int, combinations: int, seed: int
) -> Tensor:
    """Return the NTK [n, n] from projected gradients of random sums of the outputs, float64."""
    gradients = ProjectedGradients(network, derive_seed(seed, "projection"))
    generator = torch.Generator().manual_seed(derive_seed(seed, "combinations"))
    kernel = torch.zeros(len(x), len(x), dtype=torch.float64)
    for _ in range(combinations):
        signs = 2.0 * torch.randint(0, 2, (n_classes,), generator=generator) - 1.0
        projected = gradients.of(x, signs).double()
        kernel += projected @ projected.T
    return kernel


def cell(rule: dict[str, Any], data: str, seed: int) -> dict[str, Any]:
    """Return forecasts by features, NTK and both, and the test accuracy of a linear probe and of a full fine-tune."""
    settings, of_data = rule["ntk_forecast"], rule["data"][data]
    network = settings["data"][data]
    x, y, _ = load(data, of_data["kind"], of_data["pool"], of_data["test"])
    train, test, _ = split(rule, data, settings["size"], derive_seed(seed, "ntk forecast"))
    n, rows = len(train), torch.cat([train, test[: settings["test"]]])
    labels, n_classes = y[rows], int(y.max()) + 1
    chosen = x[rows] if isinstance(x, Tensor) else [x[row] for row in rows.tolist()]
    model, inputs = start(network, chosen, n_classes, settings, derive_seed(seed, "head"))
    seconds: dict[str, float] = {}

    def timed(name: str, call: Any) -> Any:
        begin = time.process_time()
        value = call()
        seconds[name] = time.process_time() - begin
        return value

    features = timed("features", lambda: evaluate(model, inputs[:n])[0]).double()
    ntk = timed(
        "NTK",
        lambda: projected_kernel(model, inputs[:n], n_classes, settings["combinations"], seed),
    )
    of_features = features @ features.T
    forecasts = {
        name: ridge_accuracies(kernel, n, labels[:n], n_classes)[0] for name, kernel in (
            ("features", of_features), ("NTK", ntk),
            ("sum of kernels", of_features / of_features.diagonal().mean() + ntk / ntk.diagonal().mean()),
        )
    }  # fmt: skip
    forecasts["features and NTK"] = (forecasts["features"] + forecasts["NTK"]) / 2
    held = evaluate(model, inputs[n:])[0].numpy()
    fitted = probe().fit(features.float().numpy(), labels[:n].numpy())
    rate = settings["rate"][network]
    timed(
        "fine-tune",
        lambda: fine_tune(
            model, inputs[:n], labels[:n], settings, rate, derive_seed(seed, "order")
        ),
    )
    tuned = evaluate(model, inputs[n:])[1].argmax(1)
    truths = {
        "linear probe": float(fitted.score(held, labels[n:].numpy())),
        "fine-tune": float((tuned == labels[n:]).double().mean()),
    }
    return {"data": data, "network": network, "seed": seed, "forecasts": forecasts, "truths": truths,
            "cpu_seconds": seconds}  # fmt: skip


def jobs(rule: dict[str, Any], _: Path) -> dict[str, Any]:
    """Return the cells by name, one seed of all data sets after the other."""
    settings = rule["ntk_forecast"]
    return {f"ntk_forecast {data} {seed}": partial(cell, rule, data, seed)
            for seed in settings["seeds"] for data in settings["data"]}  # fmt: skip
