"""An alarm that may be raised only where another signal says that labels are noisy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.training.alarms.base import Alarm
from gapscope.training.alarms.registry import make_alarm, register_alarm


@register_alarm("gated")
class GatedAlarm(Alarm):
    """Raised when an alarm is raised and a gate is open, at the first observation where both hold.

    A gate is an alarm with a property `open`: `InitialKernel` (known before training) or `CanaryAlarm` (its bound of
    the noise rate). Costs both. The guess of the best epoch is that of the alarm when the gated one is raised.

    Args:
        alarm: The alarm, or its name.
        gate: The gate, or its name.

    Raises:
        InvalidInput: The gate cannot be open.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, alarm: Alarm | str = "label_wave", gate: Alarm | str = "initial_kernel") -> None:
        self.alarm = make_alarm(alarm) if isinstance(alarm, str) else alarm
        self.gate = make_alarm(gate) if isinstance(gate, str) else gate
        if not hasattr(self.gate, "open"):
            raise InvalidInput(
                f"A gate must say whether it is open; a {type(self.gate).__name__} does not. Use InitialKernel or "
                "CanaryAlarm."
            )
        self.says = self.alarm.says  # type: ignore[misc]
        Alarm.reset(self)

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self.alarm.reset()
        self.gate.reset()

    @property
    def wanted(self) -> Tensor | None:
        """Positions that either of the two wants."""
        found = [part.wanted for part in (self.alarm, self.gate) if part.wanted is not None]
        return torch.cat(found).unique() if found else None

    def watching(self, positions: Tensor) -> None:
        """Tell both."""
        self.alarm.watching(positions)
        self.gate.watching(positions)

    def begin(self, network: nn.Module, samples: Samples) -> None:
        """Let both look before training."""
        self.alarm.begin(network, samples)
        self.gate.begin(network, samples)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Let both look; see `Alarm.observe`."""
        numbers = self.gate.observe(network, samples, epoch) | self.alarm.observe(network, samples, epoch)
        return numbers | self.update(epoch)

    def update(self, epoch: int) -> dict[str, float]:
        """Join what both know by now.

        Args:
            epoch: Finished epochs.

        Returns:
            Whether the gate is open and whether the alarm has been raised.
        """
        is_open = bool(self.gate.open)  # type: ignore[attr-defined]
        if not self.raised:
            self.peak = self.alarm.peak
            if self.alarm.raised and is_open:
                self._raise(epoch)
        return {"alarm.open": float(is_open), "alarm.raised": float(self.raised)}

    def state_dict(self) -> dict[str, Any]:
        """Plain values of all three."""
        return {**super().state_dict(), "alarm": self.alarm.state_dict(), "gate": self.gate.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of all three."""
        own = {name: value for name, value in state.items() if name not in ("alarm", "gate")}
        super().load_state_dict(own)
        self.alarm.load_state_dict(state.get("alarm", {}))
        self.gate.load_state_dict(state.get("gate", {}))
