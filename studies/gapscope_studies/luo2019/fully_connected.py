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
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, claim
from gapscope_studies.kit.pool import evaluate_networks, outcome
from gapscope_studies.kit.runs import differences, interval_table
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.luo2019.networks import (
    PAPER,
    POOL,
    SCORES,
    arm_of,
    compare_methods,
    dictionary_arm,
    make_specs,
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

    relus = {
        name: module for name, module in network.named_modules() if isinstance(module, nn.ReLU)
    }
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

            def remove(
                name: str, module: nn.Module, inputs: Any, output: Tensor, neuron: int = neuron
            ) -> Tensor:
                return output.index_fill(1, torch.tensor([neuron]), 0.0)

            with forward_hooks({name: network.get_submodule(name)}, remove):
                accuracies.append(evaluate(network, problem.test)["accuracy"])
    return evaluate(network, problem.test)["accuracy"] - min(accuracies)


def neuron_numbers(network: nn.Module, problem: Problem) -> dict[str, float]:
    """The four numbers of a trained network, on test inputs, averaged over hidden layers."""
    values = hidden_values(network, problem.test.inputs).values()
    of_layers = {"inequality": inequality, "kurtosis": kurtosis, "correlation": correlation}
    result = {
        name: float(np.mean([number(layer) for layer in values]))
        for name, number in of_layers.items()
    }
    return result | {"reliance": reliance(network, problem)}


def neurons(setting: RunSettings) -> Outcome:
    """Compare weight norm with one batch statistic, weight norm alone, and batch norm."""
    normal = setting.read(__file__)["normal"]
    specs = {name: make_specs(setting, "neurons", normal, **kind) for name, kind in METHODS.items()}
    runs = train_methods(setting, specs)
    finished = runs[runs["status"] == "finished"]
    finished = finished.join(
        evaluate_networks(setting, POOL, neuron_numbers, finished["id"]).astype(float), on="id"
    )
    claims = []
    figure, axes = plots.panels(len(CLAIMS), width=3.0, height=2.4)
    for axis, (number, (quantity, name, says)) in zip(axes, CLAIMS.items(), strict=True):
        claims.append(claim("Sec. 1.1", says, f"{quantity}, {name} minus WN", differences(finished, name, "WN", number),
                            below=0.0, compared=(arm_of(runs, name), arm_of(runs, "WN"))))  # fmt: skip
        values = finished.groupby("method", sort=False)[number]
        plots.points(axis, {str(method): mean(each.to_numpy()) for method, each in values})
        plots.set_labels(axis, title=number)
    table = interval_table(finished, "method", {number: text[0] for number, text in CLAIMS.items()})
    return compare_methods(
        setting, runs, {"network": "a single neuron and a layer, in theory", "batch size": "not said"},
        claims=claims, tables={"Neurons at the end of training": table}, figures={"neurons": figure}, verdict=BEWARE,
    )  # fmt: skip


# --- App. B.3: half of the training images are kept back to choose the constant, on seeds that no claim uses


class ConstantDecay(Penalty):
    """Penalty of a constant times the sum of squared gammas, without a measured factor."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty."""
        gammas = [module.weight for module in network.modules() if isinstance(module, BATCH_KINDS)]
        return self.strength * sum(
            (gamma.square().sum() for gamma in gammas), outputs.new_zeros(())
        )


def _specs(setting: RunSettings, *, large: bool) -> list[RunSpec]:
    return make_specs(setting, "neurons", setting.read(__file__)["large" if large else "normal"])


def train_one(
    setting: RunSettings, seed: int, *, large: bool = False, dropout_layer: int = 0,
    constant: float = 0.0, gamma_decay: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train one network, and return its curve and training, held-out and test scores.

    Batch norm follows the first hidden layer alone. `gamma_decay` adds what large batches lack, as measured.
    """
    sizes = setting.read(__file__)
    dropout = sizes["constant_decay"]["dropout"]
    spec = _specs(setting, large=large)[0].replace({"seed": seed, "data.seed": seed})
    if spec.data.train_size is not None:  # else half of all images is kept back
        spec = spec.replace({"data.train_size": 2 * spec.data.train_size})
    problem, _ = prepare_data(spec, setting.data_root)
    samples, kept_back = (
        problem.train.subset(half) for half in torch.arange(len(problem.train)).chunk(2)
    )
    network = network_from_spec(spec.replace({"network.options.dropout": dropout}), problem)
    for number in (1, 2):
        layer: Any = network.get_submodule(f"fc{number}_dropout")
        layer.p = dropout if number == dropout_layer else 0.0
    penalties: list[Penalty] = [ConstantDecay(constant)] if constant else []
    if gamma_decay:
        penalties.append(
            GammaDecayPenalty(batch_size=sizes["normal"], batch_norm_size=sizes["large"], seed=seed)
        )
    result = train(
        network, samples, spec.training, seed=seed, test=problem.test, penalties=penalties
    )
    parts = {"train": samples, "kept_back": kept_back, "test": problem.test}
    results = {
        f"{name}_{key}": value
        for name, part in parts.items()
        for key, value in evaluate(network, part).items()
    }
    return {"status": result.status, **results, "curve": [float(row["test_loss"]) for row in result.history],
            "accuracies": [float(row["test_accuracy"]) for row in result.history]}  # fmt: skip


def _train_all(
    setting: RunSettings, methods: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> Table:
    jobs = {f"{seed} {name}": partial(train_one, setting, seed, **options)
            for seed in seeds for name, options in methods.items()}  # fmt: skip
    result = setting.cached("constant-decay", jobs)
    return pandas.DataFrame(
        {"method": name, "seed": seed, **result[f"{seed} {name}"]}
        for name in methods
        for seed in seeds
    )


def _decay_claims(runs: Table) -> list[Claim]:
    bn, bn_large, constant, decayed, before, after = runs["method"].unique()

    def arms(*methods: str, curve: str = "curve") -> list[Any]:
        return [dictionary_arm(name, runs[runs["method"] == name], 0.1, curve) for name in methods]

    def difference(
        says: str, one: str, other: str, score: str, *, source: str = SOURCE, **more: Any
    ) -> Claim:
        compared = arms(one, other, curve="curve" if score == "test_loss" else "accuracies")
        quantity = f"{SCORES[score]} of {one} minus {other}"
        return claim(
            source, says, quantity, differences(runs, one, other, score), compared=compared, **more
        )

    lost, regained = (differences(runs, bn_large, other, "test_loss") for other in (bn, constant))
    return [
        difference("BN's validation loss grows with the batch size", bn_large, bn, "test_loss", above=0.0),
        claim(SOURCE, "a constant decay does not help large batches",
              f"fall of the validation loss by a constant decay, less half of what {bn} is below {bn_large}",
              regained - lost / 2, below=0.0, compared=arms(bn_large, bn, constant)),
        difference("gamma decay with its measured factor helps large batches", decayed, bn_large, "test_loss",
                   below=0.0, source="control", ours=True),
        difference("dropout before BN harms", before, bn, "test_accuracy", below=0.0),
        difference("dropout behind the last BN is better than before one", after, before, "test_accuracy", above=0.0),
    ]  # fmt: skip


def constant_decay(setting: RunSettings) -> Outcome:
    """Compare constant gamma decay in large batches, and dropout before and after BN."""
    scale = setting.read(__file__)
    normal, large, options, n_seeds = (
        scale["normal"],
        scale["large"],
        scale["constant_decay"],
        scale["seeds"],
    )
    # the constant with the least loss on images kept back, over seeds that no claim uses
    trials = {
        f"tuned, {constant:g}": {"large": True, "constant": constant}
        for constant in options["constants"]
    }
    trial_runs = _train_all(setting, trials, range(n_seeds, n_seeds + options["tuning_seeds"]))
    losses = trial_runs.groupby("method", sort=False)["kept_back_loss"].mean().to_list()
    tuning = pandas.DataFrame(
        {"constant": options["constants"], "loss on images kept back": losses}
    )
    constant = options["constants"][int(np.argmin(losses))]
    methods: dict[str, dict[str, Any]] = {
        f"BN {normal}": {},
        f"BN {large}": {"large": True},
        f"BN {large} + constant {constant:g}": {"large": True, "constant": constant},
        f"BN {large} + measured decay": {"large": True, "gamma_decay": True},
        f"BN {normal}, dropout before BN": {"dropout_layer": 1},
        f"BN {normal}, dropout behind BN": {"dropout_layer": 2},
    }
    runs = _train_all(setting, methods, range(n_seeds))
    groups = runs.groupby("method", sort=False)
    figure, axes = plots.panels(2)
    for axis, score in zip(axes, ("test_loss", "test_accuracy"), strict=True):
        plots.points(axis, {str(name): mean(values.to_numpy()) for name, values in groups[score]})
        plots.set_labels(axis, title=SCORES[score])
    count = f"{len(methods)} a seed; {len(tuning) * options['tuning_seeds']} to choose the constant"
    return outcome(
        setting,
        [spec for size in (False, True) for spec in _specs(setting, large=size)],
        PAPER | {"network": "ResNet-18", "batch size": "1,024; 32 of other authors", "dropout": "not said"},
        also=[{"what": "trainings", "paper": "", "here": count}],
        numbers={
            "methods": {name: group[[*SCORES]].to_dict("list") for name, group in groups},
            "constant": constant,
            "tuning": tuning.to_dict("list"),
        },
        claims=_decay_claims(runs),
        tables={"Methods at the end of training (mean over seeds, 95 % t interval)":
                interval_table(runs, "method", SCORES), "Choosing the constant, on seeds of its own": tuning},
        figures={"methods": figure},
    )  # fmt: skip
