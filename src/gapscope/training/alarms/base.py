"""Base classes and registry of alarms."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, check_range, did_you_mean
from gapscope.base.options import check_settings
from gapscope.base.samples import Samples
from gapscope.base.targets import check_labels, require_labels
from gapscope.base.task import class_logits
from gapscope.inspection.outputs import inspection_mode, network_outputs

_logger = logging.getLogger("gapscope")


class Alarm(ABC):
    """Early-stopping criterion from training samples alone.

    `observe(network, samples, epoch)` evaluates the network and passes the numbers to the subclass's `update`; a loop
    that has these numbers already calls `update` directly. An alarm stays raised. `raised_at` is the epoch at which it
    was raised, `peak` the estimated best epoch so far (or None).
    """

    classes_only: ClassVar[bool] = True  # whether the alarm needs class labels
    description: ClassVar[str] = ""  # what a raised alarm means
    # attributes that resumed training needs, in addition to `raised_at` and `peak`
    state_fields: ClassVar[tuple[str, ...]] = ()

    def reset(self) -> None:
        """Reset for another training run."""
        self.raised_at: int | None = None
        self.peak: int | None = None

    @property
    def raised(self) -> bool:
        """True once the alarm has been raised."""
        return self.raised_at is not None

    @property
    def required_indices(self) -> Tensor | None:
        """Indices of training samples that must be monitored (None if any samples will do)."""
        return None

    def set_indices(self, indices: Tensor) -> None:  # noqa: B027
        """Receive the indices of the monitored training samples (most alarms ignore them).

        Args:
            indices: Row numbers in the training data, [n].
        """

    def check_targets(self, indices: Tensor, targets: Tensor | None) -> None:  # noqa: B027
        """Check that an alarm that knows the labels of training samples was given them (most know none).

        Args:
            indices: Row numbers in the training data, [n].
            targets: Targets of these samples, as passed.

        Raises:
            InvalidInput: They are other labels.
        """

    def check_training(self, samples: Samples) -> None:
        """Check the samples of a training that this alarm monitors (`gapscope.train` calls this).

        Args:
            samples: All training samples.

        Raises:
            InvalidInput: They have other labels than this alarm needs, or no order in which it finds its own.
        """
        if self.required_indices is not None:
            self.check_targets(samples.original(torch.arange(len(samples))), samples.targets)

    def training_samples(self, samples: Samples, *, at_start: bool = False) -> Samples:
        """Return the training samples with the labels of the next epoch (`gapscope.train` trains on these).

        Args:
            samples: All training samples, as checked by `check_training`; most alarms return them as they are.
            at_start: Whether to return them with the labels of the first epoch instead.
        """
        return samples

    def begin(self, network: nn.Module, samples: Samples) -> None:  # noqa: B027
        """Observe the network before training (most alarms do nothing).

        Args:
            network: The network, before its first step; it stays as it is.
            samples: Monitored training samples, with class labels [n].
        """

    @abstractmethod
    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Observe the network once, and return numbers ("alarm.raised" is 0 or 1).

        Args:
            network: The network in training; it stays as it is.
            samples: Monitored training samples, with class labels [n].
            epoch: Number of finished epochs, or another increasing count.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that resumed training needs, as JSON-serializable values."""
        return {
            name: _encode(getattr(self, name)) for name in ("raised_at", "peak", *self.state_fields)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that another alarm had.

        Args:
            state: Result of `state_dict` of an alarm with the same class and settings.

        Raises:
            InvalidInput: The state is one of another class.
        """
        names = ("raised_at", "peak", *self.state_fields)
        if set(state) != set(names):
            raise InvalidInput(
                f"The state of a {type(self).__name__} must hold {', '.join(names)}; got {', '.join(state)}. Use the "
                "alarm it was saved with."
            )
        for name in names:
            setattr(self, name, _decode(state[name], getattr(self, name)))

    def _labels(self, samples: Samples) -> Tensor:
        return require_labels(samples, type(self).__name__).cpu()

    def _raise(self, epoch: int) -> None:
        if self.raised_at is None:
            self.raised_at = epoch
            _logger.warning("%r", self)

    def __repr__(self) -> str:
        if self.peak is None:
            if self.raised_at is None:
                state = "no verdict yet"
            else:
                state = f"raised at {self.raised_at}"
        elif self.raised_at is None:
            state = f"not raised; estimated best epoch so far: {self.peak}"
        else:
            score = "accuracy" if self.classes_only else "the score"
            state = (
                f"raised at epoch {self.raised_at}: {self.description} since epoch {self.peak}; {score} on new data "
                "has probably peaked there"
            )
        return f"{type(self).__name__}({state})"


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"fields": {item.name: _encode(getattr(value, item.name)) for item in fields(value)}}
    return value


def _decode(value: Any, current: Any) -> Any:
    """Decode a value of `_encode` (a dataclass is the current one with other fields)."""
    if isinstance(value, Mapping) and "fields" in value:
        return replace(
            current, **{name: _decode(part, None) for name, part in value["fields"].items()}
        )
    if isinstance(value, Mapping):
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    # JSON stores NaN and infinities as strings
    if isinstance(value, str):
        return float(value)
    if isinstance(value, list | tuple):
        return list(value)
    return value


class PeakAlarm(Alarm):
    """Alarm on one number that falls when training should end.

    The number is averaged over the last `window` observations. The alarm is raised when this mean has been more than
    `fall` below its maximum for `patience` consecutive observations. `peak` is the epoch of the maximum.

    Args:
        window: Number of observations that are averaged; the first mean needs as many.
        fall: Fall that is tolerated, in units of the number.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_recent", "_best", "_below")

    def __init__(self, *, window: int, fall: float, patience: int) -> None:
        check_range("window", window, 1)
        check_range("fall", fall, 0)
        check_range("patience", patience, 1)
        self.window = window
        self.fall = fall
        self.patience = patience
        self.reset()

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._recent: list[float] = []
        self._best: float | None = None
        self._below = 0

    def follow(self, value: float, epoch: int, *, allowed: bool = True) -> dict[str, float]:
        """Update with the next number (ignored if not finite), without raising unless `allowed`.

        Returns the number, its mean over the window, and whether the alarm has been raised, by name.

        Args:
            value: The number that the alarm follows; larger is better.
            epoch: Number of finished epochs, or another increasing count.
            allowed: Whether a fall may raise the alarm now.
        """
        smooth = math.nan
        if math.isfinite(value):
            self._recent = [*self._recent, value][-self.window :]
            if len(self._recent) == self.window:
                smooth = math.fsum(self._recent) / self.window
                if self._best is None or smooth > self._best:
                    self._best = smooth
                    self.peak = epoch
                is_below = allowed and smooth < self._best - self.fall
                self._below = self._below + 1 if is_below else 0
                if self._below >= self.patience:
                    self._raise(epoch)
        return {"alarm.value": value, "alarm.smoothed": smooth, "alarm.raised": float(self.raised)}


def outputs_of(network: nn.Module, samples: Samples) -> Float[Tensor, "n k"]:
    """Return the outputs in evaluation mode, float64 on the CPU, from one forward pass.

    Those of a classifier are the logits of all classes, also for two classes with one output.
    """
    with inspection_mode(network):
        outputs = network_outputs(network, samples.inputs).double().cpu()
    if samples.is_classification:
        outputs = class_logits(outputs)
        check_labels(samples.y, outputs.shape[1])
    return outputs


AnyAlarm = TypeVar("AnyAlarm", bound=Alarm)

_ALARMS: dict[str, type[Alarm]] = {}


def register_alarm(name: str) -> Callable[[type[AnyAlarm]], type[AnyAlarm]]:
    """Register the decorated class as an alarm that a monitor can name."""

    def register(cls: type[AnyAlarm]) -> type[AnyAlarm]:
        _ALARMS[name] = cls
        return cls

    return register


def alarms() -> dict[str, type[Alarm]]:
    """Return all registered alarms by name, sorted, importing those of gapscope first."""
    import_all("gapscope.training.alarms")
    return dict(sorted(_ALARMS.items()))


def make_alarm(name: str, **settings: Any) -> Alarm:
    """Build an alarm from its registered name and settings."""
    classes = alarms()
    if name not in classes:
        raise InvalidInput(
            f"There is no alarm {name!r}; known are {', '.join(classes)}.{did_you_mean(name, classes)}"
        )
    check_settings(f"Alarm {name!r}", settings, classes[name])
    return classes[name](**settings)


def check_stop(stop: bool, alarm: Alarm | None) -> None:
    """Raise InvalidInput if a missing alarm shall end the training."""
    if stop and alarm is None:
        raise InvalidInput(
            "stop=True needs an alarm, which ends the training; got a Monitor without one. Pass "
            "gapscope.Monitor(..., alarm='joint'), or stop=False."
        )
