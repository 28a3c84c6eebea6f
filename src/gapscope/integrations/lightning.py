"""Lightning callbacks: a monitor, and the state of penalties in checkpoints."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, did_you_mean, join_names, require_extra
from gapscope.base.user_warnings import warn_user
from gapscope.penalties.base import Penalty
from gapscope.training.alarms.base import check_stop
from gapscope.training.monitor import Monitor

require_extra("lightning", "lightning")

import lightning.pytorch as pl  # noqa: E402  # pyright: ignore[reportMissingImports]


class _Named(pl.Callback):
    """Callback whose state in checkpoints may have a name."""

    name: str

    @property
    def state_key(self) -> str:
        """Key of the state in Lightning's checkpoints: the class, and the name if there is one."""
        kind = type(self).__qualname__
        return f"{kind}.{self.name}" if self.name else kind


class MonitorCallback(_Named):
    """Callback that records at the end of training epochs, and logs to the trainer's loggers.

    Weights are bit-identical with and without the callback (unless `stop`). Lightning's checkpoints hold the state of
    the monitor. With several processes the first one records; strategies that shard the weights are not supported.

    Args:
        module: Name of the module that returns raw outputs [n, K], such as "model"; None for the LightningModule,
            called with the inputs alone.
        stop: Whether the monitor's alarm, which it then needs, ends the training.
        name: Name of the state in checkpoints. Several callbacks of one trainer need different names. Without
            them Lightning raises "Found more than one stateful callback".

    Raises:
        InvalidInput: `stop` is set, and the monitor has no alarm.
    """

    @check_arguments
    def __init__(
        self, monitor: Monitor, *, module: str | None = None, stop: bool = False, name: str = ""
    ) -> None:
        check_stop(stop, monitor.alarm)
        self.monitor = monitor
        self.module = module
        self.stop = stop
        self.name = name

    def _monitored(self, pl_module: pl.LightningModule) -> nn.Module:
        if self.module is None:
            return pl_module
        modules = dict(pl_module.named_modules())
        if self.module not in modules:
            raise InvalidInput(
                f"module must name a module of {type(pl_module).__name__}; got {self.module!r}."
                f"{did_you_mean(self.module, modules)} Pass one of {join_names(list(modules)[1:])}."
            )
        return modules[self.module]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Observe the untrained network."""
        if trainer.is_global_zero:
            self.monitor.plan_epochs(trainer.max_epochs)
            self.monitor.begin(self._monitored(pl_module))

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's state for Lightning's checkpoint."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self.monitor.load_state_dict(state_dict)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record if due."""
        raised = False
        if trainer.is_global_zero:
            row = {"epoch": trainer.current_epoch + 1}
            self.monitor(self._monitored(pl_module), row)
            row.pop("epoch")
            pl_module.log_dict(row, rank_zero_only=True)
            raised = self.monitor.alarm is not None and self.monitor.alarm.raised
        if self.stop and trainer.strategy.reduce_boolean_decision(raised, all=False):
            trainer.should_stop = True


class PenaltyCallback(_Named):
    """Callback that stores the state of penalties in Lightning's checkpoints.

    It does not add the penalties: the training step does, and a penalty that it has not computed in the first epoch is
    warned of. With `penalty` an attribute of the LightningModule::

        def training_step(self, batch, index):
            x, y = batch
            outputs, value = self.penalty.forward_with_penalty(self.network, x, y)
            return F.cross_entropy(outputs, y) + value

    A resumed fit then ends with the weights of the unbroken one. With
    several processes all resume the state of the first.

    Args:
        *penalties: Penalties of the training step, in the same order when the fit is resumed.
        name: Name of the state in checkpoints. Several callbacks of one trainer need different names. Without
            them Lightning raises "Found more than one stateful callback".
    """

    @check_arguments
    def __init__(self, *penalties: Penalty, name: str = "") -> None:
        self.penalties = penalties
        self.name = name
        self._passes_before: list[int] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the passes of every penalty before the fit."""
        self._passes_before = [penalty.n_passes for penalty in self.penalties]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn of penalties that the training step has not computed in the first epoch."""
        before = self._passes_before or []
        self._passes_before = None
        unused = [
            type(penalty).__name__
            for penalty, passes in zip(self.penalties, before, strict=False)
            if penalty.n_passes == passes
        ]
        if unused and trainer.is_global_zero:
            warn_user(
                f"{join_names(unused)}: not computed in the first epoch, so it has no effect. PenaltyCallback only "
                "stores its state: add it to the loss in training_step, outputs, value = "
                "penalty.forward_with_penalty(network, x, y).",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every penalty, for Lightning's checkpoint."""
        return {str(index): penalty.state_dict() for index, penalty in enumerate(self.penalties)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint.

        Raises:
            InvalidInput: The checkpoint holds another number of penalties.
        """
        if len(state_dict) != len(self.penalties):
            raise InvalidInput(
                f"PenaltyCallback needs the penalties of the checkpoint, {len(state_dict)}; got {len(self.penalties)}. "
                "Pass the same ones in the same order."
            )
        for index, penalty in enumerate(self.penalties):
            penalty.load_state_dict(state_dict[str(index)])
