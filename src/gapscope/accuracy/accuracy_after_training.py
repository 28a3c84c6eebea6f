"""Accuracy of a trained network on new data, estimated from its training data alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gapscope.accuracy.accuracy_estimator import (
    LOO,
    MAX_PAIRS,
    NEEDED,
    AccuracyEstimator,
    accuracy_readings,
    clean_label_accuracy,
    early_reasons,
    implied_noise_rate,
    load_default,
    with_state,
)
from gapscope.accuracy.forecast import check_prediction_data, count_duplicates
from gapscope.accuracy.forecast_result import describe_duplicates
from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, BudgetSpent, CpuBudget
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range, join_names
from gapscope.base.groups import group_tensor
from gapscope.base.lone_classes import lone_classes_note
from gapscope.base.row_order import check_sample_order
from gapscope.base.samples import as_samples
from gapscope.base.tables import check_columns
from gapscope.gradients.refused_layers import check_layers
from gapscope.inspection.initial_states import equals_trained_weights, matching_state
from gapscope.inspection.losses import evaluate
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.label_issues import estimate_label_noise
from gapscope.labels.noise_rate import clean_accuracy
from gapscope.labels.results import LabelNoiseEstimate
from gapscope.measures.cpu_budget import affordable_kernel
from gapscope.measures.embed import extract_features
from gapscope.networks.initialization import resampled_state
from gapscope.results.answer import Answer
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.progress import notify
from gapscope.results.result import axes_or_new
from gapscope.statistics.baselines import feature_matrix, linear_ridge
from gapscope.statistics.row_groups import LEFT_ONE_OUT, grouped_rows_note

if TYPE_CHECKING:
    import pandas

ACCURACY = "accuracy"
OTHER_TASKS = (
    "From parts of the samples: gs.learning_curve(train_fn, data, score=...), with your metric; from test samples: "
    "gs.check(network, data, test=...)."
)
RESAMPLED = (
    "Initial weights were resampled; pass initial_state=, the state dictionary before training."
)
ALL_SAMPLES = (
    "These samples were taken for all training samples; if they are a part, pass n_training=."
)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class AccuracyEstimate(Answer):
    """Accuracy of a trained network on new data: an `Answer` with the same label noise, and one on clean labels.

    Attributes:
        task: "classification"; the estimate needs one class label per sample.
        score: Accuracy on new data with the same label noise, in [0, 1]; NaN where the estimator abstains.
        samples: Number of training samples that it was computed from.
        low: Lower end of its interval; NaN without one.
        high: Upper end; NaN without one.
        level: Nominal coverage of the interval.
        score_name: "accuracy".
        abstained_because: Why there is no answer, such as readings unlike those of all known networks; else empty.
        notes: Sentences about the data, approximations, and what was omitted.
        interrupted: Whether Ctrl-C ended it, so that a part is missing.
        clean_labels: Accuracy on clean labels; None if the estimator abstains, or if the label noise cannot be
            estimated, as a note says.
        label_noise: Fraction of wrong training labels, as passed or as estimated; None if it cannot be estimated.
        noise_interval: Its 90 % interval; None for a fraction that was passed.
        initial: "given", or "resampled" if no initial weights were passed.
        readings: Readings that the estimate was computed from.
        duplicates: Number of samples that repeat an earlier one.
        bracket: Accuracies between which that on new data lies if the network may have been trained on more samples
            than were passed; None otherwise.
    """

    initial: str
    readings: Mapping[str, float]
    clean_labels: IntervalEstimate | None = None
    label_noise: float | None = None
    noise_interval: tuple[float, float] | None = None
    duplicates: int = 0
    bracket: tuple[float, float] | None = None

    _title = "Estimated"

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per target, none if the estimator abstains."""
        import pandas

        result = {"same_noise": self.estimate, "clean_labels": self.clean_labels}
        return pandas.DataFrame(
            [{"target": name, **vars(each)} for name, each in result.items() if each is not None]
        )

    @property
    def _repeats(self) -> tuple[int, str]:
        return self.duplicates, describe_duplicates(self.duplicates, self.samples)

    @property
    def _scope(self) -> str:
        return " on new data with the same label noise"

    @property
    def _details(self) -> tuple[str, ...]:
        if self.abstained_because:
            return ()
        lines: list[str] = []
        if self.clean_labels is not None:
            noise = ""
            if self.noise_interval is not None and self.label_noise is not None:
                rate = IntervalEstimate(self.label_noise, *self.noise_interval)
                noise = f" if {self._format_estimate(rate)} of the training labels are wrong"
            lines.append(f"  clean labels  {self._format_estimate(self.clean_labels)}{noise}")
        lines.append(
            f"  training      {percent(self.readings['train_accuracy'])} of {self.samples} samples"
        )
        return tuple(lines)

    def plot(self, axes: Any = None) -> Any:
        """Plot each accuracy with its interval and the training accuracy, and return the axes.

        Args:
            axes: Matplotlib axes; None for a new figure.
        """
        answers = {"same label noise": self.estimate, "clean labels": self.clean_labels}
        axes = axes_or_new(axes, height=1.8)
        for row, answer in enumerate(answers.values()):
            if answer is not None:
                axes.plot(
                    [answer.low, answer.high], [row, row], color="tab:blue", linewidth=4, alpha=0.4
                )
                axes.plot(answer.value, row, "o", color="tab:blue")
        if not self.abstained_because:
            axes.axvline(
                self.readings["train_accuracy"], color="tab:gray", label="training accuracy"
            )
            axes.legend(fontsize=8)
        axes.set_yticks(range(len(answers)), list(answers))
        axes.set(ylim=(-0.5, 1.5), xlabel="accuracy on new data")
        return axes


@check_arguments
def estimate_accuracy(
    network: nn.Module,
    data: Any,
    *,
    initial_state: Mapping[str, Tensor] | None = None,
    n_training: int | None = None,
    groups: Any = None,
    label_noise: float | LabelNoiseEstimate | None = None,
    level: float = 0.9,
    estimator: AccuracyEstimator | None = None,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    time_budget: float | None = DEFAULT_BUDGET,
) -> AccuracyEstimate:
    r"""Estimate the accuracy of a trained classifier on new data, from its training data alone.

    The leave-one-out accuracy of the untrained network's kernel (`kernel_leave_one_out`) is corrected by how well the
    trained network fits, and by whether samples with similar gradients have the same label. The correction was fitted
    to small networks, with 100 to 500 samples; docs/evidence/forecast.md has its errors and all comparisons.

    There are two accuracies, which differ if labels are wrong: A' on new data *with the same label noise*, as a
    hold-out measures it, and A on *clean* labels. With the fraction r of label errors, spread evenly over the other
    classes, $A = (A' - r / (C - 1)) / (1 - r C / (C - 1))$. Unless r is passed, `estimate_label_noise` estimates it at
    the initial weights, and the deviations of A at the ends of both intervals are added as independent errors. If r
    cannot be estimated, or Ctrl-C interrupts its estimate, there is no A.

    The passed samples must be all training samples. A network that was trained on more of them looks like one that
    memorizes these: its accuracy then lies between the estimate, and the leave-one-out accuracy of a linear ridge on
    its trained features, which may have been fitted to these labels. Where both differ by more than 0.15 and neither
    `initial_state` nor `n_training` decides, there is only this `bracket`.

    There is no estimate for fewer samples than those of the fit, without any reading, and for a network unlike those of
    the fit: features far from their initial values, a kernel that fits any labels, a leave-one-out accuracy no better
    than the most frequent class, or, in a sequential network of linear layers, a hidden layer of one or two units.

    Args:
        network: The trained classifier.
        data: Its training data with labels, in any form that `gapscope.measure` takes.
        initial_state: State dictionary before training. None samples initial weights again by every layer's own
            `reset_parameters`: right for networks that were trained from scratch, wrong for fine-tuned ones.
        n_training: Number of samples that the network was trained on. The number of passed samples confirms that they
            are all; a larger one gives the bracket. None decides as above.
        groups: One label per sample; samples are predicted without their whole group (patient, author, recording), in
            all readings and for the label noise, and groups are counted for samples: 100 or more are needed. For 18
            networks on four nearly equal copies of 100 samples (wine, breast cancer, digits; no or 20 % label errors)
            16 intervals held, and 8 of 17 without groups.
        label_noise: Known fraction of label errors, or the result of `estimate_label_noise`; None estimates it.
        estimator: A fitted estimator; None for the one that comes with the package.
        level: Nominal coverage of the intervals, in (0, 1).
        max_exact: Largest number of samples with an exact kernel; above it, `landmarks` samples represent all.
        landmarks: Number of samples that represent all in a larger kernel (Nystroem approximation).
        chunk_size: Samples per pass; None for what fits into memory.
        time_budget: CPU seconds, None for no limit. Fewer landmarks are used if they would take longer.

    Raises:
        InvalidInput: The data have no class labels, fewer than 22 samples, or more than `n_training`; initial weights
            cannot be resampled, or `initial_state` holds the trained weights.
        NotMeasurable: The network has no trainable parameters.
        BudgetSpent: The budget is too small for 100 landmarks (also a NotMeasurable).

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    >>> initial_state = {name: value.clone() for name, value in network.state_dict().items()}
    >>> _ = gs.train(network, train, gs.TrainingSpec(epochs=20, momentum=0.9))
    >>> print(gs.estimate_accuracy(network, train, initial_state=initial_state))  # doctest: +ELLIPSIS
    Estimated accuracy: 9... % (90 % interval 8... to 100.0 %) on new data with the same label noise
      clean labels  9... % (8... to 100.0 %) if 0.3 % (0.0 to 3.5 %) of the training labels are wrong
      training      100 % of 300 samples
    """
    import pandas

    check_range("level", level, 0, 1, low_open=True, high_open=True)
    budget = CpuBudget(time_budget)
    check_sample_order(data, groups, "groups")
    prepared = ready(network, data, needs=("outputs",))
    samples = prepared.samples
    check_prediction_data(samples, "An estimate", 22, kinds=("classification",), advice=OTHER_TASKS)
    numbers = group_tensor(samples.per_sample(groups), len(samples), "An estimate")
    if n_training is not None:
        check_range("n_training", n_training, len(samples))
    bare = prepared.bare
    check_layers(dict(bare.named_modules()))
    if initial_state is None:
        state = resampled_state(bare)
    else:
        state = _known_state(bare, initial_state)
    n = len(samples)
    counts = samples.y.bincount()
    n_classes = float(max(len(counts), 2))
    if isinstance(label_noise, float | int):
        check_range("label_noise", label_noise, 0, 1 - 1 / n_classes, high_open=True)
    n_independent = n
    notes: tuple[str, ...] = ()
    if numbers is not None:
        n_independent = int(numbers.max()) + 1
        notes = lone_classes_note(samples.y, numbers, samples.class_names)
    fitted = estimator or load_default()
    units = "samples" if groups is None else "groups"
    estimate = AccuracyEstimate(
        task=samples.kind,
        score=math.nan,
        samples=n,
        level=level,
        abstained_because="; ".join(early_reasons(fitted, n_independent, bare, units)),
        initial="given" if initial_state is not None else "resampled",
        readings={"samples": float(n_independent)},
        duplicates=count_duplicates(samples, numbers)[0],
    )
    if estimate.abstained_because:
        return estimate
    options: dict[str, Any] = {
        "max_exact": max_exact,
        "landmarks": landmarks,
        "chunk_size": chunk_size,
    }
    options = _affordable_options(prepared, options, budget, has_noise=label_noise is not None)
    readings = _readings(prepared, state, numbers, options)
    readings |= {"samples": float(n_independent), "classes": n_classes}
    table = pandas.DataFrame([readings])
    reasons = [*fitted.abstention_reasons(table, [float(counts.max()) / n])[0]]
    if numbers is None:
        notes = grouped_rows_note(samples, LEFT_ONE_OUT)
    if initial_state is None:
        if n_training is None:
            notes = (ALL_SAMPLES, *notes)
        notes = (RESAMPLED, *notes)
    estimate = replace(
        estimate, abstained_because="; ".join(reasons), notes=notes, readings=readings
    )
    if estimate.abstained_because:
        return estimate
    like, clean = (
        fitted.predict(table, level=level)[target][0] for target in ("like_training", "clean")
    )
    bracket = _bracket(prepared, like, n_training, numbers, has_initial=initial_state is not None)
    if bracket is not None:
        return replace(
            estimate, bracket=bracket, abstained_because=_bracket_reason(bracket, n_training)
        )
    estimate = replace(estimate, score=like.value, low=like.low, high=like.high)
    if label_noise is None and estimator is not None and "clean" in estimator.shifts:
        implied = implied_noise_rate(like.value, clean.value, n_classes)
        return replace(estimate, clean_labels=clean, label_noise=implied)
    if label_noise is not None:
        return _on_clean_labels(estimate, like, label_noise)
    try:
        noise = estimate_label_noise(
            with_state(bare, state),
            samples,
            groups=numbers,
            time_budget=None if time_budget is None else max(budget.remaining, 1e-9),
        )
    except (NotMeasurable, InvalidInput) as error:
        return _without_clean(estimate, str(error))
    except KeyboardInterrupt:
        estimate = replace(estimate, interrupted=True)
        return _without_clean(estimate, "interrupted before the label noise was estimated")
    return _on_clean_labels(estimate, like, noise)


def _affordable_options(
    prepared: Ready, options: dict[str, Any], budget: CpuBudget, *, has_noise: bool
) -> dict[str, Any]:
    """Return the options of the kernels, with fewer landmarks where the time is short.

    Args:
        prepared: The trained network and its samples.
        options: Options as they were passed.
        budget: CPU seconds.
        has_noise: Whether the fraction of label errors is known.

    Raises:
        BudgetSpent: The time does not suffice.
    """
    n = len(prepared.samples)
    # columns of two kernels of at most 1,000 samples (leave-one-out uses the first), and of one for the label noise
    more_columns = n if n <= MAX_PAIRS else 2 * MAX_PAIRS**2 / n
    if not has_noise:
        more_columns += n
    affordable, note = affordable_kernel(
        prepared.class_network,
        prepared.samples,
        options,
        budget,
        n_outputs=prepared.n_outputs,
        more_columns=more_columns,
        # of two kernels, beside that of all for many samples
        passes=2.0 if n <= MAX_PAIRS else 1 + 2 * MAX_PAIRS / n,
    )
    if affordable is None or (note and n <= MAX_PAIRS):
        raise BudgetSpent(
            f"There is no estimate: {note} Pass a larger time_budget=, or None for no limit."
        )
    if note:
        notify(note)
    return affordable


def _readings(
    prepared: Ready, state: Mapping[str, Tensor], groups: Tensor | None, options: dict[str, Any]
) -> dict[str, float]:
    """Return the readings of the kernels before and after training, and the training accuracy.

    Args:
        prepared: The trained network and its samples.
        state: Weights before training.
        groups: Number of the group of each sample; None without groups.
        options: Options of the kernels.
    """
    network = prepared.class_network
    prefix = "network." if isinstance(network, NetworkAdapter) else ""
    before = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    readings = accuracy_readings(network, before, prepared.samples, groups=groups, **options)
    if groups is not None:
        # the mean leverage stays that of a sample
        share = (int(groups.max()) + 1) / len(prepared.samples)
        readings[f"{LOO}.effective_dimension"] *= share
    training = evaluate(prepared.network, prepared.samples)["accuracy"]
    return {**readings, "train_accuracy": training}


def _without_clean(estimate: AccuracyEstimate, reason: str) -> AccuracyEstimate:
    """Return the estimate with a note why there is none on clean labels."""
    return replace(
        estimate, notes=(f"No answer on clean labels: {reason.removesuffix('.')}.", *estimate.notes)
    )


def _bracket(
    prepared: Ready,
    like: IntervalEstimate,
    n_training: int | None,
    groups: Tensor | None,
    *,
    has_initial: bool,
) -> tuple[float, float] | None:
    """Return the accuracies between which that of a network lies, if it may have seen more samples; else None."""
    n = len(prepared.samples)
    if n_training == n or (n_training is None and has_initial):
        return None
    try:
        features = extract_features(prepared.network, prepared.samples).values.flatten(1)
    except InvalidInput:  # no layer whose input is the features
        if n_training is None:
            return None
        return (like.low, 1.0)
    reached = linear_ridge(feature_matrix(features), prepared.samples.y.cpu(), groups=groups).score
    # if the features' leave-one-out accuracy is further above the estimate, the data do not decide which holds
    if n_training is None and reached - like.value <= 0.15:
        return None
    return min(like.low, reached), max(like.high, reached)


def _bracket_reason(bracket: tuple[float, float], n_training: int | None) -> str:
    low, high = (percent(end) for end in bracket)
    if n_training is None:
        return (
            f"between {low} and {high}: these may not be all samples that the network was trained on. If they are, "
            "pass n_training=len(data); gs.learning_curve would tell as well"
        )
    return f"between {low} and {high}: the network was trained on {n_training} samples, of which these are a part"


def _known_state(network: nn.Module, initial_state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dictionary before training, checked against the network's own."""
    state = matching_state(network, initial_state)
    if equals_trained_weights(network, state):
        raise InvalidInput(
            "initial_state must hold the weights before training; all of its tensors equal the trained ones. A "
            "state_dict() changes while the network trains: keep a copy.deepcopy of it from before training."
        )
    return state


def _on_clean_labels(
    estimate: AccuracyEstimate, like: IntervalEstimate, noise: float | LabelNoiseEstimate
) -> AccuracyEstimate:
    """Add the accuracy on clean labels, computed from that with the same label noise."""
    classes = estimate.readings["classes"]
    if not isinstance(noise, LabelNoiseEstimate):
        return replace(
            estimate,
            clean_labels=clean_label_accuracy(like, noise, classes),
            label_noise=float(noise),
        )
    max_rate = 0.99 * (1 - 1 / classes)  # above this rate, labels do not depend on the true classes
    rates = [min(rate, max_rate) for rate in (noise.rate, noise.low, noise.high)]
    middle, low, high = (clean_accuracy(like.value, rate, classes) for rate in rates)
    of_accuracy = clean_label_accuracy(like, rates[0], classes, clip=False)
    down = ((middle - of_accuracy.low) ** 2 + (middle - low) ** 2) ** 0.5
    up = ((of_accuracy.high - middle) ** 2 + (high - middle) ** 2) ** 0.5
    ends = [min(max(end, 0.0), 1.0) for end in (middle, middle - down, middle + up)]
    return replace(
        estimate,
        clean_labels=IntervalEstimate(*ends),
        label_noise=noise.rate,
        noise_interval=(noise.low, noise.high),
    )


@check_arguments
def fit_accuracy_estimator(
    known: pandas.DataFrame | Iterable[tuple[Any, ...]],
    *,
    target: str = "like_training",
    estimator: AccuracyEstimator | None = None,
) -> AccuracyEstimator:
    r"""Fit the accuracy estimate to your own data, from networks of known accuracy on new data.

    The mean error $\bar r$ on the k known networks shifts every further answer by $\bar r \, k / (k + w^2 / b^2)$, with
    w and b the standard deviations of the errors within and between data sets: a few networks shift it by a part of
    their mean error, many by nearly all of it. Intervals keep their widths. No gapscope spec or pool is needed.

    Args:
        known: Tuples (network, training data, accuracy), with the initial state dictionary as a fourth where it is
            known; or a table with the readings `estimate_accuracy(...).readings` and `accuracy`, one row per network.
        target: Which accuracy is known: "like_training" (on a hold-out with the same label noise) or "clean".
        estimator: The estimator to fit; None for the one that comes with the package.

    Raises:
        InvalidInput: `known` is empty, an item is no such tuple, a column is missing, or an accuracy is not in [0, 1].
    """
    import pandas

    if isinstance(known, pandas.DataFrame):
        table = known
    else:
        table = pandas.DataFrame([_readings_and_accuracy(item) for item in known])
    if not len(table):
        raise InvalidInput(
            "known must hold one network or more; got none. Pass [(network, data, accuracy), ...]."
        )
    without = [
        k
        for k, known in enumerate(table.reindex(columns=["classes"]).notna().to_numpy())
        if not known
    ]
    if without and "samples" in table:
        raise InvalidInput(
            f"known must hold networks with an estimate; {join_names(without)} of it (from 0 on) have too few samples "
            "or units for one. Omit them."
        )
    check_columns(table, [*NEEDED, ACCURACY])
    return (estimator or load_default()).recalibrate(table, table[ACCURACY].tolist(), target)


def _readings_and_accuracy(item: Any) -> Mapping[str, float]:
    if not isinstance(item, tuple) or len(item) not in (3, 4):
        raise InvalidInput(
            "Every known network must be a tuple (network, training data, accuracy) or (network, training data, "
            f"accuracy, initial state dictionary); got {type(item).__name__}."
        )
    network, data, accuracy, *initial = item
    state = initial[0] if initial else None
    n = len(as_samples(data))
    readings = estimate_accuracy(
        network, data, initial_state=state, n_training=n, label_noise=0.0
    ).readings
    return {**readings, ACCURACY: float(accuracy)}
