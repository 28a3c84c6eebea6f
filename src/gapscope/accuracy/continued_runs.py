r"""Networks trained on half of the samples, continued on the other half by kernel ridge regression.

A network is trained on a half A of the samples. On the other half B, kernel ridge regression on its
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

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.accuracy.extrapolation import SizedScore
from gapscope.accuracy.scores import scores_of_predictions
from gapscope.accuracy.subset_designs import Split
from gapscope.base.samples import Samples
from gapscope.base.task import class_logits
from gapscope.inspection.validation import ready
from gapscope.measures._forward import forward_pass
from gapscope.results.estimate import NORMAL_99_ONE_SIDED
from gapscope.statistics.baselines import (
    RIDGES,
    fitted_units,
    linear_spectrum,
    rbf_ridge,
    sample_features,
    target_matrix,
)
from gapscope.statistics.kernel_ridge import select_ridge


def kernel_scores(
    samples: Samples, splits: Sequence[Split], scales: np.ndarray | None
) -> tuple[float, float] | None:
    """Return LOO scores of an RBF ridge on all samples and on the trained parts, or None."""
    features = sample_features(samples)
    if features.shape[1] == 0:
        return None
    targets = samples.y.cpu()
    if samples.is_classification:
        n_classes = int(targets.max()) + 1
    else:
        n_classes = None

    def scores(part: Tensor) -> np.ndarray:
        row = rbf_ridge(features[part], targets[part], n_classes=n_classes)
        return scores_of_predictions(row.predictions, samples.subset(part), scales)

    of_parts = np.concatenate([scores(torch.from_numpy(split.trained)) for split in splits])
    return float(scores(torch.arange(len(samples))).mean()), float(of_parts.mean())


# Of runs with a part of the steps: shortfall on their own training samples, by judgment. With a quarter of the steps,
# networks that all steps train to 0.97 are at 0.84.
MARGIN_OF_SHORT_RUNS = 0.15
# Of runs with all steps: smallest gain of the refitted layer, by judgment, and its smallest fraction of what networks
# lose from training samples to others. Chosen on 267 trainings on seven data sets with 0 and 20 % label noise (RMSE
# 0.039; with 0.5: 0.042; with a shortfall on training samples by 0.05 in place of both: 0.052).
MIN_GAIN, MIN_FRACTION_OF_LOSS = 0.02, 0.3


def describe_undertrained(
    own: SizedScore, continued: np.ndarray, outputs: np.ndarray, steps: float
) -> str:
    """Return why continued runs do not show what training reaches (empty if they do).

    A network that is trained on all samples in as many steps scores less on new samples than the networks of halves
    score on their training samples, and more than these score on others. The refitted layer of a trained network gains
    little of this loss. If it gains more than three tenths of it, its score is one that training does not reach.

    Args:
        own: Score of the networks on the samples that they were trained on.
        continued: Scores of the continued networks on the others [n].
        outputs: Scores of the networks themselves on these [n].
        steps: Optimizer steps of each network, in multiples of a training run on all samples.
    """
    n = len(continued)
    score = SizedScore(n, float(continued.mean()), float(continued.var()) / n)
    if steps == 1:
        gains = continued - outputs
        gain = float(gains.mean())
        error = float(gains.std()) / math.sqrt(n)
        loss = own.mean - float(outputs.mean())
        least = max(NORMAL_99_ONE_SIDED * error, MIN_GAIN, MIN_FRACTION_OF_LOSS * loss)
        is_undertrained = gain > least
    else:
        is_undertrained = own.is_clearly_below(score, MARGIN_OF_SHORT_RUNS)
    if not is_undertrained:
        return ""
    return (
        f"Networks of the halves score {own.mean:.3f} on their training samples, {outputs.mean():.3f} on others, and "
        f"{score.mean:.3f} on these with a refitted last layer: they are under-trained, and train_fn returns them "
        "without that layer"
    )


def move_towards_kernel(continued: float, kernel: float, kernel_of_halves: float) -> float:
    """Move the score of continued subset runs towards that of a kernel machine."""
    gain = max(kernel - kernel_of_halves, 0.0)
    return continued + min(max((kernel - continued) / 2, -gain / 2), gain)


def continued_predictions(
    network: nn.Module, samples: Samples, classes: Tensor | None = None
) -> Tensor:
    """Predict unseen samples by leave-one-out: class scores [n, C], or targets [n, k].

    Without a last linear layer these are the predictions of the network itself.

    Args:
        network: Network that has not seen the samples.
        samples: The samples.
        classes: Class numbers that occur in the data; others have the score 0. None for those of the samples.
    """
    prepared = ready(network, samples)
    samples = prepared.samples
    result = forward_pass(prepared.network, samples.inputs)
    targets = samples.y.cpu()
    units = fitted_units(targets)
    if samples.is_classification:
        logits = class_logits(result.outputs)
        present = targets.unique() if classes is None else classes
        # a network that has not seen the last classes may have no outputs for them
        n_classes = max(logits.shape[1], int(present.max()) + 1)
        known = present[present < logits.shape[1]]
        predictions = logits.new_zeros(len(targets), n_classes)
        predictions[:, known] = logits[:, known].softmax(1)
        offset = torch.zeros(n_classes, dtype=torch.float64)
        offset[present] = 1 / len(present)
        expected = target_matrix(targets, n_classes)
    else:
        predictions = result.outputs.reshape(len(targets), -1) / units
        expected = target_matrix(targets) / units
        offset = expected.mean(0)
    if result.features is None:
        return predictions * units
    predictions = predictions - offset
    expected = expected - offset
    factor = (predictions * expected).sum() / predictions.square().sum().clamp_min(1e-12)
    scaled = factor.clamp_min(0.0) * predictions
    features = result.features - result.features.mean(0)
    _, rest = select_ridge(linear_spectrum(features), expected - scaled, RIDGES)
    return (scaled + rest.predictions + offset) * units
