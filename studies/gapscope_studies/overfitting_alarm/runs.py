"""Networks of the study, with training records from which alarms can be replayed."""

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
WATCHED = 128
EVIDENCE_SAMPLES = 32
COLUMNS = ("test_accuracy", "train_loss", "train_accuracy", "disparity", "evidence")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Network to be watched, with its samples from the data of its spec."""

    kind: str
    spec: RunSpec
    n: int
    test: int
    noise: float
    pairwise: bool  # class c becomes class c + 1 (modulo the number of classes), or any other one
    classes: tuple[int, int] | None  # the first class and the number of classes that are taken; None for all
    quartiles: bool  # the classes are the quartiles of a regression target

    @property
    def id(self) -> str:
        """Hash of everything but the name of the kind."""
        spec = self.spec.to_dict(omit_defaults=True)
        facts = [spec, self.n, self.test, self.noise, self.pairwise, self.classes, self.quartiles]
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
    """Return the networks to tune rules ("tuning") or the others to evaluate them ("judging")."""
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
    return prepare(DataSpec.from_dict(json.loads(data)), root=root)[0]


def _of_classes(samples: Samples, first: int, number: int) -> Samples:
    targets: Any = samples.targets
    rows = ((targets >= first) & (targets < first + number)).nonzero()[:, 0]
    return replace(samples.subset(rows), targets=targets[rows] - first)


def problem_of(case: Case, root: str | None) -> Problem:
    """The samples that a case is trained and tested on, wrong labels among the former."""
    result = _source(to_json(case.spec.data.to_dict()), root)
    if case.quartiles:
        result = quartile_classes(result)
    if case.classes is not None:
        train, test = (_of_classes(samples, *case.classes) for samples in (result.train, result.test))
        result = Problem(result.name, "classification", train, test, case.classes[1])
    return noisy_subset(result, case.n, case.test, case.noise, case.spec.seed, pairwise=case.pairwise)


@dataclass(frozen=True)
class Run:
    """Watched network, and the same without a tenth of its samples, and with canaries.

    `columns`, `split` and `with_canaries` have one number per epoch, `seconds` the CPU time of training runs and of
    each alarm's observations. `tensors`: predicted [T, n] in the training pass; outputs [T, w, k], neighbours
    [T, w, 20] and cosines [T, w] of the watched samples, labels [w]; initial [w, k], left-out predictions at the
    initial weights; errors [T, m] on the tenth; canary_outputs [T, v, k], canary_labels and is_canary [v].
    """

    case: Case
    columns: Columns
    split: Columns
    with_canaries: Columns
    tensors: dict[str, Tensor]
    seconds: dict[str, float]
    date: str


class _Diverged(Exception):
    """The training of a case diverged."""


class _NeighbourRecorder(SharedLearning):
    """Shared-learning alarm that records the neighbours it uses."""

    def __init__(self, neighbours: int) -> None:
        super().__init__(neighbours=neighbours)
        self.history: list[Tensor] = []

    def update(self, probabilities: Tensor, labels: Tensor, neighbours: Tensor, epoch: int) -> dict[str, float]:
        self.history.append(neighbours.short())
        return super().update(probabilities, labels, neighbours, epoch)


class _Watch:
    """Training with records after each epoch, and CPU seconds of observations by name."""

    def __init__(self, case: Case, problem: Problem) -> None:
        self.case, self.problem = case, problem
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[[], Any]) -> Any:
        start = time.process_time()
        answer = function()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return answer

    def train(self, samples: Samples, record: Callable[[nn.Module, Row], None], **options: Any) -> float:
        """Train, and return the seconds without those of the records.

        `record` gets the test accuracy in its row.
        """

        def on_epoch(network: nn.Module, row: Row) -> None:
            row["test_accuracy"] = self.timed("test", lambda: evaluate(network, self.problem.test)["accuracy"])
            record(network, row)

        spec, before, start = self.case.spec, sum(self.seconds.values()), time.process_time()
        network = options.pop("network", None) or network_from_spec(spec, self.problem)
        result = train(network, samples, spec.training, seed=spec.seed, on_epoch=on_epoch, **options)
        if result.status == "diverged":
            raise _Diverged
        return time.process_time() - start - (sum(self.seconds.values()) - before)


def _watch_whole(case: Case, problem: Problem) -> tuple[Columns, dict[str, Tensor], dict[str, float]]:
    """Train on everything, observed by all alarms that take the training as it is."""
    watch = _Watch(case, problem)
    watched = Monitor(problem.train, (), n_samples=WATCHED).samples
    labels: Any = watched.targets
    recorder = _NeighbourRecorder(min(20, len(watched) // 4))
    alarms: dict[str, Alarm] = {
        "shared_learning": recorder,
        "gradient_disparity": GradientDisparityAlarm(batch_size=min(16, len(watched) // 4), seed=case.spec.seed),
        "evidence": EvidenceAlarm(n_samples=EVIDENCE_SAMPLES),
    }
    network = network_from_spec(case.spec, problem)
    initial = watch.timed("initial_kernel", lambda: kernel_leave_one_out(network, watched.inputs, labels))
    classes = torch.zeros(case.n, dtype=torch.int16)
    columns: Columns = {name: [] for name in COLUMNS}
    series: dict[str, list[Tensor]] = {"predicted": [], "outputs": [], "cosines": []}

    def on_batch(positions: Tensor, outputs: Tensor) -> None:
        classes[positions] = outputs.argmax(1).short()

    def record(network: nn.Module, row: Row) -> None:
        series["predicted"].append(classes.clone())
        series["outputs"].append(watch.timed("label_wave", lambda: outputs_of(network, watched)).float())
        alignments = watch.timed("gradient_weight_alignment", lambda: observed_alignments(network, watched, labels))
        series["cosines"].append(alignments.float())
        for name, alarm in alarms.items():
            readings = watch.timed(name, partial(alarm.observe, network, watched, row["epoch"]))
            row |= {key.removeprefix("alarm."): value for key, value in readings.items()}
        for name in COLUMNS:
            columns[name].append(float(row[name]))

    watch.seconds["training"] = watch.train(problem.train, record, network=network, on_batch=on_batch)
    tensors = {name: torch.stack(values) for name, values in series.items()}
    tensors |= {"neighbours": torch.stack(recorder.history), "labels": labels, "initial": initial.predictions.float()}
    return columns, tensors, watch.seconds


def _watch_split(case: Case, problem: Problem) -> tuple[Columns, dict[str, Tensor], float]:
    """Train on nine tenths, scored on the rest."""
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

    seconds = _Watch(case, problem).train(rest, record)
    return columns, {"errors": torch.stack(errors)}, seconds


def _watch_canaries(case: Case, problem: Problem) -> tuple[Columns, dict[str, Tensor], float]:
    """Train with canaries to the end, as a rule replays the same up to its own alarm."""
    assert problem.train.targets is not None
    canaries, watch = Canaries(problem.train.targets, n_classes=problem.n_outputs), _Watch(case, problem)
    false = replace(problem.train, targets=canaries.labels)
    others = torch.randperm(case.n, generator=make_generator(case.spec.seed, "watched beside canaries"))[:WATCHED]
    watched = torch.cat([canaries.positions, others]).unique()
    samples = false.subset(watched)
    assert samples.targets is not None
    outputs: list[Tensor] = []
    accuracy: list[float] = []

    def record(network: nn.Module, row: Row) -> None:
        accuracy.append(row["test_accuracy"])
        outputs.append(watch.timed("canaries", lambda: outputs_of(network, samples)).float())

    watch.train(false, record)
    tensors = {
        "canary_outputs": torch.stack(outputs),
        "canary_labels": samples.targets,
        "is_canary": torch.isin(watched, canaries.positions),
    }
    return {"test_accuracy": accuracy}, tensors, watch.seconds["canaries"]


def watch(case: Case, path: Path, data_root: str | None) -> dict[str, Any]:
    """Train a case three times (whole, without a tenth, with canaries). Tensors go to `path`."""
    problem = problem_of(case, data_root)
    try:
        columns, tensors, seconds = _watch_whole(case, problem)
        split, split_tensors, seconds["split"] = _watch_split(case, problem)
        with_canaries, canary_tensors, seconds["canaries"] = _watch_canaries(case, problem)
    except _Diverged:
        return {"diverged": True}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors | split_tensors | canary_tensors)
    return {"columns": columns, "split": split, "with_canaries": with_canaries, "seconds": seconds,
            "date": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip


def runs(setting: RunSettings, plan: Sequence[Case]) -> list[Run]:
    """Watch what is missing. One run per case in order, without those that diverged."""
    paths = {case.id: setting.work / "recordings" / f"{case.id}.safetensors" for case in plan}
    answers = setting.cached(
        "runs", {case.id: partial(watch, case, paths[case.id], setting.data_root) for case in plan}
    )
    result = []
    for case in plan:
        facts = answers[case.id]
        if "diverged" not in facts:
            columns, split, with_canaries = (
                {name: [float(value) for value in values] for name, values in facts[part].items()}
                for part in ("columns", "split", "with_canaries")
            )
            seconds = {name: float(value) for name, value in facts["seconds"].items()}
            tensors, _ = load_tensors(paths[case.id])
            result.append(Run(case, columns, split, with_canaries, tensors, seconds, facts.get("date", "")))
    return result
