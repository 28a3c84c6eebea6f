"""Path norms and the Fisher-Rao norm.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import slices
from gapscope.gradients.backward import whole_gradient
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._absolute_power import path_sum
from gapscope.measures._forward import check_labelled, forward_pass, low_margin, margins_of
from gapscope.measures._types import Inputs, Labels
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate

_register = partial(
    register_measure,
    needs=("inputs", "labels"),
    direction="lower",
    default=False,
    invariances=("layer rescaling", "unit permutation"),
)


@_register(
    "path_norm",
    title="sum over all paths of the squared product of their weights",
    needs=("inputs",),
    units="squared output / squared input",
    aggregation="sum over paths of the squared product of weights",
    cost="1 forward pass of one input",
    cost_class="weights",
    oracle="sum over all paths, enumerated",
    cross_checks=("robust-generalization-measures",),
    reference="Neyshabur, Tomioka and Srebro 2015 (arXiv:1503.00036), eq. 7; Jiang et al. 2020, eq. 44",
)
def path_norm(network: nn.Module, x: Inputs) -> Estimate:
    r"""Compute the path norm: sum over all paths of the squared product of weights (exact).

    Paths lead from inputs and biases to outputs. The sum is that of the outputs of the network with squared weights for
    an input of ones, so that only the shape of x matters. Batch norm is its linear map in evaluation mode. Computed in
    float64. Networks that are not piecewise linear (smooth activations, attention, layer norm) have none, nor have
    networks of token ids: both raise `NotMeasurable`. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        network: A network that is piecewise linear.

    Raises:
        NotMeasurable: The network is not piecewise linear, or its inputs are token ids.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> for layer, weight in ((network[0], [[1.0], [2.0]]), (network[2], [[3.0, 1.0]])):
    ...     _ = layer.weight.data.copy_(torch.tensor(weight))
    >>> path_norm(network, torch.ones(1, 1))  # (1 * 3)^2 + (2 * 1)^2
    13
    """
    return Estimate(path_sum(network, x).item())


@_register(
    "path_norm_over_margin",
    title="path norm relative to the margin",
    units="1 / squared input",
    aggregation="sum over paths, over the squared margin",
    cost="1 forward pass",
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 43; Dziugaite et al. 2020",
)
def path_norm_over_margin(network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the path norm divided by the squared margin, $\gamma^2$ (exact).

    $\gamma$ is the tenth percentile of the margins $f_y - \max_{j \ne y} f_j$ (the k-th smallest, k = n // 10).

    Args:
        network: A piecewise linear classifier that returns logits [n, K].

    Raises:
        NotMeasurable: The margin is zero, or there is no path norm.

    >>> import torch
    >>> network = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(network.weight)
    >>> y = torch.zeros(3).long()
    >>> path_norm_over_margin(network, torch.tensor([[3.0, 1.0]]).repeat(3, 1), y)  # 2 / (3 - 1)^2
    0.5
    """
    check_labelled("path_norm_over_margin", x, y)
    margin = low_margin(margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu()))
    if margin == 0:
        raise NotMeasurable("The margin is 0; path_norm_over_margin divides by it. Train the network.")
    return Estimate(path_sum(network, x).item() / margin**2)


def _output_change(
    outputs: Float[Tensor, "n k"], parameters: Sequence[Tensor], direction: Sequence[Tensor]
) -> Float[Tensor, "n k"]:
    r"""Return the Jacobian-vector product of the outputs along a direction v in the weights.

    $J v$. It is the derivative of $u^\top J v$ by u, where $u^\top J$ is one backward pass: two backward passes in all.
    """
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    gradients = whole_gradient(outputs, parameters, cotangent, create_graph=True)
    along = torch.stack([(g * v).sum() for g, v in zip(gradients, direction, strict=True)]).sum()
    (change,) = torch.autograd.grad(along, cotangent, materialize_grads=True)
    return change.detach()


@_register(
    "fisher_rao_norm",
    title="change of the loss if all weights grow",
    units="squared nats",
    aggregation="mean over samples",
    cost="1 forward pass and 2 backward passes",
    cost_class="backward",
    invariances=EVERYTHING,
    oracle="closed form of homogeneous networks; dense per-sample gradients",
    sampling=Sampling("mean", 64, lambda k: 5),
    reference="Liang, Poggio, Rakhlin and Stokes 2019 (arXiv:1711.01530), Sec. 3",
)
def fisher_rao_norm(network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the squared Fisher-Rao norm (exact).

    $\frac1n \sum_i \langle \theta, \nabla_\theta \ell_i \rangle^2$. Over all trainable weights, of the cross-entropy
    with the given labels. In a network of L + 1 layers without biases and with ReLU it is $(L+1)^2 \frac1n \sum_i
    \langle \partial \ell_i / \partial f, f(x_i) \rangle^2$. Each $\langle \theta, \nabla \ell_i \rangle$ is a
    derivative along the weights, so that no per-sample gradient is formed.

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> network = nn.Linear(1, 2, bias=False)  # f = (w1 x, w2 x), here of equal logits
    >>> _ = network.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> norm = fisher_rao_norm(network, torch.tensor([[1.0]]), torch.tensor([1]))
    >>> bool(abs(norm - (2 / (1 + torch.e**-2)) ** 2) < 1e-5)  # <dl/df, f> = p_0 f_0 + (p_1 - 1) f_1
    True
    """
    check_labelled("fisher_rao_norm", x, y)
    total = 0.0
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        x = prepare_inputs(network, x)
        check_sample_independence(network, x[:64])
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not parameters:
            raise NotMeasurable("Got no trainable parameters; fisher_rao_norm is a derivative by them.")
        direction = [as_real(parameter.detach()) for parameter in parameters]

        def changes(part: Tensor, labels: Tensor) -> Float[Tensor, " n"]:
            outputs = checked_outputs(network(part), len(part))
            along = _output_change(outputs, parameters, direction).double()
            outputs = outputs.detach().double().requires_grad_()
            (by_outputs,) = torch.autograd.grad(sample_losses(outputs, labels).sum(), outputs)
            return (by_outputs * along).sum(1)

        labels = prepare_inputs(network, y)
        chunk_size = samples_per_pass(
            network, x, chunk_size, one_pass=lambda first: changes(first, labels[: len(first)])
        )
        for part in slices(len(x), chunk_size):
            total += changes(x[part].clone(), labels[part]).square().sum().item()
    return Estimate(total / len(x))
