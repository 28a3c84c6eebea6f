"""Training with any kind of normalisation: networks built, trained once, kept with their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gapscope.base.errors import NotMeasurable, check_choice
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.randomness import stream_seed
from gapscope.base.samples import Samples
from gapscope.batch_norm import initialize_from_data, refresh_population, weight_normalize
from gapscope.batch_norm import replace as replace_normalization
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.data.problem import Problem
from gapscope.inspection.losses import scores
from gapscope.penalties.base import Penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.processes import run_local
from gapscope.training.checkpoints import load_weights, save_tensors
from gapscope.training.loop import train
from gapscope_studies.kit.study import Setting
from gapscope_studies.luo2019.cases import Case

NORMALIZATIONS = (
    "batch", "ghost", "population", "weight", "weight_mean_only", "weight_variance_only", "none",
)  # fmt: skip
# Training samples for population statistics: the paper's 10,000, and at most this share of all.
POPULATION_SAMPLES, POPULATION_SHARE = 10_000, 0.4
DECAYS_AN_EPOCH, DECAY_DRAWS = 2, 2
INITIALIZED_ON = 500
# Salimans and Kingma's, at full width; narrow networks get vectors of the same lengths, for these set how fast
# directions turn at a given learning rate.
DIRECTIONS_STD = 0.05


@dataclass(frozen=True)
class Run:
    """One trained network.

    Attributes:
        case: What was trained.
        status: "finished" or "diverged".
        history: One mapping an epoch: epoch, train_loss and train_accuracy (training mode), penalty, test_loss,
            test_accuracy.
        scores: Loss and accuracy on training and test samples at the end, in evaluation mode.
        gamma_squared: Mean over channels of gamma^2 in each layer that normalises by batch or population.
    """

    case: Case
    status: str
    history: list[dict[str, float]]
    scores: dict[str, float]
    gamma_squared: dict[str, float]


def problem_of(case: Case, root: str | None) -> Problem:
    """The data of a case."""
    problem, _ = prepared(case.spec, root)
    side = case.pixels_averaged
    if side == 1:
        return problem
    smaller = [replace(part, inputs=F.avg_pool2d(part.inputs, side)) for part in (problem.train, problem.test)]
    return replace(problem, train=smaller[0], test=smaller[1])


def population(train_samples: Samples) -> Samples:
    """The training samples on which population statistics and gamma decay are measured: the first of a random order."""
    n = min(POPULATION_SAMPLES, max(2, round(POPULATION_SHARE * len(train_samples))))
    order = torch.randperm(len(train_samples), generator=torch.Generator().manual_seed(0))
    return train_samples.subset(order[:n])


def untrained_network(case: Case, problem: Problem) -> nn.Module:
    """Build the network of a case with its normalisation.

    All kinds of a seed start from the same weights, except that weight normalisation draws directions and sets lengths
    from data (Salimans and Kingma 2016), in every layer, on the same samples for all its kinds.

    Args:
        case: What is built.
        problem: Its data.

    Returns:
        The network.
    """
    kind = case.normalization
    check_choice("normalization", kind, NORMALIZATIONS)
    spec, inputs = case.spec, problem.train.inputs[:INITIALIZED_ON]
    if kind in ("weight", "none"):
        spec = spec.replace({"network.options": {**spec.network.options, "normalization": "none"}})
    network = build_network(spec, problem)
    if case.only_in:
        others = [name for name, layer in _normalizing(network).items() if name != case.only_in]
        network = replace_normalization(network, "none", layers=others, inputs=inputs[:2])
    if kind == "population":
        network = replace_normalization(network, kind)
    if kind == "ghost":
        network = replace_normalization(network, kind, ghost_size=case.emulated_size)
    if kind.startswith("weight_"):
        network = replace_normalization(network, kind.removeprefix("weight_"), weight_norm=True, inputs=inputs[:2])
    if kind.startswith("weight"):
        directions = torch.Generator().manual_seed(stream_seed(spec.seed, "directions"))
        std = DIRECTIONS_STD / float(spec.network.options["width_multiplier"]) ** 0.5
        initialize_from_data(weight_normalize(network).eval(), inputs, std=std, generator=directions)
    return network


def _normalizing(network: nn.Module) -> dict[str, Any]:
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)}


class _Refreshing:
    """Refreshes population statistics before every step and, by `refresh`, for the scores of an epoch.

    The paper does not say how often. Once an epoch, or every eighth step, ResNet-18 diverges at these learning rates:
    statistics that are a few steps old no longer normalise, layer upon layer.
    """

    def __init__(self, network: nn.Module, samples: Samples) -> None:
        self.network, self.samples = network, samples
        network.register_forward_pre_hook(self._before_step)

    def _before_step(self, network: nn.Module, inputs: Any) -> None:
        if network.training:
            self.refresh()

    def refresh(self) -> None:
        """Measure the statistics of all layers anew."""
        try:
            refresh_population(self.network, self.samples, samples=len(self.samples))
        except NotMeasurable:  # the network has diverged, as its loss will say
            return


def _penalties(case: Case, problem: Problem) -> list[Penalty]:
    if case.normalization != "population" or not case.emulated_size:
        return []
    steps = max(1, len(problem.train) // case.batch_size)
    penalty = GammaDecayPenalty(
        batch_size=case.emulated_size, every=max(1, steps // DECAYS_AN_EPOCH), data=population(problem.train),
        draws=DECAY_DRAWS, seed=case.spec.seed,
    )  # fmt: skip
    return [penalty]


def _train(case: Case, folder: Path, root: str | None) -> dict[str, Any]:
    problem = problem_of(case, root)
    network = untrained_network(case, problem)
    refreshing = None
    if case.normalization == "population":
        refreshing = _Refreshing(network, population(problem.train))

    def score(network: nn.Module, row: dict[str, Any]) -> None:
        if refreshing is not None:
            refreshing.refresh()
        row |= {f"test_{name}": value for name, value in scores(network, problem.test).items()}

    result = train(
        network, problem.train, case.spec.training, seed=case.spec.seed, folder=folder, on_epoch=score,
        penalties=_penalties(case, problem),
    )  # fmt: skip
    found: dict[str, float] = {}
    if result.status == "finished":
        for split, samples in (("train", problem.train), ("test", problem.test)):
            found |= {f"{split}_{name}": value for name, value in scores(network, samples).items()}
    layers = {name: layer for name, layer in _normalizing(network).items() if layer.weight is not None}
    save_tensors(folder / "weights.safetensors", network.state_dict())
    return {
        "status": result.status,
        "history": list(result.history),
        "scores": found,
        "gamma_squared": {name: layer.weight.detach().square().mean().item() for name, layer in layers.items()},
    }


def folder_of(setting: Setting, case: Case) -> Path:
    """The folder of a run."""
    return setting.work / "runs" / case.id


def trained_network(setting: Setting, case: Case) -> nn.Module:
    """Return the trained network of a run that `runs` made."""
    network = untrained_network(case, problem_of(case, setting.data_root))
    load_weights(network, folder_of(setting, case) / "weights.safetensors")
    return network.eval()


def _kept(path: Path, make: Callable[[Path], Any]) -> None:
    """Write what `make` gives for the folder of `path`, unless it is there; a checkpoint goes with it."""
    if path.exists():
        return
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_json(make(path.parent)) + "\n")
    (path.parent / "checkpoint.safetensors").unlink(missing_ok=True)


def _keep(job: tuple[Path, Callable[[Path], Any]]) -> None:
    _kept(*job)


def kept_results(setting: Setting, jobs: Sequence[tuple[Path, Callable[[Path], Any]]], what: str) -> list[Any]:
    """Return plain results of picklable functions of a folder, each made once and kept as JSON.

    Args:
        setting: Says how many workers.
        jobs: Path of the JSON file, and the function, which is given the file's folder.
        what: What is made, for the progress lines.

    Returns:
        The results, in order.
    """
    missing = [job for job in jobs if not job[0].exists()]
    if setting.workers == 1:
        for number, job in enumerate(missing, start=1):
            _keep(job)
            setting.say(f"  {what}: {number} of {len(missing)}")
    elif missing:
        for number, (_, _, error) in enumerate(run_local(_keep, missing, min(setting.workers, len(missing))), start=1):
            if error is not None:
                raise error
            setting.say(f"  {what}: {number} of {len(missing)}")
    return [read_json(path) for path, _ in jobs]


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in content.items()}


def runs(setting: Setting, cases: Sequence[Case]) -> list[Run]:
    """Train what is missing of `cases`, and return all of them in order.

    Args:
        setting: Work folder, workers, data.
        cases: What to train; a network that another part trained is not trained again.

    Returns:
        One run a case.
    """
    jobs = [(folder_of(setting, case) / "run.json", partial(_job, case=case, root=setting.data_root)) for case in cases]
    found = []
    for case, content in zip(cases, kept_results(setting, jobs, "networks trained"), strict=True):
        history = [_numbers(row) for row in content["history"]]
        found.append(
            Run(case, content["status"], history, _numbers(content["scores"]), _numbers(content["gamma_squared"]))
        )
    return found


def _job(folder: Path, *, case: Case, root: str | None) -> dict[str, Any]:
    return _train(case, folder, root)
