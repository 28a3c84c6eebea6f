"""Training speed, and agreement of the gradients of samples and batches.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.loss_history import loss_history
from gapscope.base.precision import CONSTANT
from gapscope.base.random_streams import resolve_generator
from gapscope.base.targets import check_labels
from gapscope.base.task import KINDS
from gapscope.inspection.outputs import measurement_mode
from gapscope.measures._forward import Inputs, Labels, Scalars, Targets, features_of, forward_pass
from gapscope.measures._gradients import (
    batched_samples,
    loss_and_gradient,
    mean_gradient,
    norm_of,
    sample_square_norms,
    trainable,
)
from gapscope.measures.registry import LOSS_UNIT, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    title="distance between the gradients of batches",
    numbers=ScalarInfo("loss / weight units", "lower", "mean over pairs of batches"),
    cost_class="backward",
    default=False,
    tasks=KINDS,
    sampling=Sampling("own", 320, lambda k: 4),
    reference="Forouzesh and Thiran 2021 (arXiv:2107.06665), Sec. 3",
)
def gradient_disparity(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    batches: int = 5,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the gradient disparity (estimated).

    $\frac{2}{s (s-1)} \sum_{i < j} \lVert g_i - g_j \rVert_2$. $g_i$ is the gradient of the mean loss of a batch by all
    trainable weights, unscaled. The s batches are random and disjoint; each has an s-th of the samples if these are
    fewer than s times `batch_size`. The standard error is the jackknife over batches.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        batches: Number of batches s, 3 or more.
        batch_size: Largest number of samples per batch.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("batches", batches, 3)
    check_range("batch_size", batch_size, 1)
    check_range("the number of samples", len(x), batches)
    size = min(batch_size, len(x) // batches)
    order = torch.randperm(len(x), generator=resolve_generator(generator, "batches of gradients"))
    with measurement_mode(network) as network:
        samples, at_once = batched_samples(network, x, y, chunk_size)
        parts = order[: batches * size].to(samples.inputs.device).split(size)
        leaves = trainable(network)
        gradients = [
            loss_and_gradient(network, samples.subset(part), at_once, leaves)[1] for part in parts
        ]
    distances = torch.zeros(batches, batches, dtype=torch.float64)
    for i, j in itertools.combinations(range(batches), 2):
        distance = norm_of([a - b for a, b in zip(gradients[i], gradients[j], strict=True)])
        distances[i, j] = distances[j, i] = distance
    mean = distances.sum().item() / (batches * (batches - 1))
    # jackknife: the mean distance without the pairs of one batch, for each batch
    means = (distances.sum() - 2 * distances.sum(1)) / ((batches - 1) * (batches - 2))
    error = ((batches - 1) / batches * (means - means.mean()).square().sum()).sqrt().item()
    return Estimate(mean, error)


@register_measure(
    title="variance of the per-sample gradients",
    numbers=ScalarInfo(
        "squared loss / squared weight units", "lower", "variance over samples, sum over weights"
    ),
    cost_class="backward",
    default=False,
    tasks=KINDS,
    sampling=Sampling("whole", 64, lambda k: 10),
    reference="Jiang et al. 2020 (arXiv:1912.02178), gradient noise at the end of training",
)
def gradient_noise(
    network: nn.Module, x: Inputs, y: Targets, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the variance of per-sample gradients, the trace of their covariance (exact).

    $\frac1n \sum_i \lVert \nabla \ell_i - \nabla L \rVert^2$ over all trainable weights. The gradient of a batch of B
    samples, sampled with replacement, has this variance divided by B.
    """
    # mean |g_i - g|^2 = mean |g_i|^2 - |g|^2
    squares = sample_square_norms(network, x, y, chunk_size=chunk_size).mean().item()
    return Estimate(
        max(0.0, squares - norm_of(mean_gradient(network, x, y, chunk_size=chunk_size)) ** 2)
    )


@register_measure(
    title="cosine between per-sample gradients and weights",
    labels=True,
    numbers={
        "alignment": ScalarInfo(
            "cosine", "higher", "mean over samples over (excess kurtosis + 1.2)"
        ),
        "mean": ScalarInfo("cosine", "higher", "mean over samples"),
    },
    default=False,
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Holzl, Rueckert and Kaissis 2025 (arXiv:2510.25480), Sec. 3; constants of the authors' program",
)
def gradient_weight_alignment(
    network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None
) -> Scalars:
    r"""Compute the gradient-weight alignment at the last layer (exact).

    $E[\gamma] / (\mathrm{kurt}(\gamma) + 1.2)$ with $\gamma_i = -\cos(\nabla_W \ell_i, W)$ for the cross-entropy of
    each sample and the weight W of the last linear layer, as in the authors' program. The excess kurtosis over the
    samples is at least -2, so the quotient changes its sign at -1.2. The cosine does not depend on the length of the
    gradient, which may underflow; a sample whose features are 0 has alignment 0. The authors evaluate it during
    training; this is its value at the current weights.

    Raises:
        NotMeasurable: The outputs are not those of a last linear layer with one row per output.
    """
    result = forward_pass(network, x, chunk_size=chunk_size)
    features = features_of(result, "gradient_weight_alignment")
    n_classes = result.logits.shape[1]
    check_labels(y, n_classes)
    head = result.head
    rows = result.outputs.shape[1]
    if not isinstance(head, nn.Linear) or head.weight.shape != (rows, features.shape[1]):
        raise NotMeasurable(
            "The alignment needs a last linear layer with one row of weights per output; got none."
        )
    weight = head.weight.detach().double().cpu()
    # p - e = (1 - p_y) (q - e) with the label e, p_y of the label, and q of the other classes, which does not underflow
    label = F.one_hot(y.cpu(), n_classes)
    others = result.logits.masked_fill(label.bool(), -torch.inf).softmax(1)
    # of the logits 0 and z of one output, z has weights
    by_logits = (others - label)[:, -rows:]
    # the gradient of a sample is the outer product b h^T of these rows: <b h^T, W> = b^T W h, |b h^T| = |b| |h|
    b, h, w = (
        F.normalize(part, dim=1, eps=torch.finfo(torch.float64).tiny)
        for part in (by_logits, features, weight.view(1, -1))
    )
    cosines = -((b @ w.view_as(weight)) * h).sum(1)
    mean = cosines.mean().item()
    deviation = cosines.std(correction=0)
    if deviation <= CONSTANT * cosines.abs().max():
        reason = "all samples have the same alignment, which has no kurtosis"
        return Scalars({"mean": mean}, {"alignment": reason})
    kurtosis = ((cosines - mean) / deviation).pow(4).mean().item() - 3
    return Scalars({"alignment": mean / (kurtosis + 1.2), "mean": mean})


@register_measure(
    title="sum of the training losses over the epochs",
    numbers={
        "all": ScalarInfo(LOSS_UNIT, "lower", "sum over epochs", "all epochs"),
        "last": ScalarInfo(LOSS_UNIT, "lower", "sum over epochs", "last epochs"),
    },
    cost_class="weights",
    default=False,
    reference="Lyle et al. 2020 (arXiv:2010.14499), Sec. 3; Ru et al. 2021 (arXiv:2006.04492), eq. 1",
)
def training_loss_sum(
    network: nn.Module, *, history: Sequence[Mapping[str, Any]], last: int = 10
) -> Scalars:
    """Sum the training losses over all epochs, and over the last ones (exact).

    It is large if training was slow. The loss of an epoch is its `train_loss` in the history: the mean over batches, in
    training mode, without penalties. Compare networks with equal numbers of epochs. The network is not used.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        history: One mapping per epoch, as training returns it and records store it (`gapscope.base.loss_history`).
        last: Number of last epochs; all if there are fewer.

    Raises:
        InvalidInput: An epoch has no `train_loss`.
    """
    check_range("last", last, 1)
    rows = loss_history(history, needs_every_epoch=True)
    losses = [row["train_loss"] for row in rows]
    return Scalars({"all": sum(losses), "last": sum(losses[-last:])})
