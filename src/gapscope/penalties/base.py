"""What every penalty is: a term added to the loss, computed from one forward pass that the loss shares."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.gradients.tape import Tape
from gapscope.inspection.checks import check_finite, check_hookable, check_module
from gapscope.inspection.outputs import explain_torch_errors, unwrapped
from gapscope.inspection.threads import network_lock
from gapscope.penalties.batches import Batch, as_batch
from gapscope.penalties.strength import StrengthRule

# Networks that a penalty has seen, which it does not look at again.
_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Penalty(ABC):
    """A differentiable term added to the loss.

    Two call forms: `penalty(network, x)` runs its own forward pass, and the fast
    `outputs, value = penalty.forward_with_penalty(network, x)` shares the forward pass with the loss. Both take targets
    `y` if the penalty needs them, and return a 0-d tensor already multiplied by the penalty's strength.

    Subclasses give `value` and, where they must watch the forward pass, `observing`.

    Attributes:
        needs_targets: Whether it must be given targets.
        strength: Its factor.
        automatic: What sets the strength while the network trains; None where it is fixed.
    """

    needs_targets: bool = False
    strength: float
    automatic: StrengthRule | None = None

    @contextmanager
    def observing(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Watch the one forward pass that runs in the body.

        Args:
            network: The network that will be called.
            inputs: The mini-batch.

        Yields:
            The inputs to call the network with, and whatever `value` needs of the pass.
        """
        yield inputs, None

    @abstractmethod
    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Any
    ) -> Tensor:
        """Return the penalty, a 0-d tensor, from one observed forward pass."""

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that a resumed training needs to continue as if unbroken: those of an automatic strength by default."""
        automatic = {} if self.automatic is None else self.automatic.state_dict()
        return {f"automatic.{name}": tensor for name, tensor in automatic.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state that `state_dict` gave; a penalty that keeps none refuses one."""
        if self.automatic is not None:
            kept = {name: tensor for name, tensor in state.items() if name.startswith("automatic.")}
            self.automatic.load_state_dict({name.removeprefix("automatic."): tensor for name, tensor in kept.items()})
        elif state:
            raise InvalidInput(
                f"{type(self).__name__} keeps no state; got {', '.join(state)}. Use the penalties it was saved with."
            )

    def forward_with_penalty(self, network: nn.Module, x: Any, y: Tensor | None = None) -> tuple[Any, Tensor]:
        """Return what the network returns on a mini-batch, and the penalty, from one forward pass.

        Args:
            network: The network, called as its own forward asks for: with a tensor, with the tensors of a tuple, or
                with the keywords of a mapping.
            x: A tensor, a tuple of tensors, or a mapping as a Hugging Face model takes it, which may hold the labels.
            y: Targets, for penalties that need them; None takes the labels of the mapping. Labels of a causal language
                model are shifted by one token, as its own loss shifts them.

        Returns:
            The network's own result (a tensor, or for example a `ModelOutput` with the loss of the labels), and the
            penalty (0-d).

        Raises:
            InvalidInput: The batch has another form, or targets are missing.
        """
        return forward_with_penalties(network, x, y, [self])

    def __call__(self, network: nn.Module, x: Any, y: Tensor | None = None) -> Tensor:
        """Return the penalty alone."""
        return self.forward_with_penalty(network, x, y)[1]


def _check_once(network: nn.Module) -> None:
    """Refuse what no training can begin with; what comes of it later is the training's matter."""
    check_module(network)
    if network not in _CHECKED:
        check_hookable(network)
        check_finite(network)
        _CHECKED.add(network)


def forward_with_penalties(
    network: nn.Module, x: Any, y: Tensor | None, penalties: Sequence[Penalty]
) -> tuple[Any, Tensor]:
    """Run one forward pass and return what the network returned with the sum of several penalties.

    Args:
        network: The network.
        x: The mini-batch, as for `Penalty.forward_with_penalty`.
        y: Targets, for penalties that need them.
        penalties: The penalties; may be empty.

    Returns:
        What the network returned, and the sum of the penalties (0-d).

    Raises:
        InvalidInput: The batch has another form, or the network returned no outputs.
    """
    _check_once(network)
    with network_lock(unwrapped(network)):
        return _forward(network, as_batch(network, x, y), penalties)


def _forward(network: nn.Module, batch: Batch, penalties: Sequence[Penalty]) -> tuple[Any, Tensor]:
    for penalty in penalties:
        if penalty.automatic is not None:
            penalty.strength = penalty.automatic.before_pass(network)
    with ExitStack() as stack:
        inputs, observations = batch.inputs, []
        for penalty in penalties:
            inputs, observed = stack.enter_context(penalty.observing(batch.network, inputs))
            observations.append(observed)
            if isinstance(observed, Tape):
                observed.outputs_of = batch.outputs_of
        with explain_torch_errors():
            result = batch.network(inputs)
    outputs = batch.outputs_of(result)
    if not isinstance(outputs, Tensor):
        raise InvalidInput(
            f"A network must return its raw outputs as a tensor, or an object with `logits`; got "
            f"{type(outputs).__name__}. Wrap it in a module that returns them."
        )
    total = outputs.new_zeros(())
    for penalty, observed in zip(penalties, observations, strict=True):
        total = total + penalty.value(batch.network, inputs, outputs, batch.targets, observed)
    for penalty in penalties:
        if penalty.automatic is not None:
            penalty.automatic.after_pass(batch.inputs, batch.targets, getattr(batch.network, "form", None))
    return result, total
