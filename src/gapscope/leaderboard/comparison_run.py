"""Comparison of networks on the same data by every measure, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, CpuBudget
from gapscope.base.errors import GapscopeError, InvalidInput, check_range
from gapscope.base.samples import Samples, as_samples
from gapscope.base.type_guards import is_mapping
from gapscope.inspection.interrupts import may_be_partial
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.validation import Ready, ready
from gapscope.inspection.wrapped_networks import refuse_estimator
from gapscope.leaderboard.comparison import (
    ACCURACY,
    ComparedReading,
    Comparison,
    LeaderboardEvidence,
)
from gapscope.measures.budget import (
    OMITTED,
    Allocation,
    Plan,
    enforced_budget,
    plan_budget,
    reason,
)
from gapscope.measures.measurement import (
    STOPPED,
    Budget,
    check_options,
    evaluate_on_subset,
    interleaved_groups,
    measures_by_name,
    select_applicable,
)
from gapscope.measures.registry import Measure
from gapscope.results.progress import SHOW_AFTER_SECONDS, notify, progress
from gapscope.results.readings import BASELINE, Reading, Readings
from gapscope.statistics.correlations import ranks_of
from gapscope.statistics.intervals import normal_quantile

RANK_SIGNS = {"lower": 1.0, "higher": -1.0, "none": math.nan}
TARGETS = {"targets", "labels"}
DATA_NEEDS = {"inputs", *TARGETS}


@dataclass
class _ComparisonRun:
    """Evaluation of measures with standard errors, with the same settings for all networks."""

    options: Mapping[str, Mapping[str, Any]]
    n_groups: int
    seed: int
    budget: CpuBudget = field(default_factory=lambda: CpuBudget(None))  # that of the network

    def _kind(self, item: Measure) -> str:
        """Return how a measure depends on its samples, "" if unknown."""
        if item.sampling is not None and item.name not in self.options:
            return item.sampling.kind
        return ""

    def count_passes(self, item: Measure) -> float:
        """Count the passes over all samples of a measure and its standard error."""
        if not DATA_NEEDS & set(item.needs):
            return 1.0
        return {"mean": 2.0, "sum": 2.0, "own": 1.0}.get(self._kind(item), float(self.n_groups))

    def evaluate(self, item: Measure, subject: Ready, share: Allocation) -> Readings:
        """Evaluate one measure (raises BudgetSpent)."""
        if item.cost_class != "weights":
            self.budget.check()
        return evaluate_on_subset(
            item, subject, share, options=self.options.get(item.name, {}), seed=self.seed
        )

    def with_errors(
        self, item: Measure, subject: Ready, share: Allocation
    ) -> list[tuple[Reading, float]]:
        """Return readings with standard errors: their own, the jackknife over groups, or both.

        The noise of a measure adds to the spread over the samples, unless its own error covers these.
        """
        readings = self.evaluate(item, subject, share)
        if not DATA_NEEDS & set(item.needs):
            return [(reading, 0.0) for reading in readings]
        errors = [reading.standard_error for reading in readings]
        if None in errors or self._kind(item) == "whole":
            replicates = zip(
                *self._jackknife_replicates(item, subject, share, readings), strict=True
            )
            is_whole = self._kind(item) == "whole"
            errors = [
                # sqrt((g - 1) / g sum_j (theta_(j) - mean)^2) for g groups
                math.hypot(
                    error or 0.0, ((self.n_groups - 1) * statistics.pvariance(values)) ** 0.5
                )
                if error is None or is_whole
                else error
                for error, values in zip(errors, replicates, strict=True)
            ]
        return [(reading, error or 0.0) for reading, error in zip(readings, errors, strict=True)]

    def _jackknife_replicates(
        self, item: Measure, subject: Ready, share: Allocation, readings: Readings
    ) -> list[list[float]]:
        """Return the numbers of the samples without each group."""
        samples = subject.samples
        kind = self._kind(item)
        is_additive = kind in ("mean", "sum")
        groups = interleaved_groups(samples, self.n_groups)
        # means and sums follow from those of the groups; other measures are evaluated without each group
        if not is_additive:
            group_of = torch.arange(len(samples)) % len(groups)
            groups = [
                samples.subset(torch.nonzero(group_of != j)[:, 0]) for j in range(len(groups))
            ]
        values: list[list[float]] = []
        for group in groups:
            part = Allocation(len(group), share.options)
            readings_of_part = self.evaluate(item, subject.with_samples(group), part)
            values.append([reading.value for reading in readings_of_part])
        if not is_additive:
            return values
        n = len(samples)
        return [
            [
                (n * reading.value - len(group) * value) / (n - len(group))
                if kind == "mean"
                else reading.value - value
                for reading, value in zip(readings, group_values, strict=True)
            ]
            for group, group_values in zip(groups, values, strict=True)
        ]


def _merge_plans(plans: Sequence[Plan]) -> tuple[dict[str, Allocation], dict[str, str]]:
    """Return the number of samples per measure on which all networks can be compared, and what is omitted.

    A measure that does not fit the budget of one network is omitted for all of them.
    """
    omitted = {
        name: why for plan in plans for name, why in plan.failed.items() if why.startswith(OMITTED)
    }
    shares: dict[str, Allocation] = {}
    for plan in plans:
        for name, share in plan.shares.items():
            if name in omitted:
                continue
            other = shares.get(name, share)
            seconds = share.seconds + (other.seconds if name in shares else 0.0)
            shares[name] = Allocation(
                min(share.n, other.n), share.options or other.options, seconds
            )
    return shares, omitted


def _rows(readings: Mapping[str, list[tuple[Reading, float]]], z: float) -> list[ComparedReading]:
    """Return the numbers of all networks with intervals and ranks."""
    names = list(dict.fromkeys(reading.name for pairs in readings.values() for reading, _ in pairs))
    rows: list[ComparedReading] = []
    for name in names:
        by_network = {
            network: pair
            for network, pairs in readings.items()
            for pair in pairs
            if pair[0].name == name
        }
        sign = RANK_SIGNS[next(iter(by_network.values()))[0].direction]
        ranks = ranks_of(
            {network: sign * reading.value for network, (reading, _) in by_network.items()},
            {network: error for network, (_, error) in by_network.items()},
        )
        compared = [
            ComparedReading(
                measure=name,
                network=network,
                value=reading.value,
                standard_error=error,
                low=reading.value - z * error,
                high=reading.value + z * error,
                direction=reading.direction,
                rank=ranks[network],
                note=reading.note,
            )
            for network, (reading, error) in by_network.items()
        ]
        rows.extend(sorted(compared, key=lambda row: (math.isnan(row.rank), row.rank)))
    return rows


@check_arguments
def compare(
    networks: Mapping[str, nn.Module],
    data: Any,
    measures: Sequence[str] | str | None = None,
    *,
    level: float = 0.95,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    time_budget: Budget = "auto",
    progress: bool = True,
    evidence: Any = None,
) -> Comparison:
    r"""Rank networks by every measure on the same samples, with intervals.

    The interval is value ± z * standard error: that of the measure if it covers the samples, else the delete-a-group
    jackknife over ten interleaved groups of samples (an estimate, for measures that are smooth in the samples), with
    that of the noise of the measure. If intervals overlap, these samples do not determine the order of the networks.
    Values that differ by rounding alone, or by less than a standard error, share a rank. Ctrl-C returns the finished
    networks, if these are two or more, with `interrupted`.

    The direction that a paper states is no evidence. With a leaderboard of similar networks as `evidence`, only numbers
    with evidence there vote, in the direction that they have there, and the verdict begins with their partial
    correlations, next to those of the size and of a random measure.

    Args:
        networks: Name -> network, at least two.
        data: Training data, in any form that `measure` accepts.
        measures: Names of measures; None for the default ones, "all" for all that the data allow. `parameter_count` is
            always added.
        level: Nominal coverage of the intervals, in (0, 1).
        options: Measure name -> keyword options of that measure; None for their defaults.
        seed: Seed of the measures that use noise, probes or subsets.
        time_budget: CPU seconds per network, as for `measure`; all networks are measured on the same samples. Of
            default measures those that do not fit the budget of one network are omitted for all. A measure that is not
            finished once 1.1 times the budget is spent has no value for this network.
        progress: Whether to show a progress bar after two seconds in interactive sessions.
        evidence: Leaderboard (`rank_measures`) of networks whose gap is known. None for a comparison without it.

    Returns:
        One row per number and network, printed as one row per network with the verdict.

    Raises:
        InvalidInput: There are fewer than two networks or samples, labels do not fit the outputs, no named measure has
            a value for any network, or `evidence` is no leaderboard.
        KeyboardInterrupt: Fewer than two networks were finished.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> sizes = {"narrow": 16, "wide": 256}
    >>> networks = {
    ...     name: gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=width)
    ...     for name, width in sizes.items()
    ... }
    >>> result = gs.compare(networks, train, ["output_sensitivity", "ntk_trace"])
    >>> print("\n".join(result.verdict))
    narrow and wide are tied: none is ranked first by more than half of the 2 measures.
    By size alone it would be narrow.
    Whether these measures rank such networks is unknown; pass evidence=gs.rank_measures(POOL).
    """
    if not is_mapping(networks):
        raise InvalidInput(
            f"compare needs a mapping of names to networks; got {type(networks).__name__}. Pass a dictionary."
        )
    for network in networks.values():
        refuse_estimator(network)
    samples = as_samples(data)
    if len(networks) < 2:
        raise InvalidInput(
            f"compare needs at least two networks; got {len(networks)}. Use measure for one."
        )
    check_range("the number of samples", len(samples), 2)
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    named = measures_by_name(measures)
    if named is not None:
        measures = list(dict.fromkeys([*(item.name for item in named), BASELINE]))
    if time_budget == "auto":
        time_budget = DEFAULT_BUDGET if named is None else None
    needs = ()
    if samples.targets is not None and (
        named is None or any(TARGETS & set(item.needs) for item in named)
    ):
        needs = ("outputs",)
    # ten groups: a jackknife with nine degrees of freedom
    comparison = _ComparisonRun(options or {}, min(10, len(samples)), seed)
    if evidence is not None:
        evidence = LeaderboardEvidence.of(evidence)
    with eager_mode():
        prepared = {
            name: _ready(name, network, samples, needs) for name, network in networks.items()
        }
        items, inapplicable = select_applicable(
            measures, next(iter(prepared.values())), has_initial=False
        )
        check_options(comparison.options, items, inapplicable)
        repeats = {item.name: comparison.count_passes(item) for item in items}
        plans: dict[str, Plan] = {}
        budgets: dict[str, Callable[[], CpuBudget]] = {}
        for name, subject in prepared.items():
            budget = CpuBudget(time_budget)
            plans[name] = plan_budget(
                items,
                subject,
                partial(evaluate_on_subset, seed=seed),
                budget=time_budget,
                options=comparison.options,
                repeats=repeats,
                dispensable=[item.name for item in items if item.name != ACCURACY]
                if named is None
                else (),
                shown=progress,
            )
            budgets[name] = partial(CpuBudget, time_budget, budget.spent)
        result = _evaluate(prepared, items, plans, comparison, budgets, shown=progress)
    for reasons in result.unmeasured.values():
        reasons.update(inapplicable)
    requested = {item.name for item in named or ()}
    measured = {reading.measure for pairs in result.readings.values() for reading, _ in pairs}
    reasons = [
        f"{name}: {why}" for name, each in result.unmeasured.items() for why in each.values()
    ]
    if requested and not requested & measured and reasons:
        raise InvalidInput(" ".join(dict.fromkeys(reasons)))
    return Comparison(
        _rows(result.readings, normal_quantile(level)),
        level,
        result.unmeasured,
        evidence,
        notes=_notes(prepared),
        interrupted=result.interrupted,
    )


def _notes(prepared: Mapping[str, Ready]) -> list[str]:
    """Return the notes of the networks, each once, with the names of the networks if not all have it."""
    networks: dict[str, list[str]] = {}
    for name, subject in prepared.items():
        for note in subject.notes:
            networks.setdefault(note, []).append(name)
    return [
        note if len(names) == len(prepared) else f"{', '.join(names)}: {note}"
        for note, names in networks.items()
    ]


def _ready(name: str, network: nn.Module, samples: Samples, needs: Sequence[str]) -> Ready:
    """Return a network that runs on the samples; an error names it."""
    try:
        return ready(network, samples, needs=needs)
    except GapscopeError as error:
        raise type(error)(f"{name}: {error}") from error


@dataclass
class _Evaluated:
    """Readings with errors, and reasons for missing ones, of each network."""

    readings: dict[str, list[tuple[Reading, float]]]
    unmeasured: dict[str, dict[str, str]]
    interrupted: bool = False


def _evaluate(
    prepared: Mapping[str, Ready],
    items: Sequence[Measure],
    plans: Mapping[str, Plan],
    comparison: _ComparisonRun,
    budgets: Mapping[str, Callable[[], CpuBudget]],
    *,
    shown: bool,
) -> _Evaluated:
    """Evaluate all measures of all networks as planned; the budget of each starts with its first measure."""
    shares, omitted = _merge_plans(list(plans.values()))
    seconds = sum(share.seconds for share in shares.values() if share.seconds == share.seconds)
    if shown and seconds > SHOW_AFTER_SECONDS:
        notify(f"comparing {len(prepared)} networks: about {seconds:.0f} s", seconds)
    # first the measure that the verdict needs: it tells whether gaps can be compared
    accuracy_first = sorted(items, key=lambda item: item.name != ACCURACY)
    order = [item.name for item in items]
    result = _Evaluated({}, {name: {**plan.failed, **omitted} for name, plan in plans.items()})
    with progress("comparing", len(prepared) * len(items), shown=shown) as bar:
        for name, subject in prepared.items():
            pairs: list[tuple[Reading, float]] = []
            unmeasured = result.unmeasured[name]
            comparison.budget = budgets[name]()
            try:
                for item in accuracy_first:
                    bar.step(f"{item.name} of {name}")
                    if item.name not in unmeasured and item.name in shares:
                        why = subject.inapplicable_reason(item)
                        try:
                            if not why:
                                with enforced_budget(comparison.budget, subject):
                                    pairs += comparison.with_errors(
                                        item, subject, shares[item.name]
                                    )
                        except Exception as error:  # a failing measure must not end the comparison
                            why = reason(error)
                        if why:
                            unmeasured[item.name] = why
                    bar.advance()
            except KeyboardInterrupt:
                if len(result.readings) < 2 or not may_be_partial():
                    raise
                result.interrupted = True
                break
            result.readings[name] = sorted(pairs, key=lambda pair: order.index(pair[0].measure))
    for name in prepared.keys() - result.readings.keys():
        result.unmeasured[name] = dict.fromkeys(order, STOPPED)
    return result
