"""Mini-batches of training loops: tensors, several inputs, or mappings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.base.containers import LABEL_NAMES
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import InputLayout, check_holds_numbers, pack_inputs
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
from gapscope.inspection.network_adapter import NetworkAdapter, call_network, class_axis, is_causal
from gapscope.inspection.outputs import raw_outputs, unwrapped


@dataclass(frozen=True)
class Batch:
    """Mini-batch for penalties: one tensor of inputs, and a network that takes it."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor | None

    def outputs_of(self, result: Any) -> Any:
        """Read the outputs [n, K] from the network's result (outputs at positions are flattened)."""
        outputs = raw_outputs(result)
        if not isinstance(outputs, Tensor) or outputs.ndim == 2:
            return outputs
        if outputs.ndim < 2:
            return outputs.reshape(-1, 1)
        positions = self.targets is not None and self.targets.ndim > 1 and not self.targets.is_floating_point()
        axis = 1
        if positions and self.targets is not None:
            causal = is_causal(unwrapped(getattr(self.network, "adapted_from", self.network)))
            outputs = outputs[:, :-1] if causal and outputs.shape[1] == self.targets.shape[1] + 1 else outputs
            axis = class_axis(outputs, self.targets)
        return outputs.movedim(axis, 1).flatten(1)


class BatchNetwork(NetworkAdapter):
    """Network on one mini-batch of several inputs.

    The first pass, shared with the loss, is the user's own call, with labels and settings such as `return_dict`
    (`others`); its result is stored. Passes that verify gradients are called without labels.
    """

    def __init__(self, network: nn.Module, layout: InputLayout, others: Mapping[str, Any]) -> None:
        super().__init__(unwrapped(network), layout)
        self._called, self._others = (network,), dict(others)
        self.result: Any = None

    def forward(self, x: Tensor) -> Any:
        """Return the network's result."""
        assert self.form is not None
        if self.result is not None:
            return call_network(self.network, self.form, x)
        self.result = call_network(self._called[0], self.form, x, self._others)
        return self.result


def data_parallel(network: nn.Module) -> DistributedDataParallel | None:
    """Return the network's wrapper for data-parallel training, if it has one."""
    called = network._called[0] if isinstance(network, BatchNetwork) else network
    return called if isinstance(called, DistributedDataParallel) else None


def _shifted(network: nn.Module, targets: Tensor | None) -> Tensor | None:
    """Shift targets for causal language models, which predict the next token."""
    if targets is None or targets.is_floating_point() or targets.ndim < 2 or not is_causal(unwrapped(network)):
        return targets
    return targets[:, 1:]


def _usable(tensor: Tensor) -> Tensor:
    """Return a non-empty tensor with values that autograd can save."""
    check_holds_numbers(tensor)
    if tensor.ndim and len(tensor) == 0:
        raise InvalidInput(f"A batch must hold at least one sample; got {list(tensor.shape)}. Leave empty batches out.")
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def as_batch(network: nn.Module, x: Any, y: Tensor | None) -> Batch:
    """Return a mini-batch in the form that penalties take.

    `x` is a tensor, a mapping of keywords (possibly with labels), or a tuple of tensors. Without `y` the labels of the
    mapping are the targets.

    Raises:
        InvalidInput: `x` has another form.
    """
    y = _usable(y) if isinstance(y, Tensor) else y
    if isinstance(x, Tensor):
        return Batch(network, _usable(x), _shifted(network, y))
    others: dict[str, Any] = {}
    if is_mapping(x):
        tensors = {str(key): value for key, value in x.items() if isinstance(value, Tensor) and value.ndim > 0}
        labels = [key for key in LABEL_NAMES if key in tensors]
        others = {str(key): value for key, value in x.items() if key not in tensors or key in labels}
        y = tensors[labels[0]] if y is None and labels else y
        inputs: Any = {key: value for key, value in tensors.items() if key not in labels}
    else:
        inputs = x if is_list_or_tuple(x) and all(isinstance(part, Tensor) for part in x) else None
    if not inputs:
        raise InvalidInput(
            f"A batch must be a tensor, a mapping of tensors or a tuple of tensors; got {type(x).__name__}. Pass the "
            "batch as the network takes it."
        )
    if is_mapping(inputs):
        packed, layout = pack_inputs({str(key): _usable(part) for key, part in inputs.items()})
    else:
        packed, layout = pack_inputs([_usable(part) for part in inputs])
    return Batch(BatchNetwork(network, layout, others), packed, _shifted(network, y))
