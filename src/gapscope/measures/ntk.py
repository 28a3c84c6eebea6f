"""Empirical neural tangent kernel: its entries, trace and log-determinant."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.gradients.backward import draw_probe, probe_scale, whole_gradient
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats, freeze_batch_stats
from gapscope.gradients.kernel import check_single_batch, ntk_blocks, with_dtype
from gapscope.gradients.traces import per_sample_traces
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import (
    as_real,
    checked_outputs,
    measurement_mode,
    network_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.substitution import cast_like
from gapscope.measures._forward import Inputs
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def empirical_ntk(
    network: nn.Module,
    x: Inputs,
    x2: Shaped[Tensor, "m ..."] | None = None,
    *,
    outputs: Literal["full", "traced"] = "full",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    dtype: torch.dtype | None = None,
    mode: Literal["eval", "train"] = "eval",
) -> Float[Tensor, "n c m c"] | Float[Tensor, "n m"]:
    r"""Compute the empirical neural tangent kernel, the inner products of model gradients.

    $$K_{nc,md} = \nabla_\theta f_c(x_n) \cdot \nabla_\theta f_d(x_m)$$

    over all trainable weights, for the raw outputs (logits), in evaluation mode unless `mode` says otherwise (Szolnoky
    et al. 2022, arXiv:2205.12642, Sec. 2.1). "traced" sums over equal outputs, $\sum_c K_{nc,mc}$, without computing
    the rest. neural-tangents divides its traced kernel by C; here nothing is divided.

    Exact up to rounding. The Jacobian of the whole network is never formed: only derivatives by the outputs of layers
    are propagated, and each layer's share is contracted in the cheapest exact order.

    Args:
        x2: Inputs of the columns; None for the rows' own.
        outputs: "full" for K [n, C, m, C], or "traced" for [n, m].
        dtype: Floating-point type in which everything is computed; None for the network's own.
        mode: "eval", or "train": BatchNorm normalizes by the statistics of x (those of x2 for the columns), which are
            held fixed in the derivatives, and dropout draws one mask. Then x is one batch, as is x2, run in one pass.

    >>> network = nn.Linear(2, 3)
    >>> x = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> empirical_ntk(network, x, outputs="traced")  # 3 (x_n . x_m + 1)
    tensor([[18.,  9.],
            [ 9.,  6.]])
    """
    check_choice("outputs", outputs, ("full", "traced"))
    check_single_batch(mode, chunk_size)
    with measurement_mode(network, mode=mode) as network, with_dtype(network, dtype) as substituted:
        x = prepare_inputs(network, cast_like(x, dtype))
        if mode == "eval":
            check_sample_independence(network, x)
        return ntk_blocks(
            network,
            x,
            x2 if x2 is None else cast_like(x2, dtype),
            traced=outputs == "traced",
            max_bytes=max_bytes,
            chunk_size=chunk_size,
            substituted=substituted,
            one_pass=mode == "train",
        )


# Gradients of single outputs that are held at once.
_GRADIENTS_AT_ONCE = 1024


def _batch_sums(network: nn.Module, x: Tensor, probes: Tensor, chunk_size: int | None) -> Tensor:
    """Squared norm [P, 1] of the gradient of all weighted outputs together, for each probe."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    chunk_size = samples_per_pass(network, x, chunk_size, one_pass=network, at_most=_GRADIENTS_AT_ONCE)
    squares, modules = [], dict(network.named_modules())
    for probe in probes:
        sums = [torch.zeros_like(as_real(parameter), dtype=torch.float64) for parameter in parameters]
        for part in slices(len(x), chunk_size):
            with allow_frozen_stats(modules):
                outputs = checked_outputs(network(x[part]), part.stop - part.start)
            with freeze_batch_stats():
                gradients = whole_gradient(outputs, parameters, probe[part].to(outputs), create_graph=False)
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient
        squares.append(torch.stack([total.square().sum() for total in sums]).sum())
    return torch.stack(squares)[:, None]


def _standard_error(values: Tensor, probe: str, n_outputs: int) -> float:
    """Standard error of the sum [P, N] -> mean over probes of the sum over samples."""
    probes, n = values.shape
    if probes > 1:
        return float(values.sum(1).std()) / probes**0.5
    if n > 1:
        return float(values.std()) * n**0.5
    bound = n_outputs - 1 if probe == "class" else 2
    return float(values) * bound**0.5


@register_measure(
    title="NTK trace: summed squared gradient norms of the outputs",
    numbers=ScalarInfo("squared output / squared weight", "lower", "sum over samples and outputs"),
    cost_class="many",
    sampling=Sampling("sum", 64, lambda k: 4 * k, {"method": "probe"}),
    reference="Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 2.3",
)
def ntk_trace(
    network: nn.Module,
    x: Inputs,
    *,
    method: Literal["exact", "probe"] = "exact",
    draws: int = 1,
    reduction: Literal["sum", "mean"] = "sum",
    probe: Literal["class", "rademacher", "batch_sum"] = "class",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    mode: Literal["eval", "train"] = "eval",
) -> Estimate:
    r"""Compute the trace of the neural tangent kernel: summed squared gradients of the outputs.

    $$\mathrm{tr}\, K = \sum_{n=1}^{N} \sum_{c=1}^{C} \lVert \nabla_\theta f_c(x_n) \rVert^2$$

    over all trainable weights, for the raw outputs (logits). Lower means more similar gradients. With a bias at the
    output the mean is at least 1, and exactly 1 for a network whose output does not depend on its input. No Jacobian of
    the whole network is formed. Probes replace the C backward passes by one each; all are unbiased.

    Args:
        method: "exact", or "probe" for an estimate with its standard error.
        draws: Number of draws of the probe, each for all samples at once before anything is computed.
        reduction: "sum" over samples and outputs, or "mean" (the sum divided by N C).
        probe: "class" takes one random output of each sample (every output equally often over the samples), times C;
            "rademacher" random signs, $\sum_n \lVert J_n^\top v_n \rVert^2$; "batch_sum" $\lVert \sum_n J_n^\top v_n
            \rVert^2$ (Hutchinson), whose cross terms between samples make it far noisier; for comparison.
        mode: "eval", or "train": BatchNorm normalizes by the statistics of x, which are held fixed in the derivatives,
            and dropout draws one mask. Then x is one batch and is run in one pass.

    Returns:
        The trace, in squared output / squared weight. The standard error of probes is the spread among them; with one
        probe, the spread among samples, which is too large rather than too small; with one probe that gives only one
        number, the largest possible.

    >>> network = nn.Linear(2, 3)
    >>> ntk_trace(network, torch.tensor([[1.0, 2.0]]))  # 3 outputs, each |x|^2 + 1
    18
    """
    check_choice("method", method, ("exact", "probe"))
    check_choice("reduction", reduction, ("sum", "mean"))
    check_range("draws", draws, 1)
    check_single_batch(mode, chunk_size)
    with measurement_mode(network, mode=mode) as network:
        x = prepare_inputs(network, x)
        n, chunk_size = len(x), len(x) if mode == "train" else chunk_size
        if mode == "eval":
            check_sample_independence(network, x)
        n_outputs = network_outputs(network, x if mode == "train" else x[:1], chunk_size=n).shape[1]
        scale = 1 / (n * n_outputs) if reduction == "mean" else 1.0
        if method == "exact":
            at_most = max(1, _GRADIENTS_AT_ONCE // n_outputs)
            traces = per_sample_traces(network, x, None, chunk_size=chunk_size, at_most=at_most)
            return Estimate(float(traces.sum()) * scale)
        generator = resolve_generator(generator)
        probes = torch.stack([draw_probe(probe, n, n_outputs, generator) for _ in range(draws)]).to(x.device)
        if probe == "batch_sum":
            values = _batch_sums(network, x, probes, chunk_size)
        else:
            squares = per_sample_traces(network, x, probes, chunk_size=chunk_size, at_most=_GRADIENTS_AT_ONCE)
            values = squares * probe_scale(probe, n_outputs)
    return Estimate(float(values.sum(1).mean()) * scale, _standard_error(values, probe, n_outputs) * scale)


class LogDeterminant(Estimate):
    """Log determinant of a kernel: a float with its ascending eigenvalues."""

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

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {"ntk_logdet": float(self), "rank": float(self.rank), "effective_rank": self.effective_rank}

    def __reduce__(self) -> tuple[Any, ...]:
        return LogDeterminant, (self.eigenvalues, self.threshold)


@register_measure(
    title="NTK log determinant: diversity of the samples' gradients",
    numbers={
        "ntk_logdet": ScalarInfo("nats (log of squared output / squared weight)", "lower", "sum over eigenvalues"),
        "rank": ScalarInfo("eigenvalues", "none", "count"),
        "effective_rank": ScalarInfo("eigenvalues", "none", "exponential of the entropy of the spectrum"),
    },
    cost_class="superlinear",
    default=False,
    reference="Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 2.3",
)
def ntk_logdet(
    network: nn.Module,
    x: Inputs,
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

    >>> network = nn.Linear(2, 1, bias=False)
    >>> round(ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 2.0]])), 6)  # det [[1, 1], [1, 5]] = 4
    1.386294
    >>> ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).rank
    1
    """
    matrix = empirical_ntk(
        network, x, outputs=outputs, chunk_size=chunk_size, max_bytes=max_bytes, dtype=dtype, mode=mode
    )
    if matrix.ndim == 4:
        matrix = matrix.flatten(2).flatten(0, 1)
    eigenvalues = torch.linalg.eigvalsh(matrix.double()).cpu()
    precision = len(matrix) * torch.finfo(matrix.dtype).eps
    return LogDeterminant(eigenvalues, precision * max(0.0, float(eigenvalues[-1])))
