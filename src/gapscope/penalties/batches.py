"""Mini-batches of training loops: tensors, tuples or mappings of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.base.batches import LABEL_NAMES
from gapscope.base.errors import InvalidInput
from gapscope.base.input_checks import check_holds_numbers
from gapscope.base.input_layout import InputLayout, pack_inputs
from gapscope.base.targets import IGNORED, check_labels
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
from gapscope.inspection.counted_outputs import (
    counted_outputs,
    input_mask,
    mask_positions,
)
from gapscope.inspection.network_adapter import NetworkAdapter, call_network, class_axis
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.next_position import shifts_batch
from gapscope.inspection.outputs import raw_outputs


@dataclass(frozen=True)
class Batch:
    """Mini-batch with one tensor of inputs, and a network for it.

    With `shifted`, the targets are those of the next positions, without the first one.
    """

    network: nn.Module
    inputs: Tensor
    targets: Tensor | None
    shifted: bool = False

    def outputs_of(self, result: Any) -> Any:
        """Return the outputs [n, K] of the network's result, with outputs at positions flattened."""
        outputs = raw_outputs(result)
        if not isinstance(outputs, Tensor) or outputs.ndim == 2:
            return outputs
        if outputs.ndim < 2:
            return outputs.reshape(-1, 1)
        axis = 1
        if (
            self.targets is not None
            and self.targets.ndim > 1
            and not self.targets.is_floating_point()
        ):
            # the last position of a causal model has no label
            if self.shifted and outputs.shape[1] == self.targets.shape[1] + 1:
                outputs = outputs[:, :-1]
            axis = class_axis(outputs, self.targets)
        return outputs.movedim(axis, 1).flatten(1)

    def counted(self, result: Any, k: int) -> Tensor | None:
        """Return which outputs [n, k] of the pass count, by the labels or else the attention mask; None if all do.

        Args:
            result: Result of the network.
            k: Number of outputs per sample, as `outputs_of` returned them.
        """
        outputs = raw_outputs(result)
        targets = self.targets
        n = len(self.inputs)
        if targets is None:
            kept = input_mask(getattr(self.network, "form", None), self.inputs)
        elif targets.is_floating_point() or targets.dtype == torch.bool or targets.numel() % n:
            return None
        else:
            kept = targets.reshape(n, -1) != IGNORED
        if kept is None or outputs.ndim < 3:
            return None
        # the axis of the classes is known by labels on the positions; flattened ones are those of tokens
        positions = None
        if targets is None or targets.ndim == 1:
            positions = mask_positions(kept, outputs.shape)
        if positions is None and targets is not None:
            positions = kept[:, None]
        return counted_outputs(positions, k)

    def check_targets(self, result: Any) -> None:
        """Raise InvalidInput unless there is one target per sample, and class labels are those of the outputs.

        Flattened targets of positions may be as many as the outputs have positions.

        Args:
            result: Result of the network.

        Raises:
            InvalidInput: They are not.
        """
        targets = self.targets
        outputs = raw_outputs(result)
        if targets is None or not isinstance(outputs, Tensor) or not outputs.ndim:
            return
        n = len(self.inputs)
        n_targets = len(targets) if targets.ndim else 0
        per_class = {outputs.numel() // size for size in outputs.shape[1:] if size}
        is_flat = outputs.ndim > 2 and n_targets in per_class
        if n_targets not in (n, len(outputs)) and not is_flat:
            raise InvalidInput(
                f"The targets of a batch must be one per sample, {n}; got shape {list(targets.shape)}. Pass those of "
                "the same samples."
            )
        is_label = not targets.is_floating_point() and targets.dtype != torch.bool
        if is_label and targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] > 1:
            check_labels(targets, outputs.shape[1])


class BatchNetwork(NetworkAdapter):
    """Network for one mini-batch of several inputs.

    The first pass is the user's call, with labels and settings such as `return_dict` (`keywords`), and its result is
    stored. Later passes, which verify gradients, have no labels.
    """

    def __init__(
        self, network: nn.Module, layout: InputLayout, keywords: Mapping[str, Any]
    ) -> None:
        super().__init__(unwrapped(network), layout)
        # in a tuple, so that the wrapper is no submodule
        self._wrapped = (network,)
        self._keywords = dict(keywords)
        self.result: Any = None

    def forward(self, x: Tensor) -> Any:
        """Return the network's result."""
        assert self.form is not None
        if self.result is not None:
            return call_network(self.network, self.form, x)
        self.result = call_network(self._wrapped[0], self.form, x, self._keywords)
        return self.result


def data_parallel(network: nn.Module) -> DistributedDataParallel | None:
    """Return the network's wrapper for data-parallel training, if it has one."""
    if isinstance(network, BatchNetwork):
        wrapped = network._wrapped[0]
    else:
        wrapped = network
    return wrapped if isinstance(wrapped, DistributedDataParallel) else None


def _batch(network: nn.Module, x: Tensor, y: Tensor | None) -> Batch:
    """Return a mini-batch; its targets lack the first token where labels are those of the next position."""
    form = None
    bare = network
    if isinstance(network, NetworkAdapter):
        form = network.form
        bare = network.adapted_from
    shifted = shifts_batch(unwrapped(bare), y, x, form)
    if shifted and y is not None:
        y = y[:, 1:]
    return Batch(network, x, y, shifted)


def _prepare(tensor: Tensor) -> Tensor:
    """Return a tensor that autograd can save, or raise InvalidInput if it is empty."""
    check_holds_numbers(tensor)
    if tensor.ndim and len(tensor) == 0:
        raise InvalidInput(
            f"A batch must hold at least one sample; got {list(tensor.shape)}. Skip empty batches."
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return tensor.clone()
    return tensor


def as_batch(network: nn.Module, x: Any, y: Tensor | None) -> Batch:
    """Return a mini-batch from the arguments of `Penalty.forward_with_penalty`.

    Raises:
        InvalidInput: `x` is not a tensor, a mapping or a tuple of tensors, or `y` is no tensor.
    """
    if y is not None:
        if not isinstance(y, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"The targets of a batch must be a tensor; got {type(y).__name__}. Use torch.as_tensor(y)."
            )
        y = _prepare(y)
    if isinstance(x, Tensor):
        return _batch(network, _prepare(x), y)
    keywords: dict[str, Any] = {}
    inputs: Any = None
    if is_mapping(x):
        tensors = {
            str(key): value
            for key, value in x.items()
            if isinstance(value, Tensor) and value.ndim > 0
        }
        labels = [key for key in LABEL_NAMES if key in tensors]
        keywords = {
            str(key): value for key, value in x.items() if key not in tensors or key in labels
        }
        y = tensors[labels[0]] if y is None and labels else y
        inputs = {key: _prepare(value) for key, value in tensors.items() if key not in labels}
    elif is_list_or_tuple(x) and all(isinstance(part, Tensor) for part in x):
        inputs = [_prepare(part) for part in x]
    if not inputs:
        got = type(x).__name__
        raise InvalidInput(
            f"A batch must be a tensor, a mapping or a tuple of tensors; got {got}. Pass one of these."
        )
    packed, layout = pack_inputs(inputs)
    return _batch(BatchNetwork(network, layout, keywords), packed, y)
