"""Weight matrices of a network with batch norm folded in, for norms and spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.inspection.computed_weights import with_plain_weights
from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import ModuleCall, Weighted, named_modules, record_module_calls
from gapscope.inspection.memoization import memoize
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.norms import evaluation_map, has_running_statistics
from gapscope.inspection.outputs import as_real, measurement_mode, prepare_inputs

StateDict = Mapping[str, Tensor]


@dataclass(frozen=True)
class LayerWeight:
    """Trainable weight of two or more dimensions, with its values before training if known."""

    name: str
    parameter: Tensor
    # scale of the following batch norm, one per row; 1 if there is none
    scale: Tensor | float = 1.0
    initial: Tensor | None = None
    initial_scale: Tensor | float = 1.0
    # its convolution or linear layer, and the spatial size of a convolution's input
    module: nn.Module | None = None
    positions: tuple[int, ...] = ()

    @property
    def weight(self) -> Tensor:
        """The values times the scale of the batch norm, in float64."""
        return as_real(self.parameter).double() * self.scale

    @property
    def matrix(self) -> Float[Tensor, "o i"]:
        """The weight as a matrix: its first dimension by the rest."""
        return self.weight.flatten(1)

    @property
    def difference(self) -> Float[Tensor, "o i"]:
        """The weight minus its initial value, as a matrix."""
        assert self.initial is not None  # needs `initial_state` in `layer_weights`
        return (self.weight - as_real(self.initial).double() * self.initial_scale).flatten(1)


def _scale(network: nn.Module, norm: ModuleCall | None, n_dims: int) -> Tensor | float:
    """Return the scale of a network's batch norm, one per row of the weight before it."""
    if norm is None:
        return 1.0
    scale, _ = evaluation_map(named_modules(network)[norm.name])
    return scale.reshape(-1, *[1] * (n_dims - 1))


def _is_own_operator(call: ModuleCall) -> bool:
    """Return whether a linear or convolutional layer returned what torch's operator gives with its weight."""
    module: Any = call.module
    base: Any = next(each for each in _OPERATORS if isinstance(module, each))
    forward = getattr(module.forward, "__func__", None)
    convolve = getattr(type(module), "_conv_forward", None)
    if forward is base.forward and convolve is getattr(base, "_conv_forward", None):
        return True
    if not isinstance(call.input, Tensor) or not isinstance(call.output, Tensor):
        return False
    with torch.no_grad():
        try:
            if base is nn.Linear:
                expected = F.linear(call.input, module.weight, module.bias)
            else:
                expected = base._conv_forward(module, call.input, module.weight, module.bias)
        except RuntimeError:  # such as of inputs that the subclass brings into another shape
            return False
    # float32 agrees to about six digits: another operator is off by more
    return expected.shape == call.output.shape and torch.allclose(
        expected, call.output, rtol=1e-3, atol=1e-4 * float(expected.abs().max())
    )


_OPERATORS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check_operators(calls: Sequence[ModuleCall]) -> None:
    """Refuse layers whose operator is not that of their weight.

    Args:
        calls: Calls of one forward pass, of a network `with_plain_weights`.

    Raises:
        NotMeasurable: The forward function of a subclass does more than torch's layer, or a weight is no parameter.
    """
    for call in calls:
        if not isinstance(call.module, Weighted):
            continue
        if call.module._parameters.get("weight") is None:
            raise NotMeasurable(
                f"Norms of the weights need weights that are parameters; {type(call.module).__name__} '{call.name}' "
                "computes its weight. Use torch.nn.utils.parametrize."
            )
        if not _is_own_operator(call):
            raise NotMeasurable(
                f"Norms of the weights need layers that apply their weight as torch does; the forward function of "
                f"{type(call.module).__name__} '{call.name}' returns something else. Build it from torch's layer and "
                "a module before or after it."
            )


def initial_value(initial_state: StateDict, name: str, like: Tensor) -> Tensor:
    """Return the initial value of a parameter or buffer, or raise InvalidInput."""
    start = initial_state.get(name)
    if start is not None and not isinstance(start, Tensor):
        raise InvalidInput(
            f"initial_state must hold tensors; '{name}' is of type {type(start).__name__}. Copy network.state_dict() "
            "before training."
        )
    if start is None or start.shape != like.shape or start.is_complex() != like.is_complex():
        raise InvalidInput(
            f"initial_state must be a state dictionary of the same network; '{name}' is "
            f"{'missing' if start is None else 'of another shape'}. Copy network.state_dict() before training."
        )
    return start.detach().to(like.device)


def _before_training(network: nn.Module, initial_state: StateDict) -> nn.Module:
    """Return a network `with_plain_weights` as it was before training."""
    network = copy_network(unwrapped(network))
    with torch.no_grad():
        for name, tensor in network.state_dict(keep_vars=True).items():
            tensor.copy_(initial_value(initial_state, name, tensor))
    return with_plain_weights(network)


@memoize
def layer_weights(
    network: nn.Module, x: Tensor, initial_state: StateDict | None = None
) -> Sequence[LayerWeight]:
    """Return all trainable weights of two or more dimensions, each once, in parameter order.

    A batch norm directly after a convolution or linear layer scales its rows, as in evaluation mode. Weights that are
    computed from others (weight norm, spectral norm, pruning) count with their values.

    Raises:
        NotMeasurable: There is no such weight, or a layer applies its weight in another way than torch's.
    """
    original = network
    with measurement_mode(with_plain_weights(network)) as network:
        calls = record_module_calls(network, prepare_inputs(network, x[:1]))
        check_operators(calls)
        norms = [call for call in calls if has_running_statistics(call.module)]
        users: dict[int, ModuleCall] = {}
        for call in calls:
            if isinstance(call.module, Weighted):
                users.setdefault(id(call.module.weight), call)
        state = network.state_dict()
        first = None if initial_state is None else _before_training(original, initial_state)
        initial: StateDict = {} if first is None else first.state_dict()
        result = []
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad or parameter.ndim < 2:
                continue
            user = users.get(id(parameter))
            n_dims = as_real(parameter).ndim
            norm = next((each for each in norms if user is not None and each.follows(user)), None)
            is_linear = user is None or isinstance(user.module, nn.Linear)
            result.append(
                LayerWeight(
                    name,
                    state[name],
                    _scale(network, norm, n_dims),
                    initial.get(name),
                    1.0 if first is None else _scale(first, norm, n_dims),
                    None if user is None else user.module,
                    () if is_linear else tuple(user.input.shape[2 - parameter.ndim :]),  # type: ignore[union-attr]
                )
            )
    if not result:
        raise NotMeasurable(
            "Got no trainable weight of two dimensions or more; this measure needs one."
        )
    return result


@memoize
def squared_singular_values(network: nn.Module, x: Tensor) -> Mapping[str, Float[Tensor, " r"]]:
    """Return the squared singular values of each weight matrix, by the name of its parameter.

    They are the eigenvalues of the smaller of its two Gram matrices, in float64.
    """
    result = {}
    for layer in layer_weights(network, x):
        matrix = layer.matrix
        if len(matrix) > matrix.shape[1]:
            matrix = matrix.mT
        result[layer.name] = torch.linalg.eigvalsh(matrix @ matrix.mT).clamp_min(0).cpu()
    return result
