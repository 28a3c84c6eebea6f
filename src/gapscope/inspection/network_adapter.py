"""Adapter from any network to one tensor of inputs and raw outputs [n, K]."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.input_layout import InputLayout
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import raw_outputs


def call_network(
    network: nn.Module, form: InputLayout, x: Tensor, optional: Mapping[str, Any] | None = None
) -> Any:
    """Call a network with the arguments of its forward method.

    `optional` are keywords that are passed if it accepts them, such as labels for the network's own loss.
    """
    parts = form.unpack(x)
    optional = optional or {}
    parameters = inspect.signature(unwrapped(network).forward).parameters.values()
    if form.names is None:
        return network(*(parts if _takes(parameters, len(parts)) else [parts]))
    named = dict(zip(form.names, parts, strict=True))
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_others = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_others and (accepted & set(named) or not _required(parameters)):
        return network(**named, **optional)
    if accepted & set(named):
        return network(
            **{name: part for name, part in (*named.items(), *optional.items()) if name in accepted}
        )
    mapping = {**named, **optional}
    if len(parts) == 1:
        return _call_with_one(network, parts[0], mapping)
    return network(mapping)


def _call_with_one(network: nn.Module, tensor: Tensor, mapping: Mapping[str, Any]) -> Any:
    """Call a network with its only input, or with the mapping that holds it if it reads it as a mapping."""
    try:
        return network(tensor)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        # torch's message for `"name" in tensor`
        if isinstance(error, RuntimeError) and "__contains__" not in str(error):
            raise
        try:
            return network(mapping)
        except (AttributeError, TypeError) as second:
            if "dict" in str(second):  # the network takes no mapping
                raise error from None
            raise


def _required(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters that a call must pass by position or by name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds and p.default is p.empty]


def _takes(parameters: Collection[inspect.Parameter], n_inputs: int) -> bool:
    """Return whether as many inputs can be passed by position (else they are passed as one tuple)."""
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    n_accepted = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return n_accepted != 1 or n_inputs == 1


def logits_of_probabilities(
    probabilities: Float[Tensor, "n ..."], activation: str
) -> Float[Tensor, "n ..."]:
    """Return logits whose "sigmoid" or "softmax" are these probabilities (which are clamped at the last digit).

    For the activation "log-sigmoid" they are the logarithms of probabilities.
    """
    epsilon = torch.finfo(probabilities.dtype).eps
    if activation == "log-sigmoid":
        # log p - log(1 - p), without forming p
        logarithms = probabilities.clamp(max=-epsilon)
        return logarithms - torch.log(-torch.expm1(logarithms))
    if activation == "softmax":
        return probabilities.clamp(min=epsilon).log()
    return probabilities.clamp(epsilon, 1 - epsilon).logit()


class NetworkAdapter(nn.Module):
    """Network from one tensor to raw outputs [n, K].

    Outputs with a number per class and position are flattened to [n, K * P], all positions of the first class first.

    `form` is the layout of the input tensor (None for the network's only argument), `squeezed` whether the network
    returns [n], `class_axis` the axis of the classes if outputs have positions, `two_columns` whether one output z is
    returned as the two logits 0 and z, and `next_position` whether outputs at a position are about the next one: those
    at the last position are dropped. `activation` is "sigmoid", "softmax" or "log-sigmoid" if the network
    returns (logarithms of) probabilities, which are converted to logits, and `writes_input` whether it writes into its
    input, which is then a copy. `counted` are the positions that count of the samples that it will be passed, in the
    form of `gapscope.inspection.counted_outputs`; outputs are the same. After a pass, `shape` is that of one sample's
    outputs at positions, classes first.
    """

    def __init__(
        self,
        network: nn.Module,
        form: InputLayout | None = None,
        *,
        squeezed: bool = False,
        class_axis: int | None = None,
        two_columns: bool = False,
        next_position: bool = False,
        activation: str = "",
        writes_input: bool = False,
        counted: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.form = form
        self.squeezed = squeezed
        self.class_axis = class_axis
        self.two_columns = two_columns
        self.next_position = next_position
        self.activation = activation
        self.writes_input = writes_input
        self.counted = counted
        self.shape = torch.Size()
        self.training = network.training

    @property
    def adapted_from(self) -> nn.Module:
        """The user's network."""
        return self.network

    @property
    def n_positions(self) -> int:
        """Number of positions per sample; 1 without positions."""
        return self.shape[1:].numel()

    def forward(self, x: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        """Return the raw outputs of the inputs encoded in `x`."""
        if self.writes_input:
            x = x.clone()
        if self.form is None:
            result = self.network(x)
        else:
            result = call_network(self.network, self.form, x)
        outputs = raw_outputs(result)
        if self.activation:
            outputs = logits_of_probabilities(outputs, self.activation)
        # a network that squeezes its output also removes the axis of a single sample
        if self.squeezed:
            if self.class_axis is None:
                outputs = outputs.reshape(-1, 1)
            else:
                outputs = outputs[:, None]
        if self.class_axis is not None:
            outputs = outputs.movedim(self.class_axis, 1)
            if self.next_position:
                outputs = outputs.flatten(2)[:, :, :-1]
            self.shape = outputs.shape[1:]
            outputs = outputs.flatten(1)
        if self.two_columns:
            return torch.cat([torch.zeros_like(outputs), outputs], 1)
        return outputs

    def with_changes(self, **changes: Any) -> NetworkAdapter:
        """Return the same network with other settings of the adapter."""
        names = inspect.signature(NetworkAdapter).parameters
        adapted = NetworkAdapter(**{name: getattr(self, name) for name in names} | changes)
        adapted.shape = self.shape
        return adapted


def class_network(network: nn.Module, n_outputs: int) -> nn.Module:
    """Return the network with one logit per class (one output z becomes the logits 0 and z).

    Args:
        network: Network that returns raw outputs [n, K].
        n_outputs: Number of its outputs.
    """
    if n_outputs != 1:
        return network
    if isinstance(network, NetworkAdapter):
        return network.with_changes(two_columns=True)
    return NetworkAdapter(network, two_columns=True)


def class_axis(
    outputs: Float[Tensor, "n ..."], labels: Shaped[Tensor, "n ..."], preferred: int | None = None
) -> int:
    """Return the class axis of dense outputs: 1 (channels first, segmentation) or -1 (tokens).

    Where both fit, because there are as many positions as classes, the caller must know it (`preferred`).

    Raises:
        InvalidInput: No axis fits, or both do and `preferred` is None.
    """
    has_axis = outputs.ndim == labels.ndim + 1
    fitting = []
    if has_axis and outputs.shape[2:] == labels.shape[1:]:
        fitting.append(1)
    if has_axis and outputs.shape[1:-1] == labels.shape[1:]:
        fitting.append(-1)
    if preferred in fitting:
        return preferred  # type: ignore[return-value]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InvalidInput(
            f"Outputs {list(outputs.shape[1:])} per sample have as many classes as positions; which axis holds the "
            'classes is needed. Pass gs.Samples(x, y, task="tokens") if they are last, task="pixels" if they are first.'
        )
    raise InvalidInput(
        f"Labels of positions must have the positions of the outputs, {list(outputs.shape[1:])} with one axis for the "
        f"classes; got labels {list(labels.shape[1:])} per sample. Resize one of them, or pass one label per sample."
    )
