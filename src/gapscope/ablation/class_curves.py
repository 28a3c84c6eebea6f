"""Accuracy per class along an ablation, and its margins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from gapscope.ablation.split import Activations, SplitNetwork, split_at
from gapscope.ablation.tails import choose_tail
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples, slices_of
from gapscope.inspection.execution import compute_distributed, processes
from gapscope.inspection.hooks import Weighted, capture_outputs, kind, module_named, record_module_calls
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import checked_outputs, prepare_inputs, samples_per_pass

ATTRIBUTES = ("mean_absolute_activation", "class_selectivity", "weight_norm", "random")
Attribute = str | Callable[[Float[Tensor, "s m *p"]], Float[Tensor, " m"]]


def mean_absolute_activation(values: Float[Tensor, "s m p"]) -> Float[Tensor, " m"]:
    r"""Return the mean absolute activation over samples and positions (Zhao et al., eq. 1).

    >>> mean_absolute_activation(torch.tensor([[[1.0, -3.0], [0.0, 1.0]]])).tolist()
    [2.0, 0.5]
    """
    return values.abs().mean(2, dtype=torch.float64).mean(0)


def class_selectivity(class_means: Float[Tensor, "c m"]) -> Float[Tensor, " m"]:
    r"""Compute the class selectivity of each unit (Morcos et al. 2018).

    $(\mu_{max} - \mu_{-max}) / (\mu_{max} + \mu_{-max})$: $\mu_{max}$ is the unit's largest mean activation over
    classes, $\mu_{-max}$ the mean of its means for the others; a unit that is never active has 0. In [0, 1] if
    activations are not negative.

    Raises:
        NotMeasurable: There is one class only.

    >>> class_selectivity(torch.tensor([[3.0, 1.0], [1.0, 1.0]])).tolist()
    [0.5, 0.0]
    """
    classes = len(class_means)
    if classes < 2:
        raise NotMeasurable(f"class_selectivity compares classes and needs at least 2; got samples of {classes}.")
    largest = class_means.amax(0)
    others = (class_means.sum(0) - largest) / (classes - 1)
    total = largest + others
    return torch.where(total == 0, 0, (largest - others) / torch.where(total == 0, 1, total))


def weight_norm(layer: nn.Module | None, label: str) -> Float[Tensor, " m"]:
    """Return each unit's L1 norm of incoming weights (Li et al. 2017)."""
    if layer is None:
        raise NotMeasurable(
            f"attribute='weight_norm' needs the layer with weights that computes the units of '{label}'; none was "
            "found. Pass a function attribute=lambda activations: scores."
        )
    return layer.weight.detach().double().flatten(1).abs().sum(1)  # type: ignore[union-attr]


def below_chance(curves: Float[Tensor, "c n"], n_classes: int) -> Bool[Tensor, "c n"]:
    """Return whether each accuracy is at or below 1 / n_classes (up to rounding)."""
    return curves <= 1 / n_classes + 1e-12


def turning_points(curves: Float[Tensor, "c n"], n_classes: int) -> Int[Tensor, " c"]:
    r"""Return the smallest number of removed units at which accuracy is at chance.

    $n_0 = \min\{n : E(n) \le 1/C\}$ (Zhao et al. 2022, eq. 2), or the first minimum of a curve that stays above.

    >>> turning_points(torch.tensor([[1.0, 0.5, 0.1, 0.0], [1.0, 0.9, 0.8, 0.8]]), 10).tolist()
    [2, 2]
    """
    at_chance = below_chance(curves, n_classes)
    return torch.where(at_chance.any(1), at_chance.long().argmax(1), curves.argmin(1))


def reversed_turning_points(curves: Float[Tensor, "c n"]) -> Int[Tensor, " c"]:
    r"""Return the number of removed units with the largest accuracy in reverse order, eq. 3.

    $\arg\max_{n < M} E_r(n)$, the last of several. With every unit removed the network predicts one constant class, for
    which E(M) is 1: that is no turning point.

    >>> reversed_turning_points(torch.tensor([[0.9, 1.0, 1.0, 1.0]])).tolist()
    [2]
    """
    return curves.shape[1] - 2 - curves[:, :-1].flip(1).argmax(1)


def areas(curves: Float[Tensor, "c n"], reversed_curves: Float[Tensor, "c n"]) -> Float[Tensor, " c"]:
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
    forward: Float[Tensor, "c n"]
    reverse: Float[Tensor, "c n"]


class _Ranking:
    """Ranking of the units of one layer per class."""

    def __init__(
        self,
        split: SplitNetwork,
        attribute: Attribute,
        generator: torch.Generator | None,
        per_class: Iterable[Activations],
    ) -> None:
        self.split, self.attribute = split, attribute
        self.generator = resolve_generator(generator, "unit ablation")
        if attribute == "class_selectivity":
            self.selectivity = class_selectivity(torch.stack([self._means(source) for source in per_class]))

    def _means(self, source: Activations) -> Float[Tensor, " m"]:
        return mean_absolute_activation(self.split.flatten_positions(source.values))

    def __call__(self, source: Activations) -> Int[Tensor, " m"]:
        """Return the units of one class in the order of removal."""
        scores = self._scores(source)
        units = source.values.shape[self.split.unit_axis]
        if scores.shape != (units,) or bool(scores.isnan().any()):
            raise InvalidInput(
                f"attribute must return one number, not NaN, for each of the {units} units of layer "
                f"'{self.split.label}'; got shape {list(scores.shape)}. Its argument is activations [n, units, ...]."
            )
        return scores.to(source.values.device).argsort(descending=True, stable=True)

    def _scores(self, source: Activations) -> Tensor:
        units = source.values.shape[self.split.unit_axis]
        if callable(self.attribute):
            return torch.as_tensor(self.attribute(source.values.movedim(self.split.unit_axis, 1)))
        if self.attribute == "class_selectivity":
            return self.selectivity
        if self.attribute == "weight_norm":
            return weight_norm(self.split.producer(units), self.split.label)
        if self.attribute == "random":
            device = self.generator.device
            return torch.randperm(units, generator=self.generator, device=device).double()
        return self._means(source)


@torch.no_grad()
def class_curves(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    layer: str | None,
    unit_axis: int | None,
    attribute: Attribute,
    chunk_size: int | None,
    generator: torch.Generator | None,
) -> ClassCurves:
    """Ablate the units of one layer cumulatively, per class and in both orders.

    The curves are exact, in float64 on the CPU. `layer` and `unit_axis` are those of `split_at`; `attribute` is the
    score by which units are ranked.
    """
    first = prepare_inputs(network, x[:2])
    split = split_at(network, first, layer, unit_axis)
    tail = choose_tail(split, first, chunk_size)
    rows = tail.rows_of(lambda: split.activations(first[:1]), first.device)
    classes = y.unique().tolist()

    def source(label: int) -> Activations:
        return split.all_activations(prepare_inputs(network, x[(y == label).to(x.device)]), rows)

    ranking = _Ranking(split, attribute, generator, (source(label) for label in classes))
    curves = []
    for label in classes:
        activations = source(label)
        predictions = tail.predictions(activations, ranking(activations))
        curves.append((predictions == label).double().mean(1).cpu())
    forward, reverse = torch.stack(curves, 1)
    counts = tuple(int((y == label).sum()) for label in classes)
    return ClassCurves(split.label, tuple(classes), counts, forward, reverse)


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


def boundary_distances(
    network: nn.Module, samples: Samples, layers: Sequence[str], *, epsilon: float, chunk_size: int | None
) -> tuple[Float[Tensor, "l n"], list[Float[Tensor, " d"]]]:
    """Return signed boundary distances at every layer, and each coordinate's variance over samples per layer.

    `layers` are names of modules, and "input". `epsilon` bounds the root of the squared gradient norm away from 0.
    Results are float64, on the CPU.
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
        targets = prepare_inputs(network, samples.targets[part])[:, None]  # type: ignore[index]
        difference = outputs.gather(1, targets)[:, 0] - outputs.scatter(1, targets, -torch.inf).amax(1)
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
