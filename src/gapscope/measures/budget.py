"""Time budget: costs of measures from short trials, and subsets of samples that fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import starmap
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.errors import (
    GapscopeError,
    InvalidInput,
    NotMeasurable,
    check_range,
    first_line,
)
from gapscope.inspection.known_layers import known_layers
from gapscope.inspection.memory import is_out_of_memory
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready
from gapscope.measures.registry import Measure, Options, Sampling
from gapscope.results.progress import progress

# no trials if a rough estimate in forward passes is below this fraction of the budget
SKIP_TRIAL_BELOW = 0.2
# samples of the first trial; it is repeated with GROWTH times as many, within LARGER_TRIAL_FRACTION of the budget,
# while the cost per sample falls below CHEAPER times the previous one
TRIAL = 10
# four times the samples in each further trial, while a sample costs less than .8 of before, by judgment
GROWTH, CHEAPER, LARGER_TRIAL_FRACTION = 4, 0.8, 0.01
# with more outputs than this, one backward pass per output needs an explicit request
MANY_OUTPUTS = 4096
ASK_FOR_IT = "Pass a larger budget, or name it"
# fraction of the budget that trials may take, by judgment; the costs of what they leave out are estimated roughly
TRIALS_FRACTION = 0.5
OMITTED = "omitted to keep the budget"


@dataclass(frozen=True)
class Allocation:
    """Samples and options of one measure within a budget.

    Attributes:
        n: Number of samples.
        options: Options in addition to the caller's.
        seconds: Estimated duration from the trial; NaN without a trial.
    """

    n: int
    options: Options = field(default_factory=dict[str, Any])
    seconds: float = math.nan


@dataclass(frozen=True)
class Plan:
    """Allocations of measures within a budget.

    Attributes:
        shares: Allocation of each measure by name.
        total: Number of all samples.
        failed: Reasons of measures that failed in the trial or do not fit the budget, by name.
        seconds: Estimated duration; NaN if it is certainly short.
    """

    shares: Mapping[str, Allocation]
    total: int
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = math.nan

    def __str__(self) -> str:
        reduced = [
            f"{name} on {share.n:,}{' by probes' if share.options else ''}"
            for name, share in self.shares.items()
            if share.n < self.total or share.options
        ]
        suffix = ""
        if reduced:
            suffix = f"; to keep the budget, {', '.join(reduced)}"
        return f"about {self.seconds:.0f} s on {self.total:,} samples{suffix}"


# passes over a subset by kind of sampling: "whole" evaluates groups in addition, for the standard error
_PASSES = {"mean": 1, "sum": 1, "own": 1, "whole": 2}
Evaluate = Callable[[Measure, Ready, Allocation], Any]


def _seconds(run: Callable[[Ready], Any], ready: Ready, n: int) -> float:
    """Return the seconds of a run on n evenly spaced samples."""
    total = len(ready.samples)
    n = min(n, total)
    subset = ready.with_samples(ready.samples.subset(torch.arange(n) * (total // n)))
    start = time.process_time()
    run(subset)
    return time.process_time() - start


class _Cost(NamedTuple):
    """Fixed seconds (work that is cached), and seconds per sample."""

    once: float
    per_sample: float


def _trial(run: Callable[[Ready], Any], ready: Ready, allowed: float) -> _Cost:
    """Return the cost from trials on few samples, and on more while the cost per sample falls."""
    # the second trial on the same samples does not repeat cached work
    n = TRIAL
    first = _seconds(run, ready, TRIAL)
    again = _seconds(run, ready, TRIAL)
    once = max(0.0, first - again)
    per_sample = again / TRIAL
    # a pass of a recurrent network takes as long for ten samples as for a hundred
    while GROWTH * n <= len(ready.samples) and once + 2 * GROWTH * n * per_sample <= allowed:
        n *= GROWTH
        _seconds(run, ready, n)
        before = per_sample
        per_sample = min(per_sample, _seconds(run, ready, n) / n)
        if per_sample > CHEAPER * before:
            break
    return _Cost(once, per_sample)


def _run_of(
    item: Measure, evaluate: Evaluate, options: Options = MappingProxyType({})
) -> Callable[[Ready], Any]:
    """Return the evaluation of one measure with options as a function of the samples."""
    return lambda part: evaluate(item, part, Allocation(len(part.samples), options))


def enforced_budget(budget: CpuBudget, ready: Ready) -> AbstractContextManager[None]:
    """Raise BudgetSpent at a forward pass once the budget is spent.

    Networks of known layers bear no hook, which would change how they are evaluated: their time is predictable, and
    the budget is looked at between their measures alone.

    Args:
        budget: The budget.
        ready: The checked network.
    """
    if math.isinf(budget.seconds) or known_layers(ready.bare):
        return nullcontext()
    return budget.enforced(ready.bare)


def _pass_seconds(ready: Ready, allowed: float) -> float:
    """Return the seconds per sample of a forward pass."""
    start = time.process_time()
    try:
        return _trial(_one_pass, ready, allowed).per_sample
    except BudgetSpent:
        return (time.process_time() - start) / TRIAL


def _one_pass(part: Ready) -> None:
    with inspection_mode(part.network):
        network_outputs(part.network, part.samples.inputs)


def _fewer(n: int) -> int:
    """Return the largest power of two below n, so that passes and groups have equal sizes."""
    return 1 << max(0, (n - 1).bit_length() - 1)


@dataclass(frozen=True)
class _Durations:
    """Estimated seconds of measures on n samples: `repeats` evaluations on all samples, one on a subset."""

    per_sample: Mapping[str, float]
    repeats: Mapping[str, float]
    total: int

    def __call__(self, name: str, n: int) -> float:
        seconds = self.per_sample[name] * n
        if n < self.total:
            return seconds
        return seconds * self.repeats.get(name, 1.0)


def _fit_to_budget(
    seconds: _Durations, names: Iterable[str], fewest: Mapping[str, int], budget: float
) -> dict[str, int]:
    """Halve the samples of the most expensive measure until all fit the budget."""
    counts = dict.fromkeys(names, seconds.total)
    while sum(starmap(seconds, counts.items())) > budget:
        reducible = [name for name, n in counts.items() if _fewer(n) >= fewest[name]]
        if not reducible:
            break
        most_expensive = max(reducible, key=lambda name: seconds(name, counts[name]))
        counts[most_expensive] = _fewer(counts[most_expensive])
    return counts


def plan_budget(
    items: Sequence[Measure],
    ready: Ready,
    evaluate: Evaluate,
    *,
    budget: float | None,
    options: Mapping[str, Options],
    repeats: Mapping[str, float] | None = None,
    dispensable: Collection[str] = (),
    shown: bool = False,
) -> Plan:
    """Choose the number of samples and the method of each measure under a time budget.

    Measures with options from the caller, and those without `sampling`, are evaluated on all samples with these
    options. Dispensable ones that would not fit even on the fewest samples are omitted without a trial.

    Args:
        items: Measures to plan, in order.
        ready: The checked network with its samples.
        evaluate: Function that evaluates one measure, for the trials.
        budget: CPU seconds; None for all measures on all samples.
        options: Measure name -> its keyword options, as the caller passed them.
        repeats: Measure name -> number of evaluations on all samples; 1 by default.
        dispensable: Names of measures that may be omitted: those that the caller did not name.
        shown: Whether to show a progress bar if the trials last over two seconds.

    Raises:
        InvalidInput: The budget is not positive.
    """
    total = len(ready.samples)
    repeats = repeats or {}
    shares = {item.name: Allocation(total) for item in items}
    if budget is None:
        return Plan(shares, total)
    check_range("time_budget", budget, 0, low_open=True)
    start = time.process_time()
    trials = CpuBudget(TRIALS_FRACTION * budget)
    with enforced_budget(trials, ready):
        forward = _pass_seconds(ready, LARGER_TRIAL_FRACTION * budget)
    samplings = {item.name: item.sampling for item in items if item.sampling is not None}
    # seconds per sample of one evaluation
    rough = {
        name: forward * sampling.passes(ready.n_outputs) for name, sampling in samplings.items()
    }
    roughly = _Durations(rough, repeats, total)
    if total < 2 * TRIAL or sum(roughly(name, total) for name in rough) < SKIP_TRIAL_BELOW * budget:
        return Plan(shares, total)
    minimum = {
        name: roughly(name, min(total, sampling.fewest)) * _PASSES[sampling.kind]
        for name, sampling in samplings.items()
    }
    dispensable = [name for name in dispensable if name not in options]
    failed = _over_budget(minimum, budget, dispensable)
    costs: dict[str, float] = {}
    once = 0.0
    with (
        enforced_budget(trials, ready),
        progress("estimating the cost", len(samplings), shown=shown) as bar,
    ):
        for item in items:
            if item.sampling is None:
                continue
            bar.step(item.name)
            bar.advance()
            if item.name in options or item.name in failed:
                continue
            try:
                cost, shares[item.name] = _cheapest(item, item.sampling, ready, budget, evaluate)
            except NotMeasurable:
                # perhaps only for these few samples, such as if none is classified correctly; or no time is left
                cost = _Cost(0.0, rough[item.name])
            except Exception as error:  # other errors would also occur on all samples
                failed[item.name] = reason(error)
                continue
            costs[item.name] = cost.per_sample
            once += cost.once  # paid again, for passes of another size
        for item in items:
            if item.name in dispensable and item.cost_class == "superlinear":
                # a tenth of the budget for one measure whose cost grows faster than the number of samples
                allowed = 0.1 * budget / repeats.get(item.name, 1.0)
                failed |= _superlinear_over_budget(item, ready, forward, allowed, evaluate)
    # a fifth is reserved for errors of the trials, by judgment
    remaining = max(0.8 * (budget - once - (time.process_time() - start)), 0.05 * budget)
    fewest = {name: sampling.fewest for name, sampling in samplings.items()}
    duration = _Durations(costs, repeats, total)
    allotted = _fit_to_budget(duration, costs, fewest, remaining)
    # the trials may be slower than the rough estimates: the most expensive measure leaves room for the others
    while sum(starmap(duration, allotted.items())) > remaining:
        seconds = {name: duration(name, n) for name, n in allotted.items() if name in dispensable}
        if not seconds:
            break
        most_expensive = max(seconds, key=seconds.__getitem__)
        failed[most_expensive] = _too_expensive(budget, seconds[most_expensive])
        del costs[most_expensive]
        allotted = _fit_to_budget(duration, costs, fewest, remaining)
    for name, n in allotted.items():
        shares[name] = replace(shares[name], n=n, seconds=duration(name, n))
    planned = {name: share for name, share in shares.items() if name not in failed}
    known = (share.seconds for share in planned.values() if not math.isnan(share.seconds))
    return Plan(planned, total, failed, once + sum(known))


def _too_expensive(budget: float, seconds: float) -> str:
    return (
        f"{OMITTED} of {budget:.3g} s: on the smallest informative subset it takes about "
        f"{seconds:.2g} s, in addition to cheaper measures. {ASK_FOR_IT}"
    )


def _over_budget(
    minimum: Mapping[str, float], budget: float, dispensable: Collection[str]
) -> dict[str, str]:
    """Return reasons of dispensable measures whose minimum seconds exceed the budget."""
    failed: dict[str, str] = {}
    total = 0.0
    for name in sorted(minimum, key=minimum.__getitem__):
        if name in dispensable and total + minimum[name] > budget:
            failed[name] = _too_expensive(budget, minimum[name])
        else:
            total += minimum[name]
    return failed


def _superlinear_over_budget(
    item: Measure, ready: Ready, forward: float, allowed: float, evaluate: Evaluate
) -> dict[str, str]:
    """Return the reason if a superlinear measure exceeds its allowance, by name."""
    total = len(ready.samples)
    n = TRIAL
    # at least one backward pass per output, each about two forward passes
    minimum = 2 * forward * ready.n_outputs * total
    if minimum > allowed:
        return {item.name: f"{OMITTED}: it takes at least {minimum:.2g} s. {ASK_FOR_IT}"}
    # double n until a cubic extrapolation fits the allowance (measure) or a linear one exceeds it (omit)
    while n < total:
        try:
            seconds = _seconds(_run_of(item, evaluate), ready, n)
        except BudgetSpent:
            return {item.name: f"{OMITTED}: trials of other measures took their part. {ASK_FOR_IT}"}
        except GapscopeError:  # perhaps only for these few samples
            seconds = 0.0
        except Exception as error:  # other errors would also occur on all samples
            return {item.name: reason(error)}
        if 0 < seconds * (total / n) ** 3 <= allowed:
            return {}
        if seconds * (total / n) > allowed:
            return {
                item.name: f"{OMITTED}: it took {seconds:.2g} s on {n} of {total:,} samples, and its "
                f"cost grows faster than their number. {ASK_FOR_IT}"
            }
        n *= 2
    return {}


def _cheapest(
    item: Measure, sampling: Sampling, ready: Ready, budget: float, evaluate: Evaluate
) -> tuple[_Cost, Allocation]:
    """Return the cost of the exact measure, or of its probes if the exact one is too slow."""
    total = len(ready.samples)
    allowed = LARGER_TRIAL_FRACTION * budget
    if not sampling.probe:
        passes = sampling.passes(ready.n_outputs)
        if passes > 2 * MANY_OUTPUTS:
            raise InvalidInput(
                f"it needs {passes:,.0f} passes over the samples, for {ready.n_outputs:,} outputs; a budget allows "
                f"{2 * MANY_OUTPUTS:,}. Pass time_budget=None to measure it anyway."
            )
        cost = _trial(_run_of(item, evaluate), ready, allowed)
        return _Cost(cost.once, _PASSES[sampling.kind] * cost.per_sample), Allocation(total)
    by_probe = _trial(_run_of(item, evaluate, sampling.probe), ready, allowed)
    # exact evaluation costs about one probe per output; it is tried only if it is likely to fit
    if (
        by_probe.per_sample * total * min(4, ready.n_outputs) < budget
        and ready.n_outputs <= MANY_OUTPUTS
    ):
        exact = _trial(_run_of(item, evaluate), ready, allowed)
        if exact.per_sample * total < budget / 2:
            return exact, Allocation(total)
    return by_probe, Allocation(total, sampling.probe)


def reason(error: BaseException) -> str:
    """Return the reason of a missing value: gapscope's message, or class and first line."""
    if is_out_of_memory(error):
        return "out of memory: pass fewer samples, or a smaller chunk_size"
    if isinstance(error, GapscopeError):
        return str(error).strip()
    return f"{type(error).__name__}: {first_line(error)}"
