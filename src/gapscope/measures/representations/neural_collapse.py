"""How far the features of the classes have collapsed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._forward import check_labelled, features_of, forward_pass
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure

# singular values of the class means below this part of the largest are rounding
_RANK = 1e-6


def _within_over_between(spread: Float[Tensor, "n d"], means: Float[Tensor, "c d"]) -> float:
    """tr(S_W S_B^+) / C through the singular vectors of the class means, without a matrix of features by features."""
    _, sizes, directions = torch.linalg.svd(means, full_matrices=False)
    kept = sizes > _RANK * sizes[0]
    scaled = spread @ directions[kept].mT / sizes[kept]
    return scaled.square().sum().item() / len(spread)


@register_measure(
    "neural_collapse",
    title="how tightly and evenly the features of the classes lie",
    needs=("inputs", "labels"),
    numbers={
        "within_over_between": ScalarInfo("variance ratio", "lower", "mean over samples", "spread within classes"),
        "unequal_norms": ScalarInfo("standard deviation / mean", "lower", "over classes", "unequal class means"),
        "unequal_angles": ScalarInfo("cosine", "lower", "mean over pairs of classes", "unequal angles of class means"),
        "head_mismatch": ScalarInfo(
            "squared distance", "lower", "sum over entries", "class means against the last layer"
        ),
        "centre_disagreement": ScalarInfo(
            "fraction of samples", "lower", "mean over samples", "predictions other than the nearest class mean"
        ),
    },
    cost="1 forward pass",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form of a simplex; dense matrices",
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Papyan, Han and Donoho 2020 (arXiv:2008.08186), NC1-NC4",
)
def neural_collapse(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Scalars:
    r"""Five numbers of the features h before the last layer that are 0 where classes have collapsed; exact.

    With class means $\mu_c$, their mean $\mu$, and $m_c = \mu_c - \mu$ for C classes: $\frac1C \mathrm{tr}(\Sigma_W
    \Sigma_B^+)$ of the covariances within and between classes (NC1); the standard deviation over the mean of $\lVert
    m_c \rVert$, and the mean of $|\cos(m_c, m_{c'}) + \frac1{C-1}|$ (NC2); $\lVert W / \lVert W \rVert_F - M / \lVert M
    \rVert_F \rVert_F^2$ of the last layer's weights and the class means (NC3); the fraction of samples whose prediction
    is not the class of the nearest mean (NC4). Standard deviations divide by the number of classes.

    Args:
        network: Classifier that returns logits [n, K] by a last linear layer.
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The five numbers; "head_mismatch" is NaN where the last layer has not one row per class that has samples.

    Raises:
        NotMeasurable: There are no features, or no two classes with different means.
    """
    check_labelled("neural_collapse", x, y)
    found, y = forward_pass(network, x, chunk_size=chunk_size), y.cpu()
    features, labels = features_of(found, "neural_collapse"), y.unique()
    centres = torch.stack([features[y == label].mean(0) for label in labels])
    means = centres - centres.mean(0)
    if len(labels) < 2 or float(means.abs().max()) == 0:
        raise NotMeasurable("Collapse is that of two classes or more with different mean features; there are none.")
    count, norms = len(labels), means.norm(dim=1)
    rows = torch.searchsorted(labels, y)
    cosines = torch.nn.functional.normalize(means, dim=1)
    angles = (cosines @ cosines.mT + 1 / (count - 1)).abs()[~torch.eye(count, dtype=torch.bool)]
    nearest = labels[torch.cdist(features, centres).argmin(1)]
    values = {
        "within_over_between": _within_over_between(features - centres[rows], means),
        "unequal_norms": (norms.std(correction=0) / norms.mean()).item(),
        "unequal_angles": angles.mean().item(),
        "centre_disagreement": (nearest != found.logits.argmax(1)).double().mean().item(),
    }
    head = None if not isinstance(found.head, nn.Linear) else found.head.weight.detach().double().cpu()
    if head is None or head.shape != means.shape:
        return Scalars(values, {"head_mismatch": "the last layer has not one row of weights a class"})
    values["head_mismatch"] = (head / head.norm() - means / means.norm()).square().sum().item()
    return Scalars({name: values[name] for name in (*list(values)[:3], "head_mismatch", "centre_disagreement")})
