"""Predictions on samples mixed within their class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.measures._forward import check_labelled
from gapscope.measures._mixing import STREAM, mixed_logits
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def mean_with_error(values: Float[Tensor, " n"]) -> Estimate:
    """Return the mean over samples, with its standard error over the draw of samples."""
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else None
    return Estimate(values.mean().item(), error)


@register_measure(
    "mixup_robustness",
    title="predictions on mixtures of two samples of a class",
    needs=("inputs", "labels"),
    numbers={
        "accuracy": ScalarInfo("fraction of samples", "higher", "mean over samples"),
        "loss": ScalarInfo("nats", "lower", "mean over samples"),
    },
    cost="1 forward pass",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form of a linear network",
    cross_checks=("PGDL first place",),
    sampling=Sampling("own", 128, lambda k: 1),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.3",
)
def mixup_robustness(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Accuracy and cross-entropy on samples mixed half and half with another sample of their class.

    Each sample has one partner, and is one once. Estimated over the random pairs; the standard error is the spread over
    samples. The competition's first place mixes all pairs of a class within a batch.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, floating point.
        y: Class labels, as they were trained on.
        generator: Source of the pairs; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "accuracy" and "loss".

    Raises:
        InvalidInput: The inputs are token ids, or labels do not fit.

    >>> network = nn.Linear(1, 2, bias=False)  # class 1 where x > 0
    >>> _ = network.weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> x, y = torch.tensor([[3.0], [-1.0], [-2.0]]), torch.tensor([1, 1, 0])
    >>> mixup_robustness(network, x, y)["accuracy"]  # both mixtures of class 1 lie at 1
    1 ± 0
    """
    check_labelled("mixup_robustness", x, y)
    logits = mixed_logits(network, x, y, generator, chunk_size)
    right = (logits.argmax(1) == y.cpu()).double()
    losses = F.cross_entropy(logits, y.cpu(), reduction="none")
    return Scalars({"accuracy": mean_with_error(right), "loss": mean_with_error(losses)})
