"""Training configurations that tried advice can run: a spec, a function, or a scikit-learn estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gapscope.accuracy.row_selection import inputs_of
from gapscope.accuracy.subset_problems import run_configuration
from gapscope.base.arrays import tensor_of
from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.base.targets import IGNORED
from gapscope.checks.estimators import EstimatorScores, call_measurable, fraction_correct
from gapscope.checks.fixes import Fix, Spec
from gapscope.inspection.copies import copy_network
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import ready
from gapscope.networks.initialization import resampled_state
from gapscope.training.loop import train

# Keyword settings of a training function that fixes change.
SETTINGS = ("learning_rate", "epochs", "batch_size", "weight_decay", "width")
# Scores of samples by a trained network, [n] ([n, k] of regression), see `sample_scores`.
Scorer = Callable[[Samples], Tensor]


def has_diverged(network: nn.Module) -> bool:
    """Return whether weights of a network are NaN or infinite.

    Args:
        network: The network.
    """
    return not all(
        bool(weight.isfinite().all())
        for weight in network.parameters()
        # weights without values are no reason: the network is refused as such
        if not is_lazy(weight) and not weight.is_meta and weight.is_floating_point()
    )


def sample_scores(samples: Samples, outputs: Tensor) -> Tensor:
    """Return the score of each sample [n] on the CPU: the larger, the better.

    1 or 0 for one class per sample, the fraction of several labels or positions that is right, and minus the squared
    error of each target of regression [n, k].

    Args:
        samples: Samples with targets.
        outputs: Outputs of a network for them.
    """
    targets = samples.y.cpu()
    outputs = outputs.cpu()
    if samples.kind == "regression":
        residuals = outputs.double().reshape(len(targets), -1) - targets.double().reshape(
            len(targets), -1
        )
        return -residuals.square()
    correct = samples.task.correct(outputs, targets).double().reshape(len(targets), -1)
    if samples.kind != "positions":
        return correct.mean(1)
    return correct.sum(1) / (targets != IGNORED).flatten(1).sum(1).clamp_min(1)


def constant_scorer(samples: Samples) -> Scorer:
    """Return the scorer of the best constant: the most frequent class, the more frequent value of labels, or the mean.

    Args:
        samples: The training samples.
    """
    targets = samples.y.cpu()
    if samples.kind == "regression":
        mean = targets.double().reshape(len(targets), -1).mean(0)
        return lambda scored: sample_scores(scored, mean.expand(len(scored), -1))
    if samples.kind == "multi-label":
        usual = targets.double().mean(0) > 0.5
        return lambda scored: (scored.y.cpu() == usual).double().mean(1)
    classes, counts = targets[targets != IGNORED].unique(return_counts=True)
    label = int(classes[counts.argmax()])

    def score(scored: Samples) -> Tensor:
        labels = scored.y.cpu().reshape(len(scored), -1)
        return (labels == label).double().sum(1) / (labels != IGNORED).sum(1).clamp_min(1)

    return score


def _scorer(network: nn.Module, trained_on: Samples) -> Scorer:
    """Return the scorer of a trained network.

    Samples whose outputs are NaN or infinite, as weights that grew without bound give, are scored by the best constant.
    """
    constant = constant_scorer(trained_on)

    def score(samples: Samples) -> Tensor:
        prepared = ready(network, samples)
        with inspection_mode(prepared.network):
            outputs = network_outputs(prepared.network, prepared.samples.inputs)
        invalid = prepared.samples.task.is_invalid(outputs, prepared.samples.y).cpu()
        if not invalid.any():
            return sample_scores(prepared.samples, outputs)
        scores = constant(samples).double()
        valid = torch.nonzero(~invalid).flatten()
        if len(valid):
            of_valid = prepared.samples.subset(valid)
            scores[valid] = sample_scores(of_valid, outputs[valid.to(outputs.device)]).double()
        return scores

    return score


class SpecTrainer:
    """Trains copies of a network from its initial weights, by a `TrainingSpec`.

    Args:
        network: The network.
        spec: Training configuration.
        initial_state: State dictionary before training; None resamples the weights of every layer.
        budget: CPU seconds; a training is ended when they are spent. None for no limit.
    """

    def __init__(
        self,
        network: nn.Module,
        spec: TrainingSpec,
        initial_state: Mapping[str, Tensor] | None,
        budget: CpuBudget | None = None,
    ) -> None:
        self.network = network
        self.spec = spec
        self.initial_state = initial_state
        self.budget = budget or CpuBudget(None)

    def run(self, samples: Samples, spec: Spec, seed: int, fix: Fix | None = None) -> Scorer:
        """Train on samples, and return the scorer of the trained network.

        Args:
            samples: Training samples.
            spec: Training configuration.
            seed: Seed of the training.
            fix: Fix whose change of the network is made, before or after training; None for none.

        Raises:
            BudgetSpent: The training was ended.
        """
        assert isinstance(spec, TrainingSpec)
        network = copy_network(self.network)
        if self.initial_state is None:
            state = resampled_state(network)
        else:
            state = self.initial_state
        network.load_state_dict(dict(state))
        if fix is not None and fix.change_network is not None:
            fix.change_network(network)
        with self.budget.enforced(network):
            result = train(network, samples, spec, seed=seed)
        if result.status == "diverged":
            return constant_scorer(samples)
        if fix is not None and fix.finish_network is not None:
            fix.finish_network(network, samples)
        return _scorer(network, samples)

    def accepts(self, fix: Fix) -> bool:
        """Return whether a fix can be tried, and the network has what it changes."""
        return fix.needs(self.network)


class FunctionTrainer:
    """Calls `train_fn(inputs, targets)`, with those keywords of `SETTINGS` that it takes and that have a default.

    Args:
        function: The training function; it returns the trained network.
        network: The network that is checked, of the kind that the function returns; None if there is none.
    """

    def __init__(self, function: Callable[..., Any], network: nn.Module | None) -> None:
        self.function = function
        self.network = network
        parameters = inspect.signature(function).parameters
        self.spec: Spec = {
            name: parameters[name].default
            for name in SETTINGS
            if name in parameters and isinstance(parameters[name].default, int | float)
        }

    def run(self, samples: Samples, spec: Spec, seed: int, fix: Fix | None = None) -> Scorer:
        """Train on samples, and return the scorer of what the function returned.

        Args:
            samples: Training samples.
            spec: Keyword settings of the function.
            seed: Seed of the training.
            fix: Fix whose change of the trained network is made; None for none.

        Raises:
            NotMeasurable: The function raised, or returned no network.
        """
        assert isinstance(spec, Mapping)
        targets = samples.targets_as_passed
        function = partial(self.function, **spec)
        network = call_measurable(
            "train_fn", run_configuration, function, inputs_of(samples), targets, seed
        )
        if not isinstance(network, nn.Module):
            raise NotMeasurable(
                f"train_fn must return the trained network, a torch.nn.Module; it returned {type(network).__name__}"
            )
        if has_diverged(network):
            return constant_scorer(samples)
        if fix is not None and fix.finish_network is not None:
            fix.finish_network(network, samples)
        return _scorer(network, samples)

    def accepts(self, fix: Fix) -> bool:
        """Return whether a fix can be tried; only the function could change a network before it is trained."""
        if fix.change_network is not None:
            return False
        return not fix.changes_network or (self.network is not None and fix.needs(self.network))


class EstimatorTrainer:
    """Fits clones of a scikit-learn estimator: only the data can be changed.

    Args:
        estimator: Scores of the estimator, with which it was passed.
    """

    def __init__(self, estimator: EstimatorScores) -> None:
        self.estimator = estimator
        self.spec: Spec = {}

    def run(self, samples: Samples, spec: Spec, seed: int, fix: Fix | None = None) -> Scorer:
        """Fit a clone, and return its scorer.

        Args:
            samples: Training samples, whose row numbers are those of the estimator's data.
            spec: Not used.
            seed: Not used: the estimator holds its own random state.
            fix: Fix that changed the samples; None for none.

        Raises:
            NotMeasurable: The estimator raised an exception.
        """
        is_scaled = fix is not None and fix.scale_inputs is not None
        labels = self.estimator.labels_as_passed(samples)
        predict = self.estimator.fit(self._inputs(samples, is_scaled), labels)

        def score(scored: Samples) -> Tensor:
            predicted = predict(self._inputs(scored, is_scaled))
            if scored.kind == "regression":
                return sample_scores(scored, tensor_of(predicted))
            return fraction_correct(predicted, self.estimator.labels_as_passed(scored))

        return score

    def _inputs(self, samples: Samples, is_scaled: bool) -> Any:
        """Return the rows as they were passed, so that a pipeline finds its columns, or changed inputs."""
        if is_scaled and not self.estimator.is_frame:
            return samples.inputs.cpu().numpy()
        rows = samples.original(torch.arange(len(samples))).numpy()
        return self.estimator.rows(rows, is_scaled=is_scaled)

    def accepts(self, fix: Fix) -> bool:
        """Return whether a fix can be tried: one of the data; columns are scaled if that changes predictions."""
        if fix.scale_inputs is not None:
            return self.estimator.depends_on_scale
        return not fix.changes_network


Trainer = SpecTrainer | FunctionTrainer | EstimatorTrainer


def make_trainer(
    train_fn: Any,
    network: nn.Module | None,
    initial_state: Mapping[str, Tensor] | None,
    estimator: Any,
    budget: CpuBudget,
) -> Trainer:
    """Return the trainer of a configuration.

    Args:
        train_fn: A `TrainingSpec`, a function `train_fn(inputs, targets)` that returns the trained network, or True for
            a scikit-learn estimator, which is fitted again.
        network: The network that is checked; needed for a spec.
        initial_state: Its state dictionary before training.
        estimator: Scores of a scikit-learn estimator; None without.
        budget: CPU seconds, for trainings by a spec: functions and estimators cannot be ended.

    Raises:
        InvalidInput: `train_fn` is none of these.
    """
    if isinstance(train_fn, TrainingSpec) and network is not None:
        return SpecTrainer(network, train_fn, initial_state, budget)
    if estimator is not None and train_fn is True:
        return EstimatorTrainer(estimator)
    if callable(train_fn):
        return FunctionTrainer(train_fn, network)
    raise InvalidInput(
        f"train_fn must be a function (inputs, targets) that returns a trained network, a TrainingSpec for a torch "
        f"network, or True for a scikit-learn estimator; got {train_fn!r}. Pass one of these."
    )


def run_seed(seed: int, split: int) -> int:
    """Return the seed of all trainings on one split, so that they differ by the fix alone."""
    return derive_seed(seed, f"tried advice {split}") % 2**31
