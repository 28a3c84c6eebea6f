"""Training and readings of one network of a pool, with the baselines that need training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.accuracy_estimator import accuracy_readings
from gapscope.base.randomness import derive_seed
from gapscope.data import inject_label_noise, load_dataset
from gapscope.inspection.losses import evaluate
from gapscope_studies.expected_accuracy.pools import Configuration, has_cross_validation, load_rows
from gapscope_studies.expected_accuracy.rows import QUARTILES
from gapscope_studies.kit.data import quartile_classes
from gapscope_studies.kit.study import RunSettings

LARGEST_TEST = 2000
FOLDS = 5


def data_of(configuration: Configuration, root: str | None) -> tuple[gs.Samples, gs.Samples, int]:
    """Return training samples with label noise, clean test samples, and the number of classes."""
    table = QUARTILES.get(configuration.data)
    problem: Any = load_dataset(table or configuration.data, root=root)
    problem = quartile_classes(problem) if table else problem
    train, test, classes = problem.train, problem.test, problem.n_outputs
    generator = torch.Generator().manual_seed(
        derive_seed(configuration.seed, f"data {configuration.pool}")
    )
    order = torch.randperm(len(train), generator=generator)
    if table and len(test) < LARGEST_TEST:  # networks on small tables are scored on all other rows
        rest = train.subset(order[configuration.samples :])
        test = gs.Samples(
            torch.cat([rest.inputs, test.inputs]), torch.cat([rest.targets, test.targets])
        )
    train = train.subset(order[: configuration.samples])
    test = test.subset(torch.randperm(len(test), generator=generator)[:LARGEST_TEST])
    if configuration.noise:
        train = gs.Samples(
            train.inputs, inject_label_noise(train.targets, configuration.noise, classes, generator)
        )
    return train, test, classes


def build(configuration: Configuration, samples: gs.Samples, outputs: int) -> nn.Module:
    """Build a network at its initial weights."""
    generator = torch.Generator().manual_seed(derive_seed(configuration.seed, "initial weights"))
    recipe, shape = configuration.recipe, tuple(samples.inputs.shape[1:])
    return gs.build_network(
        recipe.network, input_shape=shape, n_outputs=outputs, generator=generator, **recipe.options
    )


def build_and_train(configuration: Configuration, samples: gs.Samples, outputs: int) -> nn.Module:
    """Build a network and train it on samples."""
    network = build(configuration, samples, outputs)
    gs.train(
        network,
        samples,
        gs.TrainingSpec.from_dict(dict(configuration.recipe.training)),
        seed=configuration.seed,
    )
    return network


def accuracy(network: nn.Module, samples: gs.Samples) -> float:
    """Return the accuracy on samples."""
    return evaluate(network, samples)["accuracy"]


def on_equally_noisy(clean: float, noise: float, classes: int) -> float:
    """Return the expected accuracy on test labels with a fraction `noise` of other classes."""
    return clean * (1 - noise) + (1 - clean) * noise / (classes - 1) if noise else clean


def fold_order(configuration: Configuration, n: int) -> Tensor:
    """Return the order of the samples from which hold-outs and folds are cut."""
    return torch.randperm(
        n, generator=torch.Generator().manual_seed(derive_seed(configuration.seed, "folds"))
    )


def held_out_scores(
    configuration: Configuration, train: gs.Samples, outputs: int, parts: Sequence[Tensor]
) -> list[float]:
    """Return the accuracy on each part of a network that is trained on all other samples."""
    order, scores = fold_order(configuration, len(train)), []
    for part in parts:
        network = build_and_train(
            configuration, train.subset(order[~torch.isin(order, part)]), outputs
        )
        scores.append(accuracy(network, train.subset(part)))
    return scores


def read_network(configuration: Configuration, root: str | None = None) -> dict[str, Any]:
    """Train one network, and return readings, accuracies, hold-out and (of some) five folds."""
    train, test, classes = data_of(configuration, root)
    initial = build(configuration, train, classes).state_dict()
    network = build_and_train(configuration, train, classes)
    clean = accuracy(network, test)
    result = configuration.facts() | accuracy_readings(network, initial, train) | {
        "classes": classes,
        "parameter_count": sum(parameter.numel() for parameter in network.parameters()),
        "train_score": accuracy(network, train),
        "test_score": clean,
        "test_score_like_training": on_equally_noisy(clean, configuration.noise, classes),
    }  # fmt: skip
    order = fold_order(configuration, len(train))
    parts: dict[str, Sequence[Tensor]] = {"hold_out": [order[: len(train) // 10]]}
    if has_cross_validation(configuration):
        parts["cross_validation"] = order.chunk(FOLDS)
    for name, held_out in parts.items():
        scores = held_out_scores(configuration, train, classes, held_out)
        result[name] = sum(scores) / len(scores)
    return result


def load_or_read(
    setting: RunSettings,
    configurations: Sequence[Configuration],
    file: str,
    read: Callable[..., dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return rows of networks in order: stored (small), completed (paper) or all read (smoke)."""
    stored = load_rows(file) if setting.scale != "smoke" else {}
    missing = (
        [item for item in configurations if item.job not in stored]
        if setting.scale != "small"
        else []
    )
    stored |= setting.cached(
        file, {item.job: partial(read, item, setting.data_root) for item in missing}
    )
    return [stored[item.job] for item in configurations if item.job in stored]
