"""Training functions with their data: what a subset run trains, and how it is scored."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.accuracy.continued_runs import continued_predictions
from gapscope.accuracy.estimator_clones import unfitted_clone
from gapscope.accuracy.row_selection import Rows, as_rows, count_repeats, inputs_of, n_rows
from gapscope.accuracy.scores import (
    Scores,
    block_jackknife,
    check_score_arguments,
    constant_targets_note,
    range_of,
    scorer_of,
    scores_of_predictions,
    target_scales,
)
from gapscope.accuracy.shared_networks import SharedNetworks
from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput, call_user_code
from gapscope.base.lone_classes import lone_classes_note
from gapscope.base.rows import take_rows
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import RunSpec
from gapscope.base.targets import AMOUNTS_NOTE
from gapscope.base.task import Classification, MultiLabel, class_logits
from gapscope.data.frames import encode_inputs
from gapscope.inspection.network_checks import estimator_task, is_estimator
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.copied_inputs import leaking_column_note
from gapscope.labels.duplicates import beyond_chance
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.statistics.row_groups import MAX_ENTRIES, SCORED_ON_COPIES, grouped_rows_note
from gapscope.training.alarms.base import Alarm
from gapscope.training.loop import train
from gapscope.training.randomness import reproducible
from gapscope.training.recordings import Recordings

TrainFunction = Callable[..., Any]
ScoreFunction = Callable[[Any, Any, Any], Any]
STEPS_FRACTION = "steps_fraction"
# of scores, whose squares are variances: by judgment, far from the largest float
MAX_SCORE = 1e100


def takes_steps_fraction(train_fn: Any) -> bool:
    """Return whether a configuration can be trained for a fraction of its steps."""
    if isinstance(train_fn, RunSpec):
        return True
    return not is_estimator(train_fn) and STEPS_FRACTION in inspect.signature(train_fn).parameters


def equal_steps(train_fn: Any, samples: int, part: int, fraction: float = 1.0) -> Any:
    """Scale the epochs of a spec for as many optimizer steps on a subset as on all samples.

    A function with a parameter `steps_fraction` gets the fraction; others are returned unchanged.
    """
    if not isinstance(train_fn, RunSpec):
        if takes_steps_fraction(train_fn):
            return partial(train_fn, steps_fraction=fraction)
        return train_fn
    batch = train_fn.training.batch_size
    epochs = train_fn.training.epochs
    steps, steps_of_part = (math.ceil(n / min(batch, n)) for n in (samples, part))
    return train_fn.replace(
        {"training.epochs": max(1, round(fraction * epochs * steps / steps_of_part))}
    )


def _run_spec(spec: RunSpec, samples: Samples, seed: int, root: str | Path | None) -> nn.Module:
    problem, _ = prepare_data(spec, root)
    spec = spec.replace({"seed": seed % 2**31})
    network = network_from_spec(spec, replace(problem, train=samples))
    result = train(network, samples, spec.training, seed=spec.seed)
    if result.status == "diverged":
        raise InvalidInput(
            f"Training diverged ({result.stop_reason}); every subset run must finish. Lower the learning rate."
        )
    return network


def run_configuration(
    train_fn: Any, x: Any, y: Any, seed: int, root: str | Path | None = None
) -> Any:
    """Run a training configuration, with global random numbers that depend on the seed alone.

    Args:
        train_fn: A function (x, y), a `RunSpec`, or an estimator, of which a clone is fitted.
        x: Inputs in the form that it takes (tensors for a `RunSpec`).
        y: Targets.
        seed: Seed of the run.
        root: Folder of the data sets of a `RunSpec`.

    Raises:
        GapscopeError: The function, or `fit` of the estimator, raised an exception, which is the cause.
        InvalidInput: The function trained a network that is not its own, see `shared_networks`.
    """
    if isinstance(train_fn, RunSpec):
        return _run_spec(train_fn, as_samples((x, y)), seed, root)
    with reproducible(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"), seed):
        if not is_estimator(train_fn):
            shared = SharedNetworks(train_fn)
            trained = call_user_code("train_fn", train_fn, x, y)
            shared.check(trained, seed)
            return trained
        estimator = unfitted_clone(train_fn)
        return call_user_code(f"{type(estimator).__name__}.fit", estimator.fit, x, y)


@dataclass(frozen=True)
class NetworkProblem:
    """Training function that returns a network, scored by its accuracy or R^2."""

    train_fn: Any
    samples: Samples
    scales: np.ndarray | None
    root: str | Path | None = None

    def __post_init__(self) -> None:
        # the function is passed numbers, which its network learns, whatever the network names its outputs
        object.__setattr__(self, "samples", replace(self.samples, names_are_own=True))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the data. How many classes there are is settled by the outputs, which fit the targets."""
        notes = tuple(note for note in self.samples.notes if note != AMOUNTS_NOTE)
        return *notes, *constant_targets_note(self.samples)

    def per_sample(self, values: Any) -> Any:
        """Return one value per sample, from one per row of the data.

        Args:
            values: A column, such as groups; None is returned.
        """
        return self.samples.per_sample(values)

    @property
    def n_repeats(self) -> int:
        """Number of samples whose inputs repeat those of another one, beyond chance."""
        return len(beyond_chance(self.samples))

    @property
    def near_copies_note(self) -> str:
        """Note on samples most of which have near copies, else empty."""
        return "".join(grouped_rows_note(self.samples, SCORED_ON_COPIES))

    @property
    def labels(self) -> np.ndarray:
        """Targets of all samples."""
        return self.samples.y.cpu().numpy()

    def lone_classes_note(self, groups: np.ndarray) -> tuple[str, ...]:
        """Return the note on classes that occur in one group alone (raises if all do).

        Args:
            groups: Number of the group of each sample.
        """
        return lone_classes_note(self.samples.y, tensor_of(groups), self.samples.class_names)

    @property
    def task(self) -> str:
        """Kind of the targets, as that of `Samples`."""
        return self.samples.kind

    @property
    def score_name(self) -> str:
        """Name of the score."""
        return self.samples.task.score_name

    @property
    def score_range(self) -> tuple[float, float] | None:
        """Range of the score, see `range_of`."""
        return range_of(self.score_name)

    def train(self, indices: np.ndarray, seed: int, steps: float) -> nn.Module:
        """Return the network that is trained on a subset."""
        train_fn = equal_steps(self.train_fn, len(self), len(indices), steps)
        part = self.samples.subset(torch.from_numpy(indices))
        network = run_configuration(
            train_fn, inputs_of(part), part.targets_as_passed, seed, self.root
        )
        if not isinstance(network, nn.Module):
            raise InvalidInput(
                f"train_fn must return the trained network, a torch.nn.Module; it returned {type(network).__name__}. "
                "Let it end with `return network`, or pass score= to score any other object."
            )
        ready(network, part, needs=("outputs",))  # the outputs must fit what it was trained on
        return network

    def score(
        self, model: nn.Module, indices: np.ndarray, groups: np.ndarray | None = None
    ) -> Scores:
        """Return the score of each sample."""
        return Scores(
            sample_scores(model, self.samples.subset(torch.from_numpy(indices)), self.scales)
        )

    def continued_score(self, model: nn.Module, indices: np.ndarray) -> Scores:
        """Return the score of each sample, predicted by the network continued on the others."""
        rest = self.samples.subset(torch.from_numpy(indices))
        predictions = continued_predictions(model, rest, self.samples.y.cpu().unique())
        return Scores(scores_of_predictions(predictions, rest, self.scales))


def comparable_outputs(subject: Ready) -> Tensor:
    """Return a network's outputs, in float64.

    Raises:
        InvalidInput: Regression targets or several labels do not fit them.
        NotMeasurable: Some are NaN or infinite, so that they predict nothing.
    """
    # outputs for other classes leave the features; numbers are targets of these outputs
    if subject.samples.kind in ("regression", "multi-label") and not subject.mismatch:
        subject.samples.task.check_outputs(subject.samples.y, subject.n_outputs)
    with inspection_mode(subject.network):
        outputs = network_outputs(subject.network, subject.samples.inputs).double()
    subject.samples.task.check_finite(outputs, subject.samples.y.to(outputs.device))
    return outputs


def sample_scores(network: nn.Module, samples: Samples, scales: np.ndarray | None) -> np.ndarray:
    """Return each sample's score: 1 if correct else 0 (several labels: the fraction), its R² for regression."""
    subject = ready(network, samples)
    if subject.mismatch:
        raise InvalidInput(
            f"A learning curve needs one label or row of targets per sample: {subject.mismatch}."
        )
    outputs = comparable_outputs(subject)
    if samples.kind == "multi-label":
        return samples.task.correct(outputs.cpu(), subject.samples.y.cpu()).double().mean(1).numpy()
    predictions: Tensor = (
        class_logits(outputs) if samples.is_classification else outputs.reshape(len(outputs), -1)
    )
    return scores_of_predictions(predictions, subject.samples, scales)


def grouped_rows(rows: Rows, consequence: str) -> tuple[str, ...]:
    """Return the note on rows most of which have near copies; none for others, and for data that are no table.

    Args:
        rows: Rows with targets; columns of text are encoded.
        consequence: What follows and what to do, sentences.
    """
    shape = getattr(rows.inputs, "shape", ())
    if len(shape) != 2 or math.prod(shape) > MAX_ENTRIES or hasattr(rows.inputs, "tocsr"):
        return ()
    try:
        data, _, _ = encode_inputs((rows.inputs, rows.targets))
        samples = as_samples(data)
        return *grouped_rows_note(samples, consequence), *leaking_column_note(samples)
    except InvalidInput:  # missing numbers of an array, or targets of another kind
        return ()


@dataclass(frozen=True)
class MetricProblem:
    """Training function that returns any object, with a score of the user, on rows in any form.

    Attributes:
        train_fn: Function, `RunSpec` or estimator.
        rows: Inputs and targets, see `as_rows`.
        score_function: Function (object, inputs, targets) -> one score, or one per sample.
        task: Kind of the targets for an estimator with its own score, else "own metric".
        score_name: Name of the score.
        root: Folder of the data sets of a `RunSpec`.
        is_named: Whether the score is a scorer of scikit-learn, by name.
    """

    train_fn: Any
    rows: Rows
    score_function: ScoreFunction
    task: str
    score_name: str
    root: str | Path | None = None
    is_named: bool = False

    def __len__(self) -> int:
        return n_rows(self.rows.inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the data."""
        return self.rows.notes

    @property
    def n_repeats(self) -> int:
        """Number of samples whose inputs repeat those of another one, beyond chance."""
        return count_repeats(self.rows.inputs)

    @property
    def near_copies_note(self) -> str:
        """Note on rows most of which have near copies, else empty."""
        return "".join(grouped_rows(self.rows, SCORED_ON_COPIES))

    @property
    def has_own_score(self) -> bool:
        """Whether the user wrote the score."""
        return self.task == "own metric" and not self.is_named

    @property
    def score_range(self) -> tuple[float, float] | None:
        """Range of the score, see `range_of`; that of an own function is not known, whatever its name."""
        return None if self.has_own_score else range_of(self.score_name)

    @property
    def labels(self) -> np.ndarray:
        """Targets of all samples."""
        return np.asarray(self.rows.targets)

    def lone_classes_note(self, groups: np.ndarray) -> tuple[str, ...]:
        """Return the note on classes that occur in one group alone (raises if all do).

        Args:
            groups: Number of the group of each row.
        """
        labels = self.labels
        if self.task != "classification" or labels.ndim != 1:
            return ()
        names, codes = np.unique(labels, return_inverse=True)
        return lone_classes_note(tensor_of(codes), tensor_of(groups), names.tolist())

    def per_sample(self, values: Any) -> Any:
        """Return one value per sample, from one per row of the data.

        Args:
            values: A column, such as groups; None is returned.
        """
        return self.rows.per_row(values)

    def train(self, indices: np.ndarray, seed: int, steps: float) -> Any:
        """Return what the function trains on a subset."""
        train_fn = equal_steps(self.train_fn, len(self), len(indices), steps)
        x = take_rows(self.rows.inputs, indices)
        y = take_rows(self.rows.targets, indices)
        return run_configuration(train_fn, x, y, seed, self.root)

    def score(self, model: Any, indices: np.ndarray, groups: np.ndarray | None = None) -> Scores:
        """Return the score of each sample, or one score with its jackknife variance (None without groups)."""

        def of(rows: np.ndarray) -> np.ndarray:
            x = take_rows(self.rows.inputs, rows)
            y = take_rows(self.rows.targets, rows)
            if self.is_named and not is_estimator(model):
                raise InvalidInput(
                    f"score={self.score_name!r} is the name of a scorer, which needs an estimator; train_fn returned "
                    f"{type(model).__name__}. Pass score=None for accuracy or R^2 of a network, or a function (object, "
                    "inputs, targets)."
                )
            with torch.no_grad():
                value = call_user_code("score", self.score_function, model, x, y)
            return _checked(value, len(rows), self.score_name)

        values = of(indices)
        if groups is None or len(values) == len(indices) > 1:
            return Scores(values)
        return Scores(values, block_jackknife(lambda rows: float(of(rows)[0]), indices, groups))


def _checked(value: Any, n: int, name: str) -> np.ndarray:
    """Return scores as an array of one or n finite numbers."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().double()
    try:
        values = np.atleast_1d(np.asarray([] if value is None else value, dtype=float))
    except (TypeError, ValueError):
        values = np.empty(0)
    # variances are squares
    values = np.where(np.abs(values) < MAX_SCORE, values, np.nan)
    is_finite = bool(np.isfinite(values).all())
    if values.shape not in ((1,), (n,)) or not is_finite:
        if values.size:
            got = f"shape {list(values.shape)}"
        else:
            got = type(value).__name__
        if not is_finite:
            got += f" with NaN, or numbers above {MAX_SCORE:g}"
        raise InvalidInput(
            f"score must return one finite number, or one per sample ({n}); {name} returned {got}. Return a float or "
            "an array of shape [n]."
        )
    return values


@dataclass(frozen=True)
class EstimatorScore:
    """Score per sample of an estimator: accuracy, or R^2 in units of all targets (`target_scales`)."""

    is_classifier: bool
    scales: Any = 1.0

    def __call__(self, estimator: Any, x: Any, y: Any) -> np.ndarray:
        """Return one score per sample."""
        predicted = np.asarray(estimator.predict(x))
        truth = np.asarray(y)
        if self.is_classifier:
            correct = predicted.reshape(truth.shape) == truth
            return correct.reshape(len(truth), -1).mean(1)
        residuals = (predicted.reshape(truth.shape) - truth).astype(float).reshape(len(truth), -1)
        return 1 - ((residuals / self.scales) ** 2).sum(1)


def estimator_problem(estimator: Any, data: Any) -> MetricProblem:
    """Return the problem of an estimator that is scored by accuracy or R^2."""
    rows = as_rows(data, estimator)
    y = rows.targets
    if y is None:
        raise InvalidInput(
            "An estimator needs data as a pair (x, y); got a Dataset. Pass its inputs and targets."
        )
    if estimator_task(estimator, y) == "classifier":
        labels = np.asarray(y)
        if labels.dtype == object and all(isinstance(label, bool) for label in labels.flat):
            rows = replace(rows, targets=labels.astype(bool))  # scikit-learn takes no objects
        task = MultiLabel if np.ndim(y) == 2 and np.shape(y)[1] > 1 else Classification
        return MetricProblem(estimator, rows, EstimatorScore(True), task.kind, task.score_name)
    scales = target_scales(y)
    rows = replace(rows, notes=(*rows.notes, *constant_targets_note(y)))
    return MetricProblem(estimator, rows, EstimatorScore(False, scales), "regression", "R^2")


def metric_problem(
    train_fn: Any, data: Any, score: ScoreFunction | str, root: str | Path | None
) -> MetricProblem:
    """Return the problem of a function or estimator with a score of the user."""
    rows = as_rows(data, train_fn)
    if isinstance(score, str):
        return MetricProblem(train_fn, rows, scorer_of(score), "own metric", score, root, True)
    if not callable(score):
        raise InvalidInput(
            "score must be a function (object, inputs, targets) or the name of a scorer of scikit-learn, such as "
            f"'f1_macro'; got {score!r}."
        )
    name = str(getattr(score, "__name__", type(score).__name__))
    check_score_arguments(score, name)
    return MetricProblem(train_fn, rows, score, "own metric", name, root)


# Names, so that no framework is imported: trainers of transformers and lightning, and `MemorizationMonitor`.
_RUN_CLASSES = frozenset({"Trainer", "MemorizationMonitor"})


def check_no_run(source: Any) -> None:
    """Raise InvalidInput for a training run: a monitor, its callback or recordings, an alarm, or a trainer."""
    run = getattr(source, "monitor", source)
    classes = {base.__name__ for base in type(run).__mro__}
    if isinstance(run, Recordings | Alarm) or classes & _RUN_CLASSES:
        raise InvalidInput(
            f"Got a training run ({type(source).__name__}), which has trained on all of its samples: at every epoch it "
            "predicts them better than new ones. Pass the function that trains the network and its data (cheapest "
            "where it takes steps_fraction), or an estimator and its data."
        )
