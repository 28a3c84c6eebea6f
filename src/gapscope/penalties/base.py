"""Base class of penalties, their strength, and their registry."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, check_range, did_you_mean
from gapscope.base.input_layout import InputLayout
from gapscope.base.options import add_common_parameters, check_settings, with_prefix
from gapscope.base.user_warnings import warn_user
from gapscope.gradients.backward import ProbeSource
from gapscope.gradients.tape import Tape
from gapscope.inspection.checkpoints import direct_checkpoints
from gapscope.inspection.execution import exclusive
from gapscope.inspection.network_checks import (
    check_finite,
    check_hookable,
    check_module,
    check_trainable,
    unwrapped,
)
from gapscope.inspection.network_errors import explained_errors
from gapscope.penalties.batches import Batch, as_batch
from gapscope.results.catalogue import Catalogue

# start, least and most of "auto", by class name
LIMITS = {
    "GradientSimilarityPenalty": (0.003, 0.0005, 0.0125),
    "L2Penalty": (0.003, 0.0005, 0.0125),
    "LossGradientPenalty": (0.1, 0.01, 0.5),
    "AutomaticDropout": (0.3, 0.05, 0.7),
}


@runtime_checkable
class StrengthRule(Protocol):
    """Rule that controls a penalty's strength, such as `AutomaticStrength`."""

    strength: float
    most: float
    # called with the network before its first pass; raises if the rule does not suit it
    check: Callable[[nn.Module], None]

    def before_pass(self, network: nn.Module) -> float:
        """Return the strength of the next pass."""
        ...

    def after_pass(
        self, inputs: Tensor, targets: Tensor | None, layout: InputLayout | None = None
    ) -> None:
        """Update from the mini-batch of the pass (`layout` describes several `inputs`)."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`."""


def strength_of(
    value: float | str | StrengthRule, penalty: str
) -> tuple[float, StrengthRule | None]:
    """Return the initial strength, and the rule that controls it (None for a number)."""
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInput(
                f"strength of {penalty} must be a number, 0 or larger, or 'auto'; got {value!r}."
            )
        start, least, most = LIMITS[penalty]
        # it imports the batches of penalties
        from gapscope.penalties.automatic_strength import AutomaticStrength

        rule = AutomaticStrength(start=start, least=least, most=most)
        return rule.strength, rule
    if isinstance(value, StrengthRule):
        return value.strength, value
    check_range(f"strength of {penalty}", value, 0)
    return value, None


def check_fixed(value: object, penalty: str) -> None:
    """Raise InvalidInput unless the strength is a number, 0 or larger."""
    if value == "auto" or isinstance(value, StrengthRule):
        raise InvalidInput(
            f"strength of {penalty} must be a number, 0 or larger; got 'auto', which is for {', '.join(LIMITS)}."
        )
    check_range(f"strength of {penalty}", value, 0)  # type: ignore[arg-type]


# Networks that have been checked before their first pass.
_CHECKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# Penalties that have warned of a value without a gradient.
_CONSTANT: weakref.WeakSet[Penalty] = weakref.WeakSet()


# Attributes of a penalty that refer to its networks.
_OF_NETWORKS = ("_network", "_states")


def bare_network(network: nn.Module) -> nn.Module:
    """Return the network without wrappers and adapters."""
    return unwrapped(getattr(network, "adapted_from", network))


class Penalty(ABC):
    """Differentiable term added to the loss.

    Call `outputs, value = penalty.forward_with_penalty(network, x, y)`, which shares the forward pass with the loss, or
    `penalty(network, x, y)` for the value alone. The value is a 0-d tensor, multiplied by the strength.

    Subclasses define `value` and, if they observe the forward pass, `observe`.

    Attributes:
        needs_targets: Whether targets are required.
        counts_calls: Whether the number of calls is part of its state.
        strength: Factor of the penalty.
        automatic: Rule that sets the strength during training; None if it is fixed.
        counted: In `value`, which of the outputs [n, K] count; None if all do, and at other times.
        n_passes: Number of times that the penalty has been computed in this process.
    """

    needs_targets: bool = False
    counts_calls: bool = False
    strength: float
    automatic: StrengthRule | None = None
    counted: Tensor | None = None
    n_passes: int = 0
    _calls: int = 0
    _probes: ProbeSource | None = None
    # the network of the last pass, the state before the first one, the states that belong to other networks
    _network: weakref.ref[nn.Module] | None = None
    _initial: Mapping[str, Tensor] | None = None
    _states: weakref.WeakKeyDictionary[nn.Module, Mapping[str, Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which takes its state to the network of its next pass."""
        return {name: value for name, value in vars(self).items() if name not in _OF_NETWORKS}

    def follow(self, network: nn.Module) -> None:
        """Take the state that belongs to a network: that of its earlier passes, or the initial one.

        Args:
            network: The network of the next pass.
        """
        network = bare_network(network)
        last = None if self._network is None else self._network()
        if network is last:
            return
        if self._initial is None:
            self._initial = self.state_dict()
        if self._network is not None:
            states = self._states or weakref.WeakKeyDictionary()
            if last is not None:
                states[last] = self.state_dict()
            self.load_state_dict(states.pop(network, self._initial))
            self._states = states
        self._network = weakref.ref(network)

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Observe the forward pass in the body (yields its inputs, and `observed` for `value`).

        Args:
            network: The network, called with one tensor.
            inputs: Inputs of the mini-batch, as one tensor.
        """
        yield inputs, None

    def n_counted(self, outputs: Tensor) -> int | Tensor:
        """Return the number of outputs that count, over which a mean is taken.

        Args:
            outputs: Outputs [n, K] of the pass.
        """
        return outputs.numel() if self.counted is None else self.counted.sum().clamp(min=1)

    @abstractmethod
    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty, a 0-d tensor, from one observed forward pass.

        Args:
            network: The network, called with one tensor.
            inputs: Inputs of the pass, as `observe` yielded them.
            outputs: Outputs of the pass, [n, K] (those of positions flattened, and 0 where a position has the label
                -100, or without targets where an attention mask leaves it out).
            targets: Targets of the mini-batch; None if none were passed.
            observed: What `observe` yielded for this penalty.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that resumed training needs."""
        if self.counts_calls:
            state = {"calls": torch.tensor(self._calls)}
        else:
            state = {}
        if self._probes is not None:
            state |= self._probes.state_dict()
        if self.automatic is not None:
            state |= {
                f"automatic.{name}": tensor for name, tensor in self.automatic.state_dict().items()
            }
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`, which belongs to the network of the next pass.

        Subclasses call this method before they load their own tensors.

        Args:
            state: Name -> tensor, from a penalty of the same class and settings.

        Raises:
            InvalidInput: The penalty has no state, but some was passed.
        """
        if self._initial is None:
            self._initial = self.state_dict()
        self._network = None
        if state and not self.state_dict():
            raise InvalidInput(
                f"Got state {', '.join(state)}; {type(self).__name__} has none. Use the penalties it was saved with."
            )
        if self.counts_calls:
            self._calls = int(state["calls"])
        if self._probes is not None:
            self._probes.load_state_dict(state)
        if self.automatic is not None:
            self.automatic.load_state_dict(with_prefix(state, "automatic."))

    def forward_with_penalty(
        self, network: nn.Module, x: Any, y: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Return the network's result on a mini-batch, and the penalty, from one forward pass.

        Args:
            network: The network in training; its modes and buffers change as in a plain forward pass.
            x: A tensor, a tuple of tensors, or a mapping of keyword arguments, which may hold the labels.
            y: Targets, for penalties that need them; None for the labels of the mapping. Labels of a causal language
                model are shifted by one token, as in its own loss.
        """
        return forward_with_penalties(network, x, y, [self])

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        values = {name: getattr(self, name) for name in names if hasattr(self, name)}
        # no data and functions, which have long texts
        settings = [
            f"{name}={value!r}"
            for name, value in values.items()
            if isinstance(value, int | float | str)
        ]
        return f"{type(self).__name__}({', '.join(settings)})"

    def __call__(self, network: nn.Module, x: Any, y: Tensor | None = None) -> Tensor:
        """Return the penalty alone."""
        return self.forward_with_penalty(network, x, y)[1]


def forward_with_penalties(
    network: nn.Module, x: Any, y: Tensor | None, penalties: Sequence[Penalty]
) -> tuple[Any, Tensor]:
    """Return the result and summed penalties of a pass, as `Penalty.forward_with_penalty`."""
    check_module(network)
    parameters = list(unwrapped(network).parameters())
    if parameters:  # a module without any, such as nn.Identity, has penalties of its outputs
        check_trainable([parameter for parameter in parameters if parameter.requires_grad])
    if network not in _CHECKED:
        check_hookable(network)
        check_finite(network)
        _CHECKED.add(network)
    with exclusive(), direct_checkpoints():
        return _forward(network, as_batch(network, x, y), penalties)


def _warn_if_constant(penalty: Penalty, value: Tensor) -> None:
    """Warn, once per penalty, of a value without a gradient (zero is that of a call without the penalty)."""
    if penalty not in _CONSTANT and bool(value != 0):
        _CONSTANT.add(penalty)
        warn_user(
            f"The value of {type(penalty).__name__} has no gradient by the weights, so the penalty changes nothing in "
            "training. This is right for a network of one linear layer, whose gradients do not depend on its weights; "
            "otherwise look for torch.no_grad or detach in the forward pass or the penalty.",
        )


def _forward(network: nn.Module, batch: Batch, penalties: Sequence[Penalty]) -> tuple[Any, Tensor]:
    for penalty in penalties:
        penalty.follow(network)
        if penalty.automatic is not None:
            penalty.strength = penalty.automatic.before_pass(network)
    with ExitStack() as stack:
        inputs = batch.inputs
        observations = []
        for penalty in penalties:
            with explained_errors():
                inputs, observed = stack.enter_context(penalty.observe(batch.network, inputs))
            observations.append(observed)
            if isinstance(observed, Tape):
                observed.outputs_of = batch.outputs_of
        with explained_errors():
            result = batch.network(inputs)
    outputs = batch.outputs_of(result)
    if not isinstance(outputs, Tensor):
        got = type(outputs).__name__
        raise InvalidInput(
            f"A network must return a tensor, or an object with `logits`; got {got}. Wrap the network."
        )
    batch.check_targets(result)
    counted = batch.counted(result, outputs.shape[1])
    if counted is not None:
        outputs = outputs.masked_fill(~counted.to(outputs.device), 0)
    total = outputs.new_zeros(())
    for penalty, observed in zip(penalties, observations, strict=True):
        penalty.counted = counted
        value = penalty.value(batch.network, inputs, outputs, batch.targets, observed)
        penalty.counted = None
        if outputs.requires_grad and not value.requires_grad:
            _warn_if_constant(penalty, value)
        total = total + value
        penalty.n_passes += 1
    for penalty in penalties:
        if penalty.automatic is not None:
            penalty.automatic.after_pass(
                batch.inputs, batch.targets, getattr(batch.network, "form", None)
            )
    return result, total


AnyClass = TypeVar("AnyClass", bound=type)

_PENALTIES: dict[str, type] = {}


def register_penalty(name: str) -> Callable[[AnyClass], AnyClass]:
    """Register the decorated class as a penalty, and add common parameters to its docstring."""

    def register(cls: AnyClass) -> AnyClass:
        registered = _PENALTIES.get(name, cls)
        if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput(
                f"A penalty called {name!r} is registered already. Choose another name."
            )
        add_common_parameters(cls, "gapscope.penalties")
        _PENALTIES[name] = cls
        return cls

    return register


def penalties() -> Catalogue[type]:
    """Return all registered penalties by name, sorted, after importing those of gapscope (printed as a table)."""
    import_all("gapscope.penalties")
    return Catalogue(dict(sorted(_PENALTIES.items())), lambda penalty: {"class": penalty.__name__})


def make_penalty(name: str, options: Mapping[str, Any]) -> Any:
    """Build a penalty from its registered name and keyword settings."""
    classes = penalties()
    if name not in classes:
        raise InvalidInput(
            f"There is no penalty {name!r}; known are {', '.join(classes)}.{did_you_mean(name, classes)}"
        )
    check_settings(f"Penalty {name!r}", options, classes[name])
    return classes[name](**options)
