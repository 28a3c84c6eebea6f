"""Label agreement of nearest neighbours in gradient space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.targets import check_labels
from gapscope.base.task import class_logits
from gapscope.gradients.kernel import most_similar
from gapscope.inspection.outputs import measurement_mode, network_outputs
from gapscope.measures._forward import Inputs, Labels
from gapscope.measures.ntk import empirical_ntk
from gapscope.measures.registry import ScalarInfo, register_measure
from gapscope.statistics.canonical_order import mixed_order


@dataclass(frozen=True)
class GradientNeighbours:
    """Nearest neighbours of each sample in gradient space, and their votes on its label.

    Attributes:
        neighbours: Indices of the neighbours, the most similar first, [n, k].
        labels: Labels of all samples.
        classes: Number of classes: of outputs of the network, or two for one output.
        probabilities: Predicted probabilities of all samples.
        voters: Number of voting neighbours.
    """

    neighbours: Int[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    classes: int
    probabilities: Float[Tensor, "n c"]
    voters: int

    @property
    def votes(self) -> Float[Tensor, "n c"]:
        """Fraction of the first `voters` neighbours with each label."""
        labels = self.labels[self.neighbours[:, : self.voters]]
        return torch.nn.functional.one_hot(labels, self.classes).double().mean(1)

    @property
    def agreement(self) -> float:
        """Fraction of samples whose label is the most frequent one of their voters."""
        return float((self.votes.argmax(1) == self.labels).double().mean())

    @property
    def conflict(self) -> float:
        """Fraction of samples whose label is not the network's top class among their neighbours."""
        return conflict_fraction(self.probabilities[self.neighbours].mean(1), self.labels)

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {"agreement": self.agreement, "conflict": self.conflict}


def conflict_fraction(at_neighbours: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return the fraction of samples whose label is not the top class of their neighbours."""
    return float((at_neighbours.argmax(1) != labels).double().mean())


@register_measure(
    title="label agreement of samples with similar gradients",
    labels=True,
    numbers={
        "agreement": ScalarInfo("fraction of samples", "higher", "mean over samples"),
        "conflict": ScalarInfo("fraction of samples", "lower", "mean over samples"),
    },
    cost_class="superlinear",
    default=False,
    reference="own; kernel of Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 2.1",
)
def gradient_neighbours(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    neighbours: int = 20,
    voters: int = 5,
    chunk_size: int | None = None,
) -> GradientNeighbours:
    r"""Compare each sample's label with those of its nearest neighbours in gradient space.

    The similarity is $K_{ij} / \sqrt{K_{ii} K_{jj}}$ for the traced kernel of `empirical_ntk`, in evaluation mode.
    `agreement` is the held-out accuracy of a majority vote of the nearest `voters`. `conflict` is the fraction of
    samples whose label is not the network's top class, by the mean probabilities over the `neighbours`: an upper
    estimate of the fraction of label errors, before the network memorizes individual samples. Exact up to rounding.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        neighbours: Neighbours per sample; fewer than the samples of a class.
        voters: Number of most similar neighbours that vote.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> gradient_neighbours(nn.Linear(2, 2), x, torch.tensor([0, 0, 1, 0]), neighbours=1).agreement
    0.5
    """
    kernel = empirical_ntk(network, x, outputs="traced", chunk_size=chunk_size)
    return neighbours_from_kernel(kernel, network, x, y, neighbours=neighbours, voters=voters)


def neighbours_from_kernel(
    kernel: Float[Tensor, "n n"],
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    neighbours: int = 20,
    voters: int = 5,
    groups: Int[Tensor, " n"] | None = None,
) -> GradientNeighbours:
    """Compute `gradient_neighbours` from `empirical_ntk(network, x, outputs="traced")`."""
    check_range("neighbours", neighbours, 1)
    check_range("voters", voters, 1)
    # of equally similar samples, chance decides by their values, not the order of the rows passed
    order = mixed_order(x.detach().reshape(len(x), -1), y).to(kernel.device)
    groups = None if groups is None else groups.to(kernel.device)[order]
    nearest = order[most_similar(kernel[order][:, order], neighbours, groups)]
    nearest = nearest[order.argsort()].cpu()
    with measurement_mode(network):
        probabilities = class_logits(network_outputs(network, x).double()).softmax(1).cpu()
    check_labels(y, probabilities.shape[1])
    return GradientNeighbours(
        nearest, y.cpu(), probabilities.shape[1], probabilities, min(voters, neighbours)
    )
