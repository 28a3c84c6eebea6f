"""First-order distances of samples to the nearest class boundary at input and layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples, slices_of
from gapscope.inspection.distributed import compute_distributed, processes
from gapscope.inspection.hooks import Weighted, capture_outputs, kind, module_named, record_module_calls
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import checked_outputs, prepare_inputs, samples_per_pass


def default_layers(network: nn.Module, x: Tensor) -> list[str]:
    """Return "input" and up to three hidden layers, at depths H/3, 2H/3 and H of H.

    A hidden layer is what a convolution or linear layer other than the last returns, behind its normalization if a
    module with "norm" in its name takes it directly; layers that are called twice are passed over.
    """
    made = record_module_calls(network, x)
    weighted = [call for call in made if isinstance(call.module, Weighted)][:-1]
    hidden = []
    for layer in weighted:
        norms = [c for c in made if c.input is layer.output and "norm" in kind(type(c.module).__name__)]
        hidden.append(norms[0].name if norms else layer.name)
    names = [call.name for call in made]
    hidden = [name for name in hidden if names.count(name) == 1]
    depths = {math.ceil(len(hidden) * third / 3) for third in (1, 2, 3)} - {0}
    return ["input", *(hidden[depth - 1] for depth in sorted(depths))]


def boundary_distances_with_variances(
    network: nn.Module,
    samples: Samples,
    layers: Sequence[str],
    *,
    epsilon: float,
    chunk_size: int | None,
) -> tuple[Float[Tensor, "l n"], list[Float[Tensor, " d"]]]:
    """Return signed boundary distances at every layer, and the variances of coordinates.

    `layers` are names of modules, and "input". `epsilon` bounds the root of the squared gradient norm away from 0.
    Variances are those over samples, per layer and coordinate. Results are float64, on the CPU.
    """
    modules = {name: module_named(network, name) for name in layers if name != "input"}
    chunk_size = samples_per_pass(network, samples.inputs, chunk_size, one_pass=network, at_most=256)
    moments = {name: ChannelMoments() for name in layers}

    def of(part: slice) -> Tensor:
        x = prepare_inputs(network, samples.inputs[part])
        x = x.detach().requires_grad_(x.is_floating_point())
        with capture_outputs(modules) as seen:
            outputs = checked_outputs(network(x.clone()), len(x))  # a network may change its input in place
        seen["input"] = x
        difference = _difference(outputs, prepare_inputs(network, samples.targets[part]))  # type: ignore[index]
        gradients = _gradients(difference, {name: seen.get(name) for name in layers})
        squares = torch.stack([gradient.double().flatten(1).square().sum(1) for gradient in gradients])
        for name in layers:
            moments[name].update(seen[name].flatten(1))
        return (difference.detach().double() / (epsilon + squares).sqrt()).cpu()

    distances = compute_distributed(
        len(samples), lambda stretch: torch.cat([of(p) for p in slices_of(stretch, chunk_size)], 1), dim=1
    )
    if (among := processes(len(samples))) is not None:
        for name in layers:
            moments[name].join(among)
    return distances, [moments[name].variance.cpu() for name in layers]


def boundary_distances(
    network: nn.Module,
    samples: Samples,
    layers: Sequence[str],
    *,
    epsilon: float,
    chunk_size: int | None,
) -> tuple[Float[Tensor, "l n"], Float[Tensor, " l"]]:
    """Return signed boundary distances at every layer, and the layers' total variations.

    A total variation is the sum over coordinates of their variance over samples. Arguments are those of
    `boundary_distances_with_variances`.
    """
    distances, variances = boundary_distances_with_variances(
        network, samples, layers, epsilon=epsilon, chunk_size=chunk_size
    )
    return distances, torch.stack([variance.sum() for variance in variances])


def _difference(outputs: Float[Tensor, "n k"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the output of the true class minus the largest other one."""
    right = outputs.gather(1, targets[:, None])
    others = outputs.scatter(1, targets[:, None], -torch.inf)
    return right[:, 0] - others.amax(1)


def _gradients(difference: Float[Tensor, " n"], taps: dict[str, Tensor | None]) -> list[Tensor]:
    differentiable = {name: tap for name, tap in taps.items() if tap is not None and tap.requires_grad}
    by_layer: dict[str, Tensor | None] = {}
    if differentiable:
        gradients = torch.autograd.grad(difference.sum(), list(differentiable.values()), allow_unused=True)
        by_layer = dict(zip(differentiable, gradients, strict=True))
    for name in taps:
        if by_layer.get(name) is None:
            raise NotMeasurable(
                f"A margin at layer '{name}' needs outputs that depend on that layer differentiably; they do not. "
                "Name other layers (token ids as inputs need layers= without 'input')."
            )
    return [gradient for gradient in by_layer.values() if gradient is not None]


def quartile_features(margins: Float[Tensor, "l c"]) -> Float[Tensor, "l 5"]:
    """Return lower fence, quartiles and upper fence (extremes within 1.5 IQR) of each row."""
    quartiles = torch.quantile(margins, torch.tensor([0.25, 0.5, 0.75], dtype=margins.dtype), dim=1)
    first, _, third = quartiles[..., None]
    reach = 1.5 * (third - first)
    lower = margins.where(margins >= first - reach, torch.inf).amin(1)
    upper = margins.where(margins <= third + reach, -torch.inf).amax(1)
    return torch.stack([lower, *quartiles, upper], 1)


def moment_features(margins: Float[Tensor, "l c"]) -> Float[Tensor, "l 5"]:
    """Return (mean of n-th powers)^(1/n) of each row, n = 1..5."""
    return torch.stack([margins.pow(order).mean(1).pow(1 / order) for order in range(1, 6)], 1)
