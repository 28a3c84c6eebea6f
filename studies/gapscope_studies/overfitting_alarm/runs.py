"""The networks, and what is recorded along their training: all that a rule may look at, so that it can be replayed."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.randomness import stream_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import Spec
from gapscope.data import Problem
from gapscope.inspection.losses import scores
from gapscope.inspection.outputs import inspecting, network_outputs
from gapscope.measures.empirical_ntk import empirical_ntk
from gapscope.pools.from_spec import build_network, prepared
from gapscope.training.alarm import OverfittingAlarm
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.loop import TrainingResult, train
from gapscope.training.monitor import Monitor
from gapscope_studies.kit.study import Setting

Row = dict[str, Any]
WATCHED = 256
KERNEL_SAMPLES = 128
DISPARITY_BATCHES = 5
RECORDED = (
    "epoch", "test_accuracy", "train_loss", "train_accuracy", "log_trace", "log_determinant", "unfitted", "blocks",
    "disparity",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network to be watched: the name of its kind, its spec, and the epochs from one recording to the next."""

    kind: str
    spec: Spec
    every: int


def _cases_of(kind: Mapping[str, Any], seeds: Sequence[int]) -> list[Case]:
    """All combinations of noise and seed, and the clean seeds."""
    pairs = [(noise, seed) for seed in seeds for noise in kind["noises"]]
    pairs += [(0.0, seed) for seed in kind.get("clean_seeds", ())]
    base = Spec.from_dict({name: kind[name] for name in ("data", "network", "training")})
    changes = [{"data.label_noise": noise, "data.seed": seed, "seed": seed} for noise, seed in pairs]
    return [Case(kind["name"], base.replace(change), kind["every"]) for change in changes]


def cases(setting: Setting, pool: str) -> list[Case]:
    """The networks on which rules are tuned ("tuning"), and the other ones on which they are judged ("judging")."""
    kinds = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text(encoding="utf-8"))[pool]
    if setting.scale == "smoke":
        kind = kinds[1 if pool == "tuning" else 0]
        shorter = {"training": kind["training"] | {"epochs": 60}, "every": 6, "noises": (0.0, 0.5), "clean_seeds": ()}
        return _cases_of(kind | shorter, kind["seeds"][:1])
    repeats = range(5 if setting.scale == "paper" else 1)
    return [case for kind in kinds for case in _cases_of(kind, [100 * i + s for i in repeats for s in kind["seeds"]])]


@dataclass(frozen=True)
class Run:
    """One watched network, and the same network trained without a tenth of its samples.

    Attributes:
        case: What was trained.
        epochs: Epochs of the T recordings.
        columns: Name -> T numbers: test_accuracy, train_loss, train_accuracy (fraction fitted), log_trace and
            log_determinant (a sample) of the kernel, unfitted (log ratio of the mean traces of samples that are fitted
            wrongly and rightly), blocks (similarity within less similarity between the classes of the training labels),
            disparity (between the gradients of five mini-batches).
        held_out: Name -> T numbers of the second network: loss and accuracy on the tenth, test_accuracy.
        probabilities: [T, n, C] of the watched samples.
        neighbours: [T, n, k], as an `OverfittingAlarm` chose them.
        labels: [n], as trained on.
        seconds: Wall time of training, of the alarm's observations, and of the other signals.
    """

    case: Case
    epochs: list[int]
    columns: dict[str, list[float]]
    held_out: dict[str, list[float]]
    probabilities: Tensor
    neighbours: Tensor
    labels: Tensor
    seconds: dict[str, float]


class _Keeping(OverfittingAlarm):
    """An alarm that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def update(self, probabilities: Tensor, labels: Tensor, neighbours: Tensor, epoch: int) -> dict[str, float]:
        self.seen.append((probabilities.float(), neighbours.short()))
        return super().update(probabilities, labels, neighbours, epoch)


def kernel_signals(network: nn.Module, samples: Samples) -> dict[str, float]:
    """Log trace, log determinant, trace by fit and class blocks of one kernel, see `Run`."""
    assert samples.targets is not None
    kernel = empirical_ntk(network, samples.inputs, outputs="traced").double()
    with inspecting(network):
        fitted = network_outputs(network, samples.inputs).argmax(1) == samples.targets
    traces = kernel.diagonal()
    similarity = kernel / torch.outer(traces, traces).sqrt()
    same = samples.targets[:, None] == samples.targets
    others = ~torch.eye(len(kernel), dtype=torch.bool)
    eigenvalues = torch.linalg.eigvalsh(kernel)
    return {
        "log_trace": float(traces.mean().log()),
        "log_determinant": float(eigenvalues.clamp_min(1e-12 * eigenvalues[-1]).log().mean()),
        "unfitted": float((traces[~fitted].mean() / traces[fitted].mean()).log()),
        "blocks": float(similarity[same & others].mean() - similarity[~same].mean()),
    }


def gradient_disparity(network: nn.Module, samples: Samples, batch_size: int, generator: torch.Generator) -> float:
    r"""Mean distance of the loss gradients of five mini-batches, each loss divided by its standard deviation.

    Forouzesh and Thiran 2021 (arXiv:2107.06665), with the rescaling of their program; in training mode.

    Args:
        network: The network; it is left as it was.
        samples: Training samples.
        batch_size: Samples a batch.
        generator: Source of the batches.

    Returns:
        Mean over the pairs of batches.
    """
    assert samples.targets is not None
    order = torch.randperm(len(samples), generator=generator)[: DISPARITY_BATCHES * batch_size]
    gradients = []
    with inspecting(network, mode="train"):
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        for batch in order.split(batch_size):
            losses = F.cross_entropy(network(samples.inputs[batch]), samples.targets[batch], reduction="none")
            parts = torch.autograd.grad((losses / losses.std()).mean(), parameters)
            gradients.append(torch.cat([part.flatten() for part in parts]))
    return float(torch.pdist(torch.stack(gradients)).mean())


def _watch_whole(
    case: Case, problem: Problem
) -> tuple[TrainingResult, _Keeping, list[dict[str, Any]], dict[str, float]]:
    spec, alarm = case.spec, _Keeping()
    watched = Monitor(problem.train, (), n_samples=WATCHED).samples
    for_kernel = watched.subset(torch.arange(min(KERNEL_SAMPLES, len(watched))))
    batches = torch.Generator().manual_seed(stream_seed(spec.seed, "gradient disparity"))
    rows: list[Row] = []
    seconds = {"alarm": 0.0, "signals": 0.0}

    def record(network: nn.Module, row: Row) -> None:
        if row["epoch"] % case.every:
            return
        start = time.perf_counter()
        alarm.observe(network, watched, row["epoch"])
        middle = time.perf_counter()
        signals = kernel_signals(network, for_kernel)
        signals["disparity"] = gradient_disparity(network, problem.train, spec.training.batch_size, batches)
        rows.append(row | signals)
        seconds["alarm"] += middle - start
        seconds["signals"] += time.perf_counter() - middle

    start = time.perf_counter()
    result = train(
        build_network(spec, problem), problem.train, spec.training, seed=spec.seed, test=problem.test, on_epoch=record
    )
    seconds["training"] = time.perf_counter() - start - seconds["alarm"] - seconds["signals"]
    return result, alarm, rows, seconds


def watch(case: Case, path: Path, data_root: str | None) -> dict[str, Any]:
    """Train a case twice (whole, and without a tenth); tensors go to `path`, the other recordings are returned."""
    spec, (problem, _) = case.spec, prepared(case.spec, data_root)
    whole, alarm, rows, seconds = _watch_whole(case, problem)
    order = torch.randperm(len(problem.train), generator=torch.Generator().manual_seed(stream_seed(spec.seed, "split")))
    tenth, rest = (problem.train.subset(part) for part in order.tensor_split([len(order) // 10]))
    held_out: list[Row] = []

    def score(network: nn.Module, row: Row) -> None:
        if row["epoch"] % case.every == 0:
            held_out.append(scores(network, tenth) | {"test_accuracy": row["test_accuracy"]})

    part = train(build_network(spec, problem), rest, spec.training, seed=spec.seed, test=problem.test, on_epoch=score)
    if "diverged" in (whole.status, part.status):
        return {"diverged": True}
    tensors = {
        "probabilities": torch.stack([probabilities for probabilities, _ in alarm.seen]),
        "neighbours": torch.stack([neighbours for _, neighbours in alarm.seen]),
        "labels": Monitor(problem.train, (), n_samples=WATCHED).samples.targets,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors)  # type: ignore[arg-type]
    return {
        "rows": {name: [row[name] for row in rows] for name in RECORDED},
        "held_out": {name: [row[name] for row in held_out] for name in ("loss", "accuracy", "test_accuracy")},
        "seconds": seconds,
    }


def _numbers(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[float]]:
    return {name: [float(value) for value in values] for name, values in columns.items()}


def runs(setting: Setting, wanted: Sequence[Case]) -> list[Run]:
    """Watch what is missing; one run a case in order, without those that diverged."""
    paths = {f"{case.spec.id}-{case.every}": setting.work / "recordings" / f"{case.spec.id}-{case.every}.safetensors"
             for case in wanted}  # fmt: skip
    jobs = {
        name: partial(watch, case, path, setting.data_root)
        for case, (name, path) in zip(wanted, paths.items(), strict=True)
    }
    found = []
    for case, (name, facts) in zip(wanted, setting.remembered("runs", jobs).items(), strict=True):
        if "diverged" in facts:
            continue
        tensors, _ = load_tensors(paths[name])
        columns = _numbers(facts["rows"])
        found.append(
            Run(
                case=case,
                epochs=[int(epoch) for epoch in columns.pop("epoch")],
                columns=columns,
                held_out=_numbers(facts["held_out"]),
                probabilities=tensors["probabilities"].double(),
                neighbours=tensors["neighbours"].long(),
                labels=tensors["labels"],
                seconds=facts["seconds"],
            )
        )
    return found
