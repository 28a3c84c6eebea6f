"""One training of a design: the training configuration is run on a part of the samples, its network scored on others, one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
    """Run a training configuration; what it draws from global random streams depends on the seed alone, which are then restored.

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


def train_and_score(
    recipe: Recipe | RunSpec, samples: Samples, split: Split, spread: float, seed: int, root: str | None
) -> list[float]:
    """Train on one part and return the score of each sample of the other, in the split's order."""
    network = run_configuration(recipe, _part(samples, split.trained), derive_seed(seed, split.name), root)
    return sample_scores(network, _part(samples, split.scored), spread).tolist()


def train_and_score_stacked(
    spec: RunSpec, samples: Samples, splits: Sequence[Split], spread: float, seed: int, root: str | None, stack: Choice
) -> list[list[float]]:
    """What `scored` returns for each split of a spec; parts of equal size are trained in one stack."""
    parts = [(_part(samples, split.trained), derive_seed(seed, split.name)) for split in splits]
    networks = _trained_by_spec(parts, spec, root, stack)
    pairs = zip(networks, splits, strict=True)
    return [sample_scores(network, _part(samples, split.scored), spread).tolist() for network, split in pairs]
