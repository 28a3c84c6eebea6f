"""Single neurons, and substitutes for batch norm's regularization (Sec. 1.1, App. B.3).

All networks are fully connected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

from gapscope.base.specs import RunSpec
from gapscope.batch_norm.norm_layers import BATCH_KINDS
from gapscope.data import Problem
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.losses import evaluate
from gapscope.penalties.base import Penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, claim
from gapscope_studies.kit.pool import evaluate_networks, outcome
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import (
    PAPER,
    POOL,
    SHOWN,
    arm_of,
    by_seed,
    compared_methods,
    method,
    train_methods,
)

SOURCE = "App. B.3"
METHODS: dict[str, dict[str, Any]] = {
    "WN": {"options": {"batch_norm": False}, "weight_norm": True},
    "WN + mean-only BN": {"kind": "mean_only", "weight_norm": True},
    "WN + variance-only BN": {"kind": "variance_only", "weight_norm": True},
    "BN": {},
}
# number -> what it is, the statistic that lowers it, and the claim
CLAIMS = {
    "inequality": ("spread over mean of the mean outputs of a layer's neurons", "WN + mean-only BN",
                   "batch means equalize the neurons of a layer"),
    "reliance": ("largest loss of test accuracy by removing one neuron", "WN + mean-only BN",
                 "batch means discourage reliance on a single neuron"),
    "kurtosis": ("mean kurtosis of what enters the ReLUs", "WN + variance-only BN",
                 "batch variances lower the kurtosis of neurons"),
    "correlation": ("mean absolute correlation of what enters the ReLUs", "WN + variance-only BN",
                    "batch variances lower the correlation between neurons"),
}  # fmt: skip
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
    """Mean kurtosis of the neurons (3 for a normal distribution)."""
    centred = values.double() - values.double().mean(0)
    variance = centred.square().mean(0)
    return float((centred.pow(4).mean(0) / variance.square())[variance > 0].mean())


def correlation(values: Tensor) -> float:
    """Return the mean absolute correlation between two neurons, without constant ones."""
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
    """Compare weight norm with one batch statistic, weight norm alone, and batch norm."""
    normal = setting.read(__file__)["normal"]
    specs = {name: method(setting, "neurons", normal, **kind) for name, kind in METHODS.items()}
    methods = train_methods(setting, specs)
    tables: dict[str, Any] = {
        name: evaluate_networks(setting, POOL, neuron_numbers, [record.id for record in result.finished]).astype(float)
        for name, result in methods.items()
    }
    claims = []
    figure, axes = plots.panels(len(CLAIMS), width=3.0, height=2.4)
    for axis, (number, (quantity, name, says)) in zip(axes, CLAIMS.items(), strict=True):
        pairs = by_seed(methods[name], methods["WN"])
        differences = [tables[name].loc[a.id, number] - tables["WN"].loc[b.id, number] for a, b in pairs]
        arms = [methods[each].arm("test_accuracy") for each in (name, "WN")]
        claims.append(claim("Sec. 1.1", says, f"{quantity}, {name} minus WN", differences, below=0.0, compared=arms))
        plots.points(axis, {method: mean(table[number].to_list()) for method, table in tables.items()})
        plots.set_labels(axis, title=number)
    rows = [{"method": name} | {text[0]: str(mean(table[key].to_list())) for key, text in CLAIMS.items()}
            for name, table in tables.items()]  # fmt: skip
    return compared_methods(
        setting, methods, {"network": "a single neuron and a layer, in theory", "batch size": "not said"},
        claims=claims, tables={"Neurons at the end of training": pandas.DataFrame(rows)}, figures={"neurons": figure},
        verdict=BEWARE,
    )  # fmt: skip


# --- App. B.3: half of the training images are kept back to choose the constant, on seeds that no claim uses


class ConstantDecay(Penalty):
    """Penalty of a constant times the sum of squared gammas, without a measured factor."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Any
    ) -> Tensor:
        """Return the penalty."""
        gammas = [module.weight for module in network.modules() if isinstance(module, BATCH_KINDS)]
        return self.strength * sum((gamma.square().sum() for gamma in gammas), outputs.new_zeros(()))


def _specs(setting: RunSettings, *, large: bool) -> list[RunSpec]:
    return method(setting, "neurons", setting.read(__file__)["large" if large else "normal"])


def one_training(
    setting: RunSettings, seed: int, *, large: bool = False, dropped: int = 0, constant: float = 0.0,
    measured: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train one network, and return its curve and training, held-out and test scores.

    Options: large batches, dropout in hidden layer `dropped` (batch norm follows the first alone), a constant decay,
    gamma decay whose `measured` factor replaces what large batches lack.
    """
    sizes = setting.read(__file__)
    dropout = sizes["constant_decay"]["dropout"]
    spec = _specs(setting, large=large)[0].replace({"seed": seed, "data.seed": seed})
    if spec.data.train_size is not None:  # else half of all that there are is kept back
        spec = spec.replace({"data.train_size": 2 * spec.data.train_size})
    problem, _ = prepared(spec, setting.data_root)
    samples, kept_back = (problem.train.subset(half) for half in torch.arange(len(problem.train)).chunk(2))
    network = network_from_spec(spec.replace({"network.options.dropout": dropout}), problem)
    for number in (1, 2):
        layer: Any = network.get_submodule(f"fc{number}_dropout")
        layer.p = dropout if number == dropped else 0.0
    penalties: list[Penalty] = [ConstantDecay(constant)] if constant else []
    if measured:
        penalties.append(GammaDecayPenalty(batch_size=sizes["normal"], batch_norm_size=sizes["large"], seed=seed))
    result = train(network, samples, spec.training, seed=seed, test=problem.test, penalties=penalties)
    parts = {"train": samples, "kept_back": kept_back, "test": problem.test}
    results = {f"{name}_{key}": value for name, part in parts.items() for key, value in evaluate(network, part).items()}
    return {"status": result.status, **results, "curve": [float(row["test_loss"]) for row in result.history],
            "accuracies": [float(row["test_accuracy"]) for row in result.history]}  # fmt: skip


def _train_all(
    setting: RunSettings, methods: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    jobs = {f"{seed} {name}": partial(one_training, setting, seed, **options)
            for seed in seeds for name, options in methods.items()}  # fmt: skip
    result = setting.cached("constant-decay", jobs)
    return {name: [result[f"{seed} {name}"] for seed in seeds] for name in methods}


def _decay_claims(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    bn, bn_large, constant, measured, before, after = runs

    def difference(one: str, other: str, score: str) -> list[float]:
        return [a[score] - b[score] for a, b in zip(runs[one], runs[other], strict=True)]

    def row(source: str, says: str, one: str, other: str, score: str, **more: Any) -> Claim:
        curve = "curve" if score == "test_loss" else "accuracies"
        arms = [arm_of(name, runs[name], 0.1, curve) for name in (one, other)]
        return claim(source, says, f"{SHOWN[score]} of {one} minus {other}", difference(one, other, score),
                     compared=arms, **more)  # fmt: skip

    lost, back = (difference(bn_large, other, "test_loss") for other in (bn, constant))
    return [
        row(SOURCE, "BN's validation loss grows with the batch size", bn_large, bn, "test_loss", above=0.0),
        claim(SOURCE, "a constant decay does not help large batches",
              f"fall of the validation loss by a constant decay, less half of what {bn} is below {bn_large}",
              [fall - gap / 2 for fall, gap in zip(back, lost, strict=True)], below=0.0,
              compared=[arm_of(name, runs[name], 0.1) for name in (bn_large, bn, constant)]),
        row("control", "gamma decay with its measured factor helps large batches", measured, bn_large, "test_loss",
            below=0.0, ours=True),
        row(SOURCE, "dropout before BN harms", before, bn, "test_accuracy", below=0.0),
        row(SOURCE, "dropout behind the last BN is better than before one", after, before, "test_accuracy", above=0.0),
    ]  # fmt: skip


def constant_decay(setting: RunSettings) -> Outcome:
    """Compare BN in large batches with constant gamma decay, and dropout before and after BN.

    Dropout is in normal batches.
    """
    scale = setting.read(__file__)
    normal, large, options, first = scale["normal"], scale["large"], scale["constant_decay"], scale["seeds"]
    # the constant with the least loss on images kept back, over seeds that no claim uses
    trials = {f"tuned, {constant:g}": {"large": True, "constant": constant} for constant in options["constants"]}
    trial_runs = _train_all(setting, trials, range(first, first + options["tuning_seeds"]))
    losses = [float(np.mean([run["kept_back_loss"] for run in runs])) for runs in trial_runs.values()]
    tuning = pandas.DataFrame({"constant": options["constants"], "loss on images kept back": losses})
    constant = options["constants"][int(np.argmin(losses))]
    methods: dict[str, dict[str, Any]] = {
        f"BN {normal}": {},
        f"BN {large}": {"large": True},
        f"BN {large} + constant {constant:g}": {"large": True, "constant": constant},
        f"BN {large} + measured decay": {"large": True, "measured": True},
        f"BN {normal}, dropout before BN": {"dropped": 1},
        f"BN {normal}, dropout behind BN": {"dropped": 2},
    }
    runs = _train_all(setting, methods, range(first))
    by_method = {name: {score: [run[score] for run in each] for score in SHOWN} for name, each in runs.items()}
    rows = [{"method": name} | {title: str(mean(scores[score])) for score, title in SHOWN.items()}
            for name, scores in by_method.items()]  # fmt: skip
    figure, axes = plots.panels(2)
    for axis, score in zip(axes, ("test_loss", "test_accuracy"), strict=True):
        plots.points(axis, {name: mean(scores[score]) for name, scores in by_method.items()})
        plots.set_labels(axis, title=SHOWN[score])
    count = f"{len(methods)} a seed; {len(tuning) * options['tuning_seeds']} to choose the constant"
    return outcome(
        setting,
        [spec for size in (False, True) for spec in _specs(setting, large=size)],
        PAPER | {"network": "ResNet-18", "batch size": "1,024; 32 of other authors", "dropout": "not said"},
        also=[{"what": "trainings", "paper": "", "here": count}],
        numbers={"methods": by_method, "constant": constant, "tuning": tuning.to_dict("list")},
        claims=_decay_claims(runs),
        tables={"Methods at the end of training (mean over seeds, 95 % t interval)": pandas.DataFrame(rows),
                "Choosing the constant, on seeds of its own": tuning},
        figures={"methods": figure},
    )  # fmt: skip


PARTS = (
    Part("neurons", "Sec. 1.1: single neurons under batch means and batch variances", neurons,
         "Batch means discourage reliance on single neurons and equalize them; batch variances lower their kurtosis "
         "and correlation."),
    Part("constant_decay", "App. B.3: a constant decay in large batches, dropout before and behind BN", constant_decay,
         "A constant decay of gamma does not make up for what BN loses in large batches; dropout before BN harms."),
)  # fmt: skip
