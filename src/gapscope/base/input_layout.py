"""Input layouts: several inputs packed as one tensor, and unpacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class InputLayout:
    """Meaning of one tensor of inputs.

    Measures use one tensor with a row per sample. Several floating-point inputs of one type are concatenated in it;
    otherwise it has row numbers [n, 1] of the `columns`, which are stored separately. Row i is encoded as -1 - i: an
    embedding that is called with row numbers by mistake raises an error instead of reading them as tokens.

    Attributes:
        names: Keywords of the inputs; None if they are passed by position.
        columns: The inputs themselves, if the tensor holds row numbers.
        shapes: Shape of one sample of each input, if several are concatenated.
    """

    names: tuple[str, ...] | None = None
    columns: tuple[Tensor, ...] = ()
    shapes: tuple[torch.Size, ...] = ()

    def unpack(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs encoded in the rows of `x`, samples first.

        Args:
            x: Inputs as one tensor: concatenated rows [n, d], or row numbers [n, 1] of the columns.

        >>> form = InputLayout(("ids", "mask"), columns=(torch.tensor([[7], [8]]), torch.tensor([[1], [0]])))
        >>> [part.tolist() for part in form.unpack(torch.tensor([[-2]]))]
        [[[8]], [[0]]]
        """
        if self.columns:
            rows = -1 - x[:, 0]
            return tuple(column.to(x.device)[rows] for column in self.columns)
        if not self.shapes:
            return (x,)
        widths = [shape.numel() for shape in self.shapes]
        pairs = zip(torch.split(x, widths, dim=1), self.shapes, strict=True)
        return tuple(part.reshape(len(x), *shape) for part, shape in pairs)


def pack_inputs(inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> tuple[Tensor, InputLayout]:
    """Return one tensor [n, ...] that encodes several inputs, and its layout."""
    names = None
    if isinstance(inputs, Mapping):
        names = tuple(inputs)
        tensors = tuple(inputs.values())
    else:
        tensors = tuple(inputs)
    first = tensors[0]
    if len(tensors) == 1 and first.ndim > 1:
        return first, InputLayout(names)
    if first.is_floating_point() and len({tensor.dtype for tensor in tensors}) == 1:
        concatenated = torch.cat([tensor.reshape(len(first), -1) for tensor in tensors], dim=1)
        return concatenated, InputLayout(
            names, shapes=tuple(tensor.shape[1:] for tensor in tensors)
        )
    return -1 - torch.arange(len(first), device=first.device)[:, None], InputLayout(
        names, columns=tensors
    )
