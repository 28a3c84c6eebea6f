"""Variation of the labels over a graph of similar features."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.measures._forward import check_labelled, features_of, forward_pass
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def label_variation(features: Float[Tensor, "n d"], y: Int[Tensor, " n"], neighbours: int) -> float:
    r"""Return $\mathrm{tr}(Y^\top L Y) / \sum_{ij} A_{ij}$ of the graph of nearest neighbours by cosine similarity.

    It is the fraction of the weight of all edges that join samples of different labels: L = D - A, Y the labels as
    one-hot rows. An edge joins samples one of which is among the `neighbours` nearest of the other; its weight is their
    cosine similarity, 0 where that is negative.

    Args:
        features: Features.
        y: Class labels.
        neighbours: Neighbours a sample; all others where there are fewer.

    Returns:
        The share; 0 where no edge has a weight.

    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> label_variation(features, torch.tensor([0, 0, 1, 1]), 1), label_variation(features, torch.arange(4), 1)
    (0.0, 1.0)
    """
    rows = torch.nn.functional.normalize(features.double(), dim=1)
    similarity = (rows @ rows.mT).clamp(0, 1).fill_diagonal_(-1)
    nearest = similarity.topk(min(neighbours, len(rows) - 1), dim=1)
    joined = torch.zeros_like(similarity).scatter_(1, nearest.indices, 1.0)
    weights = similarity.clamp_min(0) * torch.maximum(joined, joined.mT)
    total = weights.sum().item()
    return (weights * (y[:, None] != y)).sum().item() / total if total else 0.0


@register_measure(
    "graph_label_variation",
    title="labels of samples with similar features",
    needs=("inputs", "labels"),
    numbers={
        "features": ScalarInfo("fraction of edges", "lower", "weighted by similarity", "at the last hidden layer"),
        "outputs": ScalarInfo("fraction of edges", "lower", "weighted by similarity", "at the outputs"),
        "change": ScalarInfo("fraction of edges", "lower", "magnitude of the difference", "from one to the other"),
    },
    cost="1 forward pass",
    default=False,
    invariances=("layer rescaling", "unit permutation"),
    oracle="the quadratic form of a dense Laplacian",
    cross_checks=("PGDL third place",),
    sampling=Sampling("own", 500, lambda k: 2),
    stream="feature graphs",
    reference="Lassance et al. 2020 (arXiv:2011.12737), label variation",
)
def graph_label_variation(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    neighbours: int = 20,
    group_size: int = 500,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    r"""Fraction of the edges between similar samples that join different labels, at the last hidden layer and the outputs.

    $\mathrm{tr}(Y^\top L Y) / \sum_{ij} A_{ij}$ for the Laplacian L of the graph of nearest neighbours by cosine
    similarity: 0 where all neighbours share their label. It is the mean over random groups of samples of equal size,
    with the spread among them as standard error; one group, and no error, where there are fewer samples. "change" is
    how far it moves over the last layer. The competition's entry divides by a constant, and takes more layers and
    mixtures, in its variants.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        neighbours: Nearest neighbours a sample.
        group_size: Samples a graph.
        generator: Source of the groups; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "features", "outputs" and "change".

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: There is no last linear or convolutional layer.
    """
    check_range("neighbours", neighbours, 1)
    check_range("group_size", group_size, 2)
    check_labelled("graph_label_variation", x, y)
    found, y = forward_pass(network, x, chunk_size=chunk_size), y.cpu()
    features = features_of(found, "graph_label_variation")
    order = torch.arange(len(y))
    if len(y) > group_size:
        order = torch.randperm(len(y), generator=resolve_generator(generator, "feature graphs"))
    groups = (
        order.split(group_size)
        if len(y) < 2 * group_size
        else order[: len(y) // group_size * group_size].split(group_size)
    )
    pairs = [
        [label_variation(signal[part], y[part], neighbours) for signal in (features, found.logits)] for part in groups
    ]
    rows = [(first, second, abs(second - first)) for first, second in pairs]
    values = torch.tensor(rows, dtype=torch.float64)
    errors = (values.std(0) / len(values) ** 0.5).tolist() if len(values) > 1 else [None] * 3
    names = ("features", "outputs", "change")
    return Scalars(
        {name: Estimate(mean, error) for name, mean, error in zip(names, values.mean(0).tolist(), errors, strict=True)}
    )
