"""The networks, and what is recorded along their training: all that alarms look at, so that they can be replayed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.files import to_json
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, RunSpec
from gapscope.data import Problem, prepare
from gapscope.data.corruptions import inject_label_noise
from gapscope.inspection.losses import evaluate
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.pools.from_spec import network_from_spec
from gapscope.training.alarms.base import Alarm, outputs_of
from gapscope.training.alarms.canaries import Canaries
from gapscope.training.alarms.gradient_disparity import GradientDisparityAlarm
from gapscope.training.alarms.joint import observed_alignments
from gapscope.training.alarms.shared_learning import SharedLearning
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.overfitting_alarm.evidence import EvidenceAlarm

Row = dict[str, Any]
Columns = dict[str, list[float]]
WATCHED = 128
EVIDENCE_SAMPLES = 32
COLUMNS = ("test_accuracy", "train_loss", "train_accuracy", "fitted", "disparity", "evidence")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network to be watched.

    Attributes:
        kind: Name of its kind.
        spec: Network, training and seeds; its data are the source that samples are drawn from.
        n: Training samples.
        test: Test samples.
        noise: Fraction of wrong labels.
        pairwise: Whether class c becomes class c + 1 (modulo the number of classes), or any other one.
        classes: First class and number of classes that are taken; None for all.
        quartiles: Whether the classes are the quartiles of a regression target.
    """

    kind: str
    spec: RunSpec
    n: int
    test: int
    noise: float
    pairwise: bool
    classes: tuple[int, int] | None
    quartiles: bool

    @property
    def id(self) -> str:
        """Hash of everything but the name of the kind."""
        facts = [
            self.spec.to_dict(omit_defaults=True),
            self.n,
            self.test,
            self.noise,
            self.pairwise,
            self.classes,
            self.quartiles,
        ]
        return hashlib.sha256(to_json(facts).encode()).hexdigest()[:16]


def _cases_of(kind: Mapping[str, Any]) -> list[Case]:
    """One case for each of `noises`, pairs of a rate and its form, with consecutive seeds."""
    base = RunSpec.from_dict({name: kind[name] for name in ("data", "network", "training")})
    return [
        Case(
            kind=kind["name"],
            spec=base.replace({"seed": kind["seed"] + number}),
            n=kind["n"],
            test=kind["test"],
            noise=float(rate),
            pairwise=form == "pairwise",
            classes=tuple(kind["classes"]) if "classes" in kind else None,
            quartiles=bool(kind.get("quartiles", False)),
        )
        for number, (rate, form) in enumerate(kind["noises"])
    ]


def cases(setting: RunSettings, pool: str) -> list[Case]:
    """The networks on which rules are tuned ("tuning"), and the other ones on which they are judged ("judging")."""
    kinds = setting.read(__file__, "kinds")[pool]
    if setting.scale == "smoke":
        short = {"training": {"epochs": 6, "optimizer": "adam", "learning_rate": 0.01}, "n": 120, "test": 100}
        short |= {"noises": [[0.0, "symmetric"], [0.4, "pairwise"]]}
        return _cases_of(next(kind for kind in kinds if kind["data"]["name"] == "digits") | short)
    repeats = 5 if setting.scale == "paper" else 1
    return [
        case for i in range(repeats) for kind in kinds for case in _cases_of(kind | {"seed": kind["seed"] + 1000 * i})
    ]


@lru_cache(maxsize=3)
def _source(data: str, root: str | None) -> Problem:
    spec = DataSpec.from_dict(json.loads(data))
    return prepare(spec, root=root)[0]


def _of_classes(samples: Samples, first: int, number: int) -> Samples:
    assert samples.targets is not None
    kept = samples.subset(((samples.targets >= first) & (samples.targets < first + number)).nonzero()[:, 0])
    assert kept.targets is not None
    return replace(kept, targets=kept.targets - first)


def _in_quartiles(problem: Problem) -> Problem:
    assert problem.train.targets is not None and problem.test.targets is not None
    edges = problem.train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
    parts = [replace(p, targets=torch.bucketize(p.targets[:, 0], edges)) for p in (problem.train, problem.test)]  # type: ignore[index]
    return Problem(problem.name, "classification", parts[0], parts[1], 4)


def problem_of(case: Case, root: str | None) -> Problem:
    """The samples that a case is trained and tested on, wrong labels among the former."""
    found = _source(to_json(case.spec.data.to_dict()), root)
    if case.quartiles:
        found = _in_quartiles(found)
    train, test, classes = found.train, found.test, found.n_outputs
    if case.classes is not None:
        train, test, classes = _of_classes(train, *case.classes), _of_classes(test, *case.classes), case.classes[1]
    seed = case.spec.seed
    order = torch.randperm(len(train), generator=make_generator(seed, "training subset"))[: case.n]
    train, test = train.subset(order), test.subset(torch.arange(min(case.test, len(test))))
    assert train.targets is not None
    if case.pairwise:
        wrong = torch.randperm(case.n, generator=make_generator(seed, "label noise"))[: round(case.noise * case.n)]
        labels = train.targets.clone()
        labels[wrong] = (labels[wrong] + 1) % classes
    else:
        labels = inject_label_noise(train.targets, case.noise, classes, make_generator(seed, "label noise"))
    return Problem(found.name, "classification", replace(train, targets=labels), test, classes)


@dataclass(frozen=True)
class Run:
    """One watched network, with the same network trained without a tenth of its samples, and with canaries.

    Attributes:
        case: What was trained.
        columns: Name -> one number an epoch: `COLUMNS`.
        split: The network without a tenth: test_accuracy, and loss and accuracy on the tenth.
        with_canaries: The network with canaries: test_accuracy.
        tensors: predicted [T, n] in the training pass; outputs [T, w, k], neighbours [T, w, 20] and cosines [T, w] of
            the watched samples, labels [w]; initial [w, k], left-out predictions at the initial weights; errors [T, m]
            on the tenth; canary_predicted [T, n], canary_outputs [T, v, k], canary_labels and is_canary [v].
        seconds: CPU time of the training runs and of each alarm's observations.
        date: When it was trained.
    """

    case: Case
    columns: dict[str, list[float]]
    split: dict[str, list[float]]
    with_canaries: dict[str, list[float]]
    tensors: dict[str, Tensor]
    seconds: dict[str, float]
    date: str


class _Clock:
    """CPU time by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[[], Any]) -> Any:
        start = time.process_time()
        answer = function()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return answer

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class _Keeping(SharedLearning):
    """An alarm that keeps its neighbours."""

    def __init__(self, neighbours: int) -> None:
        super().__init__(neighbours=neighbours)
        self.seen: list[Tensor] = []

    def update(self, probabilities: Tensor, labels: Tensor, neighbours: Tensor, epoch: int) -> dict[str, float]:
        self.seen.append(neighbours.short())
        return super().update(probabilities, labels, neighbours, epoch)


class _Pass:
    """Predicted classes of all samples in the training pass, epoch by epoch."""

    def __init__(self, n: int) -> None:
        self.now, self.epochs = torch.zeros(n, dtype=torch.int16), list[Tensor]()

    def on_batch(self, positions: Tensor, outputs: Tensor) -> None:
        self.now[positions] = outputs.argmax(1).short()

    def close(self) -> None:
        self.epochs.append(self.now.clone())


def _fitted(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).double().mean())


def _watch_whole(
    case: Case, problem: Problem
) -> tuple[str, dict[str, list[float]], dict[str, Tensor], dict[str, float]]:
    """Train on everything, under the eyes of all alarms that take the training as it is."""
    spec, clock, seen = case.spec, _Clock(), _Pass(case.n)
    watched = Monitor(problem.train, (), n_samples=WATCHED).samples
    labels = watched.targets
    assert labels is not None
    neighbours, cosines = _Keeping(min(20, len(watched) // 4)), list[Tensor]()
    alarms: dict[str, Alarm] = {
        "shared_learning": neighbours,
        "gradient_disparity": GradientDisparityAlarm(batch_size=min(16, len(watched) // 4), seed=spec.seed),
        "evidence": EvidenceAlarm(n_samples=EVIDENCE_SAMPLES),
    }
    network = network_from_spec(spec, problem)
    initial = clock.timed("initial_kernel", lambda: kernel_leave_one_out(network, watched.inputs, labels))
    outputs: list[Tensor] = []
    rows: list[Row] = []

    def record(network: nn.Module, row: Row) -> None:
        seen.close()
        outputs.append(clock.timed("label_wave", lambda: outputs_of(network, watched)).float())
        observed = clock.timed("gradient_weight_alignment", lambda: observed_alignments(network, watched, labels))
        cosines.append(observed.float())
        found: Row = {}
        for name, alarm in alarms.items():
            found |= clock.timed(name, partial(alarm.observe, network, watched, row["epoch"]))
        fitted = _fitted(outputs[-1], labels)
        rows.append(
            row | {"fitted": fitted, "disparity": found["alarm.disparity"], "evidence": found["alarm.evidence"]}
        )

    start = time.process_time()
    result = train(network, problem.train, spec.training, seed=spec.seed, on_epoch=_scored(problem.test, record, clock),
                   on_batch=seen.on_batch)  # fmt: skip
    training = time.process_time() - start - clock.total + clock.seconds["initial_kernel"]
    if result.status == "diverged":
        return "diverged", {}, {}, {}
    tensors = {
        "predicted": torch.stack(seen.epochs),
        "outputs": torch.stack(outputs),
        "neighbours": torch.stack(neighbours.seen),
        "cosines": torch.stack(cosines),
        "labels": watched.targets,
        "initial": initial.predictions.float(),
    }
    columns = {name: [float(row[name]) for row in rows] for name in COLUMNS}
    return "finished", columns, tensors, clock.seconds | {"training": training}


def _scored(test: Samples, record: Callable[[nn.Module, Row], None], clock: _Clock) -> Callable[[nn.Module, Row], None]:
    """`record` with the test accuracy in the row. Its time is nobody's."""

    def on_epoch(network: nn.Module, row: Row) -> None:
        row["test_accuracy"] = clock.timed("test", lambda: evaluate(network, test)["accuracy"])
        record(network, row)

    return on_epoch


def _watch_split(case: Case, problem: Problem) -> tuple[str, Columns, dict[str, Tensor], float]:
    """Train on nine tenths, scored on the rest."""
    order, clock = torch.randperm(case.n, generator=make_generator(case.spec.seed, "split")), _Clock()
    tenth, rest = (problem.train.subset(part) for part in order.tensor_split([case.n // 10]))
    assert tenth.targets is not None
    rows: list[Row] = []
    errors: list[Tensor] = []

    def record(network: nn.Module, row: Row) -> None:
        with inspection_mode(network):
            outputs = network_outputs(network, tenth.inputs)
        found = nn.functional.cross_entropy(outputs, tenth.targets)  # type: ignore[arg-type]
        errors.append((outputs.argmax(1) != tenth.targets).byte())
        rows.append(
            {
                "test_accuracy": row["test_accuracy"],
                "loss": float(found),
                "accuracy": 1 - float(errors[-1].double().mean()),
            }
        )

    start = time.process_time()
    result = train(network_from_spec(case.spec, problem), rest, case.spec.training, seed=case.spec.seed,
                   on_epoch=_scored(problem.test, record, clock))  # fmt: skip
    if result.status == "diverged":
        return "diverged", {}, {}, 0.0
    columns = {name: [row[name] for row in rows] for name in ("test_accuracy", "loss", "accuracy")}
    return "finished", columns, {"errors": torch.stack(errors)}, time.process_time() - start - clock.total


def _watch_canaries(case: Case, problem: Problem) -> tuple[str, Columns, dict[str, Tensor], float]:
    """Train with canaries to the end: what a rule says is what it would say up to its own alarm."""
    assert problem.train.targets is not None
    planted, clock, seen = Canaries(problem.train.targets, n_classes=problem.n_outputs), _Clock(), _Pass(case.n)
    false = replace(problem.train, targets=planted.labels)
    others = torch.randperm(case.n, generator=make_generator(case.spec.seed, "watched beside canaries"))[:WATCHED]
    watched = torch.cat([planted.positions, others]).unique()
    samples = false.subset(watched)
    assert samples.targets is not None
    outputs: list[Tensor] = []
    accuracy: list[float] = []

    def record(network: nn.Module, row: Row) -> None:
        seen.close()
        accuracy.append(row["test_accuracy"])
        outputs.append(clock.timed("canaries", lambda: outputs_of(network, samples)).float())

    result = train(network_from_spec(case.spec, problem), false, case.spec.training, seed=case.spec.seed,
                   on_epoch=_scored(problem.test, record, clock), on_batch=seen.on_batch)  # fmt: skip
    if result.status == "diverged":
        return "diverged", {}, {}, 0.0
    tensors = {
        "canary_predicted": torch.stack(seen.epochs),
        "canary_outputs": torch.stack(outputs),
        "canary_labels": samples.targets,
        "is_canary": torch.isin(watched, planted.positions),
    }
    return "finished", {"test_accuracy": accuracy}, tensors, clock.seconds["canaries"]


def watch(case: Case, path: Path, data_root: str | None) -> dict[str, Any]:
    """Train a case three times (whole, without a tenth, with canaries). Tensors go to `path`."""
    problem = problem_of(case, data_root)
    status, columns, tensors, seconds = _watch_whole(case, problem)
    second, split, more, seconds_of_split = _watch_split(case, problem)
    third, with_canaries, most, seconds_of_canaries = _watch_canaries(case, problem)
    if "diverged" in (status, second, third):
        return {"diverged": True}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors | more | most)
    seconds |= {"split": seconds_of_split, "canaries": seconds_of_canaries}
    return {"columns": columns, "split": split, "with_canaries": with_canaries, "seconds": seconds,
            "date": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip


def _numbers(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[float]]:
    return {name: [float(value) for value in values] for name, values in columns.items()}


def runs(setting: RunSettings, wanted: Sequence[Case]) -> list[Run]:
    """Watch what is missing. One run a case in order, without those that diverged."""
    paths = {case.id: setting.work / "recordings" / f"{case.id}.safetensors" for case in wanted}
    jobs = {case.id: partial(watch, case, paths[case.id], setting.data_root) for case in wanted}
    answers, found = setting.cached("runs", jobs), []
    for case in wanted:
        facts = answers[case.id]
        if "diverged" not in facts:
            columns, split, with_canaries = (_numbers(facts[name]) for name in ("columns", "split", "with_canaries"))
            seconds = {name: float(value) for name, value in facts["seconds"].items()}
            tensors, _ = load_tensors(paths[case.id])
            found.append(Run(case, columns, split, with_canaries, tensors, seconds, facts.get("date", "")))
    return found
