"""Readings of a network on a fixed part of its training data, along its training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range, describe_value, join_names
from gapscope.base.files import to_json
from gapscope.base.options import as_codes
from gapscope.base.randomness import derive_seed
from gapscope.inspection.losses import evaluate
from gapscope.inspection.norms import check_no_batch_statistics
from gapscope.inspection.output_names import numbered_as_outputs
from gapscope.inspection.outputs import inspection_mode
from gapscope.inspection.validation import ready
from gapscope.measures.measurement import measure, select_measures
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize
from gapscope.results.outcomes import Finding
from gapscope.results.readings import Readings
from gapscope.results.result import plot_lines
from gapscope.training.alarms.base import Alarm, make_alarm
from gapscope.training.monitored_samples import choose_samples
from gapscope.training.network_trace import FollowedNetwork
from gapscope.training.recordings import (
    Cost,
    Failures,
    FixedMode,
    GuardedSink,
    Recordings,
    Sink,
    digest_of,
    is_affordable,
    warn_if_hidden,
    warn_or_print,
)
from gapscope.training.run_checks import MIN_RECORDINGS, RunChecks, RunState

# The kernel of Szolnoky et al. 2022 is n x n, and far cheaper to factorize than the one of all outputs.
DEFAULT_OPTIONS = {"ntk_logdet": {"outputs": "traced"}}
DEFAULT_MEASURES = ("ntk_trace", "ntk_logdet")


class Monitor(Recordings):
    """Monitor of a training run: readings on a fixed random part of the training data.

    Pass a monitor as the `on_epoch` of `gapscope.train` or to the callbacks of `gapscope.integrations`, or call
    `monitor.observe(network, epoch)` in any loop. An epoch smaller than the last one starts another training run: the
    monitor warns, and resets itself and its alarm.

    `gapscope.train` and the callbacks save the monitor in their checkpoints; in a custom loop use `state_dict` and
    `load_state_dict`. Training is unchanged: weights, buffers, modes, gradients and random states are those without a
    monitor. Only an error at the first recording ends training (a misspelled option, a network that cannot be
    measured); later failures of a measure, the alarm, a check or a sink cause one warning each, and NaN of that part.

    A monitor belongs to one network: recordings of another one cause a warning, and `other_network` says so.
    Copies, wrappers, averages of weights and networks that were loaded from a checkpoint are the same network.

    Args:
        data: Training data: a pair (x, y), inputs alone, Samples, a Dataset or a DataLoader. Random transforms are
            applied once; a Dataset is read at the monitored samples only.
        measures: Names of registered measures; by default those of Szolnoky et al. 2022, or with `checks` the loss.
        every: Record at epochs that are multiples of this number.
        n_samples: Number of monitored samples.
        mode: "eval", or "train" to measure with dropout masks, one per sample, resampled for each recording. Log
            determinants are then -inf where masks make gradients equal (Szolnoky et al. 2022, Sec. 3.3). "train" is not
            for networks with BatchNorm.
        options: Measure name -> keyword options of that measure; None uses the n x n kernel, summed over outputs, for
            "ntk_logdet".
        alarm: Overfitting alarm on the same samples, or the name of one (`gapscope.training.alarms`).
        checks: "GS203" (batch norm statistics), "GS301" (memorization of label errors, by `alarm`, or by the alarm
            "joint" if there is none) and "GS302" (training has not converged): a list, or one code. Rules are those of
            `gapscope.check`: reported once, when they appear, in the log and in `findings`.
        max_time_fraction: Largest fraction of the training's CPU time that recordings may take; others are skipped.
            The first one is always allowed, and two seconds in total, spread over the epochs. None for no limit: the
            recorded epochs then do not depend on the machine.
        epochs: Planned number of epochs, over which these two seconds are spread; None for an unknown number.
        sinks: Called after each recording with the epoch and the numbers; see `gapscope.integrations`.
        seed: Seed of the choice of samples and of measures that sample noise.

    >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> network = nn.Linear(4, 2)
    >>> monitor = Monitor((x, y), measures=["ntk_trace"], every=2, max_time_fraction=None)
    >>> for epoch in range(1, 5):
    ...     _ = monitor.observe(network, epoch)
    >>> monitor.to_pandas()["ntk_trace"].to_dict()  # 4 samples, 2 outputs, |x|^2 + 1 each
    {2: 16.0, 4: 16.0}
    """

    @check_arguments
    def __init__(
        self,
        data: Any,
        measures: Sequence[str] | None = None,
        *,
        every: int = 1,
        n_samples: int = 128,
        mode: Literal["eval", "train"] = "eval",
        options: Mapping[str, Mapping[str, Any]] | None = None,
        alarm: Alarm | str | None = None,
        checks: Sequence[str] | str = (),
        max_time_fraction: float | None = 0.1,
        epochs: int | None = None,
        sinks: Sequence[Sink] = (),
        seed: int = 0,
    ) -> None:
        check_range("every", every, 1)
        check_range("n_samples", n_samples, 1)
        check_choice("mode", mode, ("eval", "train"))
        if max_time_fraction is not None:
            check_range("max_time_fraction", max_time_fraction, 0, 1)
        if epochs is not None:
            check_range("epochs", epochs, 1)
        checks = as_codes(checks)
        is_for_check = "GS301" in checks and alarm is None
        if is_for_check:
            alarm = make_alarm("joint")
        if isinstance(alarm, str):
            alarm = make_alarm(alarm)
        if not isinstance(alarm, Alarm | None):
            raise InvalidInput(
                f"alarm must be an alarm or the name of one, such as 'joint'; got {alarm!r}."
            )
        self.samples, indices, self.indices = choose_samples(
            data, n_samples, seed, None if alarm is None else alarm.required_indices
        )
        if alarm is not None:
            if alarm.classes_only and not self.samples.is_classification:
                owner = "GS301" if is_for_check else type(alarm).__name__
                raise InvalidInput(
                    f"{owner} needs class labels, one per sample; these data have none. "
                    f"{'Omit it, or use' if is_for_check else 'Use'} an alarm for other tasks: 'gradient_disparity'."
                )
            alarm.set_indices(indices)
            alarm.check_targets(indices, self.samples.targets)
        if measures is None:
            measures = ("loss",) if checks else DEFAULT_MEASURES
        self.checks = RunChecks(checks, self.samples) if checks else None
        self.max_time_fraction = max_time_fraction
        self.planned_epochs = epochs
        self.skipped = 0
        self._started_at: float | None = None
        selection = select_measures(measures, self.samples, has_initial=False)
        self.measures = tuple(item.name for item in selection)
        self.every = every
        self.mode = mode
        self.alarm = alarm
        self.seed = seed
        if options is None:
            options = {
                name: defaults
                for name, defaults in DEFAULT_OPTIONS.items()
                if name in self.measures
            }
        self.options = {name: dict(settings) for name, settings in options.items()}
        if mode == "train":
            for item in selection:
                # one chunk, so that each sample has one mask
                if "chunk_size" in item.options:
                    self.options.setdefault(item.name, {}).setdefault(
                        "chunk_size", len(self.samples)
                    )
        for sink in sinks:
            if not callable(sink):
                raise InvalidInput(
                    f"sinks must be a list of functions (epoch, numbers); got {describe_value(sink)} in it."
                )
        self.sinks = [GuardedSink(sink) for sink in sinks]
        self._targets = self.samples.targets
        super().__init__([], [])
        self.readings: list[Readings] = []
        self._spans: list[tuple[float, float]] = []
        self._failures = Failures()
        self._followed = FollowedNetwork()
        self.notes: tuple[str, ...] = ()

    def __call__(self, network: nn.Module, row: dict[str, Any]) -> None:
        """Record if due, and add the numbers to the epoch's row, as `gapscope.train` asks of `on_epoch`."""
        if not isinstance(row, dict) or "epoch" not in row:
            raise InvalidInput(
                f"row must be a mapping with the key 'epoch'; got {describe_value(row)}. In your own loop call "
                "monitor.observe(network, epoch)."
            )
        row.update(self.observe(network, row["epoch"]))

    @check_arguments
    def plan_epochs(self, epochs: int | None) -> None:
        """Set the planned number of epochs, unless it was passed (`gapscope.train` and the callbacks call this).

        Args:
            epochs: Planned number of epochs; None leaves it open.
        """
        if self.planned_epochs is None and epochs is not None and epochs > 0:
            self.planned_epochs = epochs

    def begin(self, network: nn.Module) -> None:
        """Let the alarm evaluate the network before its training, as `gapscope.train` does.

        Args:
            network: The network before its first step.
        """
        self._started_at = time.process_time()
        if self.alarm is not None and not self.epochs:
            with torch.inference_mode(False):
                self.samples = numbered_as_outputs(network, self.samples)
                prepared = ready(network, self.samples)
                self.notes = prepared.notes
                self._followed.begin(prepared.bare)
                self.alarm.begin(prepared.network, replace(prepared.samples, form=None))

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values from which resumed training continues exactly."""
        checks = {} if self.checks is None else {"checks": self.checks.state_dict()}
        return checks | {
            "epochs": list(self.epochs),
            "rows": [dict(row) for row in self.rows],
            "readings": [readings.to_dict() for readings in self.readings],
            "alarm": None if self.alarm is None else self.alarm.state_dict(),
            "measures": list(self.measures),
            "samples": self._digest,
            "skipped": self.skipped,
            "network": self._followed.state_dict(),
        }

    @cached_property
    def _digest(self) -> str:
        """Hash of the monitored samples, inputs and targets as passed."""
        return digest_of(self.samples.inputs, self._targets)

    @check_arguments
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` of a monitor with the same settings returned.

        Args:
            state: What `state_dict` of a monitor with the same data, measures and alarm returned.

        Raises:
            InvalidInput: It is no state of a monitor, or one with other measures, with an alarm where this monitor has
                none, or the reverse.
        """
        missing = [name for name in ("epochs", "rows", "readings", "alarm") if name not in state]
        if missing:
            raise InvalidInput(
                f"state must be what Monitor.state_dict returned; it has no {join_names(missing)}, but "
                f"{join_names(list(state)[:4]) or 'nothing'}. Pass monitor.state_dict()."
            )
        measures = list(state.get("measures", self.measures))
        if measures != list(self.measures):
            raise InvalidInput(
                f"Got the state of a monitor of {join_names(measures)}; this one has {join_names(self.measures)}. "
                "Use the measures that it was saved with."
            )
        if state.get("samples", self._digest) != self._digest:
            warn_or_print(
                "The state is that of a monitor of other samples: its recordings are kept, and later ones are of these "
                "samples. Pass the data, n_samples and seed that it was saved with."
            )
        alarm_state = state["alarm"]
        if (alarm_state is None) != (self.alarm is None):
            raise InvalidInput(
                f"Got the state of a monitor with{'out' if alarm_state is None else ''} an alarm; this one has "
                f"{'none' if self.alarm is None else type(self.alarm).__name__}. Use the monitor it was saved with."
            )
        if self.alarm is not None:
            self.alarm.load_state_dict(alarm_state)
        if self.checks is not None and "checks" in state:
            self.checks.load_state_dict(state["checks"])
        self.epochs = [int(epoch) for epoch in state["epochs"]]
        self.rows = [{name: float(value) for name, value in row.items()} for row in state["rows"]]
        self.readings = [Readings.from_json(to_json(readings)) for readings in state["readings"]]
        self.skipped = int(state.get("skipped", 0))
        self._followed = FollowedNetwork.from_state(state.get("network", {}))
        self._spans = []
        self._started_at = None

    @check_arguments
    def observe(self, network: nn.Module, epoch: int) -> dict[str, float]:
        """Record readings if due, pass them to the sinks, and return them by name.

        Args:
            network: The network in training.
            epoch: Number of epochs trained, 0 before training; one before the last recorded starts the monitor again,
                and the last recorded one is not recorded a second time. Both warn.
        """
        check_range("epoch", epoch, 0)
        # integers of NumPy cannot be stored as JSON
        epoch = int(epoch)
        if epoch % self.every:
            return {}
        if self.epochs and epoch == self.epochs[-1]:
            warn_or_print(
                f"Epoch {epoch} is recorded already; this second recording of it is left out. Pass the number of "
                "epochs trained, which grows, and use one Monitor per training run."
            )
            return dict(self.rows[-1])
        if self.epochs and epoch < self.epochs[-1]:
            self._reset(epoch)
        warn_if_hidden(self)
        start = time.process_time()
        if not is_affordable(
            self.max_time_fraction,
            self._spans,
            self._started_at,
            start,
            epoch=epoch,
            last_epoch=self.epochs[-1] if self.epochs else 0,
            epochs=self.planned_epochs,
        ):
            self.skipped += 1
            return {}
        # frameworks validate in inference mode, whose tensors autograd cannot use
        with torch.inference_mode(False):
            readings, numbers = self._record(network, epoch)
        self.epochs.append(epoch)
        self.readings.append(readings)
        self.rows.append(numbers)
        for sink in self.sinks:
            sink(epoch, numbers)
        self._spans.append((start, time.process_time()))
        return dict(numbers)

    def _record(self, network: nn.Module, epoch: int) -> tuple[Readings, dict[str, float]]:
        """Return readings and numbers of one recording: what fails is NaN, and all else is kept."""
        readings = Readings()
        numbers: dict[str, float] = {}
        attempt = partial(self._failures.attempt, epoch=epoch, is_first=not self.rows)
        with attempt("network"):
            self.samples = numbered_as_outputs(network, self.samples)
            prepared = ready(network, self.samples)
            self.notes = prepared.notes
            self._followed.compare(prepared.bare, epoch)
            samples = replace(prepared.samples, form=None)
            network = prepared.network
            with attempt("measures"):
                readings = self._measure(network, epoch)
                numbers |= readings.values()
            for name, reason in readings.unmeasured.items():
                self._failures.warn(name, epoch, reason)
            if self.alarm is not None:
                with attempt("alarm"):
                    numbers |= self.alarm.observe(network, samples, epoch)
            if self.checks is not None:
                with attempt("checks"):
                    loss = evaluate(network, samples)["loss"]
                    # this recording is not in the lists yet
                    seen, due = len(self.epochs) + 1, self.n_due + 1
                    state = RunState(
                        network, samples, alarm=self.alarm, recordings=seen, epochs=due
                    )
                    self.checks.observe(loss, epoch, state, attempt)
        if self.rows:
            numbers = dict.fromkeys(self.rows[0], math.nan) | numbers
        return readings, numbers

    @property
    def other_network(self) -> str:
        """Which recording is the first of another network, and how it differs; empty without one."""
        return self._followed.other

    @property
    def n_due(self) -> int:
        """Number of epochs so far at which a recording was due, taken or skipped."""
        return len(self.epochs) + self.skipped

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of `checks` so far."""
        return () if self.checks is None else tuple(self.checks.findings)

    def _reset(self, epoch: int) -> None:
        warn_or_print(
            f"Epoch {epoch} comes after epoch {self.epochs[-1]}: the monitor is reset for another training run. To "
            "keep both, use one Monitor per training run."
        )
        for records in (self.epochs, self.readings, self.rows, self._spans):
            records.clear()
        self.skipped = 0
        self._started_at = None
        self._followed = FollowedNetwork()
        if self.checks is not None:
            self.checks.reset()
        if self.alarm is not None:
            self.alarm.reset()

    def _measure(self, network: nn.Module, epoch: int) -> Readings:
        # the network is adapted to one input tensor here, so the samples are as well
        samples = replace(self.samples, form=None)
        run = partial(
            measure,
            data=samples,
            measures=self.measures,
            options=self.options,
            seed=self.seed,
            # later, a measure that fails does not stop the others
            strict=not self.rows,
            progress=False,
        )
        if self.mode == "eval":
            readings = run(network)
        else:
            with inspection_mode(network, mode="train"):
                check_no_batch_statistics(dict(network.named_modules()))
                torch.manual_seed(derive_seed(self.seed, f"masks of epoch {epoch}"))
                readings = run(FixedMode(network))
        if readings.interrupted:
            raise KeyboardInterrupt
        return readings

    @property
    def cost(self) -> Cost:
        """Recordings, seconds, and fraction of the training time so far."""
        seconds = [end - start for start, end in self._spans]
        fraction = math.nan
        if len(seconds) > 1:
            fraction = sum(seconds[1:]) / (self._spans[-1][1] - self._spans[0][1])
        return Cost(len(seconds), sum(seconds), fraction, len(self.epochs) - len(seconds))

    def plot(self) -> list[Any]:
        """Plot every number over the epochs, with the alarm's epochs."""
        if not self.rows:
            raise InvalidInput(
                "Got no recordings; a plot needs one or more. Call plot() after an epoch."
            )
        alarm = self.alarm
        epochs = {}
        if alarm is not None:
            epochs = {"alarm raised": alarm.raised_at, "best epoch by the alarm": alarm.peak}
        # a vertical line replaces the 0/1 column
        names = [name for name in self.rows[0] if name != "alarm.raised"] or list(self.rows[0])
        columns = {name: [row[name] for row in self.rows] for name in names}
        return plot_lines(
            self.epochs, columns, marked={name: at for name, at in epochs.items() if at is not None}
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Summary of recordings, alarm and checks, one line each."""
        return tuple(repr(self).splitlines())

    def __repr__(self) -> str:
        lines = [
            f"Monitor({', '.join(self.measures)} on {pluralize(len(self.samples), 'sample')}: {self.cost})"
        ]
        if self.alarm is not None:
            lines.append(repr(self.alarm))
            if self.n_due and len(self.epochs) < MIN_RECORDINGS and not self.alarm.raised:
                lines.append(f"seen {len(self.epochs)} of {self.n_due} epochs: no verdict")
        if self.skipped and self.max_time_fraction is not None:
            skipped = pluralize(self.skipped, "recording")
            limit = percent(self.max_time_fraction)
            lines.append(f"{skipped} skipped, to take at most {limit} of the time")
        if self.checks is not None:
            lines += self.checks.lines(self.n_due)
        notes = (self.other_network, *self.notes[:3]) if self.other_network else self.notes[:3]
        lines += [f"note: {note}" for note in notes]
        return "\n".join(lines)
