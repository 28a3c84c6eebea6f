"""Fitted scikit-learn estimators in `gapscope.check`: their accuracy or R^2 on training and on new data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor

from gapscope.accuracy.estimator_clones import unfitted_clone
from gapscope.base.arrays import tensor_of
from gapscope.base.columns import column_names, library_of
from gapscope.base.errors import (
    GapscopeError,
    InvalidInput,
    NotMeasurable,
    call_user_code,
    first_line,
    join_names,
)
from gapscope.base.rows import take_rows
from gapscope.base.samples import Samples
from gapscope.checks.expected import error_in_words, regression_score
from gapscope.checks.fixes import Fix
from gapscope.results.estimate import IntervalEstimate, paired_difference
from gapscope.statistics.intervals import r_squared_scales, wilson_interval
from gapscope.statistics.leave_group_out import N_FOLDS
from gapscope.training.randomness import reproducible

# rows on which the dependence on scale is tried, and the fraction of predictions that must differ: refitting alone
# changes fewer
ROWS_OF_SCALE, MIN_CHANGED = 500, 0.02


class EstimatorScores:
    """Scores of a fitted scikit-learn estimator: accuracies of a classifier, R^2 of a regressor.

    Args:
        estimator: Fitted estimator with `predict`.
        data: Training data (x, y), as it was fitted.
        samples: The same as samples, which hold the number of each class.
        test: Held-out data (x, y); None without.
        test_samples: The same as samples, adapted to the first (`as_second`); None without.

    Attributes:
        correct: Fraction of the labels of each training sample that is predicted [n]; zeros for a regressor.
        train_score: Accuracy on the training samples with its 90 % interval, or R^2.

    Raises:
        InvalidInput: The data are no pair, `predict` raised, or labels are not those that it was fitted with.
    """

    def __init__(
        self,
        estimator: Any,
        data: Any,
        samples: Samples,
        test: Any = None,
        test_samples: Samples | None = None,
    ) -> None:
        self.estimator = estimator
        self.is_regression = samples.kind == "regression"
        self.inputs, self.labels = _pair(data)
        self._row_of_class: dict[int, int] = {}
        self._rows = samples.original(torch.arange(len(samples))).numpy()
        if samples.kind == "classification":
            self._row_of_class = dict(zip(samples.y.tolist(), self._rows.tolist(), strict=True))
        labels = _take_labels(self.labels, self._rows)
        _check_labels(estimator, labels)
        predicted = _predicted(estimator, take_rows(self.inputs, self._rows), "data")
        self.correct = torch.zeros(len(samples), dtype=torch.float64)
        if not self.is_regression:
            self.correct = fraction_correct(predicted, labels)
        self.train_score = self._score(predicted, labels)
        self._on_test: tuple[Any, Any] | None = None
        if test is not None and test_samples is not None:
            inputs, labels = (
                _in_order_of(own, first)
                for own, first in zip(_pair(test), (self.inputs, self.labels), strict=True)
            )
            if self._row_of_class:
                labels = self._labels_on_test(test_samples, len(labels))
            self._on_test = _predicted(estimator, inputs, "test"), labels
        self._cross_validated: IntervalEstimate | None = None

    def _score(self, predicted: Any, labels: Any) -> IntervalEstimate:
        if self.is_regression:
            return regression_score(_numbers(predicted), _numbers(labels))
        accuracy = float(fraction_correct(predicted, labels).mean())
        return IntervalEstimate(accuracy, *wilson_interval(accuracy, len(labels)))

    def _labels_on_test(self, samples: Samples, n: int) -> numpy.ndarray:
        """Return labels [n] of held-out rows in the form of the training labels, whatever form they were passed in.

        Args:
            samples: Held-out samples, with classes numbered as in the training samples.
            n: Number of rows that were passed, of which some may have no label.

        Raises:
            InvalidInput: There is a class that the training samples lack.
        """
        codes = samples.y.tolist()
        unknown = sorted({code for code in codes if code not in self._row_of_class})
        if unknown:
            names = samples.class_names or range(max(unknown) + 1)
            known = _take_labels(self.labels, numpy.array(list(self._row_of_class.values())))
            raise InvalidInput(
                f"test has classes that data has not: {join_names(repr(names[code]) for code in unknown)}; known are "
                f"{join_names(map(repr, sorted(numpy.asarray(known).tolist())))}. Correct or drop these labels."
            )
        like = numpy.zeros(n, dtype=int)
        rows = samples.original(torch.arange(len(samples))).numpy()
        like[rows] = [self._row_of_class[code] for code in codes]
        return numpy.asarray(_take_labels(self.labels, like))

    def on_test(self, rows: numpy.ndarray) -> tuple[IntervalEstimate, str]:
        """Return the score on held-out samples, and the error of regression in words (else empty).

        Args:
            rows: Row numbers in the held-out data that were passed, [m].
        """
        assert self._on_test is not None
        predicted = self._on_test[0][rows]
        labels = _take_labels(self._on_test[1], rows)
        if self.is_regression:
            note = error_in_words(_numbers(predicted), _numbers(labels))
        else:
            note = ""
        return self._score(predicted, labels), note

    def cross_validated(self, seconds: float | None, rows: numpy.ndarray) -> IntervalEstimate:
        """Return the score in five shuffled folds, fitted again on clones.

        Args:
            seconds: CPU seconds that may be used; None for no limit.
            rows: Row numbers of the samples that are used, [n], the same in every call.

        Raises:
            NotMeasurable: The folds would take longer, which the first one shows, or a clone raised an exception.
        """
        if self._cross_validated is not None:
            return self._cross_validated
        order = rows[numpy.random.default_rng(0).permutation(len(rows))]
        predictions: list[numpy.ndarray] = []
        for number, scored in enumerate(numpy.array_split(order, N_FOLDS)):
            start = time.process_time()
            rest = numpy.setdiff1d(order, scored)
            predict = self.fit(take_rows(self.inputs, rest), _take_labels(self.labels, rest))
            predictions.append(predict(take_rows(self.inputs, scored)))
            expected = (time.process_time() - start) * N_FOLDS
            if number == 0 and seconds is not None and expected > seconds:
                raise NotMeasurable(
                    f"five folds would take {expected:.0f} s. Pass test=, or a larger time_budget"
                )
        self._cross_validated = self._score(
            numpy.concatenate(predictions), _take_labels(self.labels, order)
        )
        return self._cross_validated

    @cached_property
    def _on_both_scales(self) -> tuple[numpy.ndarray, numpy.ndarray, Any] | None:
        """Predictions from raw and from standardized columns, and labels; None if a clone cannot be fitted.

        Clones are fitted on half of at most 500 rows, and predict the other half, both halves in turn.
        """
        n = min(len(self._rows), ROWS_OF_SCALE)
        order = self._rows[numpy.random.default_rng(0).permutation(len(self._rows))[:n]]
        rows = take_rows(self.inputs, order)
        labels = _take_labels(self.labels, order)
        halves = numpy.arange(n)[::2], numpy.arange(n)[1::2]
        predictions: list[numpy.ndarray] = []
        try:
            for inputs in (rows, standardization(rows)(rows)):
                answers = [
                    self.fit(take_rows(inputs, a), _take_labels(labels, a))(take_rows(inputs, b))
                    for a, b in (halves, halves[::-1])
                ]
                predictions.append(numpy.concatenate(answers))
        except NotMeasurable:
            return None  # such as a category that one half alone holds
        return predictions[0], predictions[1], _take_labels(labels, numpy.concatenate(halves[::-1]))

    @cached_property
    def depends_on_scale(self) -> bool:
        """Whether standardized columns change what a clone predicts.

        Trees, and pipelines with a scaler, do not depend on the scale of the columns.
        """
        if not self.can_scale:
            return False
        if self._on_both_scales is None:
            return True  # nothing speaks against it
        raw, standardized, labels = self._on_both_scales
        changed = raw != standardized
        if self.is_regression:
            # at least a hundredth of the spread of the targets: refitting alone changes predictions by rounding
            changed = numpy.abs(raw - standardized) > 0.01 * numpy.asarray(labels, float).std(0)
        return float(changed.mean()) > MIN_CHANGED

    @property
    def cost_of_scales(self) -> IntervalEstimate | None:
        """By how much a clone scores better on standardized columns than on raw ones; None if that is not known."""
        if self._on_both_scales is None:
            return None
        raw, standardized, labels = self._on_both_scales
        if not self.is_regression:
            scores = [fraction_correct(part, labels).tolist() for part in (standardized, raw)]
            return paired_difference(*scores)
        truth = _numbers(labels)
        scales = torch.from_numpy(r_squared_scales(truth.numpy()))
        scores = [
            (-((_numbers(part) - truth) / scales).square().sum(1)).tolist()
            for part in (standardized, raw)
        ]
        return paired_difference(*scores)

    @property
    def is_frame(self) -> bool:
        """True if the inputs are a frame, or else no array of numbers."""
        return hasattr(self.inputs, "iloc") or numpy.asarray(self.inputs).dtype.kind not in "fiub"

    @property
    def can_scale(self) -> bool:
        """True if the inputs are an array of numbers, or a frame with columns of numbers."""
        if hasattr(self.inputs, "select_dtypes"):
            return self.inputs.select_dtypes("number").shape[1] > 0
        return not self.is_frame

    def rows(self, indices: numpy.ndarray, *, is_scaled: bool = False) -> Any:
        """Return rows of the inputs as they were passed.

        Args:
            indices: Row numbers [n].
            is_scaled: Whether columns of numbers have mean 0 and standard deviation 1 over all rows.
        """
        if is_scaled:
            return take_rows(self.standardized(self.inputs), indices)
        return take_rows(self.inputs, indices)

    def standardized(self, inputs: Any) -> Any:
        """Return rows whose columns of numbers are scaled by the mean and spread of the training inputs.

        Args:
            inputs: Rows in the form of the training inputs.

        Raises:
            InvalidInput: They have another form.
        """
        ordered = _in_order_of(inputs, self.inputs)
        forms = [_form(part) for part in (self.inputs, ordered)]
        if forms[0] != forms[1]:
            got = join_names(forms[1]) or type(inputs).__name__
            raise InvalidInput(
                f"Inputs must have the form of the training inputs ({join_names(forms[0])}); got {got}. "
                "Pass rows alone, with the same columns."
            )
        return standardization(self.inputs)(ordered)

    def labels_as_passed(self, samples: Samples) -> Any:
        """Return labels or targets in the form that the estimator was fitted with, such as names of classes.

        Args:
            samples: Samples of the data, with their row numbers; classes may be corrected.
        """
        rows = samples.original(torch.arange(len(samples))).numpy()
        own = _take_labels(self.labels, rows)
        if not self._row_of_class:
            return own
        like = numpy.array([self._row_of_class[code] for code in samples.y.tolist()])
        labels = _take_labels(self.labels, like)
        # a Series keeps the names of its own rows
        if hasattr(own, "set_axis"):
            return labels.set_axis(own.index)
        return labels

    def changed(self, fix: Fix, samples: Samples) -> tuple[Any, Any]:
        """Return the training data with a fix, as a pair in the form in which they were passed.

        Args:
            fix: Fix of the data.
            samples: The training samples.
        """
        samples, _ = fix.apply(with_rows(samples), {})
        rows = samples.original(torch.arange(len(samples))).numpy()
        inputs = self.rows(rows, is_scaled=fix.scale_inputs is not None)
        return inputs, self.labels_as_passed(samples)

    def fit(self, inputs: Any, labels: Any) -> Callable[[Any], numpy.ndarray]:
        """Fit a clone, and return its `predict`; global random states are seeded, and restored.

        Args:
            inputs: Rows to fit, in the form that the estimator takes.
            labels: Labels or targets of these rows.

        Raises:
            NotMeasurable: The clone raised an exception; its `predict` raises the same.
        """
        fitted = unfitted_clone(self.estimator)
        name = type(self.estimator).__name__
        with reproducible(torch.device("cpu"), 0):
            call_measurable(f"{name}.fit", fitted.fit, inputs, labels)
        return lambda rows: numpy.asarray(call_measurable(f"{name}.predict", fitted.predict, rows))


def call_measurable(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the user returns.

    Args:
        name: What the message calls the function, such as "train_fn".
        function: The function.
        *arguments: Its arguments.

    Raises:
        NotMeasurable: The function raised an exception, which becomes one message.
    """
    try:
        return call_user_code(name, function, *arguments)
    except GapscopeError as error:
        raise NotMeasurable(str(error)) from error


def with_rows(samples: Samples) -> Samples:
    """Return samples that keep their row numbers when some of them are taken: estimators are fitted on raw rows.

    Args:
        samples: The samples as they were read.
    """
    rows = samples.original(torch.arange(len(samples)))
    return replace(samples, rows=rows, n_rows=max(samples.n_rows, len(samples)))


def _pair(data: Any) -> tuple[Any, Any]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidInput(
            f"An estimator needs data as a pair (x, y); got {type(data).__name__}. Pass (x, y)."
        )
    inputs, labels = data
    to_arrays = [part.numpy() if isinstance(part, Tensor) else part for part in (inputs, labels)]
    return to_arrays[0], to_arrays[1]


def standardization(inputs: Any) -> Callable[[Any], Any]:
    """Return the function that standardizes columns of numbers, of these rows and of new ones.

    Columns of a frame that hold no numbers stay as they are.

    Args:
        inputs: Rows that have mean 0 and standard deviation 1 afterwards.
    """
    if hasattr(inputs, "select_dtypes"):
        numbers = inputs.select_dtypes("number")
        center = numbers.mean()
        width = numbers.std(ddof=0)
        width = width.where(width > 0, 1.0)

        def scale_frame(rows: Any) -> Any:
            scaled = rows.copy()
            scaled[numbers.columns] = (rows[numbers.columns] - center) / width
            return scaled

        return scale_frame
    values = _dense(inputs)
    mean = values.mean(0)
    spread = values.std(0)
    spread = numpy.where(spread > 0, spread, 1.0)
    return lambda rows: (_dense(rows) - mean) / spread


def _dense(inputs: Any) -> numpy.ndarray:
    if hasattr(inputs, "toarray"):
        inputs = inputs.toarray()
    return numpy.asarray(inputs, dtype=float)


def _take_labels(labels: Any, rows: numpy.ndarray) -> Any:
    """Return labels at some rows; those of a list as an array, which all estimators take."""
    if isinstance(labels, list | tuple):
        return numpy.asarray(labels)[rows]
    return take_rows(labels, rows)


def _names(value: Any) -> tuple[str, ...]:
    """Return the names of the columns of a table of pandas, polars or Arrow (none for other values)."""
    if library_of(value) not in ("polars", "pyarrow") or not hasattr(value, "select"):
        return column_names(value)
    return tuple(getattr(value, "column_names", None) or value.columns)


def _form(rows: Any) -> tuple[str, ...]:
    """Return the names of the columns of rows, or their number (none for other values)."""
    if names := _names(rows):
        return names
    try:
        shape = numpy.shape(rows)
    except ValueError:  # a pair
        return ()
    return (f"{shape[1]} columns",) if len(shape) == 2 else ()


def _in_order_of(second: Any, first: Any) -> Any:
    """Return a frame with its columns in the order of the first; anything else as it is."""
    names = _names(second)
    known = _names(first)
    if names == known or not set(known) <= set(names) or not known:
        return second
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(
            f"test has columns that data has not: {join_names(unknown)}. Drop them, or fit with them."
        )
    if not hasattr(second, "iloc"):
        return second.select(list(known))
    return second.iloc[:, [names.index(name) for name in known]]


def _check_labels(estimator: Any, labels: Any) -> None:
    """Raise InvalidInput for labels that a classifier was not fitted with, which it never predicts."""
    classes: Any = getattr(estimator, "classes_", None)
    values = numpy.asarray(labels)
    if not hasattr(classes, "tolist") or numpy.ndim(classes) != 1 or values.size != len(values):
        return
    known = classes.tolist()
    unknown = sorted(set(values.flatten().tolist()) - set(known), key=str)
    if unknown:
        raise InvalidInput(
            f"Labels must be those that {type(estimator).__name__} was fitted with, {join_names(map(repr, known))}; "
            f"got {join_names(map(repr, unknown))}. Pass its training data, with labels of the same spelling."
        )


def _predicted(estimator: Any, inputs: Any, owner: str) -> numpy.ndarray:
    try:
        return numpy.asarray(estimator.predict(inputs))
    except Exception as error:
        if owner == "test":
            advice = "It predicts data: prepare test in the same way."
        else:
            advice = "Pass a fitted estimator and its training data."
        raise InvalidInput(
            f"{type(estimator).__name__}.predict must run on {owner}; it raised {type(error).__name__}: "
            f"{first_line(error)} {advice}"
        ) from error


def fraction_correct(predicted: Any, labels: Any) -> Tensor:
    """Return the fraction of the labels of each sample that is predicted [n].

    Args:
        predicted: Predicted labels, one or several per sample.
        labels: Labels in the same form.

    Raises:
        InvalidInput: The number of labels per sample differs, such as of classes and one-hot rows.
    """
    n = len(labels)
    answers, truth = (numpy.asarray(part).reshape(n, -1) for part in (predicted, labels))
    if answers.shape != truth.shape:
        raise InvalidInput(
            f"The estimator predicts {answers.shape[1]} labels per sample; the data have {truth.shape[1]}. Pass labels "
            "in the form in which it was fitted, such as class numbers in place of one-hot rows."
        )
    return tensor_of(answers == truth).double().mean(1)


def _numbers(values: Any) -> Tensor:
    return tensor_of(numpy.asarray(values, dtype=float).reshape(len(values), -1))
