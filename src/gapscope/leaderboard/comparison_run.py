"""Comparison of networks on the same data by every measure, with intervals and baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import as_samples
from gapscope.base.type_guards import is_mapping
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.validation import Ready, ready
from gapscope.leaderboard.comparison import ComparedReading, Comparison, LeaderboardEvidence
from gapscope.measures.budget import DEFAULT_SECONDS, Allocation, Plan, plan_budget, reason
from gapscope.measures.measurement import (
    Budget,
    check_options,
    evaluate_on_subset,
    interleaved_groups,
    select_applicable,
)
from gapscope.measures.registry import Measure
from gapscope.results.progress import SHOW_AFTER_SECONDS, notify, progress
from gapscope.results.readings import BASELINE, Reading, Readings

RANK_SIGNS = {"lower": 1.0, "higher": -1.0, "none": math.nan}
OF_SAMPLES = {"inputs", "targets", "labels"}


class _ComparisonRun:
    """Common settings of the networks of one comparison."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]], n_groups: int, seed: int) -> None:
        self.options, self.n_groups, self.seed = options, n_groups, seed

    def _kind(self, item: Measure) -> str:
        """Return how a measure depends on its samples, "" if that is not known."""
        return item.sampling.kind if item.sampling is not None and item.name not in self.options else ""

    def count_passes(self, item: Measure) -> float:
        """Count the passes over all samples of a measure and its standard error."""
        if not OF_SAMPLES & set(item.needs):
            return 1.0
        return {"mean": 2.0, "sum": 2.0, "own": 1.0}.get(self._kind(item), float(self.n_groups))

    def evaluate(self, item: Measure, subject: Ready, share: Allocation) -> Readings:
        """Evaluate one measure."""
        options = self.options.get(item.name, {})
        return evaluate_on_subset(item, subject, share, options=options, seed=self.seed)

    def with_errors(self, item: Measure, subject: Ready, share: Allocation) -> list[tuple[Reading, float]]:
        """Return readings with standard errors: their own, or the jackknife over groups."""
        readings = self.evaluate(item, subject, share)
        if not OF_SAMPLES & set(item.needs):
            return [(reading, 0.0) for reading in readings]
        pairs = [(reading, reading.standard_error) for reading in readings]
        if any(error is None for _, error in pairs):
            # sqrt((g - 1) / g sum_j (theta_(j) - mean)^2) for g groups
            left_out = zip(*self._left_out(item, subject, share, readings), strict=True)
            jackknife = [((self.n_groups - 1) * statistics.pvariance(values)) ** 0.5 for values in left_out]
            pairs = [
                (reading, own if error is None else error)
                for (reading, error), own in zip(pairs, jackknife, strict=True)
            ]
        return [(reading, error or 0.0) for reading, error in pairs]

    def _left_out(self, item: Measure, subject: Ready, share: Allocation, whole: Readings) -> list[list[float]]:
        """Return the numbers without each group."""
        samples, kind = subject.samples, self._kind(item)
        groups = interleaved_groups(samples, self.n_groups)
        if kind not in ("mean", "sum"):
            group_of = torch.arange(len(samples)) % len(groups)
            groups = [samples.subset(torch.nonzero(group_of != j)[:, 0]) for j in range(len(groups))]
        parts = [subject.with_samples(group) for group in groups]
        values = [
            [reading.value for reading in self.evaluate(item, part, Allocation(len(part.samples), share.options))]
            for part in parts
        ]
        if kind not in ("mean", "sum"):
            return values
        n = len(samples)
        return [
            [
                (n * reading.value - len(group) * own) / (n - len(group)) if kind == "mean" else reading.value - own
                for reading, own in zip(whole, of_group, strict=True)
            ]
            for group, of_group in zip(groups, values, strict=True)
        ]


def _merged(plans: Sequence[Plan]) -> dict[str, Allocation]:
    """Return the fraction of samples that all networks can be compared on."""
    shares: dict[str, Allocation] = {}
    for plan in plans:
        for name, share in plan.shares.items():
            other = shares.get(name, share)
            seconds = share.seconds + (other.seconds if name in shares else 0.0)
            shares[name] = Allocation(min(share.n, other.n), share.options or other.options, seconds)
    return shares


def _rows(found: Mapping[str, list[tuple[Reading, float]]], z: float) -> list[ComparedReading]:
    """Return the numbers of all networks with intervals and ranks (ties: the better rank)."""
    names = list(dict.fromkeys(reading.name for pairs in found.values() for reading, _ in pairs))
    rows: list[ComparedReading] = []
    for name in names:
        own = {network: pair for network, pairs in found.items() for pair in pairs if pair[0].name == name}
        sign = RANK_SIGNS[next(iter(own.values()))[0].direction]
        signed = {network: sign * reading.value for network, (reading, _) in own.items()}
        of_name = [
            ComparedReading(
                measure=name,
                network=network,
                value=reading.value,
                standard_error=error,
                low=reading.value - z * error,
                high=reading.value + z * error,
                direction=reading.direction,
                rank=math.nan
                if math.isnan(signed[network])
                else 1.0 + sum(other < signed[network] for other in signed.values()),
                note=reading.note,
            )
            for network, (reading, error) in own.items()
        ]
        rows.extend(sorted(of_name, key=lambda row: (math.isnan(row.rank), row.rank)))
    return rows


def compare(
    networks: Mapping[str, nn.Module],
    data: Any,
    measures: Sequence[str] | None = None,
    *,
    n_groups: int = 10,
    level: float = 0.95,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    time_budget: Budget = "auto",
    progress: bool = True,
    evidence: Any = None,
) -> Comparison:
    """Rank networks by every measure on the same samples, with intervals and the size.

    The interval is value ± z * standard error: the measure's own standard error where it states one, else the
    delete-a-group jackknife over `n_groups` interleaved groups of samples (an estimate, for measures smooth in the
    samples). Where intervals overlap, the order of two networks is not settled by these samples. A measure that has no
    value for one network is a reason in `unmeasured`. Ctrl-C ends it with the networks that are finished, if these are
    two or more.

    A direction that a paper states is no evidence. `evidence` takes a leaderboard (`rank_measures`) of similar networks
    of known gap: then the numbers with evidence there vote, in the direction that they have there, and the verdict
    opens with their correlations given the hyperparameters, intervals over training configurations and corrected
    p-values, next to those of the size and of a random measure.

    Args:
        data: Training data, in any form that `measure` takes.
        measures: Names of measures; None takes all whose cost is linear in the number of samples.
        n_groups: Groups of the jackknife.
        options: Measure name -> keyword options of that measure.
        time_budget: Seconds for each network, as for `measure`; all networks are measured on the same samples.
        progress: Whether to show a bar where it lasts over two seconds on a terminal or in a notebook.
        evidence: A leaderboard of networks whose gap is known; None for none.

    Returns:
        One row for each number and network; printed, one row per network with the verdict in words. `parameter_count`
        is always among the measures.

    Raises:
        InvalidInput: Fewer than two networks, more groups than samples, or evidence is no leaderboard.
        KeyboardInterrupt: It was stopped before two networks were finished.

    >>> import torch
    >>> found = compare({"small": nn.Linear(2, 2), "large": nn.Linear(2, 9)}, torch.ones(10, 2), ["parameter_count"])
    >>> found.to_pandas()[["network", "value", "rank"]].values.tolist()
    [['small', 6.0, 1.0], ['large', 27.0, 2.0]]
    """
    samples = as_samples(data)
    if not is_mapping(networks):
        raise InvalidInput(
            f"compare needs a mapping of names to networks; got {type(networks).__name__}. Pass {{...}}."
        )
    if len(networks) < 2:
        raise InvalidInput(f"compare needs at least two networks; got {len(networks)}. Use measure for one.")
    check_range("n_groups", n_groups, 2, len(samples))
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    measures = [measures] if isinstance(measures, str) else measures
    names = measures if measures is None or BASELINE in measures else [*measures, BASELINE]
    seconds = (DEFAULT_SECONDS if measures is None else None) if time_budget == "auto" else time_budget
    comparing = _ComparisonRun(options or {}, n_groups, seed)
    evidence = None if evidence is None else LeaderboardEvidence.of(evidence)
    with eager_mode():
        prepared = {name: ready(network, samples) for name, network in networks.items()}
        items, inapplicable = select_applicable(names, next(iter(prepared.values())), has_initial=False)
        check_options(comparing.options, items, inapplicable)
        repeats = {item.name: comparing.count_passes(item) for item in items}
        plans = {
            name: plan_budget(items, subject, partial(evaluate_on_subset, seed=seed), budget=seconds,
                              options=comparing.options, repeats=repeats, shown=progress)
            for name, subject in prepared.items()
        }  # fmt: skip
        result, unmeasured = _evaluate(prepared, items, plans, comparing, shown=progress)
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    return Comparison(_rows(result, z), level, unmeasured, evidence)


def _evaluate(
    prepared: Mapping[str, Ready],
    items: Sequence[Measure],
    plans: Mapping[str, Plan],
    comparing: _ComparisonRun,
    *,
    shown: bool,
) -> tuple[dict[str, list[tuple[Reading, float]]], dict[str, dict[str, str]]]:
    """Return the readings of each network with their errors, and why others are missing."""
    shares = _merged(list(plans.values()))
    expected = sum(share.seconds for share in shares.values() if share.seconds == share.seconds)
    if shown and expected > SHOW_AFTER_SECONDS:
        notify(f"comparing {len(prepared)} networks: about {expected:.0f} s")
    result: dict[str, list[tuple[Reading, float]]] = {}
    unmeasured = {name: dict(plan.failed) for name, plan in plans.items()}
    with progress("comparing", len(prepared) * len(items), shown=shown) as bar:
        for name, subject in prepared.items():
            pairs: list[tuple[Reading, float]] = []
            try:
                for item in items:
                    bar.step(f"{item.name} of {name}")
                    if item.name not in unmeasured[name] and item.name in shares:
                        why = subject.inapplicable_reason(item)
                        try:
                            pairs += [] if why else comparing.with_errors(item, subject, shares[item.name])
                        except Exception as error:  # what a measure raises must not end the comparison
                            why = reason(error)
                        if why:
                            unmeasured[name][item.name] = why
                    bar.advance()
            except KeyboardInterrupt:
                if len(result) < 2:
                    raise
                notify(f"stopped: {', '.join(result)} are compared")
                break
            result[name] = pairs
    return result, {name: unmeasured[name] for name in result}
