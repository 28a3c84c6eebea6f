"""Zero-cost proxies: scores that rank networks before training, all in evaluation mode.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.task import KINDS
from gapscope.gradients.backward import input_gradient
from gapscope.inspection.counted_outputs import counted_outputs
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode
from gapscope.measures._forward import FloatInputs, Inputs, Scalars, Targets, mean_with_error
from gapscope.measures._gradients import in_passes, mean_gradient, norm_of, trainable
from gapscope.measures._noise import continuous_inputs, random_groups
from gapscope.measures.path_norms import with_powered_weights
from gapscope.measures.registry import LOSS_UNIT, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(register_measure, cost_class="backward", default=False, tasks=KINDS)


@_register(
    title="first-order change of the loss on removal of single weights (SNIP)",
    numbers=ScalarInfo(LOSS_UNIT, "none", "sum over weights"),
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Lee, Ajanthan and Torr 2019 (arXiv:1810.02340), eq. 5; Abdelfattah et al. 2021, eq. 1",
)
def connection_sensitivity(
    network: nn.Module, x: Inputs, y: Targets, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the connection sensitivity (SNIP) (exact).

    $\sum_w | w \, \partial L / \partial w |$ over all trainable weights of two or more dimensions. To first order each
    term is the change of the mean loss if that weight is removed.
    """
    gradients = mean_gradient(network, x, y, chunk_size=chunk_size)
    total = 0.0
    for parameter, gradient in zip(trainable(network), gradients, strict=True):
        if parameter.ndim >= 2:
            total += (as_real(parameter.detach()).double() * gradient.double()).abs().sum().item()
    return Estimate(total)


@_register(
    title="norm of the loss gradient",
    numbers={
        "whole": ScalarInfo("loss / weight units", "none", "L2 norm over all trainable parameters"),
        "sum": ScalarInfo(
            "loss / weight units", "none", "sum over matrices of their Frobenius norms"
        ),
    },
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2 (grad_norm)",
)
def gradient_norm(
    network: nn.Module, x: Inputs, y: Targets, *, chunk_size: int | None = None
) -> Scalars:
    r"""Compute the gradient norm of the mean loss, overall and summed over layers (exact).

    "whole" is the norm over all trainable weights. "sum" is $\sum_l \lVert \nabla_{W_l} L \rVert_F$ over weights of two
    or more dimensions, the zero-cost proxy. After training both measure the distance from a stationary point.
    """
    gradient = mean_gradient(network, x, y, chunk_size=chunk_size)
    pairs = zip(trainable(network), gradient, strict=True)
    layers = [norm_of([tensor]) for parameter, tensor in pairs if parameter.ndim >= 2]
    return Scalars({"whole": norm_of(gradient), "sum": sum(layers, 0.0)})


def _correlation_score(rows: Float[Tensor, "n d"]) -> float:
    r"""Return $-\frac1n \sum_i [\log(v_i + k) + 1 / (v_i + k)]$, v of the rows' correlations (NaN if not finite)."""
    if not bool(rows.isfinite().all()):
        return math.nan
    centred = rows.double() - rows.double().mean(1, keepdim=True)
    unit = torch.nn.functional.normalize(centred, dim=1, eps=1e-300)
    eigenvalues = torch.linalg.eigvalsh((unit @ unit.mT).fill_diagonal_(1.0)).clamp_min(0) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).mean().item()


@_register(
    title="decorrelation of the samples' input gradients",
    numbers=ScalarInfo("1", "none", "mean over eigenvalues, and over groups of samples"),
    sampling=Sampling("own", 256, lambda k: 4),
    stream="Jacobian groups",
    reference="Mellor et al. 2020 (arXiv:2006.04647v1), eq. 3; Abdelfattah et al. 2021, Sec. 3.2",
)
def jacobian_covariance(
    network: nn.Module,
    x: FloatInputs,
    *,
    group_size: int = 64,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the score of the correlations between the samples' input gradients (estimated).

    $-\frac1n \sum_i [\log(v_i + k) + (v_i + k)^{-1}]$, k = 1e-5, for the eigenvalues v of the correlation matrix of the
    rows $\partial \sum_c f_c(x_i) / \partial x_i$ of n samples. The largest value is -1, if all rows are uncorrelated;
    it is very negative if rows repeat. A constant row, such as zero, counts as uncorrelated. The papers report n times
    this for one mini-batch; this is the mean over random groups of `group_size` samples, with a standard error from
    their spread (None for a single group).

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        group_size: Samples n of one correlation matrix.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("group_size", group_size, 2)
    check_range("the number of samples", len(x), 2)
    with measurement_mode(network) as network:
        x = continuous_inputs(network, x)
        check_sample_independence(network, x[:64])

        def input_gradients(part: Tensor, *positions: Tensor) -> Tensor:
            part = part.detach().requires_grad_()
            outputs = checked_outputs(network(part.clone()), len(part))
            counted = counted_outputs(positions[0], outputs.shape[1]) if positions else None
            if counted is not None:
                outputs = outputs * counted
            return input_gradient(network, outputs.sum(), part, create_graph=False).flatten(1).cpu()

        counted = getattr(network, "counted", None)
        positions = () if counted is None else (counted.to(x.device),)
        gradients = in_passes(input_gradients, network, chunk_size, x, *positions)
    groups = random_groups(len(x), group_size, generator, "Jacobian groups")
    return mean_with_error(
        torch.tensor([_correlation_score(gradients[part]) for part in groups], dtype=torch.float64)
    )


@_register(
    title="data-free flow through all weights (SynFlow)",
    numbers=ScalarInfo("nats", "none", "log of the sum over weights"),
    cost_class="weights",
    reference="Tanaka et al. 2020 (arXiv:2006.05467), eq. 2; Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2",
)
def synaptic_flow(network: nn.Module, x: Inputs) -> Estimate:
    r"""Compute the synaptic flow, in nats (exact).

    $\log \sum_w | w \, \partial R / \partial w |$ over trainable weights of two or more dimensions. R is the sum of the
    outputs for an input of ones, with every parameter replaced by its absolute value and batch norm by the absolute
    value of its linear map in evaluation mode, whose shift includes the bias of the layer before it. For L linear
    layers without biases and ReLU the sum is L R. The papers report the sum itself; its logarithm has the same order
    and does not overflow. Only the shape of x matters.

    Raises:
        NotMeasurable: Inputs are token ids, or the flow is 0.
    """
    with with_powered_weights(network, x, 1) as powered:
        # the network's parameters are those of the substitution
        leaves = [
            parameter
            for parameter in powered.network.parameters()
            if parameter.requires_grad and parameter.ndim >= 2
        ]
        if not leaves:
            raise NotMeasurable(
                "Got no trainable weight of two dimensions or more; synaptic flow needs one."
            )
        total = powered.sum_for_ones(tuple(x.shape[1:]))
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        flow = sum(
            (leaf * gradient).abs().sum().item()
            for leaf, gradient in zip(leaves, gradients, strict=True)
        )
    if not flow > 0:
        raise NotMeasurable(
            "The flow through the weights is 0; its logarithm needs a positive flow."
        )
    return Estimate(torch.tensor(flow, dtype=torch.float64).log().item())
