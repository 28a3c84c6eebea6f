"""Log determinant, rank and eigenvalues of the empirical neural tangent kernel."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_choice
from gapscope.gradients.kernel import check_single_batch, ntk_blocks, with_dtype
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.inspection.substitution import cast_like
from gapscope.measures.registry import ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


class LogDeterminant(Estimate):
    """Log determinant of a kernel: a float with the kernel's eigenvalues.

    Attributes:
        eigenvalues: All eigenvalues, ascending, float64.
        threshold: Eigenvalues up to this size are rounding errors of the kernel.
    """

    eigenvalues: Float[Tensor, " r"]
    threshold: float

    def __new__(cls, eigenvalues: Float[Tensor, " r"], threshold: float) -> LogDeterminant:
        """Make the float: -inf where the kernel is numerically singular."""
        regular = bool(eigenvalues[0] > threshold)
        value = float.__new__(cls, float(eigenvalues.log().sum()) if regular else float("-inf"))
        value.standard_error, value.eigenvalues, value.threshold = None, eigenvalues, threshold
        return value

    @property
    def rank(self) -> int:
        """Numerical rank: eigenvalues above the threshold."""
        return int((self.eigenvalues > self.threshold).sum())

    @property
    def effective_rank(self) -> float:
        r"""Effective rank: exponential of the entropy of the spectrum (Roy and Vetterli 2007).

        $\exp(-\sum_i p_i \log p_i)$ with $p_i = \lambda_i / \sum_j \lambda_j$. Between 1 (one direction holds all) and
        the number of rows (all directions alike); 0 for the zero kernel.
        """
        positive = self.eigenvalues[self.eigenvalues > self.threshold]
        if len(positive) == 0:
            return 0.0
        shares = positive / positive.sum()
        return float(torch.exp(-(shares * shares.log()).sum()))

    def scalars(self) -> dict[str, float | Estimate]:
        """Return the numbers under which a measurement keeps the result."""
        return {
            "ntk_logdet": Estimate(float(self)),
            "rank": float(self.rank),
            "effective_rank": self.effective_rank,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return LogDeterminant, (self.eigenvalues, self.threshold)


@register_measure(
    "ntk_logdet",
    title="NTK log determinant: diversity of the samples' gradients",
    needs=("inputs",),
    cost="as many backward passes as the network has outputs, and the eigenvalues of the kernel, all in float64",
    reference="Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 2.3",
    default=False,
    numbers={
        "ntk_logdet": ScalarInfo("nats (log of squared output / squared weight)", "lower", "sum over eigenvalues"),
        "rank": ScalarInfo("eigenvalues", "none", "count"),
        "effective_rank": ScalarInfo("eigenvalues", "none", "exponential of the entropy of the spectrum"),
    },
    cost_class="superlinear",
    invariances=("unit permutation", "head shift"),
    oracle="dense kernel in float64",
    cross_checks=(
        "torch.func",
        "neural-tangents",
    ),
)
def ntk_logdet(
    network: nn.Module,
    x: Float[Tensor, "n ..."] | Int[Tensor, "n ..."],
    *,
    outputs: Literal["full", "traced"] = "full",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    dtype: torch.dtype | None = torch.float64,
    mode: Literal["eval", "train"] = "eval",
) -> LogDeterminant:
    r"""Compute the log determinant of the neural tangent kernel.

    $\log\det K = \sum_i \log \lambda_i$. K is the kernel of `empirical_ntk`, in evaluation mode. Lower means that fewer
    independent directions are learned. No jitter is added: where an eigenvalue is not above the rounding errors of K,
    $R\, \epsilon\, \lambda_{max}$ for R rows and the machine precision of `dtype`, the result is -inf, and its `rank`
    says how many eigenvalues are.

    Args:
        outputs: "full" for all nC rows, or "traced" for the n x n kernel summed over outputs. The two differ.
        dtype: Floating-point type in which gradients and kernel are computed; None for the network's own, which is
            faster and raises the threshold. The factorization is in float64 always.
        mode: As for `empirical_ntk`.

    Returns:
        The log determinant in nats, with `eigenvalues`, `rank` and `effective_rank`.

    Raises:
        InvalidInput: An option is unknown or out of range.
        UnsupportedLayer: The network mixes samples, for example by BatchNorm without running statistics.

    >>> network = nn.Linear(2, 1, bias=False)
    >>> round(ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 2.0]])), 6)  # det [[1, 1], [1, 5]] = 4
    1.386294
    >>> ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).rank
    1
    """
    check_choice("outputs", outputs, ("full", "traced"))
    check_single_batch(mode, chunk_size)
    with measurement_mode(network, mode=mode) as network, with_dtype(network, dtype) as substituted:
        x = prepare_inputs(network, cast_like(x, dtype))
        if mode == "eval":
            check_sample_independence(network, x)
        matrix = ntk_blocks(
            network,
            x,
            None,
            traced=outputs == "traced",
            max_bytes=max_bytes,
            chunk_size=chunk_size,
            substituted=substituted,
            one_pass=mode == "train",
        )
    if matrix.ndim == 4:
        matrix = matrix.flatten(2).flatten(0, 1)
    eigenvalues = torch.linalg.eigvalsh(matrix.double()).cpu()
    precision = len(matrix) * torch.finfo(matrix.dtype).eps
    return LogDeterminant(eigenvalues, precision * max(0.0, float(eigenvalues[-1])))
