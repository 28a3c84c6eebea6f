"""One configuration: trained, read at the initial and the trained weights, scored, and its baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.data import inject_label_noise, load_dataset
from gapscope.inspection.losses import evaluate
from gapscope.prediction.accuracy_estimator import accuracy_readings
from gapscope_studies.expected_accuracy.pools import Configuration, has_cross_validation, load_rows
from gapscope_studies.kit.study import RunSettings

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


def data_of(configuration: Configuration, root: str | None) -> tuple[gs.Samples, gs.Samples, int]:
    """Training samples with their (wrong) labels, clean test samples, number of classes (1 for regression)."""
    table = QUARTILES.get(configuration.data)
    problem: Any = load_dataset(table or configuration.data, root=root)
    train: Any = problem.train
    test: Any = problem.test
    if table:  # the target as four classes, cut at the quartiles of the training split
        cuts = train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
        train, test = (gs.Samples(s.inputs, torch.bucketize(s.targets[:, 0], cuts)) for s in (train, test))
    draw = torch.Generator().manual_seed(derive_seed(configuration.seed, f"data {configuration.pool}"))
    order = torch.randperm(len(train), generator=draw)
    if table and len(test) < LARGEST_TEST:  # small tables: what is not trained on is scored on
        rest = train.subset(order[configuration.samples :])
        test = gs.Samples(torch.cat([rest.inputs, test.inputs]), torch.cat([rest.targets, test.targets]))
    train = train.subset(order[: configuration.samples])
    test = test.subset(torch.randperm(len(test), generator=draw)[:LARGEST_TEST])
    if not train.is_classification:  # targets in units of the training standard deviation
        mean, spread = train.targets.mean(0), train.targets.std(0)
        train, test = (gs.Samples(s.inputs, (s.targets - mean) / spread) for s in (train, test))
        return train, test, 1
    classes = 4 if table else problem.n_outputs
    if configuration.noise:
        noisy = inject_label_noise(train.targets, configuration.noise, classes, draw)
        train = gs.Samples(train.inputs, noisy)
    return train, test, classes


def untrained(configuration: Configuration, samples: gs.Samples, outputs: int) -> nn.Module:
    """The network at its initial weights."""
    generator = torch.Generator().manual_seed(derive_seed(configuration.seed, "initial weights"))
    recipe, shape = configuration.recipe, tuple(samples.inputs.shape[1:])
    return gs.build_network(recipe.network, input_shape=shape, n_outputs=outputs, generator=generator, **recipe.options)


def trained(configuration: Configuration, samples: gs.Samples, outputs: int) -> nn.Module:
    """The network trained on samples."""
    network = untrained(configuration, samples, outputs)
    gs.train(network, samples, gs.TrainingSpec.from_dict(dict(configuration.recipe.training)), seed=configuration.seed)
    return network


def score(network: nn.Module, samples: gs.Samples) -> float:
    """Accuracy, or the R² of the variance of the regression targets."""
    if samples.is_classification:
        return evaluate(network, samples)["accuracy"]
    targets: Any = samples.targets
    with torch.no_grad():
        residual = network.eval()(samples.inputs) - targets
    return 1 - float(residual.square().sum() / (targets - targets.mean(0)).square().sum())


def on_equally_noisy(clean: float, noise: float, classes: int) -> float:
    """Expected accuracy on test labels of which a share `noise` is replaced by any other class."""
    return clean * (1 - noise) + (1 - clean) * noise / (classes - 1) if noise else clean


def _readings(network: nn.Module, initial: dict[str, Tensor], train: gs.Samples, device: str) -> dict[str, float]:
    """Readings of the shipped estimate, and of the default estimator."""
    network.to(device)
    x, y = train.inputs.to(device), train.targets.to(device)  # type: ignore[union-attr]
    before = {name: tensor.to(device) for name, tensor in initial.items()}
    readings = accuracy_readings(network, before, gs.Samples(x, y))
    result = {_SHORT.get(name, name): value for name, value in readings.items()}
    for name in DEFAULT_READINGS:
        try:
            for reading in gs.measure(network, (x[:READ], y[:READ]), [name]):
                if not name.startswith("margin") or reading.name.endswith(".median"):
                    result[reading.name] = reading.value
        except GapscopeError:  # a measure that this network does not have
            continue
    network.cpu()
    return result


def fold_order(configuration: Configuration, n: int) -> Tensor:
    """Order of the samples in which hold-outs and folds are cut."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(configuration.seed, "folds")))


def held_out_scores(
    configuration: Configuration, train: gs.Samples, outputs: int, parts: Sequence[Tensor]
) -> list[float]:
    """Score on each part of the samples of a network trained on all others."""
    order = fold_order(configuration, len(train))
    return [
        score(trained(configuration, train.subset(order[~torch.isin(order, held)]), outputs), train.subset(held))
        for held in parts
    ]


def _rivals(configuration: Configuration, train: gs.Samples, outputs: int) -> dict[str, float]:
    """Scores of a 10 % hold-out and, for some networks, of five folds, on the labels as they are."""
    order = fold_order(configuration, len(train))
    parts: dict[str, Sequence[Tensor]] = {"hold_out": [order[: len(train) // 10]]}
    if has_cross_validation(configuration):
        parts["cross_validation"] = order.chunk(FOLDS)
    scores = {name: held_out_scores(configuration, train, outputs, held) for name, held in parts.items()}
    return {name: sum(result) / len(result) for name, result in scores.items()}


def probed(
    configuration: Configuration, root: str | None = None, device: str = "cpu", rivals: bool = False
) -> dict[str, Any]:
    """Train, read and score one configuration; JSON-serializable values."""
    train, test, classes = data_of(configuration, root)
    start = time.perf_counter()
    initial = untrained(configuration, train, classes).state_dict()
    network = trained(configuration, train, classes)
    trained_in = time.perf_counter() - start
    clean, fit = score(network, test), score(network, train)
    start = time.perf_counter()
    result = configuration.facts() | _readings(network, initial, train, device)
    return result | {
        "classes": classes,
        "parameter_count": sum(parameter.numel() for parameter in network.parameters()),
        "train_loss": evaluate(network, train)["loss"],
        "train_score": fit,
        "test_score": clean,
        "test_score_like_training": on_equally_noisy(clean, configuration.noise, classes),
        "training_seconds": trained_in,
        "reading_seconds": time.perf_counter() - start,
        **(_rivals(configuration, train, classes) if rivals else {}),
    }  # fmt: skip


def stored_or_read(
    setting: RunSettings,
    configurations: Sequence[Configuration],
    file: str,
    read: Callable[..., dict[str, Any]],
    *,
    stored: bool = True,
    train: bool = True,
) -> list[dict[str, Any]]:
    """Rows of networks in order: those that are stored, the rest read now, or left out unless `train`."""
    known = load_rows(file) if stored else {}
    missing = [item for item in configurations if item.job not in known] if train else []
    known |= setting.cached(file, {item.job: partial(read, item, setting.data_root) for item in missing})
    return [known[item.job] for item in configurations if item.job in known]
