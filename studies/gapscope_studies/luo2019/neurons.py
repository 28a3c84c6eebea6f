"""Sec. 1.1: what each batch statistic does to single neurons, in a fully connected network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.data import Problem
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.losses import evaluate
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import claim
from gapscope_studies.kit.pool import evaluate_networks
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import POOL, by_seed, compared_methods, method, trained

METHODS: dict[str, dict[str, Any]] = {
    "WN": {"options": {"batch_norm": False}, "weight_norm": True},
    "WN + mean-only BN": {"kind": "mean_only", "weight_norm": True},
    "WN + variance-only BN": {"kind": "variance_only", "weight_norm": True},
    "BN": {},
}
# number -> the statistic that lowers it, and the claim
CLAIMS = {
    "inequality": ("WN + mean-only BN", "batch means equalize the neurons of a layer"),
    "reliance": ("WN + mean-only BN", "batch means discourage reliance on a single neuron"),
    "kurtosis": ("WN + variance-only BN", "batch variances lower the kurtosis of neurons"),
    "correlation": ("WN + variance-only BN", "batch variances lower the correlation between neurons"),
}
QUANTITIES = {
    "inequality": "spread over mean of the mean outputs of a layer's neurons",
    "reliance": "largest loss of test accuracy by removing one neuron",
    "kurtosis": "mean kurtosis of what enters the ReLUs",
    "correlation": "mean absolute correlation of what enters the ReLUs",
}

BEWARE = (
    "Beside the noise of a batch statistic, which is what the paper speaks of, centring or scaling itself tells the "
    "compared networks apart."
)


def hidden_values(network: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return what enters every ReLU [samples, neurons], by its name."""
    result: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, values: tuple[Tensor, ...]) -> None:
        result[name] = values[0].clone()

    relus = {name: module for name, module in network.named_modules() if isinstance(module, nn.ReLU)}
    with torch.no_grad(), forward_hooks(relus, keep, before=True):
        network(inputs)
    return result


def kurtosis(values: Tensor) -> float:
    """Mean kurtosis of the neurons (3 for a normal distribution).

    >>> kurtosis(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    1.0
    """
    centred = values.double() - values.double().mean(0)
    variance = centred.square().mean(0)
    return float((centred.pow(4).mean(0) / variance.square())[variance > 0].mean())


def correlation(values: Tensor) -> float:
    """Mean absolute correlation between two neurons. Those that never change are left out."""
    varied = values.double()[:, values.std(0) > 0]
    matrix = torch.corrcoef(varied.T).abs()
    return float((matrix.sum() - len(matrix)) / (len(matrix) * (len(matrix) - 1)))


def inequality(values: Tensor) -> float:
    """Standard deviation over mean of the neurons' mean outputs."""
    means = values.relu().double().mean(0)
    return float(means.std() / means.mean())


def reliance(network: nn.Module, problem: Problem) -> float:
    """Largest fall of test accuracy when the output of one hidden neuron is set to zero."""
    accuracies = []
    for name, values in hidden_values(network, problem.test.inputs[:2]).items():
        for neuron in range(values.shape[1]):

            def remove(name: str, module: nn.Module, inputs: Any, output: Tensor, neuron: int = neuron) -> Tensor:
                return output.index_fill(1, torch.tensor([neuron]), 0.0)

            with forward_hooks({name: network.get_submodule(name)}, remove):
                accuracies.append(evaluate(network, problem.test)["accuracy"])
    return evaluate(network, problem.test)["accuracy"] - min(accuracies)


def neuron_numbers(network: nn.Module, problem: Problem) -> dict[str, float]:
    """The four numbers of a trained network, on test inputs, averaged over hidden layers."""
    values = hidden_values(network, problem.test.inputs).values()
    of_layers = {"inequality": inequality, "kurtosis": kurtosis, "correlation": correlation}
    result = {name: float(np.mean([number(layer) for layer in values])) for name, number in of_layers.items()}
    return result | {"reliance": reliance(network, problem)}


def neurons(setting: RunSettings) -> Outcome:
    """Weight-normalized networks with one batch statistic beside the same without, and batch norm whole."""
    import pandas

    specs = {
        name: method(setting, "neurons", setting.read(__file__)["normal"], **kind) for name, kind in METHODS.items()
    }
    methods = trained(setting, specs)
    numbers: dict[str, Any] = {
        name: evaluate_networks(setting, POOL, neuron_numbers, [record.id for record in result.finished]).astype(float)
        for name, result in methods.items()
    }
    claims = []
    for number, (name, says) in CLAIMS.items():
        differences = [
            numbers[name].loc[a.id, number] - numbers["WN"].loc[b.id, number]
            for a, b in by_seed(methods[name], methods["WN"])
        ]
        claims.append(
            claim("Sec. 1.1", says, f"{QUANTITIES[number]}, {name} minus WN", differences, below=0.0,
                  compared=[methods[each].learnt("test_accuracy") for each in (name, "WN")])
        )  # fmt: skip
    rows = [{"method": name} | {QUANTITIES[key]: str(mean(table[key].to_list())) for key in CLAIMS}
            for name, table in numbers.items()]  # fmt: skip
    figure, axes = plots.panels(len(CLAIMS), width=3.0, height=2.4)
    for axis, key in zip(axes, CLAIMS, strict=True):
        plots.points(axis, {name: mean(table[key].to_list()) for name, table in numbers.items()})
        plots.named(axis, title=key)
    return compared_methods(
        setting,
        methods,
        {"network": "a single neuron and a layer, in theory", "batch size": "not said"},
        claims=claims,
        tables={"Neurons at the end of training": pandas.DataFrame(rows)},
        figures={"neurons": figure},
        verdict=BEWARE,
    )


PART = Part("neurons", "Sec. 1.1: single neurons under batch means and batch variances", neurons,
            "Batch means discourage reliance on single neurons and equalize them; batch variances lower their kurtosis "
            "and correlation.")  # fmt: skip
