"""Alignment of the individual samples' gradients with the weights."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.outputs import check_labels
from gapscope.measures._forward import check_labelled, features_of, forward_pass
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure


@register_measure(
    "gradient_weight_alignment",
    title="agreement of the samples' gradients with the direction of the weights",
    needs=("inputs", "labels"),
    numbers={
        "alignment": ScalarInfo("cosine", "higher", "mean over samples over (excess kurtosis + 1.2)"),
        "mean": ScalarInfo("cosine", "higher", "mean over samples"),
    },
    cost="1 forward pass",
    default=False,
    invariances=EVERYTHING,
    oracle="gradients of the last layer by autograd",
    cross_checks=("gwa",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Holzl, Rueckert and Kaissis 2025 (arXiv:2510.25480), Sec. 3; constants of the authors' program",
)
def gradient_weight_alignment(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Scalars:
    r"""Alignment of gradients with weights at the last layer, $E[\gamma] / (\mathrm{kurt}(\gamma) + 1.2)$; exact.

    $\gamma_i = -\cos(\nabla_W \ell_i, W)$ of each sample's cross-entropy and the weight W of the last linear layer, as
    the authors' program has it; the excess kurtosis is that of the population of samples, 0 for a Gaussian and above
    -2, so that the quotient can change its sign where it is below -1.2. A sample without a gradient has alignment 0.
    The authors read it along training; here it is at the weights as they are.

    Args:
        network: Classifier that returns logits [n, K] by a last linear layer.
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "alignment" and "mean".

    Raises:
        NotMeasurable: The outputs are not those of a last linear layer with one row per class.
    """
    check_labelled("gradient_weight_alignment", x, y)
    found = forward_pass(network, x, chunk_size=chunk_size)
    features = features_of(found, "gradient_weight_alignment")
    check_labels(y, found.logits.shape[1])
    if not isinstance(found.head, nn.Linear) or found.head.weight.shape != (found.logits.shape[1], features.shape[1]):
        raise NotMeasurable(
            "Alignment is taken at a last linear layer with one row of weights a class, which this network has not."
        )
    weight = found.head.weight.detach().double().cpu()
    by_logits = found.logits.softmax(1) - F.one_hot(y.cpu(), found.logits.shape[1])
    # the gradient of a sample is the outer product of these rows
    product = -((by_logits @ weight) * features).sum(1)
    cosines = product / (by_logits.norm(dim=1) * features.norm(dim=1) * weight.norm() + 1e-12)
    centred = cosines - cosines.mean()
    variance = centred.square().mean().item()
    if variance == 0:
        reason = "all samples have the same alignment, which has no kurtosis"
        return Scalars({"mean": cosines.mean().item()}, {"alignment": reason})
    kurtosis = centred.pow(4).mean().item() / variance**2 - 3
    mean = cosines.mean().item()
    return Scalars({"alignment": mean / (kurtosis + 1.2), "mean": mean})
