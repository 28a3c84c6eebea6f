"""Where the samples are in the tensors of a network's layers: in which dimension, and with how many rows each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, describe_value
from gapscope.inspection.hooks import copied_calls, unchanged
from gapscope.inspection.outputs import as_real, prepare_inputs

# Samples among which two with different inputs are searched.
_SEARCHED = 64
# Error up to which rows are those of a sample: relative to the largest value, for float32, and to the difference
# between the two samples, for values that were rounded more.
_ROUNDING, _OF_DIFFERENCE = 1e-3, 0.25


@dataclass(frozen=True)
class SampleLayout:
    """Place of n samples in a tensor.

    Attributes:
        dim: Dimension of the samples.
        per_sample: Rows of a sample in that dimension, such as its tokens: it holds n times as many.
        is_adjacent: Whether the rows of a sample follow each other; else row i + n j belongs to sample i.
    """

    dim: int = 0
    per_sample: int = 1
    is_adjacent: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the first dimension is that of the samples, with one row each."""
        return self.dim == 0 and self.per_sample == 1

    def rows_first(self, tensor: Tensor, n: int) -> Tensor:
        """Return the tensor with the dimension of the samples first.

        Args:
            tensor: A tensor of this layout.
            n: Number of samples.

        Raises:
            NotMeasurable: It has another number of rows.
        """
        if self.dim >= tensor.ndim or tensor.shape[self.dim] != n * self.per_sample:
            raise NotMeasurable(
                f"A layer must hold equally many rows of every sample; got {describe_value(tensor)} for {n} samples. "
                "Pad all samples to one length, or name other layers."
            )
        return tensor.transpose(0, self.dim)

    def grouped(self, rows: Tensor, n: int) -> Shaped[Tensor, "n ..."]:
        """Return rows, one or several per sample in the first dimension, by sample (see `by_sample`)."""
        if self.per_sample == 1:
            return rows
        if self.is_adjacent:
            return rows.unflatten(0, (n, self.per_sample))
        return rows.unflatten(0, (self.per_sample, n)).transpose(0, 1)

    def by_sample(self, tensor: Tensor, n: int) -> Shaped[Tensor, "n ..."]:
        """Return a tensor of n samples as [n, ...], or [n, rows of a sample, ...] if these are several."""
        return self.grouped(self.rows_first(tensor, n), n)

    def restored(self, values: Shaped[Tensor, "n ..."]) -> Tensor:
        """Return what `by_sample` returned in the layout that it had."""
        if self.per_sample > 1:
            if not self.is_adjacent:
                values = values.transpose(0, 1)
            values = values.flatten(0, 1)
        return values.transpose(0, self.dim)


def _errors(layout: SampleLayout, two: Tensor, three: Tensor) -> tuple[float, float]:
    """Return the largest difference between rows that should agree, and between those of different samples."""
    first = layout.by_sample(two, 2)
    second = layout.by_sample(three, 3)
    same = torch.maximum((second[:2] - first).abs().max(), (second[2] - first[1]).abs().max())
    return float(same), float((first[0] - first[1]).abs().max())


def layout_of(two: Any, three: Any) -> SampleLayout | None:
    """Return the layout of a layer, None if it is not certain.

    Args:
        two: Its tensor for two samples.
        three: That for the same samples, and the second once more.

    >>> a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    >>> layout_of(torch.cat([a, b]), torch.cat([a, b, b]))
    SampleLayout(dim=0, per_sample=2, is_adjacent=True)
    """
    if not isinstance(two, Tensor) or not isinstance(three, Tensor) or two.ndim != three.ndim:
        return None
    dims = [dim for dim in range(two.ndim) if two.shape[dim] != three.shape[dim]]
    if len(dims) != 1 or 3 * two.shape[dims[0]] != 2 * three.shape[dims[0]]:
        return None
    [dim] = dims
    rows = two.shape[dim] // 2
    layouts = [SampleLayout(dim, rows, is_adjacent) for is_adjacent in (True, False)[:rows]]
    if two.numel() == 0:
        return layouts[0] if rows == 1 else None
    two, three = (as_real(t).double().nan_to_num(0.0, 0.0, 0.0) for t in (two, three))
    found = {}
    for layout in layouts:
        error, difference = _errors(layout, two, three)
        if error <= max(_ROUNDING * float(two.abs().max()), _OF_DIFFERENCE * difference):
            found[layout] = error
    best, *others = sorted(found, key=lambda layout: found[layout]) or [None]
    # two samples of equal values fit both orders
    if best is not None and any(found[other] <= 4 * found[best] for other in others):
        return None
    return best


def _two_samples(x: Tensor) -> list[int]:
    """Return the numbers of two samples with different inputs, if the first ones have such."""
    others = (x[1:_SEARCHED] != x[:1]).flatten(1).any(1).nonzero()
    return [0, 1 + int(others[0]) if len(others) else 0]


def sample_layouts(
    network: nn.Module,
    x: Tensor,
    modules: Mapping[str, nn.Module],
    *,
    before: bool = False,
    select: Callable[[Any], Any] = unchanged,
) -> dict[str, SampleLayout | None]:
    """Return the layouts of the outputs of modules in a forward pass, None for those that are not certain.

    Modules that the pass does not call are omitted; of one that is called several times the last call counts. Two
    samples are passed together, then with the second once more: shapes tell the dimension and the rows per sample,
    values their order.

    Args:
        network: The network, in evaluation mode.
        x: Inputs [n, ...], one or more.
        modules: Modules by name.
        before: Whether to return the layouts of their inputs.
        select: As for `copied_calls`.
    """
    first, second = _two_samples(x)
    tensors: list[dict[str, Any]] = []
    for numbers in ([first, second], [first, second, second]):
        with copied_calls(modules, before=before, select=select) as calls, torch.no_grad():
            network(prepare_inputs(network, x[numbers]).clone())
        tensors.append({call.name: call.input if before else call.output for call in calls})
    two, three = tensors
    return {name: layout_of(two[name], three.get(name)) for name in two}


def certain_layouts(
    layouts: Mapping[str, SampleLayout | None], names: Iterable[str]
) -> dict[str, SampleLayout]:
    """Return the layouts of the named layers that were called.

    Args:
        layouts: What `sample_layouts` returned.
        names: Names of layers.

    Raises:
        NotMeasurable: One of them is not certain.
    """
    result = {}
    for name in names:
        if name not in layouts:
            continue
        layout = layouts[name]
        if layout is None:
            raise NotMeasurable(
                f"Layer '{name}' must hold the samples in one dimension, equally many rows of each, in an order that "
                "shows in its values; got others. Name other layers, or keep the samples in the first dimension."
            )
        result[name] = layout
    return result
