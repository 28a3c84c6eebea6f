"""Validation of a network and its data, and their adaptation for all measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.label_marks import MarkNote
from gapscope.base.label_numbers import unused_category_reason
from gapscope.base.samples import Samples, as_samples
from gapscope.base.second_data import as_second
from gapscope.base.targets import require_labels, require_targets
from gapscope.inspection.counted_outputs import mask_notes
from gapscope.inspection.first_pass import (
    EMBEDDINGS,
    NOT_FINITE,
    PROBABILITIES,
    RANDOM_OUTPUTS,
    FirstPass,
    activation_of,
    are_unit_rows,
    first_pass,
    fitted_numbers_reason,
)
from gapscope.inspection.initial_states import own_state
from gapscope.inspection.input_types import in_network_types
from gapscope.inspection.network_adapter import NetworkAdapter, class_axis, class_network
from gapscope.inspection.network_checks import (
    check_finite,
    check_hookable,
    check_module,
    unwrapped,
)
from gapscope.inspection.next_position import UNDECIDED, predicts_next_of
from gapscope.inspection.output_names import numbered_as_outputs, unknown_labels_reason
from gapscope.inspection.stated_task import with_stated_task
from gapscope.inspection.wrapped_networks import unwrap_estimator


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
        if not self.samples.is_classification:
            return self.network
        return class_network(self.network, self.n_outputs)

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
        if self.mismatch and item.needs_targets:
            return f"needs targets that fit the outputs: {self.mismatch}"
        return item.unsuitable(self.samples)


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
        require_targets(samples)
    prepared = replace(_adapt(network, in_network_types(network, samples)), estimator=estimator)
    if samples.class_names and not prepared.mismatch:
        reason = unknown_labels_reason(network, prepared.samples, prepared.n_outputs)
        if not reason and prepared.samples.is_classification:
            names = samples.class_names
            reason = unused_category_reason(prepared.samples.y, names, prepared.n_outputs)
        prepared = replace(prepared, mismatch=reason)
    if "labels" in needs:
        require_labels(prepared.samples)
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
    if raw is None and not any(isinstance(note, MarkNote) for note in samples.notes):
        return samples
    if isinstance(source, nn.Module):
        bare = unwrapped(source)
        check_hookable(bare)
        return samples.settled(first_pass(bare, in_network_types(bare, samples)).outputs.shape)
    shape = getattr(source, "shape", ())
    if raw is not None and len(shape) > raw.ndim:
        return samples.settled(shape)
    return samples


def _check_outputs(prepared: Ready) -> None:
    """Raise InvalidInput unless the targets fit the outputs."""
    targets = require_targets(prepared.samples)
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
    notes = [*samples.notes, *_notes_on_outputs(samples, first)]
    if activation:
        notes.append(PROBABILITIES[activation])
        mismatch = ""
    else:
        mismatch = fitted_numbers_reason(bare, samples, first)
    is_plain = first.is_direct and not first.writes_input and not activation
    if outputs.ndim == 2 and samples.form is None and is_plain:
        mismatch = mismatch or _stray_positions(samples)
        return Ready(bare, bare, samples, outputs.shape[1], tuple(notes), mismatch=mismatch)
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
    axis, misplaced = _axis_of_classes(samples, outputs, is_sequence=not first.is_direct or causal)
    mismatch = misplaced or mismatch
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
        shape = outputs.movedim(axis, 1).shape[1:]
        if causal:
            shape = torch.Size([shape[0], shape[1:].numel() - 1])
        adapted.shape = shape
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


def _notes_on_outputs(samples: Samples, first: FirstPass) -> list[str]:
    """Return notes on outputs that no measure can read as the logits of one function."""
    notes = mask_notes(samples, first.outputs.shape)
    if not bool(torch.isfinite(first.outputs).all()):
        notes.append(NOT_FINITE)
    if first.is_random:
        notes.append(RANDOM_OUTPUTS)
    if samples.is_classification and are_unit_rows(first.outputs):
        notes.append(EMBEDDINGS)
    return notes


def _axis_of_classes(
    samples: Samples, outputs: Tensor, *, is_sequence: bool
) -> tuple[int | None, str]:
    """Return the axis of the classes of outputs with positions (else None), and why targets do not fit them.

    Args:
        samples: Samples with their targets.
        outputs: Outputs of the network.
        is_sequence: Whether they are logits [n, tokens, classes], unless the samples say otherwise.
    """
    if outputs.ndim <= 2:
        return None, _stray_positions(samples)
    if samples.is_dense:
        preferred = samples.class_axis
        if preferred is None and is_sequence and outputs.ndim == 3:
            preferred = -1
        try:
            return class_axis(outputs, samples.y, preferred), ""
        except InvalidInput as error:
            reason = str(error).rstrip(".")
            return 1, reason[0].lower() + reason[1:]
    if samples.targets is None:
        return 1, ""
    positions = list(outputs.shape[1:])
    return 1, (
        f"outputs have positions, {positions} per sample, and targets have none; pass a label per position, or "
        "return outputs [n, K]"
    )


def _adapt_again(network: NetworkAdapter, samples: Samples) -> Ready:
    """Run an adapted network on samples of its layout."""
    outputs = first_pass(network, replace(samples, form=None)).outputs
    shape = outputs.shape
    mismatch = ""
    if network.n_positions > 1:  # the adapter flattens classes and positions
        n_classes = outputs.shape[1] // network.n_positions
        shape = torch.Size((len(outputs), n_classes, *network.shape[1:]))
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
