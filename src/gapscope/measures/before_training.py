"""Zero-cost proxies: scores of a network before training."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.gradients.input_gradients import input_gradient
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode, samples_per_pass
from gapscope.measures._gradients import mean_gradient
from gapscope.measures._noisy_outputs import continuous_inputs
from gapscope.measures._numbers import Scalars
from gapscope.measures._perturbed import norm_of
from gapscope.measures._powered import with_powered_weights
from gapscope.measures._types import FloatInputs, Inputs, Targets
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(
    register_measure,
    cost="1 forward and 1 backward pass",
    cost_class="backward",
    default=False,
    invariances=EVERYTHING,
)


@_register(
    "connection_sensitivity",
    title="change of the loss when single weights are removed (SNIP)",
    needs=("inputs", "targets"),
    units="nats (cross-entropy) or squared target units (regression)",
    direction="none",
    aggregation="sum over weights",
    oracle="closed form",
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Lee, Ajanthan and Torr 2019 (arXiv:1810.02340), eq. 5; Abdelfattah et al. 2021, eq. 1",
)
def connection_sensitivity(network: nn.Module, x: Inputs, y: Targets, *, chunk_size: int | None = None) -> Estimate:
    r"""SNIP: $\sum_w | w \, \partial L / \partial w |$ over all trainable weights of two or more dimensions; exact.

    To first order, the change of the mean loss where a weight is removed, summed over weights. In evaluation mode.
    A proxy that ranks untrained networks.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.constant_(network.weight, 2.0)
    >>> connection_sensitivity(network, torch.tensor([[3.0]]), torch.ones(1, 1))  # |2 * 2 * (6 - 1) * 3|
    60
    """
    gradient = mean_gradient(network, x, y, chunk_size=chunk_size)
    own = [as_real(parameter.detach()) for parameter in network.parameters() if parameter.requires_grad]
    ndims = [parameter.ndim for parameter in network.parameters() if parameter.requires_grad]
    rows = zip(own, gradient, ndims, strict=True)
    return Estimate(sum((value.double() * g.double()).abs().sum().item() for value, g, ndim in rows if ndim >= 2))


@_register(
    "gradient_norm",
    title="size of the gradient of the loss",
    needs=("inputs", "targets"),
    numbers={
        "whole": ScalarInfo("loss / weight units", "none", "L2 norm over all trainable parameters"),
        "sum": ScalarInfo("loss / weight units", "none", "sum over matrices of their Frobenius norms"),
    },
    invariances=("unit permutation", "head shift"),
    oracle="closed form",
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2 (grad_norm)",
)
def gradient_norm(network: nn.Module, x: Inputs, y: Targets, *, chunk_size: int | None = None) -> Scalars:
    r"""Norm of the gradient of the mean loss over all trainable weights, and the sum of the layers' norms; exact.

    The sum is over weights of two or more dimensions, $\sum_l \lVert \nabla_{W_l} L \rVert_F$, as zero-cost proxies
    have it. In evaluation mode. Before training it is a proxy that ranks networks; afterwards it says how near the
    weights are to a stationary point.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.zeros_(network.weight)
    >>> gradient_norm(network, torch.tensor([[3.0]]), torch.ones(1, 1)).scalars()
    {'whole': 6.0, 'sum': 6.0}
    """
    gradient = mean_gradient(network, x, y, chunk_size=chunk_size)
    shapes = [parameter.ndim for parameter in network.parameters() if parameter.requires_grad]
    layers = [norm_of([tensor]) for tensor, ndim in zip(gradient, shapes, strict=True) if ndim >= 2]
    return Scalars({"whole": norm_of(gradient), "sum": sum(layers, 0.0)})


def correlation_score(rows: Float[Tensor, "n d"]) -> float:
    r"""Return $-\frac1n \sum_i [\log(v_i + k) + 1 / (v_i + k)]$, v the eigenvalues of correlations of rows."""
    centred = rows.double() - rows.double().mean(1, keepdim=True)
    unit = torch.nn.functional.normalize(centred, dim=1, eps=1e-300)
    eigenvalues = torch.linalg.eigvalsh((unit @ unit.mT).fill_diagonal_(1.0)).clamp_min(0) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).mean().item()


@_register(
    "jacobian_covariance",
    title="how differently the samples' outputs depend on their inputs",
    needs=("inputs",),
    units="1",
    direction="none",
    aggregation="mean over eigenvalues, and over groups of samples",
    oracle="dense correlations",
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
    r"""Score of the correlations of input gradients, $-\frac1n \sum_i [\log(v_i + k) + (v_i + k)^{-1}]$, k = 1e-5.

    v are the eigenvalues of the correlation matrix of the rows $\partial \sum_c f_c(x_i) / \partial x_i$ of n
    samples: 0 is the most there is less one, where all are uncorrelated (-1); it is very negative where rows repeat.
    A row that is the same for all entries of the input, such as zero, counts as uncorrelated. The papers report n
    times this for one mini-batch. Here it is the mean over random groups of `group_size` samples, with the spread
    among them as standard error; one group, and no error, where there are fewer than two. In evaluation mode. A proxy
    that ranks untrained networks.

    Args:
        x: Inputs, floating point.
        group_size: Samples n of one correlation matrix.

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


@_register(
    "synaptic_flow",
    title="flow through all weights, without data",
    needs=("inputs",),
    units="nats",
    direction="none",
    aggregation="log of the sum over weights",
    cost="1 forward and 1 backward pass of one input",
    cost_class="weights",
    oracle="closed form of homogeneous networks",
    reference="Tanaka et al. 2020 (arXiv:2006.05467), eq. 2; Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2",
)
def synaptic_flow(network: nn.Module, x: Inputs) -> Estimate:
    r"""Logarithm of $\sum_w | w \, \partial R / \partial w |$, R the sum of outputs for ones under absolute weights.

    The sum is over all trainable weights of two or more dimensions; every parameter is replaced by its absolute value,
    batch norm by the absolute value of the linear map that it is in evaluation mode. In a network of L linear layers
    without biases, and ReLU, the sum is L R. The papers report the sum; its logarithm, in nats, has the same order and
    does not overflow. In the finest precision of the device. A proxy that ranks untrained networks.

    Args:
        network: Any network with floating-point inputs.

    Raises:
        NotMeasurable: Inputs are token ids, or nothing flows.

    >>> network = nn.Linear(2, 1, bias=False)
    >>> _ = network.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
    >>> round(synaptic_flow(network, torch.zeros(1, 2)), 6)  # log 3
    1.098612
    """
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad and parameter.ndim >= 2]
    with with_powered_weights(network, x, 1) as seen:
        leaves = [seen.stand_in[weight] for weight in weights]
        if not leaves:
            raise NotMeasurable("Synaptic flow needs a trainable weight of two dimensions; there is none.")
        total = seen.sum_for_ones(tuple(x.shape[1:]))
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        flow = sum((leaf * gradient).abs().sum().item() for leaf, gradient in zip(leaves, gradients, strict=True))
    if not flow > 0:
        raise NotMeasurable("The logarithm of a flow needs one; nothing flows through the weights of this network.")
    return Estimate(torch.tensor(flow, dtype=torch.float64).log().item())
