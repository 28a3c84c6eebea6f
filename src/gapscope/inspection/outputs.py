"""Raw outputs of networks, and contexts that restore them exactly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, fx, nn

from gapscope.base.errors import (
    GapscopeError,
    InvalidInput,
    NotMeasurable,
    describe_value,
)
from gapscope.base.input_checks import check_holds_numbers
from gapscope.base.samples import slices
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.inspection.checkpoints import direct_checkpoints, stored_activations
from gapscope.inspection.chunking import rows_per_pass
from gapscope.inspection.execution import compute_distributed, exclusive
from gapscope.inspection.known_layers import known_layers
from gapscope.inspection.memoization import tensor_version
from gapscope.inspection.network_checks import check_finite, check_hookable, unwrapped
from gapscope.inspection.network_errors import explained_errors
from gapscope.inspection.restoring import (
    preserve_state,
    renormalized_weights,
    without_weight_hooks,
)

# Default chunk sizes, where memory allows: more samples make a forward pass, or one with gradients, no faster.
DEFAULT_CHUNK_SIZE, BACKWARD_CHUNK_SIZE = 512, 256
# Inputs with at most so many entries (or token ids) run at once without a trial: for small and for large networks.
_FEW_ENTRIES, _FEW_TOKENS = 2**18, 2**8
# numbers of weights and of inputs from which memory is measured first, by judgment
_LARGE, _FEW_ENTRIES_OF_LARGE = 2**20, 2**14
# Names of outputs in a mapping: of Hugging Face and torchvision, then of encoders.
_OUTPUT_NAMES = ("logits", "out", "sentence_embedding", "last_hidden_state")


@contextmanager
def eager_mode() -> Iterator[None]:
    """Run code compiled by `torch.compile` eagerly in the body, with all hooks."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with exclusive(), torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Compute in the network's own precision, also within the caller's `torch.autocast`."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Run the body in evaluation mode with gradients on; for networks of which a pass changes nothing."""
    training = [module for module in network.modules() if module.training]
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _without_autocast(),
        explained_errors(),
    ):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def inspection_mode(
    network: nn.Module, *, mode: Literal["eval", "train"] = "eval", passes_only: bool = False
) -> Iterator[nn.Module]:
    """Run the body with `network` in one mode with gradients on, then restore everything.

    Restored: every attribute of every module (its training flag, parameters and buffers by identity, hooks), the values
    of all buffers, every `.grad` and `requires_grad`, the global random states of Python, NumPy and torch (CPU and
    CUDA). Inference mode is left and gradients are enabled inside; compiled networks run eagerly, so that hooks see
    them. Parameters must not be written inside; that is checked by their version counters.

    With `passes_only` the body runs passes and derivatives alone, and samples no numbers from the global streams. Then
    networks of known layers need no copies of their state (`gapscope.inspection.known_layers`).

    Raises:
        GapscopeError: The body changed a parameter in place.
    """
    network = unwrapped(network)
    if passes_only and mode == "eval" and known_layers(network):
        with exclusive(), _evaluation_mode(network):
            yield network
        return
    check_hookable(network)
    with exclusive():
        modes = [(module, module.training) for module in network.modules()]
        parameters = [(p, p.grad, p.requires_grad, tensor_version(p)) for p in network.parameters()]
        renormalized = {id(weight) for weight in renormalized_weights(network)}
        try:
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                _without_autocast(),
                preserve_state(network),
                without_weight_hooks(network.parameters()),
                eager_mode(),
                direct_checkpoints(),
                stored_activations(),
                explained_errors(),
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
        if any(
            tensor_version(p) != version and id(p) not in renormalized
            for p, _, _, version in parameters
        ):
            raise GapscopeError(
                "Weights were changed in place by a measure; it must not change them. Use "
                "torch.func.functional_call with changed copies instead."
            )


@contextmanager
def measurement_mode(
    network: nn.Module, *, mode: Literal["eval", "train"] = "eval", passes_only: bool = False
) -> Iterator[nn.Module]:
    """Enter `inspection_mode` and raise InvalidInput for non-finite weights."""
    with inspection_mode(network, mode=mode, passes_only=passes_only) as network:
        check_finite(network)
        yield network


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer (the CPU if there is none)."""
    for tensor in chain(network.parameters(), network.buffers()):
        return tensor.device
    return torch.device("cpu")


def precision_of(network: nn.Module) -> torch.dtype | None:
    """Return the real type of the first floating-point or complex parameter, or None."""
    # another thread may verify the network in another precision
    with exclusive():
        floating = (
            p.dtype.to_real()
            for p in network.parameters()
            if p.is_floating_point() or p.is_complex()
        )
        return next(floating, None)


def _runs_on(network: nn.Module, x: Tensor) -> bool:
    """Return whether a network of another type takes such inputs, because it casts them itself."""
    try:
        with torch.no_grad(), preserve_state(network):
            network.eval()
            network(x[:1].detach().to(device_of(network)).clone())
    except Exception:  # torch's own, or that of any code in the network
        return False
    return True


def prepare_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """Return `x`, detached, on the network's device (copied only if necessary)."""
    dtype = precision_of(network)
    check_holds_numbers(x)
    if (
        dtype is not None
        and (x.is_floating_point() or x.is_complex())
        and dtype != x.dtype.to_real()
        and not _runs_on(network, x)
    ):
        raise InvalidInput(
            f"inputs and weights must have the same dtype; got {x.dtype} and {dtype}. "
            f"Use x.to({dtype}) or network.to({x.dtype.to_real()})."
        )
    x = x.clone() if x.is_inference() else x.detach()
    return x.to(device_of(network))


def samples_per_pass(
    network: nn.Module,
    x: Tensor,
    chunk_size: int | None,
    *,
    one_pass: Callable[[Tensor], Any] | None = None,
    at_most: int = DEFAULT_CHUNK_SIZE,
    bytes_at_most: int | None = None,
) -> int:
    """Return `chunk_size`, or its default: the largest power of two of samples that fits.

    Memory per sample is measured on the first sample (and the first two, if memory is short); few small inputs need no
    trial. `one_pass` is the work on the samples that it receives, by default a forward pass without gradients.
    `at_most` and `bytes_at_most` are those of `rows_per_pass`.
    """
    if chunk_size is not None:
        return chunk_size
    if x.is_floating_point():
        is_large = (
            x.numel() > _FEW_ENTRIES_OF_LARGE
            and sum(p.numel() for p in network.parameters()) > _LARGE
        )
        are_few = x.numel() <= (_FEW_ENTRIES_OF_LARGE if is_large else _FEW_ENTRIES)
    else:
        are_few = x.numel() <= _FEW_TOKENS and x[0].numel() > 1
    if are_few:
        return at_most
    # a network may change its input in place
    one, two = (prepare_inputs(network, x[:n]).clone() for n in (1, 2))

    def trial(first: Tensor) -> Any:
        if one_pass is not None:
            return one_pass(first)
        with torch.no_grad():
            return network(first)

    return rows_per_pass(
        None,
        partial(trial, one),
        one.device,
        two_rows=partial(trial, two) if len(x) > 1 else None,
        at_most=at_most,
        bytes_at_most=bytes_at_most,
    )


def network_outputs(network: nn.Module, x: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return the raw outputs [n, K] of a network in its current mode, in chunks."""
    x = prepare_inputs(network, x)
    chunk_size = samples_per_pass(network, x, chunk_size)

    def outputs_of(stretch: slice) -> Tensor:
        rows = x[stretch]
        chunks = [rows[part] for part in slices(len(rows), chunk_size)]
        with torch.no_grad():
            return torch.cat([checked_outputs(network(chunk), len(chunk)) for chunk in chunks])

    return compute_distributed(len(x), outputs_of)


def raw_outputs(result: Any) -> Any:
    """Return the logits of a network's result: itself, its "logits" (Hugging Face) or "out", or its only tensor.

    Encoders without a head return their features.
    """
    if isinstance(result, Tensor | fx.Proxy):
        return result
    parts = result
    if isinstance(result, Mapping):
        named = [result[name] for name in _OUTPUT_NAMES if name in result]
        parts = named[:1] or list(result.values())
    if is_list_or_tuple(parts) and len(parts) == 1 and isinstance(parts[0], Tensor):
        return parts[0]
    return getattr(result, "logits", result)


def checked_outputs(outputs: Any, n: int, *, flat: bool = True) -> Tensor:
    """Return the logits of a network's result, [n, K] (unless `flat` also [n] or positions)."""
    outputs = raw_outputs(outputs)
    is_valid = isinstance(outputs, Tensor) and outputs.ndim > 0 and len(outputs) == n
    if not is_valid or (flat and outputs.ndim != 2):
        if isinstance(outputs, numpy.ndarray):
            raise InvalidInput(
                f"A network must return a tensor of shape [n, K] for n inputs; got a numpy array, "
                f"{list(outputs.shape)}. Return the tensor, without .numpy(), in its forward pass."
            )
        raise InvalidInput(
            f"A network must return a tensor of shape [n, K] for n inputs, here [{n}, K]; got "
            f"{describe_value(outputs)}. Wrap it in a module that returns its raw outputs (logits), or an object with "
            "`logits`."
        )
    if not outputs.is_floating_point():
        advice = "Return the logits, without argmax."
        if outputs.is_complex():
            advice = "Wrap it in a module that returns for example torch.view_as_real(outputs).flatten(1)."
        raise InvalidInput(
            f"A network's outputs must be real floating-point numbers; got {outputs.dtype}. {advice}"
        )
    return outputs


def check_has_gradient(outputs: Tensor) -> None:
    """Raise NotMeasurable if outputs have no graph."""
    if not outputs.requires_grad:
        raise NotMeasurable(
            "Got outputs without a gradient; they must depend on trainable parameters with gradients enabled. Look for "
            "torch.no_grad or detach in the forward pass."
        )


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as real and imaginary parts in a last dimension."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor
