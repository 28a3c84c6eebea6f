"""Watching a network along its training: everything that a rule may look at, kept so that rules can be replayed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.randomness import stream_seed
from gapscope.base.samples import Samples
from gapscope.inspection.losses import scores
from gapscope.inspection.outputs import inspecting, network_outputs
from gapscope.measures.empirical_ntk import empirical_ntk
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.processes import run_local
from gapscope.training.alarm import OverfittingAlarm
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope_studies.kit.study import Setting
from gapscope_studies.overfitting_alarm.pools import Case

WATCHED = 256
KERNEL_SAMPLES = 128
DISPARITY_BATCHES = 5


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


def watch(case: Case, path: Path, data_root: str | None) -> None:
    """Train a case twice (whole, and without a tenth) and keep its recordings at `path`; nothing where they exist."""
    if path.exists():
        return
    spec, (problem, _) = case.spec, prepared(case.spec, data_root)
    alarm = _Keeping()
    watched = Monitor(problem.train, (), n_samples=WATCHED).samples
    for_kernel = watched.subset(torch.arange(min(KERNEL_SAMPLES, len(watched))))
    batches = torch.Generator().manual_seed(stream_seed(spec.seed, "gradient disparity"))
    rows: list[dict[str, Any]] = []
    seconds = {"alarm": 0.0, "signals": 0.0}

    def record(network: nn.Module, row: dict[str, Any]) -> None:
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
    whole = train(
        build_network(spec, problem), problem.train, spec.training, seed=spec.seed, test=problem.test, on_epoch=record
    )
    seconds["training"] = time.perf_counter() - start - seconds["alarm"] - seconds["signals"]

    order = torch.randperm(len(problem.train), generator=torch.Generator().manual_seed(stream_seed(spec.seed, "split")))
    tenth, rest = (problem.train.subset(part) for part in order.tensor_split([len(order) // 10]))
    held_out: list[dict[str, Any]] = []

    def score(network: nn.Module, row: dict[str, Any]) -> None:
        if row["epoch"] % case.every == 0:
            held_out.append(scores(network, tenth) | {"test_accuracy": row["test_accuracy"]})

    part = train(build_network(spec, problem), rest, spec.training, seed=spec.seed, test=problem.test, on_epoch=score)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "diverged" in (whole.status, part.status):
        save_tensors(path, {}, {"diverged": True})
        return
    names = ("epoch", "test_accuracy", "train_loss", "train_accuracy", "log_trace", "log_determinant", "unfitted",
             "blocks", "disparity")  # fmt: skip
    facts = {
        "rows": {name: [row[name] for row in rows] for name in names},
        "held_out": {name: [row[name] for row in held_out] for name in ("loss", "accuracy", "test_accuracy")},
        "seconds": seconds,
    }
    tensors = {
        "probabilities": torch.stack([probabilities for probabilities, _ in alarm.seen]),
        "neighbours": torch.stack([neighbours for _, neighbours in alarm.seen]),
        "labels": watched.targets,
    }
    save_tensors(path, tensors, facts)  # type: ignore[arg-type]


def _read(case: Case, path: Path) -> Run | None:
    tensors, facts = load_tensors(path)
    if "diverged" in facts:
        return None
    columns = facts["rows"]
    return Run(
        case=case,
        epochs=[int(epoch) for epoch in columns.pop("epoch")],
        columns=columns,
        held_out=facts["held_out"],
        probabilities=tensors["probabilities"].double(),
        neighbours=tensors["neighbours"].long(),
        labels=tensors["labels"],
        seconds=facts["seconds"],
    )


def _job(job: tuple[Case, Path, str | None]) -> None:
    watch(*job)


def runs(setting: Setting, cases: Sequence[Case]) -> list[Run]:
    """Watch what is missing of `cases`, and return all of them in order, without those that diverged.

    Args:
        setting: Work folder, workers, data.
        cases: What to train.

    Returns:
        One run a case that did not diverge.
    """
    paths = [setting.work / "runs" / f"{case.spec.id}-{case.every}.safetensors" for case in cases]
    jobs = [(case, path, setting.data_root) for case, path in zip(cases, paths, strict=True) if not path.exists()]
    for number, ((case, *_), _, error) in enumerate(run_local(_job, jobs, max(1, min(setting.workers, len(jobs))))):
        if error is not None:
            raise error
        setting.say(f"  {number + 1} of {len(jobs)}: {case.kind}, noise {case.spec.data.label_noise:g}")
    found = [_read(case, path) for case, path in zip(cases, paths, strict=True)]
    return [run for run in found if run is not None]
