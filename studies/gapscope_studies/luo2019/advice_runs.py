"""Advice on batch norm put to the test: networks trained in small batches, asked, and trained anew in large ones.

Two worlds: a fully connected network on CIFAR-10, where the 1/M law is exact, and the CNN of the paper's figures on
digits with a fifth of the labels wrong. SGD with momentum 0.9; the learning rate is 0.1 at batches of 128, grows with
the batch size and falls to a fiftieth over the run; the number of epochs is the same for all batch sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gapscope.base.records import Estimate
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, NetworkSpec, Spec, TrainingSpec
from gapscope.batch_norm import replace as replace_normalization
from gapscope.batch_norm.advice.batch_norm import advise_batch_norm
from gapscope.batch_norm.advice.dropout import DropoutLoss
from gapscope.batch_norm.gamma_decay.measured_excess import batch_norm_excess
from gapscope.inspection.losses import scores
from gapscope.penalties.base import Penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty
from gapscope.training.loop import train
from gapscope_studies.kit.study import Setting
from gapscope_studies.luo2019.cases import Case
from gapscope_studies.luo2019.runs import kept_results, problem_of, untrained_network

REMEDIES = ("ghost batches", "dropout", "gamma decay")
PASSES = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One network to train.

    Attributes:
        case: Data, architecture, recipe, seed.
        remedy: One of REMEDIES, or "" for batch norm alone.
        amount: Size of ghost batches, dropout rate, or strength of gamma decay.
        normal: The batch size whose regularisation is wanted.
        before: Layer whose inputs dropout drops.
    """

    case: Case
    remedy: str = ""
    amount: float = 0.0
    normal: int
    before: str = ""

    @property
    def name(self) -> str:
        """Name of its folder."""
        remedy = f"-{self.remedy.replace(' ', '-')}-{self.amount:.6g}" if self.remedy else ""
        return f"{self.case.id}{remedy}"


@dataclass(frozen=True, kw_only=True)
class World:
    """Data, network and batch sizes of one comparison.

    Attributes:
        name: In tables and figures.
        spec: Data and network.
        epochs: Number of epochs at every batch size.
        normal: The batch size whose regularisation is wanted.
        sizes: Larger batch sizes about which is asked.
        large: The one of them at which the advice is followed.
        seeds: Number of seeds.
        pixels_averaged: See `Case`.
    """

    name: str
    spec: Spec
    epochs: int
    normal: int
    sizes: tuple[int, ...]
    large: int
    seeds: int
    pixels_averaged: int = 1


def worlds(setting: Setting) -> list[World]:
    """The worlds of this scale."""
    choose = setting.choose
    images = DataSpec(
        name=choose(smoke="digits", small="cifar10", paper="cifar10"),
        train_size=choose(smoke=120, small=1024, paper=None),
        test_size=choose(smoke=60, small=None, paper=None),
    )
    noisy = replace(
        images, name=choose(smoke="digits", small="digits", paper="cifar10"), label_noise=0.2,
        train_size=choose(smoke=120, small=None, paper=None),
    )  # fmt: skip
    dense = {"n_hidden": 2, "width": choose(smoke=16, small=64, paper=1024), "batch_norm": True}
    cnn = {"width_multiplier": choose(smoke=1 / 16, small=1 / 8, paper=1.0)}
    return [
        World(
            name="fully connected, CIFAR-10",
            spec=Spec(data=images, network=_network("fully_connected", dense)),
            epochs=choose(smoke=6, small=20, paper=100),
            normal=choose(smoke=8, small=32, paper=32),
            sizes=choose(smoke=(16, 30), small=(64, 256, 512), paper=(64, 128, 256, 1024)),
            large=choose(smoke=30, small=256, paper=1024),
            seeds=choose(smoke=2, small=3, paper=5),
            pixels_averaged=choose(smoke=1, small=2, paper=1),
        ),
        World(
            name="CNN, wrong labels",
            spec=Spec(data=noisy, network=_network("conv6", cnn)),
            epochs=choose(smoke=2, small=10, paper=100),
            normal=choose(smoke=8, small=32, paper=32),
            sizes=choose(smoke=(30,), small=(256,), paper=(64, 128, 256, 1024)),
            large=choose(smoke=30, small=256, paper=1024),
            seeds=choose(smoke=2, small=3, paper=5),
        ),
    ]


def _network(name: str, options: dict[str, Any]) -> NetworkSpec:
    return NetworkSpec(name=name, options=options, initialization="he_normal")


def trials(world: World, batch_size: int) -> list[Trial]:
    """Batch norm alone at one batch size, a trial a seed."""
    training = TrainingSpec(
        learning_rate=0.1 * batch_size / 128,
        momentum=0.9,
        batch_size=batch_size,
        epochs=world.epochs,
        schedule="exponential",
        schedule_factor=0.02 ** (1 / world.epochs),
    )
    spec = replace(world.spec, training=training)
    cases = [Case(spec=replace(spec, seed=seed), pixels_averaged=world.pixels_averaged) for seed in range(world.seeds)]
    return [Trial(case=case, normal=world.normal) for case in cases]


def _with_dropout(network: nn.Module, before: str, rate: float) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    for name, layer in network.named_children():
        if name == before:
            layers[f"{name}_dropout"] = nn.Dropout(rate)
        layers[name] = layer
    return nn.Sequential(OrderedDict(layers))


def _decay(trial: Trial, **options: Any) -> GammaDecayPenalty:
    return GammaDecayPenalty(
        trial.amount,
        batch_size=trial.normal,
        batch_norm_size=trial.case.batch_size,
        seed=trial.case.spec.seed,
        **options,
    )


def _trained(trial: Trial, train_samples: Samples, network: nn.Module, folder: Path) -> nn.Module:
    """The network of a trial, trained; evaluation mode."""
    penalties: list[Penalty] = []
    if trial.remedy == "ghost batches":
        network = replace_normalization(network, "ghost", ghost_size=int(trial.amount))
    if trial.remedy == "dropout":
        network = _with_dropout(network, trial.before, trial.amount)
    if trial.remedy == "gamma decay":
        steps_an_epoch = max(1, len(train_samples) // trial.case.batch_size)
        penalties = [_decay(trial, every=steps_an_epoch, draws=2)]
    spec = trial.case.spec
    train(network, train_samples, spec.training, seed=spec.seed, penalties=penalties, folder=folder)
    return network.eval()


def _plain(value: Estimate) -> list[float]:
    return [float(value), value.standard_error or 0.0]


def _batch_norm_part(network: nn.Module, samples: Samples, size: int) -> Estimate:
    """Measured excess loss of batch statistics in all layers at once."""
    return batch_norm_excess(network, samples, batch_sizes=(size,), passes=PASSES, noise_draws=0, draws=1)[-1].measured


def _regularization(trial: Trial, network: nn.Module, samples: Samples) -> list[float]:
    """What batch statistics and the remedy together add to the loss of the network that they trained."""
    size = int(trial.amount) if trial.remedy == "ghost batches" else trial.case.batch_size
    found, more = _batch_norm_part(network, samples, size), 0.0
    if trial.remedy == "dropout":
        more = float(DropoutLoss(network, samples, [trial.before]).excess(trial.amount))
    if trial.remedy == "gamma decay":
        more = _decay(trial, draws=4, data=samples)(network, samples.inputs[:2]).item()
    return [found + more, found.standard_error or 0.0]


def _trial(folder: Path, *, trial: Trial, root: str | None) -> dict[str, Any]:
    problem = problem_of(trial.case, root)
    network = _trained(trial, problem.train, untrained_network(trial.case, problem), folder)
    splits = {"train": problem.train, "test": problem.test}
    found = {f"{split}_{name}": value for split, s in splits.items() for name, value in scores(network, s).items()}
    return {**found, "amount": trial.amount, "regularization": _regularization(trial, network, problem.train)}


def _asked(folder: Path, *, trial: Trial, sizes: tuple[int, ...], large: int, root: str | None) -> dict[str, Any]:
    """Train in small batches; ask what other batch sizes would change and what would restore it."""
    problem = problem_of(trial.case, root)
    network = _trained(trial, problem.train, untrained_network(trial.case, problem), folder)
    advice = advise_batch_norm(network, problem.train, batch_size=trial.normal, new_batch_size=large, passes=PASSES)
    splits = {"train": problem.train, "test": problem.test}
    found = {f"{split}_{name}": value for split, s in splits.items() for name, value in scores(network, s).items()}
    others = {size: _batch_norm_part(network, problem.train, size) for size in sizes if size != large}
    frozen = {trial.normal: advice.total.excess, large: advice.total.new_excess, **others}
    return {
        **found,
        "amount": 0.0,
        "regularization": _plain(advice.total.excess),
        "frozen": {str(size): _plain(excess) for size, excess in sorted(frozen.items())},
        "advice": advice.to_dict(),
    }


def asked_networks(setting: Setting, world: World) -> list[dict[str, Any]]:
    """Networks of the normal batch size with the advice that they give, one a seed.

    Args:
        setting: Where and how large.
        world: What is trained, and about which batch sizes is asked.

    Returns:
        Scores, regularisation, that of the frozen network at each size, and the advice.
    """
    folder = setting.work / "advice"
    jobs = [
        (
            folder / trial.name / "asked.json",
            partial(_asked, trial=trial, sizes=world.sizes, large=world.large, root=setting.data_root),
        )
        for trial in trials(world, world.normal)
    ]
    return kept_results(setting, jobs, f"networks asked ({world.name})")


def tried(setting: Setting, wanted: list[Trial]) -> list[dict[str, Any]]:
    """Train what is missing of some trials.

    Args:
        setting: Where and how large.
        wanted: The trials.

    Returns:
        Scores and regularisation of each.
    """
    folder = setting.work / "advice"
    jobs = [
        (folder / trial.name / "trial.json", partial(_trial, trial=trial, root=setting.data_root)) for trial in wanted
    ]
    return kept_results(setting, jobs, "networks trained on the advice")


def followed(trial: Trial, advice: dict[str, Any], remedy: str) -> Trial | None:
    """The trial that does what the advice says; None where it has nothing to say.

    Args:
        trial: Batch norm alone in large batches.
        advice: `BatchNormAdvice.to_dict()`.
        remedy: One of REMEDIES.

    Returns:
        The trial.
    """
    if remedy == "ghost batches":
        return replace(trial, remedy=remedy, amount=float(trial.normal))
    given = advice["dropout" if remedy == "dropout" else "decay_strength"]
    before = advice["dropout_before"][0] if remedy == "dropout" else ""
    return None if given is None else replace(trial, remedy=remedy, amount=given["value"], before=before)
