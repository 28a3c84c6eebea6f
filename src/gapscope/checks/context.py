"""Context of checks: network, data, and shared quantities that are computed once."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.task import class_logits
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.kernel_views import duplicate_pairs
from gapscope.labels.label_issues import find_label_issues
from gapscope.labels.results import LabelIssues
from gapscope.prediction.forecast import AccuracyForecast, forecast_accuracy

if TYPE_CHECKING:
    from gapscope.prediction.accuracy_after_training import AccuracyEstimate

MAX_SAMPLES = 2000
UNTRAINED_BELOW = 0.1


@dataclass
class Context:
    """Network, training data, and quantities that several checks use."""

    # the network, with at most 2,000 samples: those at `indices` of all samples
    prepared: Ready
    everything: Samples
    indices: Tensor
    initial_state: Mapping[str, Tensor] | None = None
    monitor: Any = None
    history: Sequence[Mapping[str, Any]] = ()
    test: Samples | None = None
    batch_size: int | None = None
    seed: int = 0
    # value of `time.perf_counter` at which the time budget ends
    deadline: float | None = None
    # reasons why quantities could not be computed, by name
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def seconds_left(self) -> float | None:
        """Seconds of the time budget that remain (None for no limit)."""
        return None if self.deadline is None else max(self.deadline - time.perf_counter(), 0.0)

    @property
    def seconds_for_kernel(self) -> float | None:
        """Half of the remaining seconds, because at most two quantities need the NTK."""
        return None if self.seconds_left is None else self.seconds_left / 2

    @property
    def network(self) -> nn.Module:
        """The network, adapted to one input tensor and outputs [n, K]."""
        return self.prepared.network

    @property
    def samples(self) -> Samples:
        """The training samples that are checked."""
        return self.prepared.samples

    @property
    def tensor_samples(self) -> Samples:
        """The samples in the form of the adapted network: one tensor."""
        return Samples(self.samples.inputs, self.samples.targets, form=None)

    @property
    def is_classifier(self) -> bool:
        """True if there is one class label per sample."""
        return self.samples.is_classification

    @cached_property
    def logits(self) -> Tensor:
        """Outputs [n, C] of the training samples in evaluation mode, on the CPU."""
        with inspection_mode(self.network):
            outputs = network_outputs(self.network, self.samples.inputs)
        return (class_logits(outputs) if self.is_classifier else outputs).cpu()

    @cached_property
    def train_accuracy(self) -> float:
        """Accuracy on the training samples."""
        return float((self.logits.argmax(1) == self.samples.y.cpu()).double().mean())

    @cached_property
    def most_frequent(self) -> float:
        """Fraction of the most frequent class."""
        return float(self.samples.y.bincount().max()) / len(self.samples)

    @cached_property
    def is_untrained(self) -> bool:
        """True if the weights are the initial ones, or if nothing indicates training."""
        if self.initial_state is not None:
            state = self.prepared.bare.state_dict()
            return all(torch.equal(state[name], tensor) for name, tensor in self.initial_state.items() if name in state)
        return not self.history and self.is_classifier and self.train_accuracy < self.most_frequent + UNTRAINED_BELOW

    @cached_property
    def initial_network(self) -> nn.Module | None:
        """The network before training, with batch statistics of the data (None if unknown)."""
        if self.initial_state is None:
            return with_data_statistics(self.network, self.samples.inputs) if self.is_untrained else None
        with torch.inference_mode(False):
            bare = copy.deepcopy(self.prepared.bare)
            bare.load_state_dict(dict(self.initial_state))
        samples = Samples(self.samples.inputs, self.samples.targets, form=self.samples.form)
        return with_data_statistics(ready(bare, samples).network, self.samples.inputs)

    @cached_property
    def duplicates(self) -> list[tuple[int, int]]:
        """Pairs of duplicates and near-duplicates among all samples."""
        return duplicate_pairs(self.everything)

    @cached_property
    def label_issues(self) -> LabelIssues | None:
        """Label issues ranked without a network (None: the reason is in `failures`)."""

        def compute() -> LabelIssues:
            issues = find_label_issues(None, self.samples, seed=self.seed)
            # indices of the subset become those of all samples
            rows = self.indices.tolist()
            conflicts = tuple((rows[i], rows[j]) for i, j in issues.conflicts)
            indices = self.indices[issues.indices.cpu()]
            return replace(issues, indices=indices, conflicts=conflicts, samples=self.everything)

        return self._try("labels", compute)

    @cached_property
    def forecast(self) -> AccuracyForecast | None:
        """Accuracy forecast, by the data and, if it is known, the network before training."""
        options: dict[str, Any] = {"seed": self.seed, "time_budget": self.seconds_for_kernel}
        return self._try("forecast", lambda: forecast_accuracy(self.initial_network, self.tensor_samples, **options))

    @cached_property
    def estimate(self) -> AccuracyEstimate | None:
        """Estimated accuracy of the trained network (None: the reason is in `failures`)."""
        from gapscope.prediction.accuracy_after_training import estimate_accuracy

        options: dict[str, Any] = {"initial_state": self.initial_state, "time_budget": self.seconds_for_kernel}
        # no check uses the accuracy on clean labels, so the label noise is not estimated again
        options["label_noise"] = 0.0
        estimate = self._try("estimate", lambda: estimate_accuracy(self.prepared.bare, self.samples, **options))
        if estimate is not None and estimate.same_noise is None:
            self.failures["estimate"] = "; ".join(estimate.abstained_because)
        return estimate

    def _try(self, name: str, compute: Any) -> Any:
        try:
            return compute()
        except GapscopeError as error:
            self.failures[name] = str(error)
            return None
