"""Training of several networks: stacked per architecture if faster, else one by one.

    train_many                      one Training per network
      train_all                     begin (loads a checkpoint); then, for each group of one `stacking_key`:
        stacking_obstacle             hooks, penalties or inputs that cannot be stacked -> alone
        _why_sequential               trial of one step, then TIMED_STEPS, alone and stacked, rolled back (_snapshot)
                                        different losses, an error or no speed-up -> alone
        _train_stack_epoch            one epoch of all; rolled back on an error -> alone
        _finish_alone                 Training.train_epoch until the last epoch
      checkpoints are written at the latest when all have ended

Every network has its own RNG state (`_TrainingSlot.rng`), so that its samples, masks and noise are those of `train`
with the same seed. An error ends one training; the others continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range, check_same_length
from gapscope.base.randomness import derive_seed
from gapscope.base.specs import TrainingSpec
from gapscope.base.type_guards import is_list, is_mapping
from gapscope.penalties.base import Penalty
from gapscope.training.loop import Training, TrainingResult, write_at_exit
from gapscope.training.randomness import RngState
from gapscope.training.stack import Stack, penalty_stacking_key, penalty_stacking_obstacle

Choice = Literal["auto", "always", "never"]
OnEpoch = Callable[[nn.Module, dict[str, Any]], None]

# Timed steps, after a warm-up step.
TIMED_STEPS = 3
# Relative tolerance between losses alone and in a stack.
TOLERANCE, TOLERANCE_FLOAT64 = 1e-3, 1e-9


def stacking_obstacle(training: Training) -> str:
    """Return why a network cannot be stacked (empty if it can)."""
    run = training.run
    penalties = [why for item in run.penalties if (why := penalty_stacking_obstacle(run.network, item))]
    with_hooks = [
        name or "the network"
        for name, module in run.network.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ]
    if run.called is not run.network:
        return "the network takes several inputs or returns more than a tensor [n, K]"
    if run.mixed:
        return "mixed precision scales the loss of each network separately"
    if penalties:
        return penalties[0]
    if with_hooks:
        return f"{with_hooks[0]} has hooks, which expect one network"
    if run.device.type != "cpu" and any(isinstance(m, nn.modules.dropout._DropoutNd) for m in run.network.modules()):
        return "dropout on a GPU has one random stream for all networks"
    return ""


def stacking_key(training: Training) -> tuple[Any, ...]:
    """Return the grouping key: training runs with the same key can be stacked."""
    run, samples, settings = training.run, training.samples, training.run.settings
    tensors = [*run.network.named_parameters(), *run.network.named_buffers()]
    return (
        repr(run.network),
        tuple((name, tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors),
        tuple((tuple(t.shape), t.dtype) for t in (samples.inputs, samples.y)),
        (settings.optimizer, settings.momentum > 0, settings.nesterov, settings.batch_size, settings.augmentation),
        penalty_stacking_key(run.penalties),
    )


class _TrainingSlot:
    """One training among several, with its own RNG state and error."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.rng = RngState(training.run.device, derive_seed(training.seed, "training"))
        self.error: Exception | None = None
        self.obstacle = stacking_obstacle(training)

    @property
    def is_pending(self) -> bool:
        return self.error is None and self.training.result is None

    def execute(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run one step with this run's RNG state, and store any error so that other runs continue."""
        try:
            with self.rng.active():
                step(*arguments)
        except Exception as error:
            self.error = error


def _snapshot(slots: Sequence[_TrainingSlot]) -> Callable[[], None]:
    """Return a function that restores the training runs to their current state."""
    states: list[tuple[dict[str, Tensor], dict[str, Any]]] = []
    for item in slots:
        with item.rng.active():
            tensors, metadata = item.training.run.state(with_monitor=False)
            states.append(({name: tensor.detach().clone() for name, tensor in tensors.items()}, metadata))

    def restore() -> None:
        for item, (tensors, metadata) in zip(slots, states, strict=True):
            with item.rng.active():
                item.training.run.load_state(tensors, metadata, "the state before")

    return restore


def _train_stacked(slots: Sequence[_TrainingSlot], samples: Sequence[Any]) -> list[dict[str, Any] | None]:
    """Train one epoch in a stack, with the random state of each run."""
    generators = [item.rng.generator() for item in slots]
    stack = Stack([item.training.run for item in slots], samples, generators)
    rows = stack.train_epoch()
    stack.close()
    for item, generator in zip(slots, generators, strict=True):
        item.rng.advance_to(generator)
    return rows


def _train_one_by_one(slots: Sequence[_TrainingSlot], samples: Sequence[Any]) -> list[dict[str, Any] | None]:
    rows = []
    for item, part in zip(slots, samples, strict=True):
        with item.rng.active():
            rows.append(item.training.run.train_epoch(part))
    return rows


def _losses_agree(alone: dict[str, Any] | None, stacked: dict[str, Any] | None, tolerance: float) -> bool:
    if alone is None or stacked is None:  # diverged
        return alone is stacked
    pairs = [(alone[name], stacked[name]) for name in ("train_loss", "penalty")]
    return all(abs(one - other) <= tolerance * max(1.0, abs(one)) for one, other in pairs)


def _compare_alone_and_stacked(slots: Sequence[_TrainingSlot], steps: int) -> tuple[list[float], bool]:
    """Return the seconds of steps alone and stacked, and whether their losses agree."""
    training = slots[0].training
    indices = torch.arange(min(steps * training.run.settings.batch_size, len(training.samples)))
    parts = [item.training.samples.subset(indices) for item in slots]
    seconds, rows, restore = [], [], _snapshot(slots)
    for train_epoch in (_train_one_by_one, _train_stacked):
        start = time.perf_counter()
        try:
            rows.append(train_epoch(slots, parts))
            seconds.append(time.perf_counter() - start)
        finally:
            restore()
    is_double = next(training.run.network.parameters()).dtype == torch.float64
    tolerance = TOLERANCE_FLOAT64 if is_double else TOLERANCE
    return seconds, all(_losses_agree(alone, stacked, tolerance) for alone, stacked in zip(*rows, strict=True))


def _why_sequential(slots: Sequence[_TrainingSlot], choice: Choice) -> str:
    """Return why stacking fails or is slower, by a trial (empty if neither)."""
    seconds = [0.0, 0.0]
    for steps in (1, TIMED_STEPS) if choice == "auto" else (1,):
        try:
            seconds, losses_agree = _compare_alone_and_stacked(slots, steps)
        except Exception as error:
            return f"it does not run in a stack ({type(error).__name__}: {str(error).partition(chr(10))[0][:120]})"
        if not losses_agree:
            return "its losses in a stack differ from those alone"
    if choice == "auto" and seconds[1] >= seconds[0]:
        return f"in a stack it takes {seconds[1] / seconds[0]:.2f} times as long"
    return ""


def _finish_alone(slot: _TrainingSlot, reason: str) -> None:
    slot.training.execution = f"alone: {reason}" if reason else ""
    while slot.is_pending:
        slot.execute(slot.training.train_epoch)


def _train_stack_epoch(slots: Sequence[_TrainingSlot]) -> str:
    """Train all for one stacked epoch, or roll back and return why it failed."""
    start, restore = time.perf_counter(), _snapshot(slots)
    try:
        rows = _train_stacked(slots, [item.training.samples for item in slots])
    except Exception as error:
        restore()
        return f"the stack failed ({type(error).__name__})"
    seconds = (time.perf_counter() - start) / len(slots)
    for item, row in zip(slots, rows, strict=True):
        item.training.execution = f"in a stack of {len(slots)}"
        item.execute(item.training.end_epoch, row, time.perf_counter() - seconds)
    return ""


def _finish_together(slots: Sequence[_TrainingSlot], choice: Choice) -> None:
    reason = "no other network is compatible" if len(slots) < 2 else _why_sequential(slots, choice)
    while not reason and len(pending := [item for item in slots if item.is_pending]) > 1:
        reason = _train_stack_epoch(pending)
    for item in slots:
        if item.is_pending:
            _finish_alone(item, reason or "the other runs of its stack have ended")


def train_all(trainings: Sequence[Training], *, stack: Choice, largest: int) -> list[Exception | None]:
    """Train all networks, and return the error of each or None (options as for `train_many`)."""
    slots = [_TrainingSlot(training) for training in trainings]
    with write_at_exit(trainings):
        for item in slots:
            item.execute(item.training.begin)
        stackable = [item for item in slots if item.is_pending and stack != "never" and not item.obstacle]
        groups: dict[Any, list[_TrainingSlot]] = {}
        for item in stackable:
            groups.setdefault(stacking_key(item.training), []).append(item)
        for group in groups.values():
            for start in range(0, len(group), largest):
                _finish_together(group[start : start + largest], stack)
        for item in slots:
            if item.is_pending:
                _finish_alone(item, item.obstacle)
    return [item.error for item in slots]


def _one_each(name: str, argument: Any, networks: int) -> list[Any]:
    """Return one item per network: a list is split, anything else is shared."""
    if name in ("data", "test") and is_list(argument) and argument and all(is_mapping(item) for item in argument):
        if len(argument) == networks:
            raise InvalidInput(
                f"Got {name} as a list of {networks} mappings: batches for all networks, or one data set per network? "
                "Pass a DataLoader for batches, a list of lists for data sets."
            )
        return [argument] * networks
    if not isinstance(argument, list):
        return [argument] * networks
    check_same_length("networks", networks, name, len(argument))
    return argument


def train_many(
    networks: Sequence[nn.Module],
    data: Any,
    settings: TrainingSpec | list[TrainingSpec],
    *,
    seeds: Sequence[int] | None = None,
    test: Any = None,
    penalties: list[Sequence[Penalty]] | None = None,
    folders: list[Path] | None = None,
    on_epoch: OnEpoch | list[OnEpoch] | None = None,
    stack: Choice = "auto",
    largest: int = 64,
) -> list[TrainingResult]:
    """Train several networks, those of one architecture in a stack if that is faster.

    A stack holds the weights of its networks in one tensor per layer, and trains all with the operations of one. On a
    CPU this is faster for small networks and small batches (40 LeNet-5 at batch size 8 in half the time), not for
    large ones. Each network has the samples, masks and learning rates of `train` with the same seed; weights differ by
    rounding, because sums are in another order. The networks of a stack share architecture, number of samples, batch
    size and optimizer; everything else may differ. A network is trained alone if no other one is compatible, if it has
    hooks or penalties on layers, or if it samples random numbers outside dropout layers; `execution` of the result
    states the reason. A trial of a few steps, rolled back, checks that losses in a stack are the same.

    `data`, `settings`, `test` and `on_epoch` are one value for all networks, or a list with one per network.

    Args:
        networks: Trained in place, as by `train`.
        data: Training data in any form that `train` takes.
        settings: Everything about optimization.
        seeds: Seeds; None for 0, 1, 2, ...
        test: Data scored after every epoch.
        penalties: A list with the penalties of each network, to use instead of those in the settings.
        folders: A list with an existing folder per network for checkpoint and history; the same call then resumes.
        on_epoch: Called after every epoch as by `train`, such as one `Monitor` per network.
        stack: "auto" times a few steps and chooses the faster way, so that the last digits may differ between calls;
            "always" stacks whatever can be stacked; "never" trains one by one, bit-identical to `train`.
        largest: Largest number of networks in one stack, whose activations and gradients are in memory together.

    Raises:
        InvalidInput: Samples, labels, networks and settings do not fit together.
        Exception: The error of one of the runs, after the others have ended; a note states which.

    >>> x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    >>> networks = [nn.Linear(3, 2) for _ in range(3)]
    >>> results = train_many(networks, (x, (x[:, 0] > 0).long()), TrainingSpec(epochs=2), stack="always")
    >>> [result.execution for result in results]
    ['in a stack of 3', 'in a stack of 3', 'in a stack of 3']
    """
    check_choice("stack", stack, get_args(Choice))
    check_range("largest", largest, 1)
    count = len(networks)
    if len({id(network) for network in networks}) < count:
        raise InvalidInput(
            "Got the same network twice; train_many needs distinct modules. Pass copy.deepcopy(network)."
        )
    columns = {
        "data": data, "settings": settings, "test": test, "penalties": penalties, "folders": folders,
        "on_epoch": on_epoch, "seeds": list(range(count) if seeds is None else seeds),
    }  # fmt: skip
    each = {name: _one_each(name, argument, count) for name, argument in columns.items()}
    trainings = [
        Training(
            network, each["data"][i], each["settings"][i], seed=each["seeds"][i], test=each["test"][i],
            penalties=each["penalties"][i], folder=each["folders"][i], on_epoch=each["on_epoch"][i],
        )
        for i, network in enumerate(networks)
    ]  # fmt: skip
    for number, error in enumerate(train_all(trainings, stack=stack, largest=largest)):
        if error is not None:
            error.add_note(f"This is network {number} of {count}; the others have been trained.")
            raise error
    return [training.result for training in trainings if training.result is not None]
