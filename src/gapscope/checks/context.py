"""Context of checks: network, data, and shared quantities that are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.accuracy.forecast import make_forecast
from gapscope.accuracy.forecast_result import AccuracyForecast
from gapscope.base.budget import CpuBudget
from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.base.task import class_logits
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.checks.copies import Copies
from gapscope.checks.expected import (
    MAX_SAMPLES,
    Expected,
    best_method,
    comparable_score,
    estimate_after_training,
    expected_score,
    regression_score,
    shortfall_interval,
    untrained_because,
)
from gapscope.checks.invalid_outputs import invalid_samples, score_of_valid
from gapscope.checks.monitored_run import MonitoredRun, compare_run
from gapscope.checks.output_unit import OutputUnit, find_output_unit
from gapscope.checks.pretrained import PART_OF_BUDGET, pretrained_network
from gapscope.checks.ranked_labels import rank_labels
from gapscope.checks.trainers import sample_scores
from gapscope.data.table_encoding import UnseenValues
from gapscope.inspection.copies import copy_network
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.collected_samples import with_features
from gapscope.labels.results import LabelIssues
from gapscope.measures.cpu_budget import forward_seconds
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import FEATURES
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.outcomes import Outcome
from gapscope.statistics.baselines import RBF, LooRow, most_frequent_class

if TYPE_CHECKING:
    from gapscope.accuracy.accuracy_after_training import AccuracyEstimate
    from gapscope.checks.compared_labels import ComparedLabels
    from gapscope.checks.estimators import EstimatorScores

# CPU seconds per sample of a forecast and of label issues without a network, with ten columns and few classes;
# measured at 30,000 samples (0.9e-3). Wider data take longer by (columns + 50) / 60.
SECONDS_PER_SAMPLE = 0.95e-3


@dataclass
class Context:
    """Network, training data, and quantities that several checks use.

    Attributes:
        prepared: The network with the samples at `indices`; None without a torch network.
        everything: All samples.
        indices: Evenly spaced samples, at most 2,000, [n].
        estimator: Scores of a fitted scikit-learn estimator in place of a torch network.
        initial_state: State dictionary before training.
        monitor: Monitor of the training run.
        history: One mapping per epoch of the training run.
        test: Held-out samples.
        unseen: Values of the categories of a raw test table that the training table lacks.
        sources: Columns of a raw table: name, and indices of its encoded columns; empty for other data.
        texts: Columns of text of a raw table that are no categories, by their names.
        gaps: Columns of numbers of a raw table with gaps: whether each sample lacks a value, by their names.
        given: All samples with their row numbers in the data that were passed.
        test_network: The network, adapted to their layout; None without both.
        batch_size: Batch size of training.
        seed: Seed of all random numbers.
        diverged: The network, if its weights are not finite; `prepared` is then None.
        budget: The time budget.
        ignored: Codes of the checks that were not to run.
        failures: Reasons why quantities could not be computed, by name.
    """

    prepared: Ready | None
    everything: Samples
    indices: Tensor
    estimator: EstimatorScores | None = None
    initial_state: Mapping[str, Tensor] | None = None
    monitor: Any = None
    history: Sequence[Mapping[str, Any]] = ()
    test: Samples | None = None
    unseen: tuple[UnseenValues, ...] = ()
    sources: tuple[tuple[str, tuple[int, ...]], ...] = ()
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    gaps: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])
    given: Samples | None = None
    test_network: nn.Module | None = None
    batch_size: int | None = None
    seed: int = 0
    budget: CpuBudget = field(default_factory=lambda: CpuBudget(None))
    diverged: nn.Module | None = None
    ignored: frozenset[str] = frozenset()
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def seconds_left(self) -> float | None:
        """CPU seconds of the time budget that remain (None for no limit)."""
        if math.isinf(self.budget.seconds):
            return None
        return self.budget.remaining

    @property
    def seconds_for_kernel(self) -> float | None:
        """Half of the remaining seconds, because at most two quantities need the NTK."""
        if self.seconds_left is None:
            return None
        return self.seconds_left / 2

    @property
    def network(self) -> nn.Module:
        """The network, adapted to one input tensor and outputs [n, K]."""
        assert self.prepared is not None
        return self.prepared.network

    @cached_property
    def samples(self) -> Samples:
        """The training samples of which the network is read."""
        if self.prepared is None:
            return self.everything.subset(self.indices)
        return self.prepared.samples

    @property
    def is_part(self) -> bool:
        """True if the network is read on a part of the samples only (of an estimator, and without one, on none)."""
        has_network = self.prepared is not None or self.diverged is not None
        return has_network and len(self.indices) < len(self.everything)

    @cached_property
    def rows(self) -> Tensor:
        """Indices of the samples for quantities of the data alone: all that the time budget allows."""
        n = len(self.everything)
        seconds = self.seconds_left
        if seconds is None or n <= MAX_SAMPLES:
            return torch.arange(n)
        columns = self.everything.inputs[0].numel()
        affordable = seconds / 2 / (SECONDS_PER_SAMPLE * (columns + 50) / 60)
        if self.pretrained is not None:
            forward = forward_seconds(self.pretrained) / len(self.pretrained.samples)
            affordable = min(affordable, PART_OF_BUDGET * seconds / forward)
        m = min(n, max(len(self.indices), int(affordable)))
        return torch.linspace(0, n - 1, m, dtype=torch.float64).round().long()

    @cached_property
    def data(self) -> Samples:
        """The samples at `rows`."""
        if len(self.rows) == len(self.everything):
            return self.everything
        return self.everything.subset(self.rows)

    @cached_property
    def distinct(self) -> Samples:
        """`data` without repeats, which would be predicted from each other, unless columns repeat by chance."""
        if len(self._distinct) == len(self.data):
            return self.data
        return self.data.subset(self._distinct)

    @cached_property
    def _distinct(self) -> Tensor:
        """Indices, among `data`, of the samples without repeats."""
        return self.not_repeats(self.rows)

    @cached_property
    def pretrained(self) -> Ready | None:
        """The network, if its last hidden features predict more than the inputs without having seen the labels."""
        return pretrained_network(self)

    @cached_property
    def features(self) -> Tensor | None:
        """Features of `data` by the pretrained network, [n, d] (None without one)."""
        if self.pretrained is None:
            return None
        network = self.pretrained.network
        with self.budget.enforced(network):
            return self._try("features", lambda: extract_features(network, self.data).values)

    @property
    def described(self) -> Samples:
        """`data`, with the features of a pretrained network in place of the inputs."""
        if self.features is None:
            return self.data
        return with_features(self.data, self.features)

    @property
    def distinct_described(self) -> Samples:
        """`distinct`, with the features of a pretrained network in place of the inputs."""
        if self.features is None:
            return self.distinct
        return with_features(self.distinct, self.features[self._distinct])

    @property
    def rows_without_repeats(self) -> Tensor:
        """Row numbers, in the data that were passed, of all samples but those that repeat others, [n]."""
        keep = torch.ones(len(self.everything), dtype=torch.bool)
        keep[torch.tensor(self.copies.repeats, dtype=torch.long)] = False
        rows = torch.nonzero(keep).flatten()
        if self.given is None:
            return rows
        return self.given.original(rows)

    def not_repeats(self, rows: Tensor) -> Tensor:
        """Return those of some row numbers of `everything` that repeat no other sample.

        Args:
            rows: The row numbers.
        """
        repeats = torch.tensor(self.copies.repeats, dtype=torch.long)
        return torch.nonzero(~torch.isin(rows, repeats)).flatten()

    @property
    def is_classifier(self) -> bool:
        """True if there is one class label per sample."""
        return self.everything.is_classification

    @property
    def has_accuracy(self) -> bool:
        """True if labels are right or wrong: one class, several labels, or a class per position."""
        return self.everything.kind != "regression"

    @cached_property
    def n_classes(self) -> int:
        """Number of classes of the labels, at least two."""
        return max(int(self.everything.y.max()) + 1, 2)

    @cached_property
    def logits(self) -> Tensor:
        """Outputs [n, C] of the training samples in evaluation mode, on the CPU."""
        with inspection_mode(self.network):
            outputs = network_outputs(self.network, self.samples.inputs)
        return (class_logits(outputs) if self.is_classifier else outputs).cpu()

    @cached_property
    def invalid_samples(self) -> tuple[Tensor, Tensor]:
        """Which training and which test samples have outputs that are NaN or infinite."""
        return invalid_samples(self)

    @property
    def score_of_valid(self) -> float:
        """Score on the training samples whose outputs are finite."""
        return score_of_valid(self)

    @cached_property
    def correct(self) -> Tensor:
        """Which of `samples` the network classifies correctly, 1 or 0 [n]; of several labels or positions the fraction.

        A network whose weights are not finite counts as one that predicts the most frequent class.
        """
        if self.estimator is not None:
            return self.estimator.correct[self.indices]
        labels = self.samples.y.cpu()
        if self.diverged is not None:
            classes, counts = self.labels.unique(return_counts=True)
            return (labels == classes[counts.argmax()]).double()
        return sample_scores(self.samples, self.logits)

    @cached_property
    def train_score(self) -> float:
        """Accuracy on the training samples, or R^2 of regression."""
        if self.estimator is not None:
            return self.estimator.train_score.value
        if self.has_accuracy:
            return float(self.correct.double().mean())
        if self.diverged is not None:
            return 0.0  # as the mean of the targets
        return regression_score(self.logits, self.samples.y).value

    @cached_property
    def output_unit(self) -> OutputUnit | None:
        """Unit of the outputs of a trained regressor, if it is not that of the targets."""
        if self.has_accuracy or self.prepared is None or self.untrained_because:
            return None
        return find_output_unit(self.logits, self.samples.y, self.train_score)

    @property
    def task_noun(self) -> str:
        """What the network is, from its targets."""
        task = self.everything.task
        nouns = {"positions": "classifier of positions", "multi-label": "multi-label classifier"}
        return nouns.get(task.kind, task.noun)

    @property
    def score_name(self) -> str:
        """Name of the score: "accuracy" with the unit that it counts if that is not the sample, or "R^2"."""
        return self.everything.task.score_name

    def show(self, score: float) -> str:
        """Return a score as text, an accuracy in percent.

        Args:
            score: Accuracy, or R^2 of regression.
        """
        return percent(score) if self.has_accuracy else f"{score:.2f}"

    @cached_property
    def most_frequent(self) -> float:
        """Fraction of the most frequent class (of several labels, of the more frequent value); R^2 of the mean."""
        return most_frequent_class(self.labels).score

    @cached_property
    def labels(self) -> Tensor:
        """Labels of all samples on the CPU: class numbers [n] (of positions one after the other), or several [n, K]."""
        labels = self.everything.y.cpu()
        if self.everything.kind == "positions":
            return labels[labels != IGNORED]
        return labels

    @cached_property
    def untrained_because(self) -> str:
        """Why the network counts as untrained; empty for a trained one."""
        return untrained_because(self)

    @cached_property
    def initial_network(self) -> nn.Module | None:
        """The network before training, with batch statistics of the data (None if unknown)."""
        if self.prepared is None:
            return None
        if self.initial_state is None:
            if self.untrained_because:
                return with_data_statistics(self.network, self.samples.inputs)
            return None
        with torch.inference_mode(False):
            bare = copy_network(self.prepared.bare)
            bare.load_state_dict(dict(self.initial_state))
        return with_data_statistics(ready(bare, self.samples).network, self.samples.inputs)

    @cached_property
    def copies(self) -> Copies:
        """Duplicates among all samples, and of them in the test samples."""
        return Copies(self.everything, self.test, self.budget.remaining / 2)

    @cached_property
    def leak(self) -> Outcome:
        """Whether a column gives the label away: the outcome of GS107."""
        from gapscope.checks.leaks import find_leak

        return find_leak(self)

    @cached_property
    def shift(self) -> tuple[Outcome, ComparedLabels | None]:
        """Whether the test samples differ from the training samples (the outcome of GS110), and their labels."""
        from gapscope.checks.shift_checks import find_shift

        return find_shift(self)

    @cached_property
    def label_issues(self) -> LabelIssues | None:
        """Label issues ranked without a trained network (None: the reason is in `failures`)."""
        return self._try("labels", lambda: rank_labels(self))

    @cached_property
    def forecast(self) -> AccuracyForecast | None:
        """Accuracy forecast from data and features of a pretrained network (None: the reason is in `failures`)."""
        # the curve of classes is that of `gapscope.checks.costs.gain_of_twice_the_data`, with an interval
        options: dict[str, Any] = {"seed": self.seed, "with_curve": not self.is_classifier}
        options["time_budget"] = None
        if self.features is not None:
            options["features"] = self.features[self._distinct]
        if self.seconds_left is not None:
            options["time_budget"] = max(self.seconds_left, 1e-9)
        return self._try("forecast", lambda: make_forecast(None, self.distinct, **options))

    @cached_property
    def network_forecast(self) -> AccuracyForecast | None:
        """Accuracy forecast with the network before training, of `samples`."""
        options: dict[str, Any] = {
            "seed": self.seed,
            "time_budget": self.seconds_for_kernel,
            "with_curve": False,
        }
        samples = self.samples
        return self._try(
            "network forecast", lambda: make_forecast(self.initial_network, samples, **options)
        )

    def kernel(self) -> LooRow | None:
        """Return the RBF row of the forecast, or that of the features of a pretrained network; None if it abstains."""
        forecast = self.forecast
        if forecast is None or forecast.abstained_because:
            return None
        return forecast.row(RBF if self.features is None else FEATURES)

    @cached_property
    def estimate(self) -> AccuracyEstimate | None:
        """Estimated accuracy of the trained network (None: the reason is in `failures`)."""
        return estimate_after_training(self)

    @cached_property
    def expected(self) -> Expected | None:
        """Accuracy or R^2 on new data by the best available route (None: the reason is in `failures`)."""
        from gapscope.checks.leaks import leak_in_words

        answer = self._try("expected", lambda: expected_score(self))
        if answer is not None:
            if leak := leak_in_words(self):
                note = ", ".join(filter(None, (answer.note, "through the column of GS107")))
                answer = replace(answer, note=note, unclear=answer.unclear or leak)
            _ = self.train_score  # an account shows both
        return answer

    @cached_property
    def comparable(self) -> Expected | None:
        """`expected`, with what a shift of the test samples costs a method without the network."""
        return comparable_score(self)

    @cached_property
    def best_method(self) -> tuple[str, IntervalEstimate] | None:
        """Name and score (90 % interval) of the best method without the network; None if the forecast abstains."""
        return best_method(self)

    @cached_property
    def shortfall(self) -> float | None:
        """By how much the best method without the network predicts more than the network (None if it is unknown).

        The accuracy of the network is the expected one, else that on the training samples, which is hardly lower.
        """
        interval = self.shortfall_interval
        if interval is None:
            return None
        return interval.value

    @cached_property
    def shortfall_interval(self) -> IntervalEstimate | None:
        """The shortfall with its 90 % interval."""
        return shortfall_interval(self)

    @cached_property
    def monitored_run(self) -> MonitoredRun:
        """Whether the monitor saw these data and this network."""
        return compare_run(self)

    def _try(self, name: str, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except GapscopeError as error:
            self.failures[name] = str(error)
            return None
