"""Networks with powers of their absolute weights, for path norms and synaptic flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.hooks import Weighted, record_module_calls
from gapscope.inspection.independence import highest_precision_dtype
from gapscope.inspection.outputs import checked_outputs, device_of, measurement_mode, prepare_inputs
from gapscope.inspection.substitution import ParameterSubstitution, cast_network


@dataclass(frozen=True)
class _Norm:
    """Evaluation-mode batch norm h -> gamma (h - mean) / sqrt(variance + eps) + beta."""

    gamma: Tensor | None
    beta: Tensor | None
    mean: Tensor
    variance: Tensor
    eps: float
    bias: Tensor | None

    def powered(self, power: int) -> list[tuple[Tensor, Tensor]]:
        """Return (tensor, new values) pairs that turn h -> s h + b into h -> |s|^p h + |b|^p."""
        squared = self.variance.double() + self.eps
        gamma = torch.ones_like(squared) if self.gamma is None else self.gamma.detach().double()
        shift = -self.mean.double() * gamma / squared.sqrt()
        pairs = [(self.variance, squared**power - self.eps)]
        if self.bias is not None:  # what two layers in a row add is one shift
            shift = shift + self.bias.detach().double() * gamma / squared.sqrt()
            pairs.append((self.bias, torch.zeros_like(shift)))
        if self.beta is None:
            return [*pairs, (self.mean, -(shift.abs() ** power) * squared ** (power / 2) / gamma.abs() ** power)]
        shift = shift + self.beta.detach().double()
        return [*pairs, (self.mean, torch.zeros_like(shift)), (self.beta, shift.abs() ** power)]


def _norms(network: nn.Module, x: Tensor) -> list[_Norm]:
    made, found = record_module_calls(network, x), []
    for call in made:
        norm = call.module
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None or norm.running_var is None:
            continue
        before = [other.module for other in made if isinstance(other.module, Weighted) and other.output is call.input]
        bias = before[0].bias if before else None
        found.append(_Norm(norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, bias))
    return found


@dataclass(frozen=True)
class PoweredNetwork:
    """Network with powers of absolute values substituted for its parameters.

    Attributes:
        network: The network, in evaluation mode.
        stand_in: Maps a parameter to its substitute.
        shifts: All additive terms: biases, means of batch norms.
    """

    network: nn.Module
    stand_in: ParameterSubstitution
    shifts: tuple[Tensor, ...]

    def sum_for_ones(self, shape: tuple[int, ...], factor: float = 1.0) -> Tensor:
        """Return the sum of all outputs for an input of equal numbers."""
        device = device_of(self.network)
        ones = torch.full((1, *shape), factor, dtype=highest_precision_dtype(device), device=device)
        return checked_outputs(self.network(ones), 1).sum()

    def check_homogeneous(self, shape: tuple[int, ...]) -> None:
        """Raise unless the network without its shifts doubles its outputs with its inputs.

        Raises:
            NotMeasurable: It does not: a sum over paths is then not what it computes.
        """
        with torch.no_grad():
            for shift in self.shifts:
                self.stand_in[shift].zero_()
            once, twice = (float(self.sum_for_ones(shape, factor)) for factor in (1.0, 2.0))
        if not abs(twice - 2 * once) <= 1e-6 * abs(twice):
            raise NotMeasurable(
                "A sum over paths needs activations that are linear for positive numbers (such as ReLU) and no "
                "normalization by the sample's own activations; doubling the input multiplies the outputs by "
                f"{twice / once if once else float('nan'):.4g} here."
            )


@contextmanager
def with_powered_weights(network: nn.Module, x: Tensor, power: int) -> Iterator[PoweredNetwork]:
    r"""Substitute $|\theta|^p$ for every parameter in the body, in the highest precision.

    Batch norm becomes the power of the map that it is in evaluation mode.

    Raises:
        NotMeasurable: The inputs are token ids, in whose place no ones can be put.
    """
    if not x.is_floating_point():
        raise NotMeasurable(
            f"The network is run on an input of ones, which needs floating-point inputs; got {x.dtype}. "
            "For token ids, measure the part of the network behind its embedding."
        )
    with measurement_mode(network) as network:
        norms = _norms(network, prepare_inputs(network, x[:1]))
        # read before other tensors are seen in place of these
        pairs = [pair for norm in norms for pair in norm.powered(power)]
        biases = [p for name, p in network.named_parameters() if name.rsplit(".", 1)[-1].startswith("bias")]
        shifts = (*biases, *(norm.mean for norm in norms))
        with cast_network(
            network, highest_precision_dtype(device_of(network)), lambda values: values.abs() ** power
        ) as stand_in:
            with torch.no_grad():
                for tensor, values in pairs:
                    stand_in[tensor].copy_(values)
            yield PoweredNetwork(network, stand_in, shifts)


def path_sum(network: nn.Module, x: Tensor) -> Float[Tensor, ""]:
    """Return the sum over outputs of the network with squared weights on an input of ones."""
    shape = tuple(x.shape[1:])
    with with_powered_weights(network, x, 2) as seen:
        with torch.no_grad():
            total = seen.sum_for_ones(shape)
        seen.check_homogeneous(shape)
    return total
