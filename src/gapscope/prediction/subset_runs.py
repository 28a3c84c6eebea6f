r"""Training runs on subsets of the samples, each scored on unseen samples.

**Continued runs.** A network is trained on a half A of the samples. On the other half B, kernel ridge regression on its
last hidden features fits what its predictions leave, and predicts every sample of B from the others of B
(leave-one-out):

$$f_{-i}(x_i) = s\,p_A(x_i) + r_i - \frac{(\tilde R r)_i}{\tilde R_{ii}}, \qquad r = y_B - s\,p_A(x_B),$$

with $p_A$ the probabilities less 1/C (the outputs for regression), s their least-squares factor and $\tilde R$ as in
`gapscope.statistics.kernel_ridge`. The network was not trained on B, so that it is a score on unseen samples.

The features were learned from half of the samples. An RBF ridge at both sizes shows the gain from the other half: the
score c of the continued runs is moved halfway to the kernel's leave-one-out score k on all samples, up
by at most the kernel's own gain g (k less the score on halves), down by at most g / 2:

$$\hat a = c + \min\left(\max\left(\tfrac12 (k - c),\, -\tfrac12 g\right),\, g\right).$$

Under label noise a network gains less than a kernel, which does not memorize. Then c is near k, and little is added.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.files import make_folder, read_json, to_json, write_atomically
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.base.task import class_logits
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import ready
from gapscope.measures._forward import forward_pass
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.pools.jobs import run_cached
from gapscope.prediction.subset_designs import SizedScore, Split, SubsetRun, variance_of_mean
from gapscope.results.progress import NullProgress
from gapscope.statistics.baselines import RIDGES, linear_spectrum, rbf_ridge, sample_features, target_matrix
from gapscope.statistics.kernel_ridge import select_ridge
from gapscope.training.loop import Training
from gapscope.training.multi_training import train_all
from gapscope.training.randomness import reproducible

TrainFunction = Callable[..., nn.Module]
STEPS_FRACTION = "steps_fraction"
IDENTITY_FILE, ANSWERS = "twin.json", "equal or fewer steps, scores and training score"


def run_configuration(
    train_fn: TrainFunction | RunSpec, samples: Samples, seed: int, root: str | None = None
) -> nn.Module:
    """Run a training configuration, with global random numbers that depend on the seed alone."""
    if isinstance(train_fn, RunSpec):
        problem, _ = prepare_data(train_fn, root)
        spec = train_fn.replace({"seed": seed % 2**31})
        network = network_from_spec(spec, dataclasses.replace(problem, train=samples))
        training = Training(network, samples, spec.training, seed=spec.seed)
        (error,) = train_all([training], stack="never", largest=1)
        if error is not None:
            raise error
        result = training.result
        if result is not None and result.status == "diverged":
            raise InvalidInput(
                f"Training diverged ({result.stop_reason}); every subset run must finish. Lower the learning rate."
            )
        return training.run.network
    # the inputs in the user's form: a tensor, a mapping of tensors or a tuple
    inputs: Any = samples.inputs
    if samples.form is not None:
        inputs = samples.form.unpack(inputs)
        if samples.form.names is not None:
            inputs = dict(zip(samples.form.names, inputs, strict=True))
    with reproducible(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"), seed):
        network = train_fn(inputs, samples.y)
    if not isinstance(network, nn.Module):
        raise InvalidInput(
            f"train_fn must return the trained network, a torch.nn.Module; it returned {type(network).__name__}. "
            "Let it end with `return network`."
        )
    return network


def target_variance(samples: Samples) -> float:
    """Return the mean variance of regression targets, the unit of errors (1 for labels)."""
    if samples.is_classification:
        return 1.0
    variance = float(samples.y.double().var(0, correction=0).mean())
    if not variance:
        raise InvalidInput("Regression targets must differ; all are equal.")
    return variance


def sample_scores(network: nn.Module, samples: Samples, spread: float) -> np.ndarray:
    """Return each sample's score: 1 if correct else 0, its R² for regression."""
    subject = ready(network, samples)
    if subject.mismatch:
        raise InvalidInput(f"A learning curve needs one label or row of targets per sample: {subject.mismatch}.")
    with inspection_mode(subject.network):
        outputs = network_outputs(subject.network, subject.samples.inputs).double()
    predictions = class_logits(outputs) if samples.is_classification else outputs.reshape(len(outputs), -1)
    return scores_of_predictions(predictions, subject.samples, spread)


def scores_of_predictions(predictions: Tensor, samples: Samples, spread: float) -> np.ndarray:
    """Return each sample's score, given predictions [n, C] or [n, k]."""
    targets = samples.y.cpu()
    if samples.is_classification:
        return (predictions.argmax(1).cpu() == targets).double().numpy()
    residuals = predictions.cpu() - targets.double().reshape(len(targets), -1)
    return (1 - residuals.square().mean(1) / spread).numpy()


def kernel_scores(samples: Samples, splits: Sequence[Split], spread: float) -> tuple[float, float] | None:
    """Return LOO scores of an RBF ridge on all samples and on the trained parts, or None."""
    features = sample_features(samples)
    if features.shape[1] == 0:
        return None
    targets = samples.y.cpu()
    n_classes = int(targets.max()) + 1 if samples.is_classification else None

    def scores(part: Tensor) -> np.ndarray:
        row = rbf_ridge(features[part], targets[part], n_classes=n_classes)
        return scores_of_predictions(row.predictions, samples.subset(part), spread)

    of_parts = np.concatenate([scores(torch.from_numpy(split.trained)) for split in splits])
    return float(scores(torch.arange(len(samples))).mean()), float(of_parts.mean())


def claim_cache(
    folder: Path, train_fn: TrainFunction | RunSpec, seed: int, samples: Samples, groups: np.ndarray
) -> None:
    """Store the identity of the runs in a folder, or raise InvalidInput for other runs."""
    digest = hashlib.sha256(groups.tobytes())
    for tensor in (samples.inputs, samples.targets, *(() if samples.form is None else samples.form.columns)):
        assert tensor is not None
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    if isinstance(train_fn, RunSpec):
        name = train_fn.id
    else:
        function = train_fn.func if isinstance(train_fn, partial) else train_fn
        name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
    identity: dict[str, Any] = {"recipe": name, "seed": seed, "data": digest.hexdigest(), "answers": ANSWERS}
    make_folder(folder)
    path = folder / IDENTITY_FILE
    stored = read_json(path) if path.exists() else identity
    differences = [name for name, value in identity.items() if stored.get(name) != value]
    if differences:
        raise InvalidInput(
            f"{folder} must hold runs of the same learning curve; its {' and '.join(differences)} differ from this "
            "call's. Choose another folder."
        )
    write_atomically(path, to_json(identity) + "\n")


def takes_steps_fraction(train_fn: TrainFunction | RunSpec) -> bool:
    """Return whether a configuration can be trained for a fraction of its steps."""
    return isinstance(train_fn, RunSpec) or STEPS_FRACTION in inspect.signature(train_fn).parameters


def equal_steps(
    train_fn: TrainFunction | RunSpec, samples: int, part: int, fraction: float = 1.0
) -> TrainFunction | RunSpec:
    """Scale the epochs of a spec for as many optimizer steps on a subset as on all samples.

    A function with a parameter `steps_fraction` gets the fraction; other functions are returned unchanged.
    """
    if not isinstance(train_fn, RunSpec):
        return partial(train_fn, steps_fraction=fraction) if takes_steps_fraction(train_fn) else train_fn
    batch, epochs = train_fn.training.batch_size, train_fn.training.epochs
    steps, steps_of_part = (math.ceil(n / min(batch, n)) for n in (samples, part))
    return train_fn.replace({"training.epochs": max(1, round(fraction * epochs * steps / steps_of_part))})


def train_and_score(
    train_fn: TrainFunction | RunSpec, samples: Samples, spread: float, seed: int, root: str | None, split: Split
) -> dict[str, Any]:
    """Train on one part with the steps of all samples, and return scores of the scored part."""
    train_fn = equal_steps(train_fn, len(samples), len(split.trained), split.steps)
    train, rest = (samples.subset(torch.from_numpy(indices)) for indices in (split.trained, split.scored))
    network = run_configuration(train_fn, train, derive_seed(seed, split.name), root)
    training_score, unseen = float(sample_scores(network, train, spread).mean()), sample_scores(network, rest, spread)
    if split.is_continued:
        unseen = scores_of_predictions(continued_predictions(network, rest), rest, spread)
    return {"scores": unseen.tolist(), "training_score": training_score}


class SubsetRuns:
    """Runner of splits: each once, with its scores in a folder."""

    def __init__(self, job: Any, groups: np.ndarray, folder: Path, workers: int, steps: NullProgress) -> None:
        self.job, self.groups, self.folder, self.workers, self.steps = job, groups, folder, workers, steps
        self.done: dict[str, SubsetRun] = {}
        self.scores: dict[str, np.ndarray] = {}

    def run(self, splits: Sequence[Split]) -> SizedScore:
        """Train the missing splits, and return the mean score over all scored samples."""
        sizes = {split.name: len(split.trained) for split in splits}
        self.steps.step(", ".join(sizes) if len(sizes) < 3 else f"{len(sizes)} folds")
        try:
            run_cached(
                {split.name: partial(self.job, split) for split in splits}, self.folder, workers=self.workers,
                on_done=lambda name, done, of: self.steps.advance(sizes[name]),
            )  # fmt: skip
        finally:  # also after an interruption: read the finished runs
            for split in splits:
                path = self.folder / f"{split.name}.json"
                if path.exists():
                    answer = read_json(path)
                    scores = self.scores[split.name] = np.asarray(answer["scores"], dtype=float)
                    self.done[split.name] = SubsetRun(
                        split.name, len(split.trained), len(scores), float(scores.mean()), answer["training_score"],
                        split.steps,
                    )  # fmt: skip
        scores = np.concatenate([self.scores[split.name] for split in splits])
        groups = np.concatenate([self.groups[split.scored] for split in splits])
        trained_on = round(sum(sizes.values()) / len(sizes))
        return SizedScore(trained_on, float(scores.mean()), variance_of_mean(scores, groups))

    @property
    def cost(self) -> float:
        """Optimizer steps, in multiples of a training run on all samples."""
        return sum(item.steps for item in self.done.values())


def move_towards_kernel(continued: float, kernel: float, kernel_of_halves: float) -> float:
    """Move the score of continued subset runs towards that of a kernel machine."""
    gain = max(kernel - kernel_of_halves, 0.0)
    return continued + min(max((kernel - continued) / 2, -gain / 2), gain)


def continued_predictions(network: nn.Module, samples: Samples) -> Tensor:
    """Predict unseen samples by leave-one-out: class scores [n, C], or targets [n, k].

    Without a last linear layer these are the predictions of the network itself.
    """
    prepared = ready(network, samples)
    samples = prepared.samples
    result = forward_pass(prepared.network, samples.inputs)
    targets = samples.y.cpu()
    if samples.is_classification:
        predictions = class_logits(result.outputs).softmax(1)
        n_classes = predictions.shape[1]
        offset = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
        expected = target_matrix(targets, n_classes)
    else:
        predictions = result.outputs.reshape(len(targets), -1)
        expected = target_matrix(targets)
        offset = expected.mean(0)
    if result.features is None:
        return predictions
    predictions, expected = predictions - offset, expected - offset
    factor = (predictions * expected).sum() / predictions.square().sum().clamp_min(1e-12)
    scaled = factor.clamp_min(0.0) * predictions
    features = result.features - result.features.mean(0)
    _, rest = select_ridge(linear_spectrum(features), expected - scaled, RIDGES)
    return scaled + rest.predictions + offset
