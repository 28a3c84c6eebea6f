"""Path norm and Fisher-Rao norm, and networks with powers of absolute weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.gradients.backward import differentiable_kernels, whole_gradient
from gapscope.inspection.computed_weights import with_plain_weights
from gapscope.inspection.hooks import Weighted, record_module_calls
from gapscope.inspection.independence import check_sample_independence, highest_precision_dtype
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.norms import evaluation_map, has_running_statistics
from gapscope.inspection.outputs import (
    DEFAULT_CHUNK_SIZE,
    as_real,
    checked_outputs,
    device_of,
    measurement_mode,
    prepare_inputs,
)
from gapscope.inspection.substitution import ParameterSubstitution, cast_network
from gapscope.measures._forward import Inputs, Labels
from gapscope.measures._gradients import Tensors, in_passes, samples_on_device, trainable
from gapscope.measures._weights import check_operators
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def _powered(norm: Any, bias: Tensor | None, power: int) -> list[tuple[Tensor, Tensor]]:
    """Return values for tensors that turn batch norm h -> s h + b into h -> |s|^p h + |b|^p.

    The bias of the layer before it is part of b, as where batch norm is merged into that layer.
    """
    scale, shift = evaluation_map(norm)
    pairs: list[tuple[Tensor, Tensor]] = []
    if norm.weight is not None:
        pairs.append((norm.weight, norm.weight.detach().double().abs() ** power))
    if norm.running_var is not None:  # s = gamma / sqrt(variance + eps)
        pairs.append((norm.running_var, (norm.running_var.double() + norm.eps) ** power - norm.eps))
    centre: Tensor | None = norm.running_mean
    if centre is None and norm.bias is None:  # s bias needs no sum
        return pairs
    if bias is not None:
        shift = shift + scale * bias.detach().double()
        pairs.append((bias, torch.zeros_like(shift)))
    shift = shift.abs() ** power
    if centre is not None:  # without beta the shift is -mean s
        mean = torch.zeros_like(shift) if norm.bias is not None else -shift / scale.abs() ** power
        pairs.append((centre, mean))
    if norm.bias is not None:
        pairs.append((norm.bias, shift))
    return pairs


def _batch_norms(network: nn.Module, x: Tensor) -> list[tuple[nn.Module, Tensor | None]]:
    """Return each layer with running statistics, and the bias of the layer before it."""
    calls = record_module_calls(network, x)
    biases = [(call, call.module.bias) for call in calls if isinstance(call.module, Weighted)]
    return [
        (norm.module, next((bias for call, bias in biases if norm.follows(call)), None))
        for norm in calls
        if has_running_statistics(norm.module)
    ]


@dataclass(frozen=True)
class PoweredNetwork:
    """Network with powers of absolute values substituted for its parameters."""

    network: nn.Module
    substitution: ParameterSubstitution
    # all additive terms that were powered: biases and means of batch norm
    shifts: tuple[Tensor, ...]

    def sum_for_ones(self, shape: tuple[int, ...], factor: float = 1.0) -> Tensor:
        """Return the sum of all outputs for an input of equal numbers."""
        device = device_of(self.network)
        ones = torch.full((1, *shape), factor, dtype=highest_precision_dtype(device), device=device)
        return checked_outputs(self.network(ones), 1).sum()


@contextmanager
def with_powered_weights(network: nn.Module, x: Tensor, power: int) -> Iterator[PoweredNetwork]:
    r"""Substitute $|\theta|^p$ for every parameter in the body, in the highest precision.

    Batch norm becomes the power of the map that it is in evaluation mode; the bias of the layer before it is part of
    the shift of this map, and 0 in the layer. A weight that is computed from others (weight norm, spectral norm,
    pruning) is a parameter of the yielded network.

    Raises:
        NotMeasurable: The inputs are token ids.
    """
    if not x.is_floating_point():
        raise NotMeasurable(
            f"Got inputs of {x.dtype}; an input of ones needs floating-point inputs. "
            "For token ids, measure the part of the network after its embedding."
        )
    with measurement_mode(with_plain_weights(network)) as network:
        norms = _batch_norms(network, prepare_inputs(network, x[:1]))
        # computed before the substitution hides the original tensors
        pairs = [pair for norm, bias in norms for pair in _powered(norm, bias, power)]
        biases = [
            parameter
            for name, parameter in network.named_parameters()
            if name.rsplit(".", 1)[-1].startswith("bias")
        ]
        # another layer's buffers keep their values, also those with the names of batch norm
        of_norms: list[Any] = [(norm.running_mean, norm.bias) for norm, _ in norms]
        shifts = (*biases, *(tensor for tensor in chain(*of_norms) if tensor is not None))
        with cast_network(
            network,
            highest_precision_dtype(device_of(network)),
            lambda values: values.abs() ** power,
        ) as substitution:
            with torch.no_grad():
                for tensor, values in pairs:
                    substitution[tensor].copy_(values)
            yield PoweredNetwork(network, substitution, shifts)


_register = partial(register_measure, labels=True, default=False)


@_register(
    title="sum over all paths of the squared product of weights (path norm)",
    numbers=ScalarInfo(
        "squared output / squared input",
        "lower",
        "sum over paths of the squared product of weights",
    ),
    cost_class="weights",
    reference="Neyshabur, Tomioka and Srebro 2015 (arXiv:1503.00036), eq. 7; Jiang et al. 2020, eq. 44",
)
def path_norm(network: nn.Module, x: Inputs) -> Estimate:
    r"""Compute the path norm: sum over all paths of the squared product of weights (exact).

    Paths lead from inputs and biases to outputs. The sum is that of the outputs of the network with squared weights for
    an input of ones, so that only the shape of x matters. Batch norm is its linear map in evaluation mode, merged into
    the layer before it: the bias of both is one, squared as a whole. Computed in float64. Dziugaite et al. report
    $\sqrt{\cdot / n}$.

    Raises:
        NotMeasurable: The network is not piecewise linear (smooth activations, attention, layer norm), the inputs are
            token ids, or a layer applies its weight in another way than torch's.
    """
    shape = tuple(x.shape[1:])
    with measurement_mode(with_plain_weights(network)) as measured:
        check_operators(record_module_calls(measured, prepare_inputs(measured, x[:1])))
    with with_powered_weights(network, x, 2) as powered, torch.no_grad():
        total = float(powered.sum_for_ones(shape))
        # without shifts a piecewise linear network is homogeneous of degree 1
        for shift in powered.shifts:
            powered.substitution[shift].zero_()
        once, twice, large = (float(powered.sum_for_ones(shape, f)) for f in (1.0, 2.0, 1e6))
    # numbers that are subtracted may turn all units off, but for large inputs
    if (large and not once) or not abs(twice - 2 * once) <= 1e-6 * abs(twice):
        raise NotMeasurable(
            f"Without biases, inputs of 1, 2 and 1,000,000 give {once:.4g}, {twice:.4g} and {large:.4g}; a path norm "
            "needs outputs in proportion to the inputs. Use activations linear for positive numbers (ReLU), no "
            "normalization per sample, and batch norm for numbers that are subtracted."
        )
    return Estimate(total)


def _output_change(
    outputs: Float[Tensor, "n k"], parameters: Tensors, direction: Tensors
) -> Float[Tensor, "n k"]:
    r"""Return the Jacobian-vector product of the outputs along a direction v in the weights.

    $J v$ is the derivative of $u^\top J v$ by u, and $u^\top J$ is one backward pass: two backward passes in all.
    """
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    gradients = whole_gradient(outputs, parameters, cotangent, create_graph=True)
    along = torch.stack([(g * v).sum() for g, v in zip(gradients, direction, strict=True)]).sum()
    (change,) = torch.autograd.grad(along, cotangent, materialize_grads=True)
    return change.detach()


@_register(
    title="change of the loss under a common scaling of the weights (Fisher-Rao norm)",
    numbers=ScalarInfo("squared nats", "lower", "mean over samples"),
    cost_class="backward",
    sampling=Sampling("mean", 64, lambda k: 5),
    reference="Liang, Poggio, Rakhlin and Stokes 2019 (arXiv:1711.01530), Sec. 3",
)
def fisher_rao_norm(
    network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the squared Fisher-Rao norm (exact).

    $\frac1n \sum_i \langle \theta, \nabla_\theta \ell_i \rangle^2$ over all trainable weights, for the cross-entropy
    with the labels in the data. In a network of L + 1 layers without biases and with ReLU it is $(L+1)^2 \frac1n \sum_i
    \langle \partial \ell_i / \partial f, f(x_i) \rangle^2$. Each $\langle \theta, \nabla \ell_i \rangle$ is a
    derivative along the weights, so that no per-sample gradient is formed.

    Raises:
        NotMeasurable: The network has no trainable parameters.
    """
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        samples = samples_on_device(network, x, y)
        check_sample_independence(network, samples.inputs[:64])
        parameters = trainable(network)
        direction = [as_real(parameter.detach()) for parameter in parameters]

        def loss_changes(part: Tensor, labels: Tensor) -> Float[Tensor, " n"]:
            outputs = checked_outputs(network(part.clone()), len(part))
            # <theta, grad l> = dl/df . (J theta)
            along = _output_change(outputs, parameters, direction).double()
            outputs = outputs.detach().double().requires_grad_()
            (by_outputs,) = torch.autograd.grad(sample_losses(outputs, labels).sum(), outputs)
            return (by_outputs * along).sum(1)

        changes = in_passes(
            loss_changes, network, chunk_size, samples.inputs, samples.y, at_most=DEFAULT_CHUNK_SIZE
        )
    return Estimate(changes.square().sum().item() / len(x))
