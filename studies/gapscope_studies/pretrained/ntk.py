"""The NTK of a network from projected per-sample gradients, layer by layer, without an [n, P] matrix.

For a layer with input a [C, T] and output gradient d [K, T], the weight gradient is d a^T. With random signs R1 [r, K]
and R2 [s, C] the features (R1 d)(R2 a)^T keep inner products in expectation. R2 a is a convolution with random kernels.
The layers are convolutions and all linear layers but the last one, whose kernel is that of the hidden features.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.randomness import derive_seed
from gapscope.statistics.baselines import target_matrix
from gapscope_studies.pretrained.cells import split
from gapscope_studies.pretrained.features import build, features, load, pixels

ROWS = COLUMNS = 16  # of the projected gradient of a layer
DEPTHWISE = 4  # random kernels per channel of a depthwise convolution
BATCH = 25
RIDGES = tuple(10.0**k for k in range(-4, 3))


class ProjectedGradients:
    """Projected gradients of sums of outputs, for the weights of every layer of a network but its head."""

    def __init__(
        self, network: nn.Module, seed: int, *, rows: int = ROWS, columns: int = COLUMNS
    ) -> None:
        self.network, self.rows, self.columns = network, rows, columns
        self.parts: dict[nn.Module, Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        self.projections: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._busy = False
        layers = [
            module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)
        ]
        for module in layers[:-1]:
            self.projections[module] = self._project(module, generator)

    def _project(
        self, module: nn.Conv2d | nn.Linear, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        def signs(*shape: int) -> Tensor:
            return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1.0

        is_linear = isinstance(module, nn.Linear)
        shape = (module.out_features,) if is_linear else (module.out_channels, 1, 1)
        left = signs(self.rows, *shape) / self.rows**0.5
        if is_linear or module.groups == 1:
            return left, signs(self.columns, *module.weight.shape[1:]) / self.columns**0.5
        return left, signs(DEPTHWISE, *module.weight.shape) / DEPTHWISE**0.5

    def _apply(self, module: nn.Module, kernels: Tensor, x: Tensor) -> Tensor:
        """Return the layer itself with other kernels, so that its own padding counts."""
        parameters = {"weight": kernels}
        if getattr(module, "bias", None) is not None:
            parameters["bias"] = torch.zeros(len(kernels))
        self._busy = True
        try:
            return torch.func.functional_call(module, parameters, (x,))
        finally:
            self._busy = False

    def _forward(self, module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not self._busy:
            x = inputs[0].detach()
            output.register_hook(lambda gradient: self._backward(module, x, gradient.detach()))

    def _backward(self, module: Any, x: Tensor, gradient: Tensor) -> None:
        left, right = self.projections[module]
        if isinstance(module, nn.Linear):
            n = len(x)
            rows = (gradient @ left.T).reshape(n, -1, len(left))
            part = rows.transpose(1, 2) @ (x @ right.T).reshape(n, -1, len(right))
        elif module.groups == 1:
            rows = nn.functional.conv2d(gradient, left).flatten(2)
            columns = self._apply(module, right, x).flatten(2)
            part = rows @ columns.transpose(1, 2)
        else:
            sums = [
                (gradient * self._apply(module, kernels, x)).flatten(2).sum(2) for kernels in right
            ]
            part = torch.stack([each @ left.flatten(1).T for each in sums], 2)
        self.parts[module] = self.parts.get(module, 0.0) + part.flatten(1)

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [module.register_forward_hook(self._forward) for module in self.projections]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def of(self, x: Tensor, combination: Tensor) -> Tensor:
        """Return the projected gradients [n, p] of one combination [k] of the outputs."""
        rows: list[Tensor] = []
        with self._hooks(), torch.enable_grad():
            for part in x.split(BATCH):
                self.parts.clear()
                (self.network(part) @ combination).sum().backward()
                self.network.zero_grad(set_to_none=True)
                rows.append(
                    torch.cat(
                        [self.parts[module] for module in self.projections if module in self.parts],
                        1,
                    )
                )
        return torch.cat(rows)


def with_head(network: Any, n_classes: int, seed: int) -> nn.Module:
    """Replace the last linear layer by a new one, from which a fine-tune would start."""
    name, last = [
        (name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)
    ][-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        setattr(network, name, nn.Linear(last.in_features, n_classes))
    return network


def ridge_accuracies(kernel: Tensor, n: int, y: Tensor, n_classes: int) -> tuple[float, float]:
    """Return leave-one-out and test accuracy of kernel ridge, at the ridge of the least leave-one-out error.

    Args:
        kernel: [m, m] of n training samples, then test samples.
        n: Number of training samples.
        y: Classes [m].
        n_classes: Number of classes.
    """
    kernel = kernel / kernel.diagonal()[:n].mean() + 1.0
    targets = target_matrix(y[:n], n_classes)
    targets = targets - targets.mean(0)
    values, vectors = torch.linalg.eigh(kernel[:n, :n])
    best = (float("inf"), 0.0, 0.0)
    for ridge in RIDGES:
        inverse = (vectors / (values.clamp_min(0) + ridge)) @ vectors.T
        weights = inverse @ targets
        residuals = weights / inverse.diagonal()[:, None]
        held_out = (targets - residuals).argmax(1) == y[:n]
        predicted = (kernel[n:, :n] @ weights).argmax(1) == y[n:]
        row = (
            float(residuals.square().sum()),
            float(held_out.double().mean()),
            float(predicted.double().mean()),
        )
        best = min(best, row)
    return best[1:]


def cell(rule: dict[str, Any], folder: Path, data: str, network: str, seed: int) -> dict[str, Any]:
    """Return test accuracies of ridge on features, on the NTK of all layers but the head, and on both."""
    settings, of_data = rule["ntk"], rule["data"][data]
    x, y, _ = load(data, of_data["kind"], of_data["pool"], of_data["test"])
    train, test, _ = split(rule, data, settings["size"], derive_seed(seed, "ntk"))
    rows = torch.cat([train, test[: settings["test"]]])
    n, n_classes = len(train), int(y.max()) + 1
    images = pixels(network, x[rows], settings["side"])
    start = time.process_time()
    model = with_head(build(network), n_classes, derive_seed(seed, "head"))
    gradients = ProjectedGradients(model, derive_seed(seed, "projection"))
    generator = torch.Generator().manual_seed(derive_seed(seed, "combinations"))
    ntk = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _ in range(settings["combinations"]):
        signs = 2.0 * torch.randint(0, 2, (n_classes,), generator=generator) - 1.0
        projected = gradients.of(images, signs).double()
        ntk += projected @ projected.T
    seconds = time.process_time() - start
    values, facts = features(rule, data, network, folder)
    chosen = values[rows].double()
    of_features = chosen @ chosen.T
    kernels = {"features": of_features, "NTK": ntk}
    scaled = [kernel / kernel.diagonal()[:n].mean() for kernel in kernels.values()]
    kernels["features and NTK"] = scaled[0] + scaled[1]
    result: dict[str, Any] = {"data": data, "network": network, "seed": seed, "ntk_seconds": seconds,
                              "feature_seconds": facts["cpu_seconds"] * len(rows) / len(values)}  # fmt: skip
    for name, kernel in kernels.items():
        held_out, accuracy = ridge_accuracies(kernel, n, y[rows], n_classes)
        result |= {name: accuracy, f"{name}, leave-one-out": held_out}
    return result
