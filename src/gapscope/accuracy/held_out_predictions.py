"""Out-of-sample predictions of every training sample."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gapscope.accuracy.forecast import check_prediction_data
from gapscope.accuracy.held_out_positions import hold_out_positions
from gapscope.accuracy.held_out_result import HeldOutPredictions, target_names
from gapscope.accuracy.held_out_sources import (
    Held,
    best_kernel,
    continued,
    describe_source,
    estimator_folds,
    has_out_of_bag,
    input_kernels,
    network_folds,
    network_kernels,
    out_of_bag,
)
from gapscope.accuracy.row_selection import as_rows, count_repeats, n_rows, numbered_classes
from gapscope.accuracy.scores import base_rate_note, constant_targets_note, scales_of, target_scales
from gapscope.accuracy.subset_problems import (
    NetworkProblem,
    check_no_run,
    comparable_outputs,
    grouped_rows,
    takes_steps_fraction,
)
from gapscope.base.arguments import check_arguments
from gapscope.base.arrays import tensor_of
from gapscope.base.columns import column_names
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.foreign_data import as_frame
from gapscope.base.groups import group_tensor
from gapscope.base.lone_classes import lone_classes_note
from gapscope.base.row_order import check_sample_order
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import RunSpec
from gapscope.base.task import Classification, MultiLabel, Regression, Task
from gapscope.data.frames import encode_inputs
from gapscope.inspection.first_pass import FITTED_NUMBERS
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.network_checks import estimator_task, is_estimator
from gapscope.inspection.validation import ready, settled_by
from gapscope.inspection.wrapped_networks import network_inside, unwrap_estimator
from gapscope.labels.copied_inputs import leaking_column_note
from gapscope.labels.duplicates import MIN_REPEATS, beyond_chance
from gapscope.measures.embed import features_of_samples
from gapscope.measures.fitted_labels import network_before_training
from gapscope.pools.from_spec import prepare_data
from gapscope.results.estimate import percent
from gapscope.results.formatting import describe_repeats
from gapscope.statistics.baselines import PRESENT, sample_features
from gapscope.statistics.grouped_scores import independent_samples, variance_of_mean
from gapscope.statistics.integer_inputs import settle_integers
from gapscope.statistics.intervals import normal_quantile, wilson_interval
from gapscope.statistics.leave_group_out import N_FOLDS
from gapscope.statistics.row_groups import LEFT_ONE_OUT, grouped_rows_note

# as for a forecast
MIN_SAMPLES = 12
# In training runs on all samples: two halves, each with a quarter of the steps, and with all.
SHORT_COST, HALVES_COST = 0.5, 2.0


@check_arguments
def out_of_sample(
    source: Any,
    data: Any = None,
    *,
    groups: Any = None,
    cost: float = 0,
    seed: int = 0,
    data_root: str | Path | None = None,
) -> HeldOutPredictions:
    """Predict every training sample by a model that was fitted without it.

    The probabilities serve wherever other tools ask for cross-validated ones: ranking of label errors, conformal
    prediction, calibration, unlabelled-data methods. Without training, kernel ridge regression predicts each sample
    from all others in closed form, exactly as n refits would, or without its group. Its scores become probabilities by
    a softmax, mixed with the frequencies of the labels; the temperature and the weight of the frequencies minimize the
    held-out cross-entropy. Of a linear and an RBF kernel the one with the smaller cross-entropy is used. Above 2,000
    samples the RBF kernel has 1,000 random landmarks.

    Tokens and pixels (one label per position) are predicted without their whole sample (or group), from the features
    of the network at the position, from features [n, ..., d], or from the inputs: label frequencies of each token, or
    the pixels around. Of more than 50,000 positions as many are drawn, equally many of every sample.

    Args:
        source: One of

            - None: kernels of the inputs (0 training runs).
            - Features [n, d], a tensor or array, such as of `gs.embed`: kernels of the features (0).
            - A network that was not trained on these labels, such as a pretrained one: kernels of its last hidden
              features (0). A network that has fitted these targets is replaced by the inputs, with a note.
            - A function (x, y) -> trained network, or a `gs.RunSpec`: two halves, trained for a quarter of the steps
              and continued on each other (0.5, with a spec or a parameter `steps_fraction`); for all steps (2); or
              folds (3 or more). It builds a new network in every call: one that is trained again has seen the samples.
            - An estimator with scikit-learn's interface: out-of-bag samples, if it has them (1), or folds (2 or more).
              A fitted skorch network, or a fitted pipeline that ends with one, is a network at a cost below 2.
        data: Training data with targets, in any form that `gapscope.measure` takes; for an estimator a pair (x, y) that
            it takes itself. None for a `gs.RunSpec`. With None as the source also a pair (frame, targets) with columns
            of text and dates and missing numbers, which are encoded as notes say.
        groups: One label per sample; samples of one group (patient, author, period) are held out together.
        cost: Training runs that may be spent, in multiples of one on all samples. The most expensive method within it
            is used; 0 takes the cheapest that the source has (five folds for an estimator without out-of-bag samples;
            otherwise these need 2 or more).
        seed: Seed of the subsets and training runs.
        data_root: Folder of the data sets of a spec; None for GAPSCOPE_DATA or the user's cache.

    Returns:
        Probabilities or predicted targets of all samples, their score with a 90 % interval, and their calibration. The
        score is the accuracy, or R^2: the mean over targets that vary, whatever their units.
        Labels that are numbers count columns, so that `y` indexes them: a number without a sample has a column of
        zeros.

    Raises:
        InvalidInput: The data have no targets, fewer than 12 samples, another order each time they are read, or a form
            that the source cannot predict; the source is a training run (a monitor, its recordings, a trainer), which
            has trained on its samples, or a function that trains one network again and again; or `groups` or features
            have the index of the data in another order.
        NotMeasurable: The network has outputs that are NaN or infinite.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> print(gs.out_of_sample(None, train))
    Held-out accuracy of 300 samples: 95.7 % (90 % interval 93.3 to 97.2 %)
      method       RBF ridge on the inputs, leave-one-out; cost 0.00 training runs
      calibration  error 0.9 %, cross-entropy 0.130 nats
    """
    check_range("cost", cost, 0)
    check_no_run(source)
    check_sample_order(data, source, "features")
    check_sample_order(data, groups, "groups")
    passed = data
    source = as_frame(source)
    if is_estimator(source) and (cost >= 2 or not _holds_trained_network(source)):
        return _of_estimator(source, data, groups, cost, seed)
    if data is None:
        if not isinstance(source, RunSpec):
            raise InvalidInput("Got no data; only a RunSpec brings its own. Pass data=(x, y).")
        data = prepare_data(source, data_root)[0].train
    if source is not None and getattr(data, "ndim", 0) == 1:
        raise InvalidInput(
            f"Got data of shape {list(data.shape)}; inputs and targets are needed. The source (None, or a network) "
            "comes first and the data second: out_of_sample(None, (x, y))."
        )
    if is_estimator(source):
        source, data = unwrap_estimator(source, data)
    encoded: tuple[str, ...] = ()
    if source is None:
        data, _, encoded = encode_inputs(data)
    samples = settled_by(source, as_samples(data, is_exact=source is None))
    if source is None:
        samples = settle_integers(samples)
    samples = replace(samples, notes=(*samples.notes, *encoded))
    _check(samples)
    block, numbers = _groups(samples.per_sample(groups), len(samples))
    if samples.kind == "positions":
        return _of_positions(source, samples, block, seed)
    if block is not None:
        lone = lone_classes_note(samples.y, block, samples.class_names)
        samples = replace(samples, notes=(*samples.notes, *lone))
    else:
        samples = replace(
            samples,
            notes=(
                *samples.notes,
                *_note_on_repeats(len(beyond_chance(samples)), len(samples)),
                *grouped_rows_note(samples, LEFT_ONE_OUT),
                *leaking_column_note(samples),
            ),
        )
    targets = samples.y.cpu()
    if targets.dtype == torch.int64:
        n_classes = max(int(targets.max()) + 1, len(samples.class_names))
    else:
        n_classes = targets.shape[1]
    with explained_memory():
        if source is None:
            held = best_kernel(
                input_kernels(sample_features(samples), "inputs"), targets, n_classes, block
            )
        elif isinstance(source, nn.Module):
            held = _of_network(source, samples, targets, n_classes, block)
        elif isinstance(source, Tensor | np.ndarray) or hasattr(source, "iloc"):
            held = best_kernel(
                input_kernels(features_of_samples(source, samples).double(), "features"),
                targets,
                n_classes,
                block,
            )
        elif isinstance(source, RunSpec) or (callable(source) and not isinstance(source, type)):
            problem = NetworkProblem(source, samples, scales_of(samples), data_root)
            held = _of_training(problem, n_classes, numbers, groups is not None, cost, seed)
        else:
            raise InvalidInput(
                "source must be None, features [n, d], a network, a function (x, y) -> trained network, a RunSpec or "
                f"an estimator; got {describe_source(source)}"
            )
    names = samples.class_names or samples.target_columns or tuple(range(n_classes))
    if samples.kind == "regression":
        names = samples.named_targets or target_names(passed)
    samples = replace(samples, notes=(*samples.notes, *_note_on_unused_numbers(samples, n_classes)))
    result = _result(held, targets.numpy(), names, numbers, groups is not None, samples.notes)
    if samples.rows is None:
        return result
    return replace(result, rows=samples.rows.cpu().numpy())


def _holds_trained_network(estimator: Any) -> bool:
    """Return whether an estimator is a skorch network, or a pipeline that ends with one, with its module."""
    try:
        return isinstance(network_inside(estimator), nn.Module)
    except InvalidInput:  # not fitted
        return False


def _of_positions(
    source: Any, samples: Samples, groups: Tensor | None, seed: int
) -> HeldOutPredictions:
    """Return the held-out predictions of tokens or pixels, each by the other samples (groups) alone."""
    found = hold_out_positions(source, samples, seed=seed, groups=groups)
    positions = found.positions
    held_out = positions.held_out.numpy()
    names = samples.class_names or tuple(range(positions.n_classes))
    _, held = found.best()
    result = _result(held, positions.labels.numpy(), names, held_out, True, samples.notes)
    index = torch.cat([samples.original(positions.samples)[:, None], positions.passed_places], 1)
    return replace(
        result,
        task="positions",
        samples=len(positions.samples.unique()),
        groups=len(np.unique(held_out)),
        positions=index.numpy(),
    )


def _note_on_repeats(repeats: int, n: int) -> tuple[str, ...]:
    """Return a note if many of n samples are predicted from copies of themselves."""
    if repeats < max(MIN_REPEATS * n, 1):
        return ()
    return (
        f"{describe_repeats(repeats, n)} and can be predicted from it. Pass groups= with one label per "
        "distinct input, if new data do not repeat these.",
    )


def _note_on_unused_numbers(samples: Samples, n_classes: int) -> tuple[str, ...]:
    """Return a note if class numbers without a sample have columns, such as 0 of labels that count from 1."""
    unused = n_classes - len(samples.y.unique())
    if not samples.is_classification or samples.class_names or not unused:
        return ()
    if unused == 1 and int(samples.y.min()) == 1:
        return ("Labels count from 1: the column of class 0 is zero. Without it: y - 1.",)
    return (
        f"{unused} of {n_classes} columns are zero, those of numbers without a sample. Without them: "
        "numpy.unique(y, return_inverse=True)[1].",
    )


def _check(samples: Samples) -> None:
    """Raise InvalidInput unless there are enough samples, in a fixed order, with targets that can be predicted."""
    samples.original(())
    what = "Held-out prediction"
    if samples.kind not in ("multi-label", "positions"):
        check_prediction_data(samples, what, MIN_SAMPLES)
    elif len(samples) < MIN_SAMPLES:
        raise InvalidInput(
            f"{what} needs {MIN_SAMPLES} samples or more; got {len(samples)} samples. Pass more."
        )


def _groups(groups: Any, n: int) -> tuple[Tensor | None, np.ndarray]:
    """Return the group of each of n samples: None without groups, and as numbers, then one per sample."""
    block = group_tensor(groups, n, "Held-out prediction")
    if block is None:
        return None, np.arange(n)
    return block, block.numpy()


def _of_network(
    network: nn.Module, samples: Samples, targets: Tensor, n_classes: int, groups: Tensor | None
) -> Held:
    """Return the predictions of a network's features, or of the inputs if it has fitted these targets."""
    prepared = ready(network, samples)
    comparable_outputs(prepared)
    inputs = sample_features(samples)
    kernels = {}
    if inputs.shape[1]:
        kernels = input_kernels(inputs, "inputs")
    of_inputs = best_kernel(kernels, targets, n_classes, groups)
    fit = ""
    notes = prepared.notes
    if not prepared.mismatch:
        before = network_before_training(prepared, of_inputs.predictions, groups)
        fit = before.fit
        if before.note:
            notes += (before.note,)
    elif FITTED_NUMBERS in prepared.mismatch:
        fit = f"{FITTED_NUMBERS.capitalize()} of the labels: it was trained on them"
    if fit:
        note = f"{fit}, so that the inputs are used. If it was not, pass its features, gs.embed(network, data)."
        return replace(of_inputs, notes=(note, *of_inputs.notes))
    if samples.is_classification and n_classes > max(prepared.n_outputs, 2):
        notes += (
            f"The network has {prepared.n_outputs} outputs and labels reach {n_classes - 1}: its features alone are "
            "used. If the outputs are those of these classes, number them 0, 1, 2, ...",
        )
    return best_kernel(network_kernels(prepared), targets, n_classes, groups, notes)


def _of_training(
    problem: NetworkProblem,
    n_classes: int,
    groups: np.ndarray,
    has_groups: bool,
    cost: float,
    seed: int,
) -> Held:
    """Return the predictions of the most expensive design within the cost."""
    if problem.samples.kind == "multi-label":
        has_groups = True  # halves are continued for one label per sample only
    if takes_steps_fraction(problem.train_fn):
        cheapest = SHORT_COST
    else:
        cheapest = HALVES_COST
    if cost >= 3 or has_groups:
        if cost >= 3:
            number = max(3, int(cost))
        else:
            number = N_FOLDS
        return network_folds(problem, n_classes, min(number, int(groups.max()) + 1), groups, seed)
    if max(cost, cheapest) >= HALVES_COST:
        steps = 1.0
    else:
        steps = SHORT_COST / 2
    # the cheapest method includes what it needs to be valid
    return continued(problem, n_classes, steps, seed, is_last=steps == 1 or cost > 0)


def _of_estimator(
    estimator: Any, data: Any, groups: Any, cost: float, seed: int
) -> HeldOutPredictions:
    """Return the held-out predictions of an estimator with scikit-learn's interface."""
    if isinstance(data, DataLoader | IterableDataset):
        data = as_samples(data)
    if isinstance(data, Samples):
        data.original(())  # rows mean nothing if the order changes
    rows = as_rows(data, estimator)
    x = rows.inputs
    y = rows.targets
    if y is None:
        raise InvalidInput(
            "An estimator needs data as a pair (x, y); got a Dataset. Pass its inputs and targets."
        )
    n = n_rows(y)
    truth = np.asarray(y)
    is_classifier = estimator_task(estimator, y) == "classifier"
    if n < MIN_SAMPLES:
        raise InvalidInput(
            f"Held-out prediction needs {MIN_SAMPLES} samples or more; got {n}. Pass more."
        )
    block, numbers = _groups(rows.per_row(groups), n)
    classes: tuple[Any, ...] = target_names(data)
    n_classes = 0
    if is_classifier and truth.ndim == 2 and truth.shape[1] > 1:
        n_classes = truth.shape[1]
        truth = truth.astype(int)
        classes = column_names(as_frame(y)) or tuple(range(n_classes))
    elif is_classifier:
        classes, truth = numbered_classes(y, n)
        n_classes = len(classes)
        if n_classes < 2:
            raise InvalidInput(
                "Held-out prediction needs two classes or more; got one. Pass other samples too."
            )
    can_be_out_of_bag = groups is None and has_out_of_bag(estimator)
    if 0 < cost < (1 if can_be_out_of_bag else 2):
        least = "1 (out-of-bag samples)" if can_be_out_of_bag else "2 (two folds)"
        raise InvalidInput(
            f"cost={cost:g} must be at least {least} for {type(estimator).__name__}, or 0 for the default. Pass more."
        )
    if cost < 2 and can_be_out_of_bag:
        held = out_of_bag(estimator, x, truth, n_classes, seed)
    else:
        number = int(cost) if cost >= 2 else N_FOLDS
        number = min(number, int(numbers.max()) + 1)
        held = estimator_folds(estimator, x, truth, n_classes, number, numbers, seed)
    targets = truth if n_classes else truth.astype(float).reshape(n, -1)
    notes = rows.notes
    if block is not None and is_classifier:
        notes += lone_classes_note(tensor_of(truth), block, classes)
    if groups is None:
        notes += (*_note_on_repeats(count_repeats(x), n), *grouped_rows(rows, LEFT_ONE_OUT))
    result = _result(held, targets, classes, numbers, groups is not None, notes)
    return replace(result, rows=rows.kept)


def _result(
    held: Held,
    targets: np.ndarray,
    classes: tuple[Any, ...],
    groups: np.ndarray,
    has_groups: bool,
    notes: tuple[str, ...],
) -> HeldOutPredictions:
    """Return the result with its score and interval; `classes` are the names of the targets of regression."""
    predictions = held.predictions.double().numpy()
    is_regression = targets.dtype.kind == "f"
    if is_regression:
        truth = targets.astype(float)
        scores = 1 - (((predictions - truth) / target_scales(truth)) ** 2).sum(1)
        notes = (*notes, *constant_targets_note(truth))
    elif targets.ndim == 1:
        scores = (predictions.argmax(1) == targets).astype(float)
    else:
        scores = ((predictions > PRESENT) == (targets > 0)).mean(1)
        exact = percent(float((scores == 1).mean()), 1)
        notes = (
            *notes,
            base_rate_note(targets),
            f"All labels are right for {exact} of the samples.",
        )
    score = float(scores.mean())
    if is_regression:
        reach = normal_quantile(0.9) * math.sqrt(variance_of_mean(scores, groups))
        low = score - reach
        high = min(score + reach, 1.0)
    else:
        effective = float(len(scores))
        if has_groups:
            effective = independent_samples(scores, groups)
        low, high = wilson_interval(score, effective)
    task: type[Task] = MultiLabel
    if is_regression:
        task = Regression
    elif targets.ndim == 1:
        task = Classification
    return HeldOutPredictions(
        task=task.kind,
        samples=len(predictions),
        score_name=task.score_name,
        predictions=predictions,
        targets=targets,
        classes=() if is_regression else classes,
        target_names=classes if is_regression and len(classes) == targets.shape[1] else (),
        method=held.method,
        cost=held.cost,
        score=score,
        low=low,
        high=high,
        calibration=held.calibration,
        groups=int(groups.max()) + 1 if has_groups else None,
        notes=tuple(dict.fromkeys((*notes, *held.notes))),
    )
