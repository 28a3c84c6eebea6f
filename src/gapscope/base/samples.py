"""Samples: inputs with targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gapscope.base.containers import collate_data
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.targets import IGNORED, check_targets, parse_targets, require_targets


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
    names = tuple(inputs) if isinstance(inputs, Mapping) else None
    tensors = tuple(inputs.values()) if isinstance(inputs, Mapping) else tuple(inputs)
    first = tensors[0]
    if len(tensors) == 1 and first.ndim > 1:
        return first, InputLayout(names)
    if first.is_floating_point() and len({tensor.dtype for tensor in tensors}) == 1:
        concatenated = torch.cat([tensor.reshape(len(first), -1) for tensor in tensors], dim=1)
        return concatenated, InputLayout(names, shapes=tuple(tensor.shape[1:] for tensor in tensors))
    return -1 - torch.arange(len(first), device=first.device)[:, None], InputLayout(names, columns=tensors)


@dataclass(frozen=True)
class Samples:
    """Checked inputs with their targets.

    Attributes:
        inputs: [n, ...], floating point or token ids (int64).
        targets: Class labels [n] (int64), class labels of positions [n, ...] (int64, -100 where there is none),
            regression targets [n, K], or None.
        form: Layout of `inputs` if the network takes keywords or several tensors; None for `network(inputs)`.
        notes: Notes about omitted data and their interpretation.
        class_names: Names of the classes, if labels were strings or categories.
    """

    inputs: Tensor
    targets: Tensor | None = None
    form: InputLayout | None = None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        if self.targets is not None:
            check_same_length("inputs", len(self.inputs), "targets", len(self.targets))
            check_targets(self.targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        targets = "no targets" if self.targets is None else f"targets {list(self.targets.shape)} {self.targets.dtype}"
        return f"Samples({len(self)} samples, inputs {list(self.inputs.shape)} {self.inputs.dtype}, {targets})"

    def subset(self, indices: Tensor) -> Samples:
        """Return the samples at `indices`, in that order."""
        targets = None if self.targets is None else self.targets[indices]
        return replace(self, inputs=self.inputs[indices], targets=targets)

    def first(self, n: int | None) -> Samples:
        """Return the first `n` samples (None for all)."""
        return self if n is None or n >= len(self) else self.subset(torch.arange(n))

    @property
    def y(self) -> Tensor:
        """The targets, or InvalidInput if there are none."""
        return require_targets(self.targets)

    @property
    def is_classification(self) -> bool:
        """True for class labels, one per sample."""
        return self.targets is not None and not self.targets.is_floating_point() and self.targets.ndim == 1

    @property
    def is_dense(self) -> bool:
        """True for class labels of positions (pixels, tokens)."""
        return self.targets is not None and not self.targets.is_floating_point() and self.targets.ndim > 1


def _check_inputs(inputs: Any) -> None:
    if not isinstance(inputs, Tensor):
        raise InvalidInput(f"inputs must be a tensor; got {type(inputs).__name__}. Use torch.as_tensor(inputs).")
    if inputs.ndim < 2:
        raise InvalidInput(
            f"inputs must have shape [n, ...] with one row per sample; got {list(inputs.shape)}. "
            "For a single sample use x[None]."
        )
    if len(inputs) == 0:
        raise InvalidInput("inputs must hold at least one sample; got an empty tensor.")
    if inputs.dtype == torch.bool:
        raise InvalidInput("inputs must be floating point (or int64 token ids); got torch.bool. Use x.float().")
    _check_values(inputs)


def has_finite_sum(tensor: Tensor) -> bool:
    """Return whether the sum is finite, without temporaries (large sums may overflow)."""
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.detach().sum().isfinite())


def check_holds_numbers(inputs: Tensor) -> None:
    """Raise InvalidInput for inputs on the meta device."""
    if inputs.is_meta:
        raise InvalidInput("inputs must hold numbers; got tensors on the meta device, which have none. Load the data.")


def _check_values(inputs: Tensor) -> None:
    check_holds_numbers(inputs)
    if inputs.is_floating_point() and not has_finite_sum(inputs):
        n_invalid = int((~torch.isfinite(inputs)).reshape(len(inputs), -1).any(1).sum())
        if n_invalid:
            raise InvalidInput(
                f"inputs must be finite; {n_invalid} of {len(inputs)} samples hold NaN or infinity. Drop or impute: "
                "x = sklearn.impute.SimpleImputer().fit_transform(x)."
            )
    elif not inputs.is_floating_point() and inputs.dtype not in (torch.int64, torch.int32, torch.bool):
        raise InvalidInput(
            f"inputs must be floating point (or int64 token ids); got {inputs.dtype}. "
            "Convert images with x.float() / 255."
        )


def as_samples(data: Any, *, at_most: int | None = None) -> Samples:
    """Return Samples from data in any common form (omitted data are noted).

    Accepted: a tensor x or a pair (x, y) whose x is a tensor, a numpy array, a DataFrame, a tuple of them or a mapping
    (such as a BatchEncoding) of them; a mapping of inputs with `labels`; a torch Dataset or DataLoader that yields any
    of these; a `datasets.Dataset`; Samples. Labels may be any integers, samples with the label -100 are omitted, and
    labels with a number per position (pixels, tokens) keep -100 for positions that do not count. Float targets [n] are
    regression targets [n, 1], unless all are 0.0 or 1.0: these are two classes. A DataLoader is read until it has
    yielded `at_most` samples.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable.
    """
    if isinstance(data, Samples):
        return data
    collated = collate_data(data, at_most)
    inputs, form, notes = collated.inputs, None, list(collated.notes)
    if not isinstance(inputs, Tensor):
        for part in inputs.values() if isinstance(inputs, dict) else inputs:
            _check_values(part)
        inputs, form = pack_inputs(inputs)
    targets = None if collated.targets is None else parse_targets(collated.targets, notes)
    if targets is not None and targets.ndim == 1 and not targets.is_floating_point():
        is_labelled = targets != IGNORED
        if len(is_labelled) == len(inputs) and bool(is_labelled.any()) and not bool(is_labelled.all()):
            notes.append(
                f"{int((~is_labelled).sum())} of {len(is_labelled)} samples have the label -100 and are ignored."
            )
            inputs, targets = inputs[is_labelled], targets[is_labelled]
    return Samples(inputs, targets, form, tuple(notes), collated.class_names)


def slices(n: int, chunk_size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `chunk_size` that cover range(n)."""
    if chunk_size < 1:
        raise InvalidInput(f"chunk_size must be at least 1; got {chunk_size}.")
    for start in range(0, n, chunk_size):
        yield slice(start, min(start + chunk_size, n))


def slices_of(stretch: slice, chunk_size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `chunk_size` that cover a range of rows."""
    for part in slices(stretch.stop - stretch.start, chunk_size):
        yield slice(stretch.start + part.start, stretch.start + part.stop)
