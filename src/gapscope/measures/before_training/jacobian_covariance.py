"""Correlation of the input gradients of different samples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.gradients.input_gradients import input_gradient
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import checked_outputs, measurement_mode, samples_per_pass
from gapscope.measures._noisy_outputs import continuous_inputs
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


def correlation_score(rows: Float[Tensor, "n d"]) -> float:
    r"""Return $-\frac1n \sum_i [\log(v_i + k) + 1 / (v_i + k)]$, v the eigenvalues of correlations of rows."""
    centred = rows.double() - rows.double().mean(1, keepdim=True)
    unit = torch.nn.functional.normalize(centred, dim=1, eps=1e-300)
    eigenvalues = torch.linalg.eigvalsh((unit @ unit.mT).fill_diagonal_(1.0)).clamp_min(0) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).mean().item()


@register_measure(
    "jacobian_covariance",
    title="how differently the samples' outputs depend on their inputs",
    needs=("inputs",),
    units="1",
    direction="none",
    aggregation="mean over eigenvalues, and over groups of samples",
    cost="1 forward and 1 backward pass",
    cost_class="backward",
    default=False,
    invariances=EVERYTHING,
    oracle="dense correlations",
    sampling=Sampling("own", 256, lambda k: 4),
    stream="Jacobian groups",
    reference="Mellor et al. 2020 (arXiv:2006.04647v1), eq. 3; Abdelfattah et al. 2021, Sec. 3.2",
)
def jacobian_covariance(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    *,
    group_size: int = 64,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Score of the correlations of input gradients, $-\frac1n \sum_i [\log(v_i + k) + (v_i + k)^{-1}]$, k = 1e-5.

    v are the eigenvalues of the correlation matrix of the rows $\partial \sum_c f_c(x_i) / \partial x_i$ of n
    samples: 0 is the most there is less one, where all are uncorrelated (-1); it is very negative where rows repeat.
    A row that is the same for all entries of the input, such as zero, counts as uncorrelated. The papers report n
    times this for one mini-batch. Here it is the mean over random groups of `group_size` samples, with the spread
    among them as standard error; one group, and no error, where there are fewer than two. In evaluation mode. A proxy
    that ranks untrained networks.

    Args:
        network: The network.
        x: Inputs, floating point.
        group_size: Samples n of one correlation matrix.
        generator: Source of the groups; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The score.

    Raises:
        InvalidInput: Inputs are token ids, or there are fewer than two samples.
        NotMeasurable: The graph of the outputs does not reach the inputs.
    """
    check_range("group_size", group_size, 2)
    if len(x) < 2:
        raise InvalidInput("jacobian_covariance needs two samples or more; got one.")
    with measurement_mode(network) as network:
        x = continuous_inputs(network, x)
        check_sample_independence(network, x[:64])

        def rows(part: Tensor) -> Tensor:
            part = part.detach().requires_grad_()
            outputs = checked_outputs(network(part.clone()), len(part))
            return input_gradient(network, outputs.sum(), part, create_graph=False).flatten(1).cpu()

        size = samples_per_pass(network, x, chunk_size, one_pass=rows, at_most=256)
        gradients = torch.cat([rows(x[part]) for part in slices(len(x), size)])
    order = torch.arange(len(x))
    if len(x) > group_size:
        order = torch.randperm(len(x), generator=resolve_generator(generator, "Jacobian groups"))
    groups = [part for part in order.split(group_size) if len(part) == min(group_size, len(x))]
    scores = torch.tensor([correlation_score(gradients[part]) for part in groups], dtype=torch.float64)
    return Estimate(scores.mean().item(), scores.std().item() / len(scores) ** 0.5 if len(scores) > 1 else None)
