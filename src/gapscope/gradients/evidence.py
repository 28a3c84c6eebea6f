"""Proof by autograd's graph that the rules of a recorded pass give the gradients of its samples.

A rule is right for a call if the node of its result is the operation of the layer's type, on the recorded input, with
the layer's own weights and settings. The rows of a pass are those of its samples if every node between the outputs and
these calls treats the samples one by one. The proof holds for all values of the weights, also where some are zero.
Whatever is not proven is compared with autograd (`gapscope.gradients.verification`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.gradients import rules
from gapscope.gradients.frozen_batch_stats import is_frozen_output
from gapscope.gradients.layer_rules import Call
from gapscope.gradients.rules import per_dimension
from gapscope.gradients.second_derivatives import bypassed, is_saved
from gapscope.inspection.substitution import NOTHING_SUBSTITUTED

Nodes = list[Any]

# Functions of single numbers, and of single images or positions: dimension 0 holds the samples before and after.
_BY_SAMPLE = frozenset(
    f"{name}Backward0"
    for name in (
        "AdaptiveAvgPool2D", "Add", "AvgPool2D", "Celu", "Elu", "Gelu", "Hardsigmoid", "Hardswish", "Hardtanh",
        "LeakyRelu", "MaskedFill", "MaxPool2DWithIndices", "Mish", "Mul", "Relu", "Sigmoid", "Silu", "Softplus", "Sub",
        "Tanh",
    )
)  # fmt: skip
_VIEWS = frozenset({"ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0"})


class _NotProven(Exception):
    """Exception for graphs, or calls, that the proof does not cover."""


def _require(*conditions: bool) -> None:
    if not all(conditions):
        raise _NotProven


def _before(node: Any) -> Nodes:
    return [following for following, _ in node.next_functions]


def _own(node: Any, call: Call, name: str) -> None:
    """Require a node to be that of the module's own weight or bias (or of none, or of a frozen one)."""
    parameter = call.parameters.get(name)
    if node is None or parameter is None:
        _require(node is None, parameter is None)
    else:
        _require(
            getattr(node, "variable", None) is parameter, getattr(call.module, name) is parameter
        )


def _input_of(node: Any, call: Call) -> Nodes:
    """Return the node of a layer's input, and require those of its weight and bias to be its own."""
    inputs, weight, bias = _before(node)
    _own(weight, call, "weight")
    _own(bias, call, "bias")
    return [inputs]


def _convolution(node: Any, call: Call) -> Nodes:
    module = call.module
    node = bypassed(node)
    _require(node is not None, call.rule is rules.convolution)
    _require(node.name() == "ConvolutionBackward0")
    _require(
        not node._saved_transposed,
        module.padding_mode == "zeros",
        not isinstance(module.padding, str),
    )
    _require(is_saved(node._saved_input, call.arguments[0]), node._saved_groups == module.groups)
    names = ("stride", "padding", "dilation")
    dimensions = call.arguments[0].ndim - 2
    _require(
        *(
            per_dimension(getattr(node, f"_saved_{name}"), dimensions)
            == per_dimension(getattr(module, name), dimensions)
            for name in names
        )
    )
    return _input_of(node, call)


def _linear(node: Any, call: Call) -> Nodes:
    _require(call.rule is rules.linear, call.arguments[0].ndim == 2)
    if node.name() == "AddmmBackward0":
        _require(
            node._saved_alpha == node._saved_beta == 1,
            is_saved(node._saved_mat1, call.arguments[0]),
        )
        bias, inputs, weight = _before(node)
    else:
        _require(node.name() == "MmBackward0")
        _require(is_saved(node._saved_self, call.arguments[0]))
        bias = None
        (inputs, weight) = _before(node)
    _require(weight is not None)
    _require(weight.name() == "TBackward0")
    _own(_before(weight)[0], call, "weight")
    _own(bias, call, "bias")
    return [inputs]


def _group_norm(node: Any, call: Call) -> Nodes:
    node = bypassed(node)
    _require(node is not None, call.rule is rules.group_norm)
    _require(node.name() == "NativeGroupNormBackward0")
    _require(node._saved_group == call.module.num_groups, node._saved_eps == call.module.eps)
    _require(is_saved(node._saved_input, call.arguments[0]))
    return _input_of(node, call)


def _batch_norm(node: Any, call: Call) -> Nodes:
    """Batch norm with its running statistics, or with constant statistics of the batch."""
    module = call.module
    _require(call.rule is rules.batch_norm)
    frozen = is_frozen_output(node)
    norm = _before(node)[0] if frozen else node
    _require(norm is not None)
    _require(norm.name() == "NativeBatchNormBackward0")
    _require(norm._saved_training is frozen, norm._saved_eps == module.eps)
    _require(is_saved(norm._saved_input, call.arguments[0]))
    if not frozen:
        statistics = (
            (norm._saved_running_mean, module.running_mean),
            (norm._saved_running_var, module.running_var),
        )
        _require(*(is_saved(*pair) for pair in statistics))
    before = _input_of(norm, call)
    if frozen:  # its derivative bypasses the statistics
        _require(_before(node)[1] is before[0])
    return before


_OF_TYPE: dict[type[nn.Module], Callable[[Any, Call], Nodes]] = {
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.Linear: _linear,
}


def _checked_call(node: Any, call: Call, n: int) -> Nodes:
    """Return the nodes before a call of which the rule is proven."""
    check = _OF_TYPE.get(type(call.module))
    _require(check is not None, len(call.outputs) == 1, len(call.arguments) == 1, not call.keywords)
    _require(
        call.sample_dim == 0, call.outputs[0].shape[0] == n, isinstance(call.arguments[0], Tensor)
    )
    _require(len(call.arguments[0]) == n)
    assert check is not None
    return check(node, call)


def _shape(node: Any, output: int = 0) -> Sequence[int]:
    return tuple(node._input_metadata[output].shape)


def _checked_operation(node: Any, n: int) -> Nodes:
    """Return the nodes before an operation that treats samples one by one."""
    name = node.name()
    shape = _shape(node)
    before = _before(node)
    _require(len(shape) > 1, shape[0] == n)
    shapes = [
        _shape(previous, output) for previous, output in node.next_functions if previous is not None
    ]
    _require(all(len(other) > 1 and other[0] == n for other in shapes))
    if name in ("AddBackward0", "MulBackward0", "SubBackward0"):
        _require(all(other == shape for other in shapes))
    elif name == "MeanBackward1":
        dims = {dim % 2**64 for dim in node._saved_dim}
        _require(
            bool(dims), all(dim not in (0, 2**64 - len(node._saved_self_sym_sizes)) for dim in dims)
        )
    else:
        _require(name in _BY_SAMPLE or name in _VIEWS)
    return before


def is_proven(tape: Any, outputs: Tensor) -> bool:
    """Return whether the graph of a recorded pass proves the rules of all its calls.

    Args:
        tape: The recorded pass.
        outputs: Its outputs [n, k].
    """
    if (
        tape.substituted is not NOTHING_SUBSTITUTED
        or tape.has_tensor_hooks
        or outputs.grad_fn is None
    ):
        return False
    calls = {call.outputs[0].edge.node: call for call in tape.calls}
    if len(calls) < len(tape.calls):
        return False
    leaves = {id(parameter) for parameter in tape.parameters.values()}
    visited = set[Any]()
    waiting: Nodes = [outputs.grad_fn]
    try:
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            if node in calls:
                waiting += _checked_call(node, calls[node], tape.n)
            elif node.name() == "torch::autograd::AccumulateGrad":
                _require(id(node.variable) not in leaves)
            else:
                waiting += _checked_operation(node, tape.n)
    except (_NotProven, RuntimeError, torch.OutOfMemoryError):
        return False
    return True
