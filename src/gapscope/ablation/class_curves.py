"""Accuracy curves of cumulative unit ablation per class."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.ablation.split import Activations, SplitNetwork, split_at
from gapscope.ablation.summed_tail import choose_tail
from gapscope.ablation.unit_order import Attribute, class_selectivity, mean_absolute_activation, rank_units, weight_norm
from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import resolve_generator
from gapscope.inspection.outputs import prepare_inputs


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
        return rank_units(scores.to(source.values.device))

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


def _tracked(classes: Sequence[int], progress: bool) -> Iterable[int]:
    if not (progress and sys.stderr.isatty()):
        return classes
    from rich.console import Console
    from rich.progress import track

    return track(classes, "Ablating units, class by class", console=Console(stderr=True))


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
    progress: bool,
) -> ClassCurves:
    """Ablate the units of one layer cumulatively, per class and in both orders.

    Args:
        layer: Name of the layer, None for the default one.
        unit_axis: Axis of the layer's output that counts units, None to find it.
        attribute: Score by which the units are ranked.
        progress: Whether a terminal shows a bar.

    Returns:
        The curves, exact, in float64 on the CPU.
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
    for label in _tracked(classes, progress):
        activations = source(label)
        predictions = tail.predictions(activations, ranking(activations))
        curves.append((predictions == label).double().mean(1).cpu())
    forward, reverse = torch.stack(curves, 1)
    counts = tuple(int((y == label).sum()) for label in classes)
    return ClassCurves(split.label, tuple(classes), counts, forward, reverse)
