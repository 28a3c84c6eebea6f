"""Networks of the study, with records from which alarms can be replayed."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
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
from gapscope_studies.kit.data import noisy_subset, quartile_classes
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.overfitting_alarm.alarms import EvidenceAlarm

Row = dict[str, Any]
Columns = dict[str, list[float]]
MONITORED = 128
EVIDENCE_SAMPLES = 32
COLUMNS = ("test_accuracy", "train_loss", "train_accuracy", "disparity", "evidence")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Network to monitor, with its samples from the data of its spec."""

    kind: str
    spec: RunSpec
    n: int
    test: int
    noise: float
    pairwise: bool  # class c becomes class c + 1 (modulo the number of classes), or any other one
    # the first class and the number of classes that are taken; None for all
    classes: tuple[int, int] | None
    quartiles: bool  # the classes are the quartiles of a regression target

    @property
    def id(self) -> str:
        """Hash of all fields but the kind."""
        spec = self.spec.to_dict(omit_defaults=True)
        content = [spec, self.n, self.test, self.noise, self.pairwise, self.classes, self.quartiles]
        return hashlib.sha256(to_json(content).encode()).hexdigest()[:16]


def _cases_of(kind: Mapping[str, Any]) -> list[Case]:
    """Return one case per noise (rate and form), with consecutive seeds."""
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
    """Return the networks to tune rules on ("tuning") or to evaluate them on ("judging")."""
    kinds = setting.read(__file__, "kinds")[pool]
    if setting.scale == "smoke":
        short = {
            "training": {"epochs": 6, "optimizer": "adam", "learning_rate": 0.01},
            "n": 120,
            "test": 100,
        }
        short |= {"noises": [[0.0, "symmetric"], [0.4, "pairwise"]]}
        return _cases_of(next(kind for kind in kinds if kind["data"]["name"] == "digits") | short)
    repeats = 5 if setting.scale == "paper" else 1
    return [
        case
        for i in range(repeats)
        for kind in kinds
        for case in _cases_of(kind | {"seed": kind["seed"] + 1000 * i})
    ]


@lru_cache(maxsize=3)
def _load(data: str, root: str | None) -> Problem:
    return prepare(DataSpec.from_dict(json.loads(data)), root=root)[0]


def _select_classes(samples: Samples, first: int, number: int) -> Samples:
    targets: Any = samples.targets
    rows = ((targets >= first) & (targets < first + number)).nonzero()[:, 0]
    return replace(samples.subset(rows), targets=targets[rows] - first)


def problem_of(case: Case, root: str | None) -> Problem:
    """Return the training samples of a case, with label noise, and its test samples."""
    problem = _load(to_json(case.spec.data.to_dict()), root)
    if case.quartiles:
        problem = quartile_classes(problem)
    if case.classes is not None:
        train, test = (
            _select_classes(samples, *case.classes) for samples in (problem.train, problem.test)
        )
        problem = Problem(problem.name, "classification", train, test, case.classes[1])
    return noisy_subset(
        problem, case.n, case.test, case.noise, case.spec.seed, pairwise=case.pairwise
    )


@dataclass(frozen=True)
class Run:
    """Recorded training of a network, also without a tenth of its samples and with canaries.

    `columns`, `split` and `with_canaries` have one number per epoch, `seconds` the CPU time of training runs and of the
    observations of each alarm. `tensors`: predicted [T, n] in the training pass; outputs [T, w, k], neighbours
    [T, w, 20] and cosines [T, w] of the monitored samples, labels [w]; initial [w, k], leave-one-out predictions at
    the initial weights; errors [T, m] on the tenth; canary_outputs [T, v, k], canary_labels and is_canary [v].
    """

    case: Case
    columns: Columns
    split: Columns
    with_canaries: Columns
    tensors: dict[str, Tensor]
    seconds: dict[str, float]
    date: str


class _Diverged(Exception):
    pass


class _NeighbourRecorder(SharedLearning):
    """Shared-learning alarm that records the neighbours it uses."""

    def __init__(self, neighbours: int) -> None:
        super().__init__(neighbours=neighbours)
        self.history: list[Tensor] = []

    def update(
        self, probabilities: Tensor, labels: Tensor, neighbours: Tensor, epoch: int
    ) -> dict[str, float]:
        self.history.append(neighbours.short())
        return super().update(probabilities, labels, neighbours, epoch)


class _Recorder:
    """Training with records after each epoch, and CPU seconds of observations by name."""

    def __init__(self, case: Case, problem: Problem) -> None:
        self.case, self.problem = case, problem
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def time(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, and add its CPU seconds."""
        start = time.process_time()
        answer = function(*arguments)
        self.seconds[name] += time.process_time() - start
        return answer

    def train(
        self, samples: Samples, record: Callable[[nn.Module, Row], None], **options: Any
    ) -> float:
        """Train, and return the seconds without records, whose rows have the test accuracy."""

        def on_epoch(network: nn.Module, row: Row) -> None:
            row["test_accuracy"] = self.time("test", evaluate, network, self.problem.test)[
                "accuracy"
            ]
            record(network, row)

        spec, before, start = self.case.spec, sum(self.seconds.values()), time.process_time()
        network = options.pop("network", None) or network_from_spec(spec, self.problem)
        result = train(
            network, samples, spec.training, seed=spec.seed, on_epoch=on_epoch, **options
        )
        if result.status == "diverged":
            raise _Diverged
        return time.process_time() - start - (sum(self.seconds.values()) - before)


def _record_whole(
    case: Case, problem: Problem
) -> tuple[Columns, dict[str, Tensor], dict[str, float]]:
    """Train on all samples, observed by the alarms that do not change the training."""
    recorder = _Recorder(case, problem)
    monitored = Monitor(problem.train, (), n_samples=MONITORED).samples
    labels: Any = monitored.targets
    shared_learning = _NeighbourRecorder(min(20, len(monitored) // 4))
    alarms: dict[str, Alarm] = {
        "shared_learning": shared_learning,
        "gradient_disparity": GradientDisparityAlarm(
            batch_size=min(16, len(monitored) // 4), seed=case.spec.seed
        ),
        "evidence": EvidenceAlarm(n_samples=EVIDENCE_SAMPLES),
    }
    network = network_from_spec(case.spec, problem)
    initial = recorder.time(
        "initial_kernel", kernel_leave_one_out, network, monitored.inputs, labels
    )
    classes = torch.zeros(case.n, dtype=torch.int16)
    columns: Columns = {name: [] for name in COLUMNS}
    series: dict[str, list[Tensor]] = {"predicted": [], "outputs": [], "cosines": []}

    def on_batch(positions: Tensor, outputs: Tensor) -> None:
        classes[positions] = outputs.argmax(1).short()

    def record(network: nn.Module, row: Row) -> None:
        series["predicted"].append(classes.clone())
        series["outputs"].append(
            recorder.time("label_wave", outputs_of, network, monitored).float()
        )
        alignments = recorder.time(
            "gradient_weight_alignment", observed_alignments, network, monitored, labels
        )
        series["cosines"].append(alignments.float())
        for name, alarm in alarms.items():
            readings = recorder.time(name, alarm.observe, network, monitored, row["epoch"])
            row |= {key.removeprefix("alarm."): value for key, value in readings.items()}
        for name in COLUMNS:
            columns[name].append(float(row[name]))

    recorder.seconds["training"] = recorder.train(
        problem.train, record, network=network, on_batch=on_batch
    )
    tensors = {name: torch.stack(values) for name, values in series.items()}
    tensors |= {"neighbours": torch.stack(shared_learning.history), "labels": labels}
    return columns, tensors | {"initial": initial.predictions.float()}, dict(recorder.seconds)


def _record_split(case: Case, problem: Problem) -> tuple[Columns, dict[str, Tensor], float]:
    """Train on nine tenths, and score on the rest."""
    order = torch.randperm(case.n, generator=make_generator(case.spec.seed, "split"))
    tenth, rest = (problem.train.subset(part) for part in order.tensor_split([case.n // 10]))
    labels: Any = tenth.targets
    columns: Columns = {"test_accuracy": [], "loss": [], "accuracy": []}
    errors: list[Tensor] = []

    def record(network: nn.Module, row: Row) -> None:
        with inspection_mode(network):
            outputs = network_outputs(network, tenth.inputs)
        errors.append((outputs.argmax(1) != labels).byte())
        columns["test_accuracy"].append(row["test_accuracy"])
        columns["loss"].append(float(nn.functional.cross_entropy(outputs, labels)))
        columns["accuracy"].append(1 - float(errors[-1].double().mean()))

    seconds = _Recorder(case, problem).train(rest, record)
    return columns, {"errors": torch.stack(errors)}, seconds


def _record_canaries(case: Case, problem: Problem) -> tuple[Columns, dict[str, Tensor], float]:
    """Train with canaries to the end. A rule replays the epochs until its alarm."""
    canaries, recorder = (
        Canaries(problem.train.y, n_classes=problem.n_outputs),
        _Recorder(case, problem),
    )
    train = replace(problem.train, targets=canaries.labels)
    generator = make_generator(case.spec.seed, "watched beside canaries")
    rows = torch.cat(
        [canaries.positions, torch.randperm(case.n, generator=generator)[:MONITORED]]
    ).unique()
    monitored = train.subset(rows)
    labels: Any = monitored.targets
    outputs: list[Tensor] = []
    accuracy: list[float] = []

    def record(network: nn.Module, row: Row) -> None:
        accuracy.append(row["test_accuracy"])
        outputs.append(recorder.time("canaries", outputs_of, network, monitored).float())

    recorder.train(train, record)
    is_canary = torch.isin(rows, canaries.positions)
    tensors = {
        "canary_outputs": torch.stack(outputs),
        "canary_labels": labels,
        "is_canary": is_canary,
    }
    return {"test_accuracy": accuracy}, tensors, recorder.seconds["canaries"]


def record_case(case: Case, path: Path, data_root: str | None) -> dict[str, Any]:
    """Train a case three times (whole, without a tenth, with canaries). Tensors go to `path`."""
    problem = problem_of(case, data_root)
    try:
        columns, tensors, seconds = _record_whole(case, problem)
        split, split_tensors, seconds["split"] = _record_split(case, problem)
        with_canaries, canary_tensors, seconds["canaries"] = _record_canaries(case, problem)
    except _Diverged:
        return {"diverged": True}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors | split_tensors | canary_tensors)
    return {"columns": columns, "split": split, "with_canaries": with_canaries, "seconds": seconds,
            "date": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip


def runs(setting: RunSettings, plan: Sequence[Case]) -> list[Run]:
    """Record what is missing, and return the runs that did not diverge, in order."""
    paths = {case.id: setting.work / "recordings" / f"{case.id}.safetensors" for case in plan}
    jobs = {case.id: partial(record_case, case, paths[case.id], setting.data_root) for case in plan}
    answers, result = setting.cached("runs", jobs), []
    for case in plan:
        answer = answers[case.id]
        if "diverged" not in answer:
            columns, split, with_canaries = (
                {
                    name: [float(value) for value in values]
                    for name, values in answer[network].items()
                }
                for network in ("columns", "split", "with_canaries")
            )
            tensors, _ = load_tensors(paths[case.id])
            result.append(
                Run(
                    case,
                    columns,
                    split,
                    with_canaries,
                    tensors,
                    answer["seconds"],
                    answer.get("date", ""),
                )
            )
    return result
