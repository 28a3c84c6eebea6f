"""Look at a network without leaving a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gapscope.base.errors import GapscopeError, InvalidInput, ReplaceLayer
from gapscope.base.samples import slices
from gapscope.inspection.checks import (
    check_finite,
    check_holds_numbers,
    check_hookable,
    check_materialized,
    check_module,
    dtype_mismatch_message,
)
from gapscope.inspection.chunking import rows_per_pass
from gapscope.inspection.distributed import compute_distributed
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.threads import SharedContext, network_lock

# Samples per pass beyond which a forward pass gets no faster, on CPUs and GPUs alike.
MAX_SAMPLES_PER_PASS = 512
# Entries of inputs (or token ids) that are too few to be worth a trial; of a large network hardly any are.
_FEW_ENTRIES, _FEW_TOKENS = 2**18, 2**8
_LARGE, _FEW_ENTRIES_OF_LARGE = 2**20, 2**14


_REENTRANT = (
    "A network's gradients must be readable in the middle of its graph; torch.utils.checkpoint was called with "
    "use_reentrant=True, which forbids that. Call it with use_reentrant=False."
)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def unwrapped(network: nn.Module) -> nn.Module:
    """Return the network inside wrappers: those of `torch.compile`, DistributedDataParallel and DataParallel.

    The modules inside `torch.compile`'s wrapper are the network's own, under their own names and with their hooks.

    Args:
        network: The network.

    Returns:
        The network itself.

    Raises:
        InvalidInput: It is no module.
    """
    check_module(network)
    while True:
        # those of a script module are no dict
        inner = dict(vars(network).get("_modules", {}).items()).get("_orig_mod")
        if isinstance(network, DistributedDataParallel | DataParallel):
            inner = network.module
        if not isinstance(inner, nn.Module):
            return network
        network = inner


_EAGER = SharedContext(lambda: torch.compiler.set_stance("force_eager"))


def eager_mode() -> AbstractContextManager[None]:
    """Run what `torch.compile` has compiled eagerly in the body, with all hooks; nothing where nothing is compiled."""
    return _EAGER.entered() if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def explain_torch_errors() -> Iterator[None]:
    """Turn what torch raises of inputs of a wrong type, and of derivatives that it cannot take, into one sentence."""
    try:
        yield
    except RuntimeError as error:
        if said := dtype_mismatch_message(error):
            raise InvalidInput(said) from error
        if "use_reentrant" not in str(error):
            raise
        raise ReplaceLayer(_REENTRANT) from error


def check_no_reentrant_checkpoint(outputs: Tensor) -> None:
    """Raise ReplaceLayer where a part of the graph of some outputs hides the parameters that it uses."""
    seen, left = set(), [outputs.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise ReplaceLayer(_REENTRANT)
        seen.add(node)
        left += [following for following, _ in node.next_functions]


@contextmanager
def inspection_mode(network: nn.Module, *, mode: Literal["eval", "train"] = "eval") -> Iterator[nn.Module]:
    """Run the body with `network` in one mode and gradients on; restore everything afterwards.

    Restored: every attribute of every single module (its training flag, parameters and buffers by identity, hooks),
    the values of all buffers, every `.grad` and `requires_grad`, the global random states of Python, NumPy and torch
    (CPU and CUDA). Inference mode is left and gradients are enabled inside; compiled networks run eagerly, so that
    hooks see them. Parameters must not be written inside; that is checked by their version counters.

    Args:
        network: The network to look at.
        mode: "eval" (default) or "train" for all modules.

    Yields:
        The network itself, without the wrappers of `torch.compile` and of data-parallel training.

    Raises:
        GapscopeError: The body changed a parameter in place.
    """
    network = unwrapped(network)
    check_hookable(network)
    check_materialized(network)
    with network_lock(network), _restored(network, mode) as network:
        yield network


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Compute in the network's own precision, also within the caller's `torch.autocast`."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _restored(network: nn.Module, mode: Literal["eval", "train"]) -> Iterator[nn.Module]:
    modes = [(module, module.training) for module in network.modules()]
    parameters = [(p, p.grad, p.requires_grad, _version(p)) for p in network.parameters()]
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            _without_autocast(),
            preserve_state(network, own_draws=mode == "train"),
            eager_mode(),
            explain_torch_errors(),
        ):
            for parameter, *_ in parameters:
                parameter.grad = None
            network.train(mode == "train")
            yield network
    finally:
        for module, training in modes:
            module.training = training
        for parameter, gradient, requires_grad, _ in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
    if any(_version(parameter) != version for parameter, _, _, version in parameters):
        raise GapscopeError(
            "A measure must leave the weights as they are; they were changed in place. "
            "Use torch.func.functional_call with changed copies instead."
        )


@contextmanager
def measurement_mode(network: nn.Module, *, mode: Literal["eval", "train"] = "eval") -> Iterator[nn.Module]:
    """As `inspecting`, for numbers that somebody reads: weights that are not finite are refused, in one sentence.

    Args:
        network: The network to measure.
        mode: As for `inspecting`.

    Yields:
        As `inspecting`.
    """
    with inspection_mode(network, mode=mode) as network:
        check_finite(network)
        yield network


def device_of(network: nn.Module) -> torch.device:
    """Device of the first parameter or buffer, CPU where there is none."""
    tensor = next(network.parameters(), None)
    tensor = next(network.buffers(), None) if tensor is None else tensor
    return torch.device("cpu") if tensor is None else tensor.device


def prepare_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """Return `x` on the network's device as a tensor that autograd can use, or say what does not fit.

    Args:
        network: The network that will see `x`.
        x: Inputs [n, ...].

    Returns:
        The inputs, detached; a copy only where one is needed.

    Raises:
        InvalidInput: Inputs and weights have different floating-point types, or the inputs hold no numbers.
    """
    floating = (p.dtype.to_real() for p in network.parameters() if p.is_floating_point() or p.is_complex())
    dtype = next(floating, None)
    check_holds_numbers(x)
    if dtype is not None and (x.is_floating_point() or x.is_complex()) and dtype != x.dtype.to_real():
        raise InvalidInput(
            f"inputs and weights must have the same dtype; got {x.dtype} and {dtype}. "
            f"Use x.to({dtype}) or network.to({x.dtype.to_real()})."
        )
    x = x.clone() if x.is_inference() else x.detach()
    return x.to(device_of(network))


def _are_few(network: nn.Module, x: Tensor) -> bool:
    """Whether inputs are too few to be worth a trial; one whole number a sample may stand for a sentence or more."""
    if x.is_floating_point():
        large = x.numel() > _FEW_ENTRIES_OF_LARGE and sum(p.numel() for p in network.parameters()) > _LARGE
        return x.numel() <= (_FEW_ENTRIES_OF_LARGE if large else _FEW_ENTRIES)
    return x.numel() <= _FEW_TOKENS and x[0].numel() > 1


def samples_per_pass(
    network: nn.Module,
    x: Tensor,
    chunk_size: int | None,
    *,
    one_pass: Callable[[Tensor], Any] | None = None,
    at_most: int = MAX_SAMPLES_PER_PASS,
) -> int:
    """Return `chunk_size`, or where it is None as many samples as memory allows.

    A pass of the first sample alone shows how much memory a sample takes, one of the first two what the pass holds
    whatever its samples, where that matters; few small inputs are spared these trials.

    Args:
        network: The network, in the mode in which it will run.
        x: Inputs [n, ...].
        chunk_size: What the caller asks for.
        one_pass: Does what a pass does to the first sample, or the first two; None for a forward pass without
            gradients.
        at_most: The most samples per pass.

    Returns:
        Samples per pass: `at_most`, or the largest power of two below it that fits.
    """
    if chunk_size is not None:
        return chunk_size
    if _are_few(network, x):
        return at_most
    # a network may change its input in place
    one, two = (prepare_inputs(network, x[:n]).clone() for n in (1, 2))

    def trial(first: Tensor) -> Any:
        if one_pass is not None:
            return one_pass(first)
        with torch.no_grad():
            return network(first)

    two_rows = partial(trial, two) if len(x) > 1 else None
    return rows_per_pass(None, partial(trial, one), one.device, two_rows=two_rows, at_most=at_most)


def network_outputs(network: nn.Module, x: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return the raw outputs [n, K] of a network in the mode it is in, without gradients, chunk by chunk.

    Args:
        network: The network.
        x: Inputs [n, ...].
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        Outputs [n, K] on the network's device.

    Raises:
        InvalidInput: The network does not return one row of K numbers per sample.
    """
    x = prepare_inputs(network, x)
    chunk_size = samples_per_pass(network, x, chunk_size)

    def of(stretch: slice) -> Tensor:
        rows = x[stretch]
        with torch.no_grad():
            return torch.cat([checked_outputs(network(rows[p]), len(rows[p])) for p in slices(len(rows), chunk_size)])

    return compute_distributed(len(x), of)


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
        InvalidInput: They are no [n, K] tensor of real floating-point numbers.
    """
    outputs = raw_outputs(outputs)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InvalidInput(
            f"A network must return a tensor of shape [n, K] for n inputs, here [{n}, K]; got {got}. "
            "Wrap it in a module that returns its raw outputs (logits)."
        )
    if not outputs.is_floating_point():
        raise InvalidInput(
            f"A network's outputs must be real floating-point numbers; got {outputs.dtype}. "
            "Wrap it in a module that returns real numbers, for example torch.view_as_real(outputs).flatten(1)."
        )
    return outputs


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as its real and imaginary parts in a last dimension of 2; a real one as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def check_labels(targets: Tensor, n_outputs: int) -> None:
    """Raise InvalidInput where a class label has no output."""
    if int(targets.max()) >= n_outputs:
        raise InvalidInput(
            f"Class labels must be smaller than the network's number of outputs, {n_outputs}; "
            f"got {int(targets.max())}. Build the network with more outputs or map the labels to 0..{n_outputs - 1}."
        )
