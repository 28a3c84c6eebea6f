"""App. B.3: what replaces batch norm's regularization in large batches and what does not, in fully connected networks.

Half of the training images are kept back to choose the constant, on seeds of its own that no claim uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

from gapscope.base.specs import RunSpec
from gapscope.batch_norm.norm_layers import BATCH_KINDS
from gapscope.inspection.losses import evaluate
from gapscope.penalties.base import Penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.training.loop import train
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings
from gapscope_studies.luo2019.networks import PAPER, SHOWN, method

SOURCE = "App. B.3"


class ConstantDecay(Penalty):
    """A constant times the sum of the squared gammas: gamma decay whose factor nobody measures."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Any
    ) -> Tensor:
        """Return the penalty."""
        gammas = [module.weight for module in network.modules() if isinstance(module, BATCH_KINDS)]
        return self.strength * sum((gamma.square().sum() for gamma in gammas), outputs.new_zeros(()))


@dataclass(frozen=True)
class Way:
    """Training of one network."""

    large: bool = False  # batches are large ones
    dropped: int = 0  # the hidden layer, 1 or 2, with dropout; 0 for none. Batch norm follows the first alone
    constant: float = 0.0  # factor of a constant decay
    measured: bool = False  # gamma decay with its measured factor replaces what large batches lack


def _specs(setting: RunSettings, *, large: bool) -> list[RunSpec]:
    return method(setting, "neurons", setting.read(__file__)["large" if large else "normal"])


def one_training(setting: RunSettings, way: Way, seed: int) -> dict[str, Any]:
    """Train one network. Its scores on training images, on those kept back, and on test images, and its curve."""
    sizes = setting.read(__file__)
    scale = sizes["constant_decay"]
    spec = _specs(setting, large=way.large)[0].replace({"seed": seed, "data.seed": seed})
    if spec.data.train_size is not None:  # else half of all that there are is kept back
        spec = spec.replace({"data.train_size": 2 * spec.data.train_size})
    problem, _ = prepared(spec, setting.data_root)
    samples, kept_back = (problem.train.subset(half) for half in torch.arange(len(problem.train)).chunk(2))
    network = network_from_spec(spec.replace({"network.options.dropout": scale["dropout"]}), problem)
    for number in (1, 2):
        layer: Any = network.get_submodule(f"fc{number}_dropout")
        layer.p = scale["dropout"] if number == way.dropped else 0.0
    penalties: list[Penalty] = [ConstantDecay(way.constant)] if way.constant else []
    if way.measured:
        penalties.append(GammaDecayPenalty(batch_size=sizes["normal"], batch_norm_size=sizes["large"], seed=seed))
    result = train(network, samples, spec.training, seed=seed, test=problem.test, penalties=penalties)
    parts = {"train": samples, "kept_back": kept_back, "test": problem.test}
    results = {f"{name}_{key}": value for name, part in parts.items() for key, value in evaluate(network, part).items()}
    return {"status": result.status, **results, "curve": [float(row["test_loss"]) for row in result.history],
            "accuracies": [float(row["test_accuracy"]) for row in result.history]}  # fmt: skip


def _trained(setting: RunSettings, ways: Mapping[str, Way], seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    jobs = {f"{seed} {name}": partial(one_training, setting, way, seed) for seed in seeds for name, way in ways.items()}
    result = setting.cached("constant-decay", jobs)
    return {name: [result[f"{seed} {name}"] for seed in seeds] for name in ways}


def _learnt(name: str, runs: Sequence[Mapping[str, Any]], score: str) -> ComparisonArm:
    curves = [run["curve" if score == "test_loss" else "accuracies"] for run in runs]
    return ComparisonArm(
        name=name, train_accuracy=float(np.median([run["train_accuracy"] for run in runs])), chance=0.1,
        train_loss=float(np.median([run["train_loss"] for run in runs])),
        curve=downsample_curve(curves), falling=score == "test_loss",
    )  # fmt: skip


def _claims(found: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str]) -> list[Claim]:
    bn, bn_large, constant, measured, before, after = names

    def difference(one: str, other: str, score: str) -> list[float]:
        return [a[score] - b[score] for a, b in zip(found[one], found[other], strict=True)]

    def guard(score: str, *methods: str) -> dict[str, Any]:
        return {"compared": [_learnt(name, found[name], score) for name in methods]}

    lost = difference(bn_large, bn, "test_loss")
    back = difference(bn_large, constant, "test_loss")
    return [
        claim(SOURCE, "BN's validation loss grows with the batch size", f"validation loss of {bn_large} minus {bn}",
              lost, above=0.0, **guard("test_loss", bn_large, bn)),
        claim(SOURCE, "a constant decay does not help large batches",
              f"fall of the validation loss by a constant decay, less half of what {bn} is below {bn_large}",
              [fall - gap / 2 for fall, gap in zip(back, lost, strict=True)], below=0.0,
              **guard("test_loss", bn_large, bn, constant)),
        claim("control", "gamma decay with its measured factor helps large batches",
              f"validation loss of {measured} minus {bn_large}", difference(measured, bn_large, "test_loss"),
              below=0.0, ours=True, **guard("test_loss", bn_large, measured)),
        claim(SOURCE, "dropout before BN harms", f"validation accuracy of {before} minus {bn}",
              difference(before, bn, "test_accuracy"), below=0.0, **guard("test_accuracy", bn, before)),
        claim(SOURCE, "dropout behind the last BN is better than before one",
              f"validation accuracy of {after} minus {before}", difference(after, before, "test_accuracy"), above=0.0,
              **guard("test_accuracy", after, before)),
    ]  # fmt: skip


def constant_decay(setting: RunSettings) -> Outcome:
    """BN in large batches with a constant decay of gamma, and dropout before and behind BN in normal ones."""
    scale = setting.read(__file__)
    normal, large, chosen, first = scale["normal"], scale["large"], scale["constant_decay"], scale["seeds"]
    # the constant with the least loss on images kept back, over seeds that no claim uses
    ways = {f"tuned, {constant:g}": Way(large=True, constant=constant) for constant in chosen["constants"]}
    tuned = _trained(setting, ways, range(first, first + chosen["tuning_seeds"]))
    losses = [float(np.mean([run["kept_back_loss"] for run in runs])) for runs in tuned.values()]
    tuning = pandas.DataFrame({"constant": chosen["constants"], "loss on images kept back": losses})
    constant = chosen["constants"][int(np.argmin(losses))]
    ways = {
        f"BN {normal}": Way(),
        f"BN {large}": Way(large=True),
        f"BN {large} + constant {constant:g}": Way(large=True, constant=constant),
        f"BN {large} + measured decay": Way(large=True, measured=True),
        f"BN {normal}, dropout before BN": Way(dropped=1),
        f"BN {normal}, dropout behind BN": Way(dropped=2),
    }
    result = _trained(setting, ways, range(first))
    rows = [
        {"method": name} | {title: str(mean([run[score] for run in runs])) for score, title in SHOWN.items()}
        for name, runs in result.items()
    ]
    tried = len(tuning) * chosen["tuning_seeds"]
    by_method = {name: {score: [run[score] for run in runs] for score in SHOWN} for name, runs in result.items()}
    figure, axes = plots.panels(2)
    for axis, score in zip(axes, ("test_loss", "test_accuracy"), strict=True):
        plots.points(axis, {name: mean([run[score] for run in runs]) for name, runs in result.items()})
        plots.named(axis, title=SHOWN[score])
    paper = PAPER | {"network": "ResNet-18", "batch size": "1,024; 32 of other authors", "dropout": "not said"}
    return outcome(
        setting,
        [spec for size in (False, True) for spec in _specs(setting, large=size)],
        paper,
        also=[{"what": "trainings", "paper": "", "here": f"{len(ways)} a seed; {tried} to choose the constant"}],
        numbers={"methods": by_method, "constant": constant, "tuning": tuning.to_dict("list")},
        claims=_claims(result, list(ways)),
        tables={"Methods at the end of training (mean over seeds, 95 % t interval)": pandas.DataFrame(rows),
                "Choosing the constant, on seeds of its own": tuning},
        figures={"methods": figure},
    )  # fmt: skip


PART = Part(
    "constant_decay",
    "App. B.3: a constant decay in large batches, dropout before and behind BN",
    constant_decay,
    "A constant decay of gamma does not make up for what BN loses in large batches; dropout before BN harms.",
)
