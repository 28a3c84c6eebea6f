r"""Continued subset runs: closed-form fit of the samples that a subset run did not see.

A network is trained on a half A of the samples. On the other half B, kernel ridge regression on its last hidden
features fits what its predictions leave, and predicts every sample of B from the others of B (leave-one-out):

$$f_{-i}(x_i) = s\,p_A(x_i) + r_i - \frac{(\tilde R r)_i}{\tilde R_{ii}}, \qquad r = y_B - s\,p_A(x_B),$$

with $p_A$ the probabilities less 1/C (the outputs for regression), s their least-squares factor and $\tilde R$ as in
`gapscope.statistics.kernel_ridge`. A never saw B, so that the score is that of unseen samples.

The features were learned from half of the samples. An RBF ridge that is fitted at both sizes shows how much the other
half adds: the score c of the continued runs is moved halfway to the kernel's leave-one-out score k on all samples, up
by at most the kernel's own gain g (k less the score on halves), down by at most g / 2:

$$\hat a = c + \min\left(\max\left(\tfrac12 (k - c),\, -\tfrac12 g\right),\, g\right).$$

Under label noise a network gains less than a kernel, which does not memorize. Then c is near k, and little is added.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.inspection.losses import class_logits
from gapscope.inspection.validation import ready
from gapscope.measures._forward import forward_pass
from gapscope.statistics.baselines import RIDGES, linear_spectrum, target_matrix
from gapscope.statistics.kernel_ridge import select_ridge


def move_towards_kernel(continued: float, kernel: float, kernel_of_halves: float) -> float:
    """Move the score of continued subset runs towards that of a kernel machine.

    >>> round(move_towards_kernel(0.70, 0.76, 0.74), 6), round(move_towards_kernel(0.70, 0.60, 0.58), 6)
    (0.72, 0.69)
    """
    gain = max(kernel - kernel_of_halves, 0.0)
    return continued + min(max((kernel - continued) / 2, -gain / 2), gain)


def continued_predictions(network: nn.Module, samples: Samples) -> Tensor:
    """Predict unseen samples by leave-one-out: class scores [n, C], or targets [n, k].

    Without a last linear layer these are the predictions of the network itself.
    """
    prepared = ready(network, samples)
    samples = prepared.samples
    assert samples.targets is not None
    result = forward_pass(prepared.network, samples.inputs)
    targets = samples.targets.cpu()
    if samples.is_classification:
        predictions = class_logits(result.outputs).softmax(1)
        n_classes = predictions.shape[1]
        offset = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
        wanted = target_matrix(targets, n_classes)
    else:
        predictions = result.outputs.reshape(len(targets), -1)
        wanted = target_matrix(targets)
        offset = wanted.mean(0)
    if result.features is None:
        return predictions
    predictions, wanted = predictions - offset, wanted - offset
    factor = (predictions * wanted).sum() / predictions.square().sum().clamp_min(1e-12)
    scaled = factor.clamp_min(0.0) * predictions
    features = result.features - result.features.mean(0)
    _, rest = select_ridge(linear_spectrum(features), wanted - scaled, RIDGES)
    return scaled + rest.predictions + offset
