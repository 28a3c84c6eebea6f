"""Weight matrices of a network with batch norm folded in, for norms and spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.inspection.hooks import ModuleCall, Weighted, record_module_calls
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import as_real, measurement_mode, prepare_inputs


@dataclass(frozen=True)
class LayerWeight:
    """Trainable weight of two or more dimensions, with its values before training if known."""

    name: str
    parameter: Tensor
    # scale of the following batch norm, one per row; 1 where there is none
    scale: Tensor | float = 1.0
    initial: Tensor | None = None
    initial_scale: Tensor | float = 1.0
    # the convolution or linear layer to which it belongs, and the size of a convolution's input without its channels
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
        assert self.initial is not None  # measures that look at it ask for the initial weights
        return (self.weight - as_real(self.initial).double() * self.initial_scale).flatten(1)


@dataclass(frozen=True)
class _Place:
    """Use of a parameter: its layer, and the batch norm after that layer."""

    call: ModuleCall | None = None
    norm: ModuleCall | None = None

    def scale(self, state: Mapping[str, Tensor], n_dims: int) -> Tensor | float:
        if self.norm is None:
            return 1.0
        module, name = self.norm.module, self.norm.name
        assert isinstance(module, _BatchNorm)
        deviation = (state[f"{name}.running_var"].double() + module.eps).sqrt()
        gamma = state[f"{name}.weight"].double() if module.affine else torch.ones_like(deviation)
        return (gamma / deviation).reshape(-1, *[1] * (n_dims - 1))


def _places(network: nn.Module, x: Tensor) -> dict[int, _Place]:
    """Return where each weight is used, by its identity, from a forward pass of one sample."""
    made = record_module_calls(network, x)
    norms = [call for call in made if isinstance(call.module, _BatchNorm) and call.module.running_var is not None]
    result: dict[int, _Place] = {}
    for call in made:
        if isinstance(call.module, Weighted):
            norm = next((other for other in norms if other.input is call.output), None)
            result.setdefault(id(call.module.weight), _Place(call, norm))
    return result


def initial_value(initial_state: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return the initial value of a parameter or buffer, or raise InvalidInput."""
    start = initial_state.get(name)
    if start is None or start.shape != like.shape or start.is_complex() != like.is_complex():
        raise InvalidInput(
            f"initial_state must be a state dictionary of the same network; '{name}' is "
            f"{'missing' if start is None else 'of another shape'}. Copy network.state_dict() before training."
        )
    return start.detach().to(like.device)


@memoize
def layer_weights(
    network: nn.Module, x: Tensor, initial_state: Mapping[str, Tensor] | None = None
) -> Sequence[LayerWeight]:
    """Return all trainable weights of two or more dimensions, each once, in parameter order.

    A batch norm that takes the output of a convolution or linear layer directly scales its rows, as it does in
    evaluation mode.

    Raises:
        NotMeasurable: There is no such weight.
    """
    with measurement_mode(network) as network:
        places = _places(network, prepare_inputs(network, x[:1]))
        state = {name: tensor.detach() for name, tensor in network.state_dict(keep_vars=True).items()}
        before = None
        if initial_state is not None:
            before = {name: initial_value(initial_state, name, own) for name, own in state.items()}
        result = []
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad or parameter.ndim < 2:
                continue
            place, like = places.get(id(parameter), _Place()), as_real(parameter)
            linear = place.call is None or isinstance(place.call.module, nn.Linear)
            result.append(
                LayerWeight(
                    name,
                    state[name],
                    place.scale(state, like.ndim),
                    None if before is None else before[name],
                    1.0 if before is None else place.scale(before, like.ndim),
                    None if place.call is None else place.call.module,
                    () if linear else tuple(place.call.input.shape[2 - parameter.ndim :]),  # type: ignore[union-attr]
                )
            )
    if not result:
        raise NotMeasurable("Got no trainable weight of two dimensions or more; this measure needs one.")
    return result


@memoize
def squared_singular_values(network: nn.Module, x: Tensor) -> Mapping[str, Float[Tensor, " r"]]:
    """Return the squared singular values of each weight matrix, by the name of its parameter.

    They are the eigenvalues of the smaller of its two Gram matrices, in float64.
    """
    result = {}
    for layer in layer_weights(network, x):
        matrix = layer.matrix
        matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.mT
        result[layer.name] = torch.linalg.eigvalsh(matrix @ matrix.mT).clamp_min(0).cpu()
    return result
