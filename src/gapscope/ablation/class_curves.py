"""Accuracy per class along an ablation, and its margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from gapscope.ablation.split import Activations, SplitNetwork, split_at
from gapscope.ablation.tails import choose_tail
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples, slices_of
from gapscope.inspection.execution import compute_distributed, processes
from gapscope.inspection.hooks import (
    Weighted,
    capture_outputs,
    kind,
    module_named,
    record_module_calls,
)
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import (
    BACKWARD_CHUNK_SIZE,
    checked_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.sample_layout import SampleLayout, certain_layouts, sample_layouts

Curves = Float[Tensor, "c n"]


def mean_absolute_activation(values: Float[Tensor, "s m p"]) -> Float[Tensor, " m"]:
    r"""Return the mean absolute activation over samples and positions (Zhao et al., eq. 1).

    >>> mean_absolute_activation(torch.tensor([[[1.0, -3.0], [0.0, 1.0]]])).tolist()
    [2.0, 0.5]
    """
    return values.abs().mean(2, dtype=torch.float64).mean(0)


def below_chance(curves: Curves, n_classes: int) -> Bool[Tensor, "c n"]:
    """Return whether each accuracy is at or below 1 / n_classes (up to rounding)."""
    return curves <= 1 / n_classes + 1e-12


def turning_points(curves: Curves, n_classes: int) -> Int[Tensor, " c"]:
    r"""Return the smallest number of removed units at which accuracy is at chance.

    $n_0 = \min\{n : E(n) \le 1/C\}$ (Zhao et al. 2022, eq. 2), or the first minimum of a curve that stays above.

    >>> turning_points(torch.tensor([[1.0, 0.5, 0.1, 0.0], [1.0, 0.9, 0.8, 0.8]]), 10).tolist()
    [2, 2]
    """
    at_chance = below_chance(curves, n_classes)
    return torch.where(at_chance.any(1), at_chance.long().argmax(1), curves.argmin(1))


def reversed_turning_points(curves: Curves) -> Int[Tensor, " c"]:
    r"""Return the number of removed units with the largest accuracy in reverse order, eq. 3.

    $\arg\max_{n < M} E_r(n)$, the last of several. Without any unit the network predicts one constant class, for which
    E(M) is 1: that is no turning point.

    >>> reversed_turning_points(torch.tensor([[0.9, 1.0, 1.0, 1.0]])).tolist()
    [2]
    """
    # argmax returns the first maximum: of the reversed curve n = M-1..0 this is the last
    return curves.shape[1] - 2 - curves[:, :-1].flip(1).argmax(1)


def areas(curves: Curves, reversed_curves: Curves) -> Float[Tensor, " c"]:
    r"""Return the area between the curves, $\frac1M \sum_n |E_r - E|$ (eq. 5).

    >>> areas(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])).tolist()
    [0.5]
    """
    return (reversed_curves - curves).abs().sum(1) / (curves.shape[1] - 1)


@dataclass(frozen=True, eq=False)
class ClassCurves:
    """Accuracy per class after removing n = 0..M units, in ranked and in reverse order."""

    layer: str
    classes: tuple[int, ...]
    counts: tuple[int, ...]
    forward: Curves
    reverse: Curves


def rank_units(split: SplitNetwork, source: Activations) -> Int[Tensor, " m"]:
    """Return the units of one class by descending mean absolute activation."""
    scores = mean_absolute_activation(split.flatten_positions(source.values))
    return scores.argsort(descending=True, stable=True)


@torch.no_grad()
def class_curves(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    layer: str | None,
    unit_axis: int | None,
    chunk_size: int | None,
) -> ClassCurves:
    """Ablate the units of one layer cumulatively, per class and in both orders.

    The curves are exact, in float64 on the CPU. `layer` and `unit_axis` are those of `split_at`.
    """
    first = prepare_inputs(network, x[:2])
    split = split_at(network, first, layer, unit_axis)
    tail = choose_tail(split, first, chunk_size)
    rows = tail.rows_of(lambda: split.activations(first[:1]), first.device)
    classes = y.unique().tolist()

    curves = []
    for label in classes:
        source = split.all_activations(prepare_inputs(network, x[(y == label).to(x.device)]), rows)
        predictions = tail.predictions(source, rank_units(split, source))
        curves.append((predictions == label).double().mean(1).cpu())
    forward, reverse = torch.stack(curves, 1)
    counts = tuple(int((y == label).sum()) for label in classes)
    return ClassCurves(split.label, tuple(classes), counts, forward, reverse)


def default_layers(network: nn.Module, x: Tensor) -> list[str]:
    """Return "input" and up to three hidden layers, at depths H/3, 2H/3 and H of H.

    A hidden layer is the output of a convolution or linear layer other than the last, or of the module with "norm" in
    its name that takes this output directly. Layers that are called twice are skipped.
    """
    calls = record_module_calls(network, x)
    weighted = [call for call in calls if isinstance(call.module, Weighted)][:-1]
    hidden = []
    for layer in weighted:
        norms = [c for c in calls if c.follows(layer) and "norm" in kind(type(c.module).__name__)]
        hidden.append(norms[0].name if norms else layer.name)
    names = [call.name for call in calls]
    hidden = [name for name in hidden if names.count(name) == 1]
    depths = {math.ceil(len(hidden) * third / 3) for third in (1, 2, 3)} - {0}
    return ["input", *(hidden[depth - 1] for depth in sorted(depths))]


def boundary_distances(
    network: nn.Module,
    samples: Samples,
    layers: Sequence[str],
    epsilon: float,
    chunk_size: int | None,
) -> tuple[Float[Tensor, "l n"], list[Float[Tensor, " d"]]]:
    """Return signed boundary distances and the variance of each coordinate, per layer.

    `layers` are names of modules, and "input". `epsilon` bounds the root of the squared gradient norm away from 0.
    Results are float64, on the CPU.
    """
    modules = {name: module_named(network, name) for name in layers if name != "input"}
    layouts = certain_layouts(sample_layouts(network, samples.inputs, modules), modules)
    layouts["input"] = SampleLayout()
    chunk_size = samples_per_pass(
        network, samples.inputs, chunk_size, one_pass=network, at_most=BACKWARD_CHUNK_SIZE
    )
    moments = {name: ChannelMoments() for name in layers}

    def distances_of(part: slice) -> Tensor:
        x = prepare_inputs(network, samples.inputs[part])
        x = x.detach().requires_grad_(x.is_floating_point())
        with capture_outputs(modules) as captured:
            # a network may change its input in place
            outputs = checked_outputs(network(x.clone()), len(x))
        captured["input"] = x
        # f_y - max_c f_c over the classes c other than y; divided by its gradient norm it is a distance, to first order
        targets = prepare_inputs(network, samples.y[part])[:, None]
        difference = outputs.gather(1, targets)[:, 0] - outputs.scatter(
            1, targets, -torch.inf
        ).amax(1)
        gradients = _gradients(difference, {name: captured.get(name) for name in layers})
        squares = []
        for name, gradient in zip(layers, gradients, strict=True):
            tensors = (gradient, captured[name])
            by_sample, values = (
                layouts[name].by_sample(each, len(x)).flatten(1) for each in tensors
            )
            squares.append(by_sample.double().square().sum(1))
            moments[name].update(values)
        return (difference.detach().double() / (epsilon + torch.stack(squares)).sqrt()).cpu()

    distances = compute_distributed(
        len(samples),
        lambda stretch: torch.cat([distances_of(p) for p in slices_of(stretch, chunk_size)], 1),
        dim=1,
    )
    if (among := processes(len(samples))) is not None:
        for name in layers:
            moments[name].join(among)
    return distances, [moments[name].variance.cpu() for name in layers]


def _gradients(difference: Float[Tensor, " n"], taps: dict[str, Tensor | None]) -> list[Tensor]:
    differentiable = {
        name: tap for name, tap in taps.items() if tap is not None and tap.requires_grad
    }
    by_layer: dict[str, Tensor | None] = {}
    if differentiable:
        gradients = torch.autograd.grad(
            difference.sum(), list(differentiable.values()), allow_unused=True
        )
        by_layer = dict(zip(differentiable, gradients, strict=True))
    for name in taps:
        if by_layer.get(name) is None:
            raise NotMeasurable(
                f"The outputs have no gradient at layer '{name}'; a margin needs one. Name other layers (for token ids "
                "as inputs without 'input')."
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
