"""Networks split at one layer: its activations, and the outputs for changed activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from typing_extensions import override

from gapscope.ablation.layers import (
    TracedGraph,
    ancestors,
    crossing,
    default_module,
    default_site,
    extract_subgraph,
    trace,
    unit_axis_behind,
)
from gapscope.ablation.replay import (
    ReadRecorder,
    record_calls_before,
    replay_forwards,
)
from gapscope.base.errors import GapscopeError, InvalidInput, NotMeasurable, describe_value
from gapscope.base.samples import slices
from gapscope.inspection.hooks import capture_outputs, module_named, named_modules, patch_forwards
from gapscope.inspection.outputs import checked_outputs

Outputs = Float[Tensor, "r k"]
Indices = Int[Tensor, " r"]


@dataclass(frozen=True)
class Activations:
    """Activations of the split layer, with other values that the rest of the network needs."""

    values: Float[Tensor, "s ..."]
    context: tuple[Any, ...]  # values that bypass the layer on their way to the network's outputs
    # Kind of each: "rows" (one per sample), "unread" (rows of which only the shape is read; stored for one sample),
    # "count" or "size" (the number of samples, alone or leading a shape) or "constant".
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def context_rows(self, samples: Indices, used: Sequence[bool]) -> list[Any]:
        """Return the used context values for rows that belong to these samples."""
        triples = zip(self.context, self.kinds, used, strict=True)
        return [_rows(value, kind, samples) for value, kind, use in triples if use]


def _rows(value: Any, kind: str, samples: Tensor) -> Any:
    if kind == "rows":
        return value.index_select(0, samples)
    if kind == "unread":
        return value.expand(len(samples), *value.shape[1:])
    if kind == "count":
        return len(samples)
    if kind == "size":
        return torch.Size((len(samples), *value[1:]))
    return value


def _kind(one: Any, two: Any) -> str:
    """Return how a value scales with the number of samples, from its values for 1 and 2."""
    if isinstance(one, Tensor) and one.ndim and (len(one), len(two)) == (1, 2):
        return "rows"
    if isinstance(one, int) and (one, two) == (1, 2):
        return "count"
    if isinstance(one, torch.Size) and (*one[:1], *two[:1]) == (1, 2) and one[1:] == two[1:]:
        return "size"
    if torch.equal(one, two) if isinstance(one, Tensor) else one == two:
        return "constant"
    raise NotMeasurable(
        "A value that bypasses the layer must be constant or have one row per sample; it is neither."
    )


def _checked(label: str, values: Any, n: int) -> Tensor:
    """Return a layer's output, or raise NotMeasurable unless it is a tensor [n, units, ...]."""
    if (
        not isinstance(values, Tensor)
        or values.ndim < 2
        or len(values) != n
        or not values.is_floating_point()
    ):
        raise NotMeasurable(
            f"Layer '{label}' must return one floating-point tensor [n, units, ...] for n samples; got "
            f"{describe_value(values)}. Name another layer."
        )
    return values


def _checked_axis(label: str, values: Tensor, axis: int | None) -> int:
    if axis is None:
        raise NotMeasurable(
            f"Layer '{label}' returns {list(values.shape)}, and its unit axis is ambiguous; "
            "pass unit_axis=1 (channels first) or unit_axis=-1 (tokens with features)."
        )
    if not -values.ndim < axis < values.ndim or axis == 0:
        raise InvalidInput(
            f"unit_axis must name an axis of the layer's output other than the first; layer '{label}' returns "
            f"{list(values.shape)}, got {axis}."
        )
    return axis


class SplitNetwork(ABC):
    """Network split at one layer, whose units are axis `unit_axis` of its output."""

    label: str
    unit_axis: int

    @abstractmethod
    def activations(self, x: Tensor) -> Activations:
        """Return the activations of inputs x, from one forward pass up to the layer."""

    @abstractmethod
    def outputs(self, values: Tensor, source: Activations, samples: Indices) -> Outputs:
        """Return the network's outputs for changed activations `values` of these samples."""

    def all_activations(self, x: Tensor, rows: int) -> Activations:
        """Return the activations of all inputs, `rows` at a time."""
        parts = [self.activations(x[part]) for part in slices(len(x), rows)]
        context = [
            torch.cat([part.context[i] for part in parts])
            if kind == "rows"
            else parts[0].context[i]
            for i, kind in enumerate(parts[0].kinds)
        ]
        return Activations(
            torch.cat([part.values for part in parts]), tuple(context), parts[0].kinds
        )

    def flatten_positions(self, values: Tensor) -> Float[Tensor, "s m p"]:
        """Return the values as [samples, units, positions]."""
        if values.ndim > 2:
            return values.movedim(self.unit_axis, 1).flatten(2)
        return values.unsqueeze(-1)

    def masked(self, values: Tensor, active: Bool[Tensor, "r m"]) -> Tensor:
        """Return the values, multiplied by 0 for inactive units."""
        shape = [len(values)] + [1] * (values.ndim - 1)
        shape[self.unit_axis] = active.shape[1]
        return values * active.view(shape).to(values.dtype)


class HookedSplit(SplitNetwork):
    """Split by replacing a module's output: the whole network runs. Works for every network."""

    def __init__(self, network: nn.Module, layer: str, unit_axis: int) -> None:
        self.network = network
        self.label = layer
        self.unit_axis = unit_axis
        self.module = {layer: module_named(network, layer)}

    @override
    def activations(self, x: Tensor) -> Activations:
        with capture_outputs(self.module) as captured:
            self.network(x)
        if self.label not in captured:
            raise NotMeasurable(
                f"Layer '{self.label}' must take part in the forward pass; it was not called. Name another layer."
            )
        return Activations(_checked(self.label, captured[self.label], len(x)), (x,), ("rows",))

    @override
    def outputs(self, values: Tensor, source: Activations, samples: Indices) -> Outputs:
        (x,) = source.context_rows(samples, [True])
        with capture_outputs(self.module, replacement=values):
            return checked_outputs(self.network(x), len(samples))


class ReplayedSplit(HookedSplit):
    """Split by replaying outputs of earlier modules. Works for most untraceable networks."""

    def __init__(self, network: nn.Module, layer: str, unit_axis: int, x: Tensor) -> None:
        super().__init__(network, layer, unit_axis)
        # context values of one sample, and of the same sample twice: their shapes show how they scale
        _, one, self.modules, self.structure = self._record(x[:1])
        values, two, *_ = self._record(x[:1].expand(2, *x.shape[1:]).clone())
        with ReadRecorder() as read:
            self._outputs(values, two)

        def kind(a: Any, b: Any) -> str:
            scaling = _kind(a, b)
            if scaling == "rows" and b not in read:
                return "unread"
            return scaling

        self.kinds = tuple(kind(a, b) for a, b in zip(one, two, strict=True))

    def _record(self, x: Tensor) -> tuple[Tensor, list[Any], Any, Any]:
        """Return the layer's output, the context (inputs, earlier outputs), modules, structure."""
        with record_calls_before(self.network, self.module[self.label]) as calls:
            source = super().activations(x)
        values, structure = tree_flatten([output for _, output in calls])
        return source.values, [x, *values], [module for module, _ in calls], structure

    @override
    def activations(self, x: Tensor) -> Activations:
        values, context, modules, structure = self._record(x)
        if modules != self.modules or structure != self.structure:
            raise NotMeasurable(
                f"The network calls different modules before layer '{self.label}' for different samples; ablation "
                "needs the same calls for all. Name an earlier layer."
            )
        context = [
            v[:1].clone() if kind == "unread" else v
            for v, kind in zip(context, self.kinds, strict=True)
        ]
        return Activations(values, tuple(context), self.kinds)

    @override
    def outputs(self, values: Tensor, source: Activations, samples: Indices) -> Outputs:
        return self._outputs(values, source.context_rows(samples, [True] * len(self.kinds)))

    def _outputs(self, values: Tensor, context: list[Any]) -> Outputs:
        x, *earlier_outputs = context
        calls = zip(self.modules, tree_unflatten(earlier_outputs, self.structure), strict=True)
        functions = replay_forwards(list(calls)) | {
            self.module[self.label]: lambda *_, **__: values
        }
        with patch_forwards(functions), capture_outputs(self.module, replacement=values):
            return checked_outputs(self.network(x), len(values))


class TracedSplit(SplitNetwork):
    """Split of the traced operations: only operations after the layer run again."""

    def __init__(
        self, traced: TracedGraph, site: fx.Node, label: str, unit_axis: int | None, x: Tensor
    ) -> None:
        self.traced = traced
        self.site = site
        self.label = label
        self.crossing = crossing(traced, site)
        self.head, _ = extract_subgraph(traced, [traced.input], [site, *self.crossing])
        self.tail, (_, *self.uses) = extract_subgraph(
            traced, [site, *self.crossing], [traced.output]
        )
        # context values of one sample, and of the same sample twice: their shapes show how they scale
        values, *one = self.head(x[:1])
        _, *two = self.head(x[:1].expand(2, *x.shape[1:]))
        self.kinds = tuple(_kind(a, b) for a, b in zip(one, two, strict=True))
        default = unit_axis_behind(traced, site, _checked(self.label, values, 1).ndim)
        self.unit_axis = _checked_axis(
            self.label, values, default if unit_axis is None else unit_axis
        )

    @override
    def activations(self, x: Tensor) -> Activations:
        values, *context = self.head(x)
        return Activations(_checked(self.label, values, len(x)), tuple(context), self.kinds)

    @override
    def outputs(self, values: Tensor, source: Activations, samples: Indices) -> Outputs:
        (outputs,) = self.tail(values, *source.context_rows(samples, self.uses))
        return checked_outputs(outputs, len(samples))


def _same_outputs(network: nn.Module, split: SplitNetwork, x: Tensor) -> bool:
    """Return whether the split reproduces the network's outputs (with masked units)."""
    # samples in another number and order than in the recorded pass, the second and third with half of their units
    source = split.activations(x)
    samples = torch.tensor([0, 0, len(x) - 1], device=x.device)
    values = source.values[samples]
    hooked = None
    if split.label in named_modules(network):
        active = torch.ones(3, values.shape[split.unit_axis], dtype=torch.bool, device=x.device)
        active[1:, ::2] = False
        values = split.masked(values, active)
        hooked = HookedSplit(network, split.label, split.unit_axis)
    # The split runs first: a pass of the whole network may leave state in the modules that the split would use. The
    # values are cloned, because the network may change them in place.
    outputs = split.outputs(values.clone(), source, samples)
    unsplit = Activations(source.values, (x,), ("rows",))
    expected = network(x[samples]) if hooked is None else hooked.outputs(values, unsplit, samples)
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * expected.abs().max()
    return bool(((outputs - expected).abs() <= tolerance).all())


def _hooked_split(network: nn.Module, label: str, unit_axis: int | None, x: Tensor) -> HookedSplit:
    split = HookedSplit(network, label, 1 if unit_axis is None else unit_axis)
    values = split.activations(x).values
    _checked_axis(
        label, values, None if unit_axis is None and values.ndim == 3 else split.unit_axis
    )
    try:
        replayed = ReplayedSplit(network, label, split.unit_axis, x)
        if _same_outputs(network, replayed, x):
            return replayed
        return split
    except Exception:  # user code: modules may return or cache anything
        return split


def split_at(
    network: nn.Module, x: Tensor, layer: str | None, unit_axis: int | None
) -> SplitNetwork:
    """Split a network at a layer.

    Args:
        network: The network, in evaluation mode.
        x: Inputs [n, ...]; one or two samples where only shapes matter.
        layer: Name of a module, or label of an operation of the traced network; None for the default layer.
        unit_axis: Axis of the units in the layer's output; None derives it from the layers before.

    Returns:
        The fastest split that reproduces the network's outputs: of the traced operations, else by replaying outputs of
        modules before the layer, else by replacing the module's output in a pass of the whole network.

    Raises:
        InvalidInput: There is no such layer, or no such axis.
        NotMeasurable: The default layer or the axis is ambiguous, or the layer cannot be ablated or has no effect.
    """
    x = x[:2]
    traced = trace(network)
    if traced is None and layer is None:
        layer = default_module(network, x)
    site = traced and (default_site(traced) if layer is None else traced.find(layer))
    if traced and site and layer is None:
        label = traced.label(site)
    else:
        label = str(layer)
    if traced and site:
        if site not in ancestors([traced.output]):
            raise NotMeasurable(
                f"The outputs must depend on layer '{label}'; they do not. Name another layer."
            )
        try:
            split = TracedSplit(traced, site, label, unit_axis, x)
            if _same_outputs(network, split, x):
                return split
        except (RuntimeError, GapscopeError):
            pass  # sizes are constants of the trace, or the axis is ambiguous: the split below works or raises
    return _hooked_split(network, label, unit_axis, x)
