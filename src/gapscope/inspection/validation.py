"""Validation of a network and its data, and their adaptation for all measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, first_line
from gapscope.base.label_numbers import unused_category_reason
from gapscope.base.samples import Samples, as_samples
from gapscope.base.second_data import as_second
from gapscope.base.targets import require_labels, require_targets
from gapscope.base.type_guards import is_list, is_list_or_tuple
from gapscope.inspection.first_pass import (
    EMBEDDINGS,
    NOT_FINITE,
    PROBABILITIES,
    RANDOM_OUTPUTS,
    activation_of,
    are_unit_rows,
    first_pass,
    fitted_numbers_reason,
)
from gapscope.inspection.input_types import in_network_types
from gapscope.inspection.network_adapter import NetworkAdapter, class_axis
from gapscope.inspection.network_checks import (
    check_finite,
    check_hookable,
    check_module,
    is_estimator,
    unwrapped,
)
from gapscope.inspection.next_position import UNDECIDED, predicts_next_of
from gapscope.inspection.output_names import numbered_as_outputs, unknown_labels_reason
from gapscope.inspection.state_names import renamed_state
from gapscope.inspection.stated_task import with_stated_task


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
        raise InvalidInput(
            f"A pipeline needs data as a pair (x, y); got {type(data).__name__}. Pass (frame, labels)."
        )
    x, y = data
    for name, step in steps:
        if step is None or isinstance(step, str):
            continue  # "passthrough"
        try:
            x = step.transform(x)
        except Exception as error:
            raise InvalidInput(
                f"Step {name!r} of the pipeline raised {type(error).__name__}: {first_line(error)} The steps must be "
                "fitted. Call pipeline[:-1].fit(x)."
            ) from error
    return (x.toarray() if hasattr(x, "toarray") else x), y


def unwrap_estimator(network: Any, data: Any) -> tuple[Any, Any]:
    """Return the network inside a skorch estimator or pipeline, and the data that it receives.

    A module is returned unchanged. The x of a pipeline's data (x, y) goes through its fitted steps.

    Raises:
        InvalidInput: The pipeline is not fitted, or a skorch network is not initialized.
    """
    module = network_inside(network)
    steps = _steps_of(network)
    if steps and isinstance(module, nn.Module) and module is not network:
        return module, _transformed(steps[:-1], data)
    return module, data


def _steps_of(network: Any) -> list[tuple[str, Any]]:
    """Return the steps of a pipeline, empty for other values."""
    steps = getattr(network, "steps", None)
    if is_list(steps) and hasattr(network, "named_steps"):
        return steps
    return []


def network_inside(network: Any) -> Any:
    """Return the network inside a skorch estimator or pipeline, other values as they are."""
    if network is None or isinstance(network, nn.Module | type):
        return network
    steps = _steps_of(network)
    if not steps:
        return _module_of(network)
    last = _module_of(steps[-1][1])
    if isinstance(last, nn.Module):
        return last
    return network


def refuse_estimator(network: Any) -> None:
    """Raise InvalidInput for an estimator that holds no network, before its data are read, which may be a raw frame."""
    module = network_inside(network)
    if is_estimator(module):
        check_module(module)


@dataclass(frozen=True)
class Ready:
    """Network and samples, validated and adapted.

    Attributes:
        bare: The network as passed, without wrappers.
        network: Network from one tensor to raw outputs [n, K] (`bare` if it is that already).
        samples: The samples.
        n_outputs: Number of outputs K.
        notes: Conversions of the data, and warnings.
        positions: Whether outputs have positions (pixels, tokens); they are flattened.
        mismatch: Reason why labels cannot be compared with the outputs; empty without one.
        estimator: What was passed to the public function: the network, a skorch estimator or a pipeline.
    """

    bare: nn.Module
    network: nn.Module
    samples: Samples
    n_outputs: int
    notes: tuple[str, ...] = ()
    positions: bool = False
    mismatch: str = ""
    estimator: Any = None

    def with_samples(self, samples: Samples) -> Ready:
        """Return the same network with other samples.

        Args:
            samples: Samples of the same kind.
        """
        return replace(self, samples=samples)

    @property
    def class_network(self) -> nn.Module:
        """The network with one logit per class (one output z becomes the logits 0 and z)."""
        if self.n_outputs != 1 or not self.samples.is_classification:
            return self.network
        if isinstance(self.network, NetworkAdapter):
            return self.network.with_changes(two_columns=True)
        return NetworkAdapter(self.bare, two_columns=True)

    def adapt(self, data: Any, owner: str = "test") -> Ready:
        """Return the same network with a second data set (test, validation), in its own layout.

        The second data set has the task, the numbers of named classes and the type of inputs of the first.

        Args:
            data: The second data set, in any form of `as_samples`.
            owner: Name of the argument, for messages.

        Raises:
            InvalidInput: The second data set does not fit the first or the network.
        """
        _, data = unwrap_estimator(self.estimator, data)
        second = as_second(data, self.samples, owner, has_network=True)
        samples = in_network_types(self.bare, second)
        network = self.network
        if isinstance(network, NetworkAdapter):
            network = network.with_changes(form=samples.form)
        adapted = replace(_adapt(network, samples), estimator=self.estimator)
        if samples.targets is not None and not self.mismatch:
            _check_outputs(adapted)
        return adapted

    def network_for(self, item: Any) -> nn.Module:
        """Return the network in the form that one measure needs.

        Args:
            item: The measure (`gapscope.measures.registry.Measure`).
        """
        if not {"inputs", "targets", "labels"} & set(item.needs):
            return self.bare
        if item.compares_classes:
            return self.class_network
        return self.network

    def initial_for(
        self, item: Any, initial_state: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Return the initial state dictionary with the keys of one measure's network.

        Args:
            item: The measure (`gapscope.measures.registry.Measure`).
            initial_state: State dictionary before training, with the keys of the network as passed; None if unknown.
        """
        if initial_state is None:
            return None
        if isinstance(self.network_for(item), NetworkAdapter):
            prefix = "network."
        else:
            prefix = ""
        state = own_state(self.bare, initial_state)
        return {prefix + name: tensor for name, tensor in state.items()}

    def inapplicable_reason(self, item: Any) -> str:
        """Return why a measure does not apply to these data (empty if it does).

        Args:
            item: The measure (`gapscope.measures.registry.Measure`).
        """
        if not {"targets", "labels"} & set(item.needs):
            return ""
        if self.samples.targets is None:
            return "needs targets; pass data as (x, y)"
        if self.mismatch:
            return f"needs targets that fit the outputs: {self.mismatch}"
        return item.task_reason(self.samples.kind)


def own_state(
    network: nn.Module, initial_state: Mapping[str, Any], *, whole: bool = False
) -> dict[str, Any]:
    """Return an initial state dictionary with the names of the network's own.

    Args:
        network: The network, without wrappers.
        initial_state: State dictionary before training, perhaps of a wrapper, or of its network.
        whole: Whether every tensor must be there, in its shape.

    Raises:
        InvalidInput: It is no state dictionary, holds a name that the network has not, or no tensor, or is not whole.
    """
    if not isinstance(initial_state, Mapping):
        raise InvalidInput(
            f"initial_state must be a state dictionary; got {type(initial_state).__name__}. Pass a clone of "
            "network.state_dict() from before training."
        )
    current = network.state_dict()
    state = renamed_state(network, initial_state)
    tensors = {name: value for name, value in current.items() if isinstance(value, Tensor)}
    misfits: list[Any] = [
        name
        for name, tensor in tensors.items()
        if whole and (name not in state or state[name].shape != tensor.shape)
    ]
    misfits += [name for name in state if name not in current]
    if misfits:
        raise InvalidInput(
            f"initial_state must hold the tensors of the network's state_dict(); {', '.join(map(str, misfits[:4]))} "
            "differ. Pass the state dictionary of the same network before training."
        )
    for name, tensor in state.items():
        if name in tensors and not isinstance(tensor, Tensor):
            raise InvalidInput(
                f"initial_state must hold tensors; {name} is of type {type(tensor).__name__}. Pass a clone of "
                "network.state_dict() from before training."
            )
    return state


def matching_state(network: nn.Module, initial_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an initial state dictionary with the names of the network's own, whole and finite.

    Args:
        network: The network, without wrappers.
        initial_state: State dictionary before training, in any form of `own_state`.

    Raises:
        InvalidInput: A tensor is missing, has another shape, is of another network, or is not finite.
    """
    state = own_state(network, initial_state, whole=True)
    for name, tensor in state.items():
        is_number = isinstance(tensor, Tensor) and tensor.is_floating_point()
        if is_number and not bool(tensor.isfinite().all()):
            raise InvalidInput(
                f"initial_state must be finite; {name} holds NaN or infinity. Pass the state dictionary from before "
                "training."
            )
    return state


def equals_trained_weights(network: nn.Module, initial_state: Mapping[str, Any]) -> bool:
    """Return whether an initial state dictionary, with the network's names, equals the current weights."""
    pairs = [
        (initial_state.get(name), parameter)
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    ]
    return bool(pairs) and all(
        isinstance(tensor, Tensor)
        and tensor.shape == parameter.shape
        and torch.equal(tensor.detach().to(parameter.device, parameter.dtype), parameter.detach())
        for tensor, parameter in pairs
    )


def ready(network: Any, data: Any, *, needs: Collection[str] = ()) -> Ready:
    """Validate a network and its data once, and adapt both (for every public function).

    Args:
        network: A module, or a fitted skorch estimator or pipeline with one.
        data: The samples, in any form of `as_samples`.
        needs: Requirements of the caller: "targets" (labels or regression targets), "labels" (one class label per
            sample), "outputs" (targets that fit the outputs).

    Raises:
        InvalidInput: The network is no module, has no usable weights or does not run on the data, or a requirement is
            not met.
    """
    estimator = network
    network, data = unwrap_estimator(network, data)
    check_module(network)
    samples = numbered_as_outputs(network, as_samples(data))
    samples = with_stated_task(unwrapped(network), samples)
    if needs:
        require_targets(samples.targets)
    prepared = replace(_adapt(network, in_network_types(network, samples)), estimator=estimator)
    if samples.class_names and not prepared.mismatch:
        reason = unknown_labels_reason(network, prepared.samples, prepared.n_outputs)
        if not reason and prepared.samples.is_classification:
            names = samples.class_names
            reason = unused_category_reason(prepared.samples.y, names, prepared.n_outputs)
        prepared = replace(prepared, mismatch=reason)
    if "labels" in needs:
        require_labels(prepared.samples.targets)
    if "outputs" in needs:
        _check_outputs(prepared)
    return prepared


def settled_by(source: Any, samples: Samples) -> Samples:
    """Return the samples with the task that their targets have beside a network's outputs, or beside features.

    Zeros and ones [n, K] are several labels per sample, or one class per position; other integers [n, K] are regression
    targets, or one class per position. Functions that differ by task call this before they look at the task. Names of
    classes get the numbers of the outputs of these names.

    Args:
        source: A network, whose outputs decide; or features, which are of positions if they have one dimension more
            than the targets. Anything else decides nothing.
        samples: The samples.

    Raises:
        InvalidInput: The network does not run on the data.
    """
    samples = numbered_as_outputs(source, samples)
    if isinstance(source, nn.Module):
        samples = with_stated_task(unwrapped(source), samples)
    raw = samples.unsettled
    if raw is None:
        return samples
    if isinstance(source, nn.Module):
        bare = unwrapped(source)
        check_hookable(bare)
        return samples.settled(first_pass(bare, in_network_types(bare, samples)).outputs.shape)
    shape = getattr(source, "shape", ())
    if len(shape) > raw.ndim:
        return samples.settled(shape)
    return samples


def _check_outputs(prepared: Ready) -> None:
    """Raise InvalidInput unless the targets fit the outputs."""
    targets = require_targets(prepared.samples.targets)
    if prepared.mismatch:
        raise InvalidInput(f"Targets must fit the outputs; {prepared.mismatch}.")
    prepared.samples.task.check_outputs(targets, prepared.n_outputs)


def _adapt(network: Any, samples: Samples) -> Ready:
    """Run a network once and adapt it to one input tensor."""
    if (
        isinstance(network, NetworkAdapter)
        and samples.form is not None
        and samples.form is not network.form
    ):
        network = network.network  # it was adapted to the layout of other samples
    if isinstance(network, NetworkAdapter):
        return _adapt_again(network, samples)
    bare = unwrapped(network)
    check_hookable(bare)
    check_finite(bare)
    first = first_pass(bare, samples)
    outputs = first.outputs
    samples = samples.settled(outputs.shape)
    activation = activation_of(bare, samples, first)
    notes = list(samples.notes)
    if not bool(torch.isfinite(outputs).all()):
        notes.append(NOT_FINITE)
    if first.is_random:
        notes.append(RANDOM_OUTPUTS)
    if samples.is_classification and are_unit_rows(outputs):
        notes.append(EMBEDDINGS)
    if activation:
        notes.append(PROBABILITIES[activation])
        mismatch = ""
    else:
        mismatch = fitted_numbers_reason(bare, samples, first)
    is_plain = first.is_direct and not first.writes_input and not activation
    if outputs.ndim == 2 and samples.form is None and is_plain:
        mismatch = mismatch or _stray_positions(samples)
        return Ready(bare, bare, samples, outputs.shape[1], tuple(notes), mismatch=mismatch)
    axis = None
    predicted = predicts_next_of(bare, samples, first)
    if predicted is None:
        notes.append(UNDECIDED)
    causal = bool(predicted)
    # masks of one class: the network returns a number per position, without an axis of classes
    is_one_class = (
        samples.is_dense and outputs.ndim > 2 and outputs.shape[1:] == samples.y.shape[1:]
    )
    if is_one_class:
        outputs = outputs[:, None]
    if outputs.ndim > 2:
        axis = 1
    if samples.is_dense and outputs.ndim <= 2:
        mismatch = _stray_positions(samples)
    elif samples.is_dense:
        preferred = samples.class_axis
        # objects with `logits` [n, tokens, classes]
        if preferred is None and (not first.is_direct or causal) and outputs.ndim == 3:
            preferred = -1
        try:
            axis = class_axis(outputs, samples.y, preferred)
        except InvalidInput as error:
            reason = str(error).rstrip(".")
            mismatch = reason[0].lower() + reason[1:]
    elif outputs.ndim > 2 and samples.targets is not None:
        positions = list(outputs.shape[1:])
        mismatch = (
            f"outputs have positions, {positions} per sample, and targets have none; pass a label per position, or "
            "return outputs [n, K]"
        )
    n_outputs = outputs[0].numel()
    adapted = NetworkAdapter(
        bare,
        samples.form,
        squeezed=outputs.ndim == 1 or is_one_class,
        class_axis=axis,
        next_position=causal,
        activation=activation,
        writes_input=first.writes_input,
    )
    if axis is not None and not mismatch:
        grid = outputs.movedim(axis, 1).shape[2:]
        adapted.grid = torch.Size([grid.numel() - 1]) if causal else grid
    if causal and not mismatch:
        n_outputs -= outputs.shape[axis or 1]
        samples = _align_next_position(adapted, samples)
    return Ready(
        bare,
        adapted,
        samples,
        n_outputs,
        tuple(notes),
        positions=outputs.ndim > 2,
        mismatch=mismatch,
    )


def _adapt_again(network: NetworkAdapter, samples: Samples) -> Ready:
    """Run an adapted network on samples of its layout."""
    outputs = first_pass(network, replace(samples, form=None)).outputs
    shape = outputs.shape
    mismatch = ""
    if network.n_positions > 1:  # the adapter flattens classes and positions
        n_classes = outputs.shape[1] // network.n_positions
        shape = torch.Size((len(outputs), n_classes, *network.grid))
    samples = _align_next_position(network, samples.settled(shape))
    is_dense = samples.targets is not None and samples.is_dense
    positions = samples.y[0].numel() if is_dense else 1
    if positions not in (1, network.n_positions):
        mismatch = (
            f"labels have {positions} positions per sample, outputs have {network.n_positions}"
        )
    return Ready(
        network.network, network, samples, outputs.shape[1], samples.notes, mismatch=mismatch
    )


def _stray_positions(samples: Samples) -> str:
    """Return why labels of positions do not fit outputs [n, K] (empty for other targets)."""
    targets = samples.targets
    if targets is None or not samples.is_dense:
        return ""
    return f"labels {list(targets.shape)} have positions, and outputs have none; pass one label per sample"


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
