"""Look at a network without leaving a trace."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.samples import slices
from gapscope.inspection.chunking import rows_per_pass

# Samples a pass beyond which a forward pass gets no faster, on CPUs and GPUs alike.
AT_MOST = 512
# Entries of inputs (or token ids) that are too few to be worth a trial.
_FEW_ENTRIES, _FEW_TOKENS = 2**18, 2**8


@contextmanager
def _global_random_states_restored() -> Iterator[None]:
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def _restore_buffers(network: nn.Module, saved: dict[str, tuple[Tensor, Tensor]]) -> None:
    for name, (buffer, copy) in saved.items():
        owner, _, leaf = name.rpartition(".")
        module = network.get_submodule(owner)
        if module._buffers.get(leaf) is not buffer:
            module._buffers[leaf] = buffer
        # batch norm writes its statistics without raising their version, so that contents are compared
        if not torch.equal(buffer, copy):
            buffer.copy_(copy)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def inspecting(network: nn.Module, *, mode: Literal["eval", "train"] = "eval") -> Iterator[nn.Module]:
    """Run the body with `network` in one mode and gradients on; restore everything afterwards.

    Restored: the training flag of every single module, all buffers, every `.grad` and `requires_grad`, the global
    random states of Python, NumPy and torch (CPU and CUDA). Inference mode is left and gradients are enabled inside.
    Parameters must not be written inside; that is checked by their version counters.

    Args:
        network: The network to look at.
        mode: "eval" (default) or "train" for all modules.

    Yields:
        The network itself.

    Raises:
        GapscopeError: The body changed a parameter in place.
    """
    modes = [(module, module.training) for module in network.modules()]
    parameters = [(p, p.grad, p.requires_grad, _version(p)) for p in network.parameters()]
    buffers = {name: (b, b.detach().clone()) for name, b in network.named_buffers()}
    try:
        with torch.inference_mode(False), torch.enable_grad(), _global_random_states_restored():
            for parameter, *_ in parameters:
                parameter.grad = None
            network.train(mode == "train")
            yield network
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            _restore_buffers(network, buffers)
        for parameter, gradient, requires_grad, _ in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
    if any(_version(parameter) != version for parameter, _, _, version in parameters):
        raise GapscopeError(
            "A measure must leave the weights as they are; they were changed in place. "
            "Use torch.func.functional_call with changed copies instead."
        )


def device_of(network: nn.Module) -> torch.device:
    """Device of the first parameter or buffer, CPU where there is none."""
    tensor = next(network.parameters(), None)
    tensor = next(network.buffers(), None) if tensor is None else tensor
    return torch.device("cpu") if tensor is None else tensor.device


def ready_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """Return `x` on the network's device as a tensor that autograd can use, or say what does not fit.

    Args:
        network: The network that will see `x`.
        x: Inputs [n, ...].

    Returns:
        The inputs, detached; a copy only where one is needed.

    Raises:
        InvalidInput: Inputs and weights have different floating-point types.
    """
    parameter = next(network.parameters(), None)
    if parameter is not None and x.is_floating_point() and parameter.dtype != x.dtype:
        raise InvalidInput(
            f"inputs and weights must have the same dtype; got {x.dtype} and {parameter.dtype}. "
            f"Use x.to({parameter.dtype}) or network.to({x.dtype})."
        )
    x = x.clone() if x.is_inference() else x.detach()
    return x.to(device_of(network))


def samples_per_pass(
    network: nn.Module,
    x: Tensor,
    chunk_size: int | None,
    *,
    one_pass: Callable[[Tensor], Any] | None = None,
    at_most: int = AT_MOST,
) -> int:
    """Return `chunk_size`, or where it is None as many samples as memory allows.

    A pass of the first sample alone shows how much memory a sample takes; few small inputs are spared that trial.

    Args:
        network: The network, in the mode in which it will run.
        x: Inputs [n, ...].
        chunk_size: What the caller asks for.
        one_pass: Does what a pass does to the first sample; None for a forward pass without gradients.
        at_most: The most samples a pass.

    Returns:
        Samples a pass: `at_most`, or the largest power of two below it that fits.
    """
    if chunk_size is not None:
        return chunk_size
    if x.numel() <= (_FEW_ENTRIES if x.is_floating_point() else _FEW_TOKENS):
        return at_most
    # a network may change its input in place
    first = ready_inputs(network, x[:1]).clone()

    def trial() -> Any:
        if one_pass is not None:
            return one_pass(first)
        with torch.no_grad():
            return network(first)

    return rows_per_pass(None, trial, first.device, at_most=at_most)


def network_outputs(network: nn.Module, x: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return the raw outputs [n, K] of a network in the mode it is in, without gradients, chunk by chunk.

    Args:
        network: The network.
        x: Inputs [n, ...].
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        Outputs [n, K] on the network's device.

    Raises:
        InvalidInput: The network does not return one row of K numbers a sample.
    """
    x = ready_inputs(network, x)
    chunk_size = samples_per_pass(network, x, chunk_size)
    with torch.no_grad():
        parts = [checked_outputs(network(x[part]), part.stop - part.start) for part in slices(len(x), chunk_size)]
    return torch.cat(parts)


def raw_outputs(result: Any) -> Any:
    """Return the tensor of outputs in what a network returned: itself, or what a mapping or object calls `logits`.

    Args:
        result: A tensor, a mapping with "logits" or "out" (transformers, torchvision), or an object with `logits`.

    Returns:
        The outputs; `result` itself where it is none of these.
    """
    if isinstance(result, Tensor | fx.Proxy):
        return result
    if isinstance(result, Mapping):
        return next((result[name] for name in ("logits", "out") if name in result), result)
    return getattr(result, "logits", result)


def checked_outputs(outputs: Any, n: int) -> Tensor:
    """Return `outputs` if it is a tensor [n, K] or holds one as `logits`, or say what to do.

    Args:
        outputs: What a network returned.
        n: Number of samples it was given.

    Returns:
        The outputs.

    Raises:
        InvalidInput: They are no [n, K] tensor.
    """
    outputs = raw_outputs(outputs)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InvalidInput(
            f"A network must return a tensor of shape [n, K] for n inputs, here [{n}, K]; got {got}. "
            "Wrap it in a module that returns its raw outputs (logits)."
        )
    return outputs


def check_labels(targets: Tensor, n_outputs: int) -> None:
    """Raise InvalidInput where a class label has no output."""
    if int(targets.max()) >= n_outputs:
        raise InvalidInput(
            f"Class labels must be smaller than the network's number of outputs, {n_outputs}; "
            f"got {int(targets.max())}. Build the network with more outputs or map the labels to 0..{n_outputs - 1}."
        )
