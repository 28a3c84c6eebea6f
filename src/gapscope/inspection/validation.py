"""Validation of a network and its data, and their adaptation for all measures."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import check_labels, check_regression_shape, require_labels, require_targets
from gapscope.base.type_guards import is_list, is_list_or_tuple
from gapscope.inspection.network_adapter import NetworkAdapter, call_network, class_axis, is_causal
from gapscope.inspection.outputs import (
    check_finite,
    check_hookable,
    checked_outputs,
    inspection_mode,
    precision_of,
    prepare_inputs,
    raw_outputs,
    unwrapped,
)

SAMPLES_RUN = 8
COMPILED = "_orig_mod."
SUM_TOLERANCE = 1e-3
# measures that compare the logits of several classes: a single output z becomes the two logits 0 and z
BETWEEN_CLASSES = ("margin_signature", "unit_sparsity")


def _module_of(estimator: Any) -> Any:
    """Return the trained module of a skorch network (anything else as it is)."""
    if hasattr(estimator, "module_"):
        return estimator.module_
    if hasattr(estimator, "initialize") and hasattr(estimator, "module"):
        raise InvalidInput(
            f"Got a {type(estimator).__name__} that is not initialized; it must have a module. Call .initialize() or "
            ".fit() first."
        )
    return estimator


def _transformed(steps: list[tuple[str, Any]], data: Any) -> Any:
    if not is_list_or_tuple(data) or len(data) != 2:
        raise InvalidInput(f"A pipeline needs data as a pair (x, y); got {type(data).__name__}. Pass (frame, labels).")
    x, y = data
    for name, step in steps:
        if step is None or isinstance(step, str):
            continue  # "passthrough"
        try:
            x = step.transform(x)
        except Exception as error:
            raise InvalidInput(
                f"Step {name!r} of the pipeline raised {type(error).__name__}: {str(error).splitlines()[0][:120]} "
                "The steps must be fitted. Call pipeline[:-1].fit(x)."
            ) from error
    return (x.toarray() if hasattr(x, "toarray") else x), y


def unwrap_estimator(network: Any, data: Any) -> tuple[Any, Any]:
    """Return the network inside a skorch estimator or pipeline, and the data that it receives.

    A module is returned unchanged. The x of a pipeline's data (x, y) goes through its fitted steps.

    Raises:
        InvalidInput: The pipeline is not fitted, or a skorch network is not initialized.
    """
    if network is None or isinstance(network, nn.Module | type):
        return network, data
    steps = getattr(network, "steps", None)
    if is_list(steps) and steps and hasattr(network, "named_steps"):
        last = _module_of(steps[-1][1])
        return (last, _transformed(steps[:-1], data)) if isinstance(last, nn.Module) else (last, data)
    return _module_of(network), data


@dataclass(frozen=True)
class Ready:
    """Network and samples, validated and adapted."""

    bare: nn.Module  # as passed, without wrappers
    network: nn.Module  # from one tensor to raw outputs [n, K] (`bare` if it is that already)
    samples: Samples
    n_outputs: int
    notes: tuple[str, ...] = ()  # conversions of the data, and warnings
    positions: bool = False  # whether outputs have positions (pixels, tokens); they are flattened
    mismatch: str = ""  # reason why labels cannot be compared with the outputs

    def with_samples(self, samples: Samples) -> Ready:
        """Return the same network with other samples of the same kind."""
        return replace(self, samples=samples)

    @property
    def class_network(self) -> nn.Module:
        """The network with one logit per class (one output z becomes the logits 0 and z)."""
        if self.n_outputs != 1 or not self.samples.is_classification:
            return self.network
        network = self.network if isinstance(self.network, NetworkAdapter) else NetworkAdapter(self.bare)
        return network.as_two_logits()

    def network_for(self, item: Any) -> nn.Module:
        """Return the network in the form that one measure needs."""
        if not {"inputs", "targets", "labels"} & set(item.needs):
            return self.bare
        return self.class_network if item.name in BETWEEN_CLASSES else self.network

    def initial_for(self, item: Any, initial_state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the initial state dictionary with the keys of one measure's network."""
        if initial_state is None:
            return None
        prefix = "network." if isinstance(self.network_for(item), NetworkAdapter) else ""
        return {prefix + name.removeprefix(COMPILED): tensor for name, tensor in initial_state.items()}

    def inapplicable_reason(self, item: Any) -> str:
        """Return why a measure does not apply to these data (empty if it does)."""
        targets = self.samples.targets
        if {"targets", "labels"} & set(item.needs):
            if targets is None:
                return "needs targets; pass data as (x, y)"
            if self.mismatch:
                return self.mismatch
        if "labels" in item.needs and targets is not None:
            if targets.is_floating_point():
                return "needs class labels; these are regression targets"
            if self.samples.is_dense and not item.supports_dense:
                return "needs one label per sample; these data have a label per position"
        return ""


def equals_trained_weights(network: nn.Module, initial_state: Mapping[str, Any]) -> bool:
    """Return whether an initial state dictionary equals the current weights."""
    initial = {name.removeprefix(COMPILED): tensor for name, tensor in initial_state.items()}
    pairs = [
        (initial.get(name), parameter) for name, parameter in network.named_parameters() if parameter.requires_grad
    ]
    return bool(pairs) and all(
        isinstance(tensor, Tensor)
        and tensor.shape == parameter.shape
        and torch.equal(tensor.detach().to(parameter.device, parameter.dtype), parameter.detach())
        for tensor, parameter in pairs
    )


def _first_outputs(network: nn.Module, samples: Samples) -> tuple[Tensor, bool]:
    """Return the outputs of the first samples, and whether they were returned as a tensor."""
    with inspection_mode(network), torch.no_grad():
        x = prepare_inputs(network, samples.inputs[:SAMPLES_RUN]).clone()
        try:
            result = network(x) if samples.form is None else call_network(network, samples.form, x)
        except GapscopeError:
            raise
        except Exception as error:
            raise InvalidInput(_forward_error(network, samples, error)) from error
    outputs = raw_outputs(result)
    if isinstance(outputs, Tensor) and outputs.shape == () and len(x) == 1:
        outputs = outputs[None]
    return checked_outputs(outputs, len(x), flat=False), outputs is result


def _forward_error(network: nn.Module, samples: Samples, error: Exception) -> str:
    """Return the message for an error of the network's own code."""
    message = (str(error).strip().splitlines() or ["no message"])[0][:200]
    x, hint = samples.inputs, "Pass inputs that its forward accepts."
    if samples.form is None and not x.is_floating_point() and any(p.is_floating_point() for p in network.parameters()):
        hint = f"The inputs are {x.dtype}, which is for token ids. For images use x.float() / 255."
    elif samples.form is not None and samples.form.names:
        signature = ", ".join(inspect.signature(network.forward).parameters)
        hint = f"It was called with {', '.join(samples.form.names)}; its forward takes {signature}."
    elif "required positional argument" in message:
        names = ", ".join(inspect.signature(network.forward).parameters)
        hint = f"Its forward takes {names}: pass data as ((x1, x2), y), or as a mapping with these names."
    shape = [list(part.shape) for part in samples.form.unpack(x[:1])] if samples.form is not None else list(x.shape)
    result = f"{type(network).__name__} on {shape} raised {type(error).__name__}: {message}"
    return f"The network must run on the inputs; {result}. {hint}"


def _output_warning(outputs: Tensor, network: nn.Module) -> str:
    """Return a warning about unusual raw outputs (empty if there is none)."""
    if not bool(torch.isfinite(outputs).all()):
        return "Some outputs are NaN or infinite."
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        flat = outputs.movedim(1, -1).flatten(0, -2).double()
        sums = flat.sum(1)
        if bool((flat >= 0).all()) and bool(((sums - 1).abs() < SUM_TOLERANCE).all()):
            return (
                "Outputs seem to be probabilities (every row sums to 1), but measures and the loss use them as "
                "logits: return raw outputs, without the softmax."
            )
    leaves = [module for module in network.modules() if next(module.children(), None) is None]
    if leaves and isinstance(leaves[-1], nn.Sigmoid):
        return "The last layer is a sigmoid, but measures use outputs as logits: return raw outputs, without it."
    return ""


def ready(network: Any, data: Any, *, needs: Collection[str] = ()) -> Ready:
    """Validate a network and its data once, and adapt both (for every public function).

    Args:
        needs: Requirements of the caller: "targets" (labels or regression targets), "labels" (one class label per
            sample), "outputs" (targets that fit the outputs).

    Raises:
        InvalidInput: The network is no module, has no usable weights or does not run on the data, or a requirement is
            not met.
    """
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data)
    if needs:
        require_targets(samples.targets)
    if "labels" in needs:
        require_labels(samples.targets)
    prepared = _adapt(network, _in_network_precision(network, samples))
    if "outputs" in needs:
        _check_outputs(prepared)
    return prepared


def _in_network_precision(network: Any, samples: Samples) -> Samples:
    """Cast floating-point inputs to the type of the network's weights, with a note."""
    dtype = precision_of(network) if isinstance(network, nn.Module) else None
    inputs = samples.inputs
    if dtype is None or not inputs.is_floating_point() or inputs.dtype == dtype:
        return samples
    note = f"Inputs were converted from {inputs.dtype} to {dtype}, the type of the weights."
    return replace(samples, inputs=inputs.to(dtype), notes=(*samples.notes, note))


def _check_outputs(prepared: Ready) -> None:
    """Raise InvalidInput unless labels are below K, or regression targets have K columns."""
    targets, k = require_targets(prepared.samples.targets), prepared.n_outputs
    if prepared.mismatch:
        raise InvalidInput(f"Targets must fit the outputs; {prepared.mismatch}.")
    if targets.is_floating_point():
        check_regression_shape(targets, (len(targets), k))
    elif targets.ndim == 1:
        check_labels(targets, max(k, 2))  # a single output is the logit of the second of two classes


def _adapt(network: Any, samples: Samples) -> Ready:
    """Run a network once and adapt it to one input tensor."""
    if isinstance(network, NetworkAdapter) and samples.form is not None and samples.form is not network.form:
        network = network.network  # it was adapted to the layout of other samples
    if isinstance(network, NetworkAdapter):
        outputs, _ = _first_outputs(network, replace(samples, form=None))
        samples, mismatch = _align_next_position(network, samples), ""
        positions = 1 if samples.targets is None or not samples.is_dense else samples.targets[0].numel()
        if positions not in (1, network.n_positions):
            mismatch = f"labels have {positions} positions per sample, outputs have {network.n_positions}"
        return Ready(network.network, network, samples, outputs.shape[1], samples.notes, mismatch=mismatch)
    bare = unwrapped(network)
    check_hookable(bare)
    check_finite(bare)
    outputs, are_direct = _first_outputs(bare, samples)
    warning = _output_warning(outputs, bare)
    notes = (*samples.notes, warning) if warning else samples.notes
    if outputs.ndim == 2 and samples.form is None and are_direct:
        return Ready(bare, bare, samples, outputs.shape[1], notes, mismatch=_stray_positions(samples))
    axis, mismatch, causal = (1 if outputs.ndim > 2 else None), "", samples.is_dense and is_causal(bare)
    if samples.is_dense and outputs.ndim <= 2:
        mismatch = _stray_positions(samples)
    elif samples.is_dense:
        try:
            axis = class_axis(outputs, samples.y)
        except InvalidInput as error:
            mismatch = str(error)
    elif outputs.ndim > 2 and samples.targets is not None:
        positions = list(outputs.shape[1:])
        mismatch = f"outputs have positions, {positions} per sample, and targets have none; pass a label per position"
    k, squeezed = outputs[0].numel(), outputs.ndim == 1
    adapted = NetworkAdapter(bare, samples.form, squeezed=squeezed, class_axis=axis, next_position=causal)
    if causal and not mismatch:
        adapted.n_positions = outputs[0].numel() // outputs.shape[axis or 1] - 1
        k -= outputs.shape[axis or 1]
        samples = _align_next_position(adapted, samples)
    return Ready(bare, adapted, samples, k, notes, positions=outputs.ndim > 2, mismatch=mismatch)


def _stray_positions(samples: Samples) -> str:
    """Return why labels of positions do not fit outputs [n, K] (empty for other targets)."""
    targets = samples.targets
    if targets is None or not samples.is_dense:
        return ""
    one_hot = bool(((targets == 0) | (targets == 1)).all()) and bool((targets.flatten(1).sum(1) == 1).all())
    advice = "they appear one-hot: pass y.argmax(1)" if one_hot else "pass one label per sample"
    return f"labels {list(targets.shape)} have positions, and outputs have none; {advice}"


def _align_next_position(network: NetworkAdapter, samples: Samples) -> Samples:
    """Shift labels to the next position, if the network predicts it."""
    targets = samples.targets
    if not network.next_position or not samples.is_dense or targets is None:
        return samples
    if targets.shape[1] != network.n_positions + 1:
        return samples
    if targets.shape[1] < 3:
        raise InvalidInput(
            f"A causal language model needs samples of 3 tokens or more; got {targets.shape[1]}. Pass longer samples."
        )
    return replace(samples, targets=targets[:, 1:].contiguous())
