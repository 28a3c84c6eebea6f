"""Options of a run, and the measurement of its record (failures are recorded)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import first_line
from gapscope.data import Problem
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.memory import is_out_of_memory
from gapscope.measures.measurement import measure, select_measures
from gapscope.results.readings import Readings
from gapscope.results.records import Record


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Settings of a run that do not affect the trained weights.

    Attributes:
        measures: Names of measures; None runs the default measures that apply, ("all",) all that apply.
        measure_samples: Number of training samples to measure on (the first ones); None uses all.
    """

    measures: tuple[str, ...] | None = None
    measure_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measure_samples: int | None = None
    data_root: str | None = None
    device: str = "cpu"
    on_epoch: Callable[[nn.Module, Problem, dict[str, Any]], None] | None = None


def measure_record(
    record: Record,
    network: nn.Module,
    initial_state: Mapping[str, Tensor],
    problem: Problem,
    options: RunOptions,
) -> Record:
    """Return the record with all requested measures, computing only the missing ones."""
    samples = problem.train.first(options.measure_samples)
    selected = select_measures(
        options.measures, samples, has_initial=True, has_history=bool(record.history)
    )
    names = [item.name for item in selected]
    readings = list(record.readings)
    unmeasured = dict(record.unmeasured)
    context = {"initial_state": initial_state, "history": record.history}
    with memo_scope():
        for name in record.missing_measures(names):
            own_options = {
                key: value for key, value in options.measure_options.items() if key == name
            }
            try:
                readings.extend(measure(network, samples, [name], options=own_options, **context))
            except Exception as error:  # a failing measure must not lose the trained network
                unmeasured[name] = failure_message(error)
    return replace(
        record, readings=Readings(readings), unmeasured=unmeasured, measured_samples=len(samples)
    )


def failure_message(error: BaseException) -> str:
    """Describe an error in one line, for records."""
    if is_out_of_memory(error):
        return "out of memory: use a smaller batch, network or chunk size"
    return f"{type(error).__name__}: {first_line(error)}"
