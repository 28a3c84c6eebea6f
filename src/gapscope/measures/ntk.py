"""Empirical neural tangent kernel: its entries, trace and log-determinant."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotYetSupported, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.gradients.backward import draw_probe, probe_scale
from gapscope.gradients.kernel import check_single_batch, ntk_blocks, with_dtype
from gapscope.gradients.traces import per_sample_traces
from gapscope.inspection.counted_outputs import counted_of
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import measurement_mode, network_outputs, prepare_inputs
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

    over all trainable weights, for the raw outputs (logits) (Szolnoky et al. 2022, arXiv:2205.12642, Sec. 2.1).
    "traced" sums over equal outputs, $\sum_c K_{nc,mc}$, without computing the other entries; neural-tangents also
    divides its traced kernel by C.

    Exact up to rounding. The Jacobian of the whole network is never formed: only derivatives by the outputs of layers
    are propagated, and the contribution of each layer is contracted in the cheapest exact order.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        x2: Inputs of the columns; None for those of the rows.
        outputs: "full" for K [n, C, m, C], or "traced" for [n, m].
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        max_bytes: Memory for temporaries in bytes; None for a quarter of the free memory, at most 2 GiB.
        dtype: Floating-point type of the computation; None for that of the network.
        mode: "eval", or "train": batch norm uses the statistics of x (of x2 for the columns) as constants in the
            derivatives, and dropout samples one mask. Then x is one batch, as is x2, run in one pass.

    >>> network = nn.Linear(2, 3)
    >>> x = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> empirical_ntk(network, x, outputs="traced")  # 3 (x_n . x_m + 1)
    tensor([[18.,  9.],
            [ 9.,  6.]])
    """
    check_choice("outputs", outputs, ("full", "traced"))
    check_single_batch(mode, chunk_size)
    with (
        measurement_mode(network, mode=mode, passes_only=True) as network,
        with_dtype(network, dtype) as substituted,
    ):
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


def _standard_error(values: Tensor, probe: str, n_outputs: int) -> float:
    """Return the standard error of the mean over probes of sums of values [P, N]."""
    probes, n = values.shape
    if probes > 1:
        return float(values.sum(1).std()) / probes**0.5
    if n > 1:
        return float(values.std()) * n**0.5
    # the largest possible variance of one number, relative to its square
    bound = 2
    if probe == "class":
        bound = n_outputs - 1
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
    probe: Literal["class", "rademacher"] = "class",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    mode: Literal["eval", "train"] = "eval",
) -> Estimate:
    r"""Compute the trace of the neural tangent kernel: summed squared gradients of the outputs.

    $$\mathrm{tr}\, K = \sum_{n=1}^{N} \sum_{c=1}^{C} \lVert \nabla_\theta f_c(x_n) \rVert^2$$

    over all trainable weights, for the raw outputs (logits). Positions without a label, or without labels those that an
    attention mask leaves out, are omitted. Lower means more similar gradients. With a bias at the output the mean is at
    least 1, and exactly 1 if the output does not depend on the input. The Jacobian of the whole network is never
    formed. A probe needs one backward pass in place of C; all probes are unbiased.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        method: "exact", or "probe" for an estimate with its standard error.
        draws: Number of probes.
        probe: "class" for one random output per sample (each output equally often), times C; "rademacher" for random
            signs, $\sum_n \lVert J_n^\top v_n \rVert^2$.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        mode: "eval", or "train": batch norm uses the statistics of x as constants in the derivatives, and dropout
            samples one mask. Then x is one batch, run in one pass.

    Returns:
        The trace, in squared output / squared weight. The standard error is the spread of the probes; for one probe the
        spread of the samples, a conservative estimate; for one probe with one number the largest possible.

    >>> network = nn.Linear(2, 3)
    >>> ntk_trace(network, torch.tensor([[1.0, 2.0]]))  # 3 outputs, each |x|^2 + 1
    18
    """
    check_choice("method", method, ("exact", "probe"))
    check_choice("probe", probe, ("class", "rademacher"))
    check_range("draws", draws, 1)
    check_single_batch(mode, chunk_size)
    with measurement_mode(network, mode=mode, passes_only=True) as network:
        x = prepare_inputs(network, x)
        n = len(x)
        chunk_size = len(x) if mode == "train" else chunk_size
        if mode == "eval":
            check_sample_independence(network, x)
        is_exact = method == "exact"
        if mode == "train" or not is_exact:
            # in training mode a first pass of all samples draws the masks that seeds have always given
            n_outputs = network_outputs(
                network, x if mode == "train" else x[:1], chunk_size=n
            ).shape[1]
        if is_exact:
            traces = per_sample_traces(network, x, None, chunk_size=chunk_size)
            return Estimate(float(traces.sum()))
        generator = resolve_generator(generator)
        probes = torch.stack([draw_probe(probe, n, n_outputs, generator) for _ in range(draws)]).to(
            x.device
        )
        squares = per_sample_traces(network, x, probes, chunk_size=chunk_size)
    values = squares * probe_scale(probe, n_outputs)
    return Estimate(float(values.sum(1).mean()), _standard_error(values, probe, n_outputs))


class LogDeterminant(Estimate):
    """Log determinant of a kernel: a float with its ascending eigenvalues.

    Args:
        eigenvalues: Eigenvalues of the kernel, ascending.
        threshold: Eigenvalue up to which the kernel is numerically singular; the value is then -inf.
    """

    eigenvalues: Float[Tensor, " r"]
    threshold: float

    def __new__(cls, eigenvalues: Float[Tensor, " r"], threshold: float) -> LogDeterminant:
        """Create the float: -inf if the kernel is numerically singular."""
        regular = bool(eigenvalues[0] > threshold)
        value = float.__new__(cls, float(eigenvalues.log().sum()) if regular else float("-inf"))
        value.standard_error = None
        value.eigenvalues = eigenvalues
        value.threshold = threshold
        return value

    @property
    def rank(self) -> int:
        """Numerical rank: eigenvalues above the threshold."""
        return int((self.eigenvalues > self.threshold).sum())

    @property
    def effective_rank(self) -> float:
        r"""Effective rank: exponential of the entropy of the spectrum (Roy and Vetterli 2007).

        $\exp(-\sum_i p_i \log p_i)$ with $p_i = \lambda_i / \sum_j \lambda_j$, between 1 (one direction) and the number
        of rows (equal eigenvalues); 0 for the zero kernel.
        """
        positive = self.eigenvalues[self.eigenvalues > self.threshold]
        if len(positive) == 0:
            return 0.0
        fractions = positive / positive.sum()
        return float(torch.exp(-(fractions * fractions.log()).sum()))

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            "ntk_logdet": float(self),
            "rank": float(self.rank),
            "effective_rank": self.effective_rank,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return LogDeterminant, (self.eigenvalues, self.threshold)


@register_measure(
    title="NTK log determinant: diversity of the gradients of samples",
    numbers={
        "ntk_logdet": ScalarInfo(
            "nats (log of squared output / squared weight)", "lower", "sum over eigenvalues"
        ),
        "rank": ScalarInfo("eigenvalues", "none", "count"),
        "effective_rank": ScalarInfo(
            "eigenvalues", "none", "exponential of the entropy of the spectrum"
        ),
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

    $\log\det K = \sum_i \log \lambda_i$ for the kernel of `empirical_ntk`. Lower means fewer independent directions.
    Positions are omitted as in `ntk_trace`. No jitter is added: if an eigenvalue does not exceed the rounding errors of
    K, $R\, \epsilon\, \lambda_{max}$ for R rows and the machine precision of `dtype`, the
    result is -inf, and `rank` is the number of eigenvalues that do.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        outputs: "full" for all nC rows, or "traced" for the n x n kernel summed over outputs. The two differ.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        max_bytes: Memory for temporaries in bytes; None for a quarter of the free memory, at most 2 GiB.
        dtype: Floating-point type of gradients and kernel; None for that of the network, which is faster and raises the
            threshold. The eigenvalues are always computed in float64.
        mode: "eval", or "train" for the network in training mode, as for `empirical_ntk`.

    Raises:
        NotYetSupported: Some positions have no label, and the kernel is summed over outputs.

    >>> network = nn.Linear(2, 1, bias=False)
    >>> round(ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 2.0]])), 6)  # det [[1, 1], [1, 5]] = 4
    1.386294
    >>> ntk_logdet(network, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).rank
    1
    """
    if outputs == "traced" and getattr(network, "counted", None) is not None:
        raise NotYetSupported(
            'The kernel of positions must have outputs="full" where some have no label; got "traced".'
        )
    matrix = empirical_ntk(
        network,
        x,
        outputs=outputs,
        chunk_size=chunk_size,
        max_bytes=max_bytes,
        dtype=dtype,
        mode=mode,
    )
    if matrix.ndim == 4:
        counted = counted_of(network, matrix.shape[1], matrix.device)
        matrix = matrix.flatten(2).flatten(0, 1)
        if counted is not None:
            matrix = matrix[counted.flatten()][:, counted.flatten()]
    eigenvalues = torch.linalg.eigvalsh(matrix.double()).cpu()
    precision = len(matrix) * torch.finfo(matrix.dtype).eps
    return LogDeterminant(eigenvalues, precision * max(0.0, float(eigenvalues[-1])))
