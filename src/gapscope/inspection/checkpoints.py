"""Checkpoints of torch, which hide parameters from autograd (reentrant ones), or run their part of a network again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import CheckpointFunction

from gapscope.base.errors import ReplaceLayer

REENTRANT = (
    "Got torch.utils.checkpoint with use_reentrant=True, which hides gradients inside the graph; they are needed. Call "
    "it with use_reentrant=False."
)


def _call_directly(function: Callable[..., Any], preserve_rng_state: bool, *arguments: Any) -> Any:
    return function(*arguments)


@contextmanager
def direct_checkpoints() -> Iterator[None]:
    """Call the functions of torch's reentrant checkpoints directly in the body.

    Values are the same. A reentrant checkpoint is one node in autograd's graph, without the parameters used inside; it
    has no node at all, and so no gradient, if none of its inputs needs one. Callers are in an `exclusive` body.
    """
    own = vars(CheckpointFunction).get("apply")  # that of an outer body
    CheckpointFunction.apply = _call_directly
    try:
        yield
    finally:
        if own is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = own


@contextmanager
def stored_activations() -> Iterator[None]:
    """Store the activations of non-reentrant checkpoints in the body.

    Otherwise a backward pass after the body would run their functions again, without the kernels, eager mode and hooks
    of the body. Second derivatives save no memory by it: their graph holds what was run again. Callers are in an
    `exclusive` body.
    """
    hook = torch_checkpoint._checkpoint_hook
    torch_checkpoint._checkpoint_hook = lambda frame: nullcontext()
    try:
        yield
    finally:
        torch_checkpoint._checkpoint_hook = hook


def graph_nodes(outputs: Tensor) -> Iterator[Node]:
    """Yield the nodes of autograd's graph of `outputs`, each once."""
    visited = set[Node]()
    waiting = [outputs.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def check_no_reentrant_checkpoint(outputs: Tensor) -> None:
    """Raise ReplaceLayer if the outputs' graph hides the parameters that it uses."""
    if any(node.name() == "CheckpointFunctionBackward" for node in graph_nodes(outputs)):
        raise ReplaceLayer(REENTRANT)
