"""Forecast of short training by the gradient flow of the initial NTK, and the fresh networks that judge it."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.statistics.baselines import feature_matrix, rbf_ridge
from gapscope.statistics.kernel_ridge import select_ridge, spectrum
from gapscope_studies.expected_accuracy.pools import (
    ADAM,
    SGD,
    Configuration,
    Plan,
    TrainingConfig,
    in_random_order,
)
from gapscope_studies.expected_accuracy.runs import _network, _trained, data_of, on_equally_noisy, score
from gapscope_studies.expected_accuracy.stored_results import job_name

NODES = 32  # error of the inverse Laplace transform: 1e-10
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
FOLDS = 5
SAMPLES_PER_PASS = 50


def _flat(width: int, layers: int, epochs: int, training: dict[str, Any] = ADAM, **options: Any) -> TrainingConfig:
    return TrainingConfig(
        "fully_connected", {"n_hidden": layers, "width": width, **options}, training | {"epochs": epochs}
    )


_CNN = {"width_multiplier": 0.25}
SHORT_IMAGES = (
    _flat(256, 1, 3),
    _flat(128, 2, 5, SGD),
    _flat(128, 2, 5, batch_norm=True),
    TrainingConfig("lenet5", {}, ADAM | {"epochs": 8}),
    TrainingConfig("lenet5", {}, SGD | {"epochs": 12, "learning_rate": 0.02}),
    TrainingConfig("small_cnn", _CNN, ADAM | {"epochs": 12}),
    TrainingConfig("small_cnn", _CNN | {"batch_norm": True}, ADAM | {"epochs": 3}),
    TrainingConfig("small_cnn", _CNN | {"batch_norm": True}, SGD | {"epochs": 5}),
)
SHORT_TABLE = (_flat(64, 1, 8), _flat(64, 3, 5), _flat(128, 2, 3, batch_norm=True), _flat(128, 2, 12, SGD))
FRESH = (
    Plan("short_images", dict.fromkeys(("mnist", "fashion_mnist", "cifar10"), SHORT_IMAGES), (120, 250), (), 8, 31),
    Plan("short_noise", dict.fromkeys(("mnist", "fashion_mnist"), SHORT_IMAGES[1::2]), (120, 250), (0.3,), 4, 32),
    Plan("short_table", dict.fromkeys(("concrete_quartiles", "boston_quartiles"), SHORT_TABLE), (100, 250), (), 4, 33),
)  # fmt: skip


def flow_residuals(kernel: Tensor, residuals: Tensor, time: float) -> Tensor:
    r"""Leave-one-out residuals of gradient flow on the squared error at a time.

    Without sample i all residuals follow $\dot r = -K D_i r$, with $D_i$ the identity without entry i. The Laplace
    transform of $r_i$ is $(G b)_i / (z\, G_{ii})$ with $G = (z + K)^{-1}$ (Sherman and Morrison), the ridge identity at
    a complex ridge z. It is inverted on the hyperbola of Weideman and Trefethen (2007); the error is about 1e-10.

    Args:
        kernel: K, symmetric and without negative eigenvalues, [n, n].
        residuals: b, the residuals before training, [n, k].
        time: Duration of the flow, in units of one over K.

    Returns:
        Residual of every sample under the flow of all others, float64, [n, k].
    """
    values, vectors = torch.linalg.eigh(kernel.double())
    values, squares = values.clamp_min(0.0), vectors.square()
    inside = vectors.T @ residuals.double()
    step, scale, angle = 1.081792140 / NODES, 4.492075287 * NODES / time, 1.172104229
    found = torch.zeros_like(inside)
    for node in range(NODES):
        u = torch.tensor((node + 0.5) * step, dtype=torch.float64)
        z = scale * (1 + torch.sin(1j * u - angle))
        weight = torch.exp(z * time) * scale * torch.cos(1j * u - angle) * step / math.pi
        resolvent = 1 / (z + values)
        transformed = vectors.to(resolvent.dtype) @ (resolvent[:, None] * inside)
        own = squares.to(resolvent.dtype) @ resolvent
        found += (weight * transformed / (z * own)[:, None]).real
    return found


def preconditioned_kernels(network: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """NTK at the initial weights, mean over outputs, and the same with Adam's scales.

    Adam divides the gradient of each weight by the root of its mean square over batches, here that of the
    cross-entropy at the initial weights: squared mean plus variance / batch size.

    Args:
        network: The untrained network.
        x: Inputs.
        y: Class labels.
        batch_size: Samples per optimizer step.

    Returns:
        Both kernels, [n, n].
    """
    network = with_data_statistics(network, x).eval()
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def outputs(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(network, {**weights, **buffers}, (sample[None],))[0]

    def rows(function: Any, *arguments: Tensor) -> Tensor:
        by_name = vmap(grad(function), in_dims=(None, *(0 for _ in arguments)), chunk_size=SAMPLES_PER_PASS)(
            parameters, *arguments
        )
        return torch.cat([part.flatten(1) for part in by_name.values()], 1)

    loss = rows(lambda w, a, b: nn.functional.cross_entropy(outputs(w, a)[None], b[None]), x, y)
    squares = loss.mean(0).square() + loss.var(0) / min(batch_size, len(x))
    del loss
    # a weight whose gradient is zero at every sample does not move
    scale = torch.where(squares > 1e-14 * squares.max(), 1 / (squares.sqrt() + 1e-8), 0.0)
    n_outputs = outputs(parameters, x[0]).numel()
    plain, scaled = torch.zeros(len(x), len(x)), torch.zeros(len(x), len(x))
    for c in range(n_outputs):
        jacobian = rows(lambda w, a, c=c: outputs(w, a)[c], x)
        plain += jacobian @ jacobian.T / n_outputs
        scaled += (jacobian * scale) @ jacobian.T / n_outputs
    return plain, scaled


def flow_time(training: dict[str, Any], n: int) -> float:
    """Sum of the learning rates of all steps; momentum multiplies each by the steps that repeat it."""
    steps = training["epochs"] * math.ceil(n / training["batch_size"])
    momentum = training.get("momentum", 0.0)
    repeated = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return training["learning_rate"] * repeated


def kernel_scores(configuration: Configuration, train: gs.Samples, classes: int) -> dict[str, float]:
    """Leave-one-out accuracy of the flow, of NTK ridge and of RBF ridge; CPU seconds of the flow."""
    x, y = train.inputs, train.targets
    assert y is not None
    training = dict(configuration.recipe.training)
    start = time.process_time()
    network = _network(configuration, tuple(x.shape[1:]), classes)
    plain, scaled = preconditioned_kernels(network, x, y, training["batch_size"])
    labels = nn.functional.one_hot(y, classes).double()
    kernel = scaled if training["optimizer"] == "adam" else plain
    # cross-entropy at equal probabilities: dp/df = 1/C, and a mean over n samples
    residuals = flow_residuals(kernel / (len(x) * classes), labels - 1 / classes, flow_time(training, len(x)))
    flow = float(((labels - residuals).argmax(1) == y).double().mean())
    seconds = time.process_time() - start
    _, ridge = select_ridge(spectrum(plain), labels, RIDGES)
    return {
        "flow": flow,
        "flow_seconds": seconds,
        "ntk": float((ridge.predictions.argmax(1) == y).double().mean()),
        "rbf": rbf_ridge(feature_matrix(x), y, n_classes=classes).score,
    }


def read(configuration: Configuration, root: str | None = None) -> dict[str, Any]:
    """Everything of one network; JSON-serializable values."""
    train, test, classes = data_of(configuration, root)
    found = configuration.facts() | {"name": job_name(configuration)} | kernel_scores(configuration, train, classes)
    start = time.process_time()
    network, _ = _trained(configuration, train, classes)
    found["training_seconds"] = time.process_time() - start
    found["truth"] = on_equally_noisy(score(network, test), configuration.noise, classes)
    found["train_score"] = score(network, train)
    generator = torch.Generator().manual_seed(derive_seed(configuration.seed, "folds"))
    order = torch.randperm(len(train), generator=generator)
    scores = []
    for held in order.chunk(FOLDS):
        network, _ = _trained(configuration, train.subset(order[~torch.isin(order, held)]), classes)
        scores.append(score(network, train.subset(held)))
    return found | {"hold_out": scores[0], "folds": sum(scores) / len(scores)}


def short_configurations() -> list[Configuration]:
    """Fresh networks, those of each pool spread evenly over the order."""
    drawn = [(number / len(part), item) for part in map(in_random_order, FRESH) for number, item in enumerate(part)]
    return [item for _, item in sorted(drawn, key=lambda pair: pair[0])]


def main(path: Path, until: float) -> None:
    """Append one line per fresh network to a file until a time; resumable."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    for item in short_configurations():
        if job_name(item) in done or time.time() > until:
            continue
        row = read(item)
        with path.open("a") as file:
            file.write(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}) + "\n")
        print(time.strftime("%H:%M:%S"), round(time.process_time()), item.name[:110], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
