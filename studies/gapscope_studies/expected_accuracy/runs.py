"""One configuration: trained, read at the initial and the trained weights, scored, and its baselines beside it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.data import inject_label_noise, load_dataset
from gapscope.inspection.losses import evaluate
from gapscope.prediction.accuracy_estimator import accuracy_readings
from gapscope_studies.expected_accuracy.pools import Configuration, has_cross_validation

LARGEST_TEST = 2000
READ = 300  # samples of the readings that today's default estimator takes
DEFAULT_READINGS = ("output_sensitivity", "input_jacobian_norm", "ntk_trace", "margin_signature")
FOLDS = 5
# names that the first networks were stored under
_SHORT = {
    **{f"kernel_leave_one_out.initial.{name}": f"initial.{name}"
       for name in ("accuracy", "squared_error", "explained", "effective_dimension", "largest_leverage")},
    **{f"gradient_neighbours.{name}": name for name in ("agreement", "conflict")},
    "kernel_leave_one_out.alignment": "alignment",
}  # fmt: skip


QUARTILES = {f"{name.removesuffix('_housing')}_quartiles": name
             for name in ("california_housing", "concrete", "boston_housing")}  # fmt: skip


def _quartiles(problem: Any) -> tuple[gs.Samples, gs.Samples]:
    """The target as four classes, cut at the quartiles of the training split."""
    cuts = problem.train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
    return tuple(gs.Samples(s.inputs, torch.bucketize(s.targets[:, 0], cuts)) for s in (problem.train, problem.test))  # type: ignore[return-value]


def _joined(first: gs.Samples, second: gs.Samples) -> gs.Samples:
    return gs.Samples(torch.cat([first.inputs, second.inputs]), torch.cat([first.targets, second.targets]))  # type: ignore[list-item]


def data_of(configuration: Configuration, root: str | None) -> tuple[gs.Samples, gs.Samples, int]:
    """Training samples with their (wrong) labels, clean test samples, number of classes (1 for regression)."""
    table = QUARTILES.get(configuration.data)
    problem = load_dataset(table or configuration.data, root=root)
    train, test = _quartiles(problem) if table else (problem.train, problem.test)
    draw = torch.Generator().manual_seed(derive_seed(configuration.seed, f"data {configuration.pool}"))
    order = torch.randperm(len(train), generator=draw)
    if table and len(test) < LARGEST_TEST:  # small tables: what is not trained on is scored on
        test = _joined(train.subset(order[configuration.samples :]), test)
    train = train.subset(order[: configuration.samples])
    test = test.subset(torch.randperm(len(test), generator=draw)[:LARGEST_TEST])
    assert train.targets is not None
    if not train.is_classification:  # targets in units of the training standard deviation
        mean, spread = train.targets.mean(0), train.targets.std(0)
        train, test = (gs.Samples(s.inputs, (s.targets - mean) / spread) for s in (train, test))  # type: ignore[operator]
        return train, test, 1
    classes = 4 if table else problem.n_outputs
    if configuration.noise:
        train = gs.Samples(train.inputs, inject_label_noise(train.targets, configuration.noise, classes, draw))  # type: ignore[arg-type]
    return train, test, classes


def _network(configuration: Configuration, shape: tuple[int, ...], outputs: int) -> nn.Module:
    generator = torch.Generator().manual_seed(derive_seed(configuration.seed, "initial weights"))
    recipe = configuration.recipe
    return gs.build_network(recipe.network, input_shape=shape, n_outputs=outputs, generator=generator, **recipe.options)


def _trained(configuration: Configuration, train: gs.Samples, outputs: int) -> tuple[nn.Module, dict[str, Tensor]]:
    network = _network(configuration, tuple(train.inputs.shape[1:]), outputs)
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gs.train(network, train, gs.TrainingSpec.from_dict(dict(configuration.recipe.training)), seed=configuration.seed)
    return network, initial


def score(network: nn.Module, samples: gs.Samples) -> float:
    """Accuracy, or the R² of the variance of the regression targets."""
    if samples.is_classification:
        return evaluate(network, samples)["accuracy"]
    with torch.no_grad():
        residual = network.eval()(samples.inputs) - samples.targets
    spread = samples.targets - samples.targets.mean(0)  # type: ignore[union-attr]
    return 1 - float(residual.square().sum() / spread.square().sum())


def on_equally_noisy(clean: float, noise: float, classes: int) -> float:
    """Expected accuracy on test labels of which a share `noise` is replaced by any other class."""
    return clean * (1 - noise) + (1 - clean) * noise / (classes - 1) if noise else clean


def _readings(network: nn.Module, initial: dict[str, Tensor], train: gs.Samples, device: str) -> dict[str, float]:
    """What the new estimate takes, and what today's default does."""
    network.to(device)
    x, y = train.inputs.to(device), train.targets.to(device)  # type: ignore[union-attr]
    before = {name: tensor.to(device) for name, tensor in initial.items()}
    found = {_SHORT.get(name, name): value
             for name, value in accuracy_readings(network, before, gs.Samples(x, y)).items()}  # fmt: skip
    few = (x[:READ], y[:READ])
    for name in DEFAULT_READINGS:
        try:
            for reading in gs.measure(network, few, [name]):
                if not name.startswith("margin") or reading.name.endswith(".median"):
                    found[reading.name] = reading.value
        except GapscopeError:  # a measure that this network does not have
            continue
    network.cpu()
    return found


def _rivals(configuration: Configuration, train: gs.Samples, outputs: int) -> dict[str, float]:
    """Scores of a 10 % hold-out and, for some networks, of five folds, on the labels as they are."""
    n = len(train)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(configuration.seed, "folds")))
    parts = {"hold_out": [order[: n // 10]]}
    if has_cross_validation(configuration):
        parts["cross_validation"] = list(order.chunk(FOLDS))
    found = {}
    for name, held_out in parts.items():
        scored = []
        for held in held_out:
            network, _ = _trained(configuration, train.subset(order[~torch.isin(order, held)]), outputs)
            scored.append(score(network, train.subset(held)))
        found[name] = sum(scored) / len(scored)
    return found


def probed(
    configuration: Configuration, root: str | None = None, device: str = "cpu", rivals: bool = False
) -> dict[str, Any]:
    """Train, read and score one configuration; JSON-serializable values."""
    train, test, outputs = data_of(configuration, root)
    start = time.perf_counter()
    network, initial = _trained(configuration, train, outputs)
    trained_in = time.perf_counter() - start
    clean, classes = score(network, test), outputs
    fit = score(network, train)
    start = time.perf_counter()
    found = configuration.facts() | _readings(network, initial, train, device)
    return found | {
        "classes": classes,
        "parameter_count": sum(parameter.numel() for parameter in network.parameters()),
        "train_loss": evaluate(network, train)["loss"],
        "train_score": fit,
        "test_score": clean,
        "test_score_like_training": on_equally_noisy(clean, configuration.noise, classes),
        "training_seconds": trained_in,
        "reading_seconds": time.perf_counter() - start,
        **(_rivals(configuration, train, outputs) if rivals else {}),
    }  # fmt: skip
