"""Spectral density of the Hessian of the loss, summed up."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.measures._krylov import STREAM, krylov
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "hessian_density",
    title="spread of the curvature over directions",
    needs=("inputs", "targets"),
    numbers={
        "smallest": ScalarInfo("loss / squared weight units", "higher", "of the mean loss over samples"),
        "negative_share": ScalarInfo("fraction", "lower", "of the summed magnitudes of eigenvalues"),
        "dimension": ScalarInfo(
            "eigenvalues", "none", "squared sum over sum of squares", "number of curved directions"
        ),
    },
    cost="40 Hessian-vector products, each about 3 forward and backward passes",
    cost_class="many",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="dense Hessian",
    cross_checks=("PyHessian",),
    sampling=Sampling("whole", 64, lambda k: 430),
    stream=STREAM,
    reference="Ghorbani, Krishnan and Xiao 2019 (arXiv:1901.10159), Sec. 2; quadrature of Golub and Welsch 1969",
)
def hessian_density(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    probes: int = 2,
    steps: int = 20,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    r"""Three numbers of the Hessian's spectral density, by stochastic Lanczos quadrature.

    Runs from random vectors give nodes $\lambda_j$ with weights $w_j$, whose sums estimate means over all
    eigenvalues: the fraction of the negative ones, $\sum_{\lambda_j < 0} w_j |\lambda_j| / \sum_j w_j |\lambda_j|$, and
    the number of curved directions $P (\sum_j w_j \lambda_j)^2 / \sum_j w_j \lambda_j^2$ of P weights, which is
    $(\mathrm{tr} H)^2 / \mathrm{tr} H^2$ and exact where the runs are for the two moments. The smallest node of all
    runs approaches the smallest eigenvalue from above. Sums are means over runs before they are divided; standard
    errors are the spread of the smallest nodes among runs, and the jackknife over runs.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        probes: Number of runs, at least 2.
        steps: Products with the Hessian a run.
        generator: Source of the first vectors; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "smallest", "negative_share" and "dimension".

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: The network has no trainable parameters, or the loss is linear in them.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> hessian_density(network, torch.tensor([[3.0]]), torch.ones(1, 1))["dimension"]
    1 ± 0
    """
    check_range("probes", probes, 2, 1024)
    check_range("steps", steps, 2)
    spaces = krylov(network, x, y, generator=generator, chunk_size=chunk_size)
    rows = []
    for run in spaces.runs(probes, steps):
        nodes, weights = run.quadrature(steps)
        negative = (weights * nodes.abs())[nodes < 0].sum()
        rows.append([nodes[0], negative, weights @ nodes.abs(), weights @ nodes, weights @ nodes.square()])
    found = torch.tensor(rows, dtype=torch.float64)
    if not bool((found[:, 2] > 0).all()):
        raise NotMeasurable("A density of curvature needs a loss that is curved; all eigenvalues are 0.")

    def ratios(means: Tensor) -> Tensor:
        return torch.stack([means[1] / means[2], spaces.hessian.size * means[3] ** 2 / means[4]])

    share, dimension = ratios(found.mean(0)).tolist()
    without = torch.stack([ratios((found.sum(0) - row) / (probes - 1)) for row in found])
    errors = ((probes - 1) * without.var(0, correction=0)).sqrt().tolist()
    values = {
        "smallest": Estimate(found[:, 0].min().item(), found[:, 0].std().item() / probes**0.5),
        "negative_share": Estimate(share, errors[0]),
        "dimension": Estimate(dimension, errors[1]),
    }
    return Scalars(values)
