"""Sources of out-of-sample predictions: kernels in closed form, continued halves, folds, out-of-bag samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.accuracy.continued_runs import continued_predictions, describe_undertrained
from gapscope.accuracy.estimator_clones import unfitted_clone
from gapscope.accuracy.extrapolation import SizedScore, mean_of_runs
from gapscope.accuracy.scores import scores_of_predictions
from gapscope.accuracy.subset_designs import Split, continued_halves, folds
from gapscope.accuracy.subset_problems import (
    NetworkProblem,
    comparable_outputs,
    run_configuration,
)
from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput, call_user_code
from gapscope.base.randomness import derive_seed
from gapscope.base.rows import take_rows
from gapscope.base.samples import Samples
from gapscope.base.task import class_logits
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import centred_features
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import (
    RIDGES,
    feature_matrix,
    fitted_units,
    input_spectra,
    target_matrix,
)
from gapscope.statistics.calibration import Calibration, cross_entropy, fit_calibration
from gapscope.statistics.kernel_ridge import Spectrum
from gapscope.statistics.leave_group_out import select_held_out

NO_SIGNAL = "frequencies of the labels or mean target of all samples"


@dataclass(frozen=True)
class Held:
    """Held-out scores or probabilities of one method."""

    method: str
    cost: float
    predictions: Tensor
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()


def describe_source(source: Any) -> str:
    """Return what cannot be a source, and what to pass.

    Args:
        source: What was passed.
    """
    if isinstance(source, type):
        return f"the class {source.__name__}. Pass an object of it, such as {source.__name__}()."
    return f"{type(source).__name__}. Pass None for kernels of the inputs."


def to_probabilities(scores: Tensor, targets: Tensor) -> tuple[Tensor, Calibration | None]:
    """Return calibrated probabilities and their calibration (regression: the scores, and None).

    Classes without a sample have the probability 0: they neither share the softmax nor change the calibration.
    """
    if targets.is_floating_point():
        return scores, None
    if targets.ndim > 1:
        calibration = fit_calibration(scores, targets)
        return calibration.probabilities(scores), calibration
    present, numbers = targets.unique(return_inverse=True)
    calibration = fit_calibration(scores[:, present], numbers)
    probabilities = torch.zeros_like(scores)
    probabilities[:, present] = calibration.probabilities(scores[:, present])
    return probabilities, calibration


def _error(predictions: Tensor, targets: Tensor) -> float:
    if targets.is_floating_point():
        return float((predictions - targets).square().mean())
    return cross_entropy(predictions, targets)


def best_kernel(
    kernels: Mapping[str, Spectrum],
    targets: Tensor,
    n_classes: int,
    groups: Tensor | None,
    notes: Sequence[str] = (),
) -> Held:
    """Return the held-out predictions of the kernel with the smallest cross-entropy (squared error).

    If no kernel is better than the frequencies of the labels (the mean target), these are the predictions.
    """
    units = fitted_units(targets)
    if targets.is_floating_point():
        targets = targets / units
    encoded = target_matrix(targets, n_classes)
    frequencies = encoded.mean(0).expand_as(encoded)
    candidates = [
        Held(
            NO_SIGNAL, 0.0, frequencies, None, (*notes, "No kernel predicts these targets better.")
        )
    ]
    for name, kernel in kernels.items():
        _, scores = select_held_out(kernel, encoded, RIDGES, groups)
        predictions, calibration = to_probabilities(scores, targets)
        if groups is None:
            left_out = "leave-one-out"
        else:
            left_out = "leave-one-group-out"
        candidates.append(Held(f"{name}, {left_out}", 0.0, predictions, calibration, tuple(notes)))
    best = min(candidates, key=lambda item: _error(item.predictions, targets))
    return replace(best, predictions=best.predictions * units)


def input_kernels(features: Tensor, what: str) -> dict[str, Spectrum]:
    """Return the kernels of features [n, d], standardized."""
    if not features.shape[1]:
        raise InvalidInput(
            f"Held-out predictions need inputs that vary; all columns of the {what} are constant."
        )
    return dict(input_spectra(feature_matrix(features), f"the {what}"))


def network_kernels(prepared: Ready) -> dict[str, Spectrum]:
    """Return the kernels of a network's last hidden features."""
    features = extract_features(prepared.network, prepared.samples)
    values = centred_features(features.values.flatten(1))
    return dict(input_spectra(values, f"the features ({features.place})"))


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose))


def continued(
    problem: NetworkProblem, n_classes: int, steps: float, seed: int, *, is_last: bool = True
) -> Held:
    """Return predictions of networks trained on one half each, continued on the other.

    Networks that are under-trained (`describe_undertrained`) predict the other half themselves.

    Args:
        problem: Training function with its data.
        n_classes: Number of columns.
        steps: Optimizer steps of each network, in multiples of a training run on all samples.
        seed: Seed of the halves and runs.
        is_last: Whether under-trained networks are used. Otherwise others are trained for all steps.
    """
    n = len(problem)
    splits = continued_halves(np.arange(n), steps, _rng(seed, "continued halves"))
    scores, outputs = torch.empty(2, n, n_classes, dtype=torch.float64)
    scores_of_outputs = np.empty(n)
    fits: list[SizedScore] = []
    for split in splits:
        network = problem.train(split.trained, derive_seed(seed, split.name), split.steps)
        rows = torch.from_numpy(split.scored)
        fits.append(problem.score(network, split.trained).sized(split.trained))
        rest = problem.samples.subset(rows)
        predictions = continued_predictions(network, rest, problem.samples.y.cpu().unique())
        scores[rows] = _columns(predictions, n_classes, rest.y)
        outputs[rows] = _outputs(network, rest, n_classes)
        scores_of_outputs[split.scored] = problem.score(network, split.scored).values
    values = scores_of_predictions(scores, problem.samples, problem.scales)
    reason = describe_undertrained(mean_of_runs(fits), values, scores_of_outputs, steps)
    if reason and not is_last:
        held = continued(problem, n_classes, 1.0, seed)
        return replace(held, cost=held.cost + 2 * steps)
    notes: tuple[str, ...] = ()
    name = "two halves" if steps == 1 else "two short halves"
    if reason:
        scores = outputs
        if steps == 1:
            advice = "train longer for better ones, or pass cost=5 for networks of more samples"
        else:
            advice = f"they had {steps:g} of the steps, and cost=2 or cost=5 take all"
        notes = (f"{reason}. Their own outputs are used; {advice}.",)
    else:
        name = f"{name}, continued on each other"
    predictions, calibration = to_probabilities(scores, problem.samples.y.cpu())
    return Held(name, 2 * steps, predictions, calibration, notes)


def _columns(part: Tensor, n_classes: int, targets: Tensor) -> Tensor:
    """Return predictions with one column per class (absent ones 0)."""
    if targets.is_floating_point() or part.shape[1] == n_classes:
        return part.cpu().double()
    return nn.functional.pad(part.cpu().double(), (0, n_classes - part.shape[1]))[:, :n_classes]


def part_note(n_folds: int) -> str:
    """Return the note that models of folds are trained on a part of the samples.

    Args:
        n_folds: Number of folds.
    """
    return (
        f"Each model was trained on {percent(1 - 1 / n_folds)} of the samples; one of all samples is usually better: "
        "`gs.learning_curve` predicts it."
    )


def network_folds(
    problem: NetworkProblem, n_classes: int, number: int, groups: np.ndarray, seed: int
) -> Held:
    """Return predictions of networks that are trained without one fold each."""
    scores = torch.empty(len(problem), n_classes, dtype=torch.float64)
    for split in folds(groups, number, _rng(seed, f"{number} folds")):
        network = problem.train(split.trained, derive_seed(seed, split.name), split.steps)
        rows = torch.from_numpy(split.scored)
        scores[rows] = _outputs(network, problem.samples.subset(rows), n_classes)
    predictions, calibration = to_probabilities(scores, problem.samples.y.cpu())
    notes = (part_note(number),)
    return Held(f"networks of {number} folds", float(number), predictions, calibration, notes)


def _outputs(network: nn.Module, samples: Samples, n_classes: int) -> Tensor:
    subject = ready(network, samples)
    if subject.samples.kind != samples.kind:
        raise InvalidInput(
            f"The outputs of the trained network make these targets {subject.samples.task}; they were taken as "
            f'{samples.task}. Pass gs.Samples(x, y, task="{subject.samples.kind}").'
        )
    outputs = comparable_outputs(subject).cpu()
    outputs = outputs.reshape(len(outputs), -1)
    if samples.y.is_floating_point():
        return outputs
    if samples.kind == "multi-label":
        return (outputs + 1) / 2  # a sigmoid of 2 s - 1
    logits = class_logits(outputs)
    if logits.shape[1] < n_classes:  # classes that the fold has not seen
        logits = nn.functional.pad(
            logits, (0, n_classes - logits.shape[1]), value=float(logits.min())
        )
    return logits[:, :n_classes]


def has_out_of_bag(estimator: Any) -> bool:
    """Return whether an estimator predicts the samples outside its bootstrap resamples."""
    parameters = estimator.get_params()
    return "oob_score" in parameters and bool(parameters.get("bootstrap", False))


def out_of_bag(estimator: Any, x: Any, y: np.ndarray, n_classes: int, seed: int) -> Held:
    """Return out-of-bag predictions of a bagged estimator, fitted once."""
    scored = unfitted_clone(estimator)
    scored.set_params(oob_score=True)
    with warnings.catch_warnings():
        # samples without an out-of-bag prediction, which the notes name
        warnings.simplefilter("ignore", UserWarning)
        fitted: Any = run_configuration(scored, x, y, derive_seed(seed, "out of bag"))
    values: Any = getattr(fitted, "oob_decision_function_" if n_classes else "oob_prediction_")
    values = np.asarray(values, dtype=float)
    if values.ndim == 3:  # several labels: the probabilities of 0 and 1 per label, [n, 2, K]
        values = values[:, 1, :]
    values = values.reshape(len(y), -1)
    missing = ~np.isfinite(values).all(1) | _is_in_every_bag(fitted, len(y))
    notes: tuple[str, ...] = ()
    if missing.any():
        values[missing] = np.nanmean(values[~missing], axis=0)
        notes = (
            f"{int(missing.sum())} samples are in the bootstrap resample of every tree: they have the mean prediction. "
            "Use more trees.",
        )
    notes += (
        "Each sample is predicted by about a third of the trees; the whole forest is usually better.",
    )
    name = type(estimator).__name__
    return Held(f"out-of-bag samples of {name}", 1.0, tensor_of(values), None, notes)


def _is_in_every_bag(fitted: Any, n: int) -> np.ndarray:
    """Return whether each sample is in the bootstrap resample of every estimator."""
    result = np.ones(n, dtype=bool)
    for rows in getattr(fitted, "estimators_samples_", [np.empty(0, dtype=int)]):
        outside = np.ones(n, dtype=bool)
        outside[rows] = False
        result &= ~outside
    return result


def estimator_folds(
    estimator: Any,
    x: Any,
    y: np.ndarray,
    n_classes: int,
    number: int,
    groups: np.ndarray,
    seed: int,
) -> Held:
    """Return predictions of clones that are fitted without one fold each."""
    name = type(estimator).__name__
    width = n_classes or int(np.prod(y.shape[1:], dtype=int))
    if n_classes and not hasattr(estimator, "predict_proba"):
        raise InvalidInput(
            f"Held-out probabilities need predict_proba; {name} has none. Wrap it: CalibratedClassifierCV(estimator)."
        )
    values = np.zeros((len(y), width))
    for split in folds(groups, number, _rng(seed, f"{number} folds")):
        fitted: Any = run_configuration(
            estimator, take_rows(x, split.trained), y[split.trained], derive_seed(seed, split.name)
        )
        values[split.scored] = _predict(fitted, take_rows(x, split.scored), split, width, n_classes)
    notes = (part_note(number),)
    return Held(f"{name} in {number} folds", float(number), tensor_of(values), None, notes)


def _predict(fitted: Any, x: Any, split: Split, width: int, n_classes: int) -> np.ndarray:
    """Return predictions [m, K] of one fold, with a column for classes that it has not seen."""
    name = type(fitted).__name__
    if not n_classes:
        predicted: Any = call_user_code(f"{name}.predict", fitted.predict, x)
        return np.asarray(predicted, dtype=float).reshape(len(split.scored), width)
    predicted = call_user_code(f"{name}.predict_proba", fitted.predict_proba, x)
    if isinstance(predicted, list):  # several labels: one array [m, 2] per label
        columns = [part[:, list(seen).index(1)] if 1 in seen else np.zeros(len(part))
                   for part, seen in zip(predicted, fitted.classes_, strict=True)]  # fmt: skip
        return np.stack(columns, axis=1)
    values = np.zeros((len(split.scored), width))
    if np.asarray(predicted).shape[1] == width:
        return np.asarray(predicted, dtype=float)
    values[:, np.asarray(fitted.classes_, dtype=int)] = predicted
    return values
