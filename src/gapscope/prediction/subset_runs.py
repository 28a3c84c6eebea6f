"""Training runs on subsets of the samples, each scored on samples that it has not seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.inspection.losses import class_logits, sample_losses
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import ready
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.prediction.splits import Split
from gapscope.training.loop import Training
from gapscope.training.multi_training import Choice, train_all
from gapscope.training.randomness import reproducible

Recipe = Callable[[Any, Tensor], nn.Module]


def _original_structure(samples: Samples) -> Any:
    """The inputs as the user's own code takes them: a tensor, a mapping of tensors or a tuple."""
    if samples.form is None:
        return samples.inputs
    parts = samples.form.unpack(samples.inputs)
    return parts if samples.form.names is None else dict(zip(samples.form.names, parts, strict=True))


def _by_spec(spec: RunSpec, samples: Samples, seed: int, root: str | None) -> Training:
    """The training of a spec on some of its samples, not begun."""
    problem, _ = prepared(spec, root)
    spec = spec.replace({"seed": seed % 2**31})
    network = network_from_spec(spec, dataclasses.replace(problem, train=samples))
    return Training(network, samples, spec.training, seed=spec.seed)


def _trained_by_spec(
    parts: Sequence[tuple[Samples, int]], spec: RunSpec, root: str | None, stack: Choice
) -> list[nn.Module]:
    trainings = [_by_spec(spec, samples, seed, root) for samples, seed in parts]
    for training, error in zip(trainings, train_all(trainings, stack=stack, largest=len(trainings)), strict=True):
        if error is not None:
            raise error
        result = training.result
        if result is not None and result.status == "diverged":
            raise InvalidInput(
                f"Training diverged ({result.stop_reason}); every subset run must finish. Lower the learning rate."
            )
    return [training.run.network for training in trainings]


def run_configuration(recipe: Recipe | RunSpec, samples: Samples, seed: int, root: str | None = None) -> nn.Module:
    """Run a training configuration; its global random numbers depend on the seed alone, and the streams are restored.

    Args:
        recipe: A function (x, y) -> trained network, or a spec.
        samples: The part of the samples that it sees.
        seed: Seed.
        root: Where the data of a spec lie.

    Returns:
        The trained network.

    Raises:
        InvalidInput: The training configuration returned something else, or its training diverged.
    """
    if isinstance(recipe, RunSpec):
        return _trained_by_spec([(samples, seed)], recipe, root, "never")[0]
    assert samples.targets is not None
    with reproducible(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"), seed):
        network = recipe(_original_structure(samples), samples.targets)
    if not isinstance(network, nn.Module):
        raise InvalidInput(
            f"train_fn must return the trained network, a torch.nn.Module; it returned {type(network).__name__}. "
            "Let it end with `return network`."
        )
    return network


def sample_scores(network: nn.Module, samples: Samples, spread: float) -> np.ndarray:
    """Return what each sample adds to the mean score: 1 or 0 for right or wrong, for regression its R².

    Args:
        network: The network, in any mode.
        samples: Inputs with targets.
        spread: Variance of the regression targets, mean over their columns; unused for classes.

    Returns:
        [n]; for regression 1 - squared error / spread, whose mean is R2 with the spread of all samples.

    Raises:
        InvalidInput: Labels and outputs do not fit, or outputs have positions.
    """
    found = ready(network, samples)
    if found.refused:
        raise InvalidInput(f"A learning curve needs one label or row of targets per sample: {found.refused}.")
    samples = found.samples
    with inspection_mode(found.network):
        outputs = network_outputs(found.network, samples.inputs)
    assert samples.targets is not None
    targets = samples.targets.to(outputs.device)
    if samples.is_classification:
        right = class_logits(outputs).argmax(1) == targets
        return right.double().cpu().numpy()
    return (1 - sample_losses(outputs.double(), targets.double()) / spread).cpu().numpy()


def _part(samples: Samples, indices: np.ndarray) -> Samples:
    return samples.subset(torch.from_numpy(indices))


@dataclass(frozen=True)
class SubsetScores:
    """What one network reached.

    Attributes:
        scores: Score of each sample that it did not see, in the split's order.
        training_score: Mean score of the samples that it saw.
    """

    scores: list[float]
    training_score: float


def _scores(network: nn.Module, samples: Samples, split: Split, spread: float) -> SubsetScores:
    seen, unseen = (
        sample_scores(network, _part(samples, indices), spread) for indices in (split.trained, split.scored)
    )
    return SubsetScores(unseen.tolist(), float(seen.mean()))


def equal_steps(recipe: Recipe | RunSpec, samples: int, part: int) -> Recipe | RunSpec:
    """Scale the epochs of a spec so that a part takes as many optimizer steps as all samples; functions stay.

    Args:
        recipe: The training configuration.
        samples: Number of all samples.
        part: Number of samples of the part.

    Returns:
        The configuration for the part; whole epochs, at least one.
    """
    if not isinstance(recipe, RunSpec):
        return recipe
    batch, epochs = recipe.training.batch_size, recipe.training.epochs
    steps, steps_of_part = (math.ceil(n / min(batch, n)) for n in (samples, part))
    return recipe.replace({"training.epochs": max(1, round(epochs * steps / steps_of_part))})


def train_and_score(
    recipe: Recipe | RunSpec, samples: Samples, split: Split, spread: float, seed: int, root: str | None
) -> SubsetScores:
    """Train on one part, with as many steps as for all samples if the recipe is a spec; score the other part."""
    recipe = equal_steps(recipe, len(samples), len(split.trained))
    network = run_configuration(recipe, _part(samples, split.trained), derive_seed(seed, split.name), root)
    return _scores(network, samples, split, spread)


def train_and_score_stacked(
    spec: RunSpec, samples: Samples, splits: Sequence[Split], spread: float, seed: int, root: str | None, stack: Choice
) -> list[SubsetScores]:
    """Do the same for each split of a spec; parts of equal size are trained in one stack."""
    sizes = {len(split.trained) for split in splits}
    results: dict[str, SubsetScores] = {}
    for size in sizes:
        same = [split for split in splits if len(split.trained) == size]
        equal = equal_steps(spec, len(samples), size)
        assert isinstance(equal, RunSpec)
        parts = [(_part(samples, split.trained), derive_seed(seed, split.name)) for split in same]
        networks = _trained_by_spec(parts, equal, root, stack)
        for network, split in zip(networks, same, strict=True):
            results[split.name] = _scores(network, samples, split, spread)
    return [results[split.name] for split in splits]
