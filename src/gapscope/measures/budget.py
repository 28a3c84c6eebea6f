"""Time budget: costs of measures from short trials, and subsets of samples that fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gapscope.base.errors import GapscopeError, InvalidInput, NotMeasurable
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready
from gapscope.measures.registry import Measure, Sampling
from gapscope.results.progress import progress

DEFAULT_SECONDS = 60.0
# trials are spared where a rough reckoning in forward passes stays below this part of the budget
SKIP_TRIAL_BELOW = 0.2
RESERVE_FRACTION = 0.2
TRIAL = 10
# a trial continues with so many times as many samples, within this part of the budget, while a sample becomes cheaper
MORE, CHEAPER, PART_OF_LARGER = 4, 0.8, 0.01
# more outputs than these are never differentiated one by one unless asked for by name
MANY_OUTPUTS = 4096
# of the budget, that one measure may take whose cost grows faster than the number of samples
PART_OF_ONE = 0.1
ASK_FOR_IT = "Pass a larger budget, or name it"


@dataclass(frozen=True)
class Allocation:
    """Part of a budget for one measure.

    Attributes:
        n: Number of samples.
        options: Options in addition to the caller's.
        seconds: Estimated duration from the trial; NaN without a trial.
    """

    n: int
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = math.nan


@dataclass(frozen=True)
class Plan:
    """Allocation of every measure, and the measures that failed in the trial.

    Attributes:
        shares: Measure name -> its allocation.
        failed: Measure name -> reason of its missing value.
        total: Number of all samples.
        seconds: Estimated duration of all together; NaN if it is certainly short.
    """

    shares: Mapping[str, Allocation]
    total: int
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = math.nan

    def __str__(self) -> str:
        said = f"about {self.seconds:.0f} s on {self.total:,} samples"
        parts = [
            f"{name} on {share.n:,}{' by probes' if share.options else ''}"
            for name, share in self.shares.items()
            if share.n < self.total or share.options
        ]
        return said + (f"; to keep the budget, {', '.join(parts)}" if parts else "")


# how often a part's samples are gone through: the groups of a "whole" one once more, for the standard error
_GROUPED = {"mean": 1, "sum": 1, "own": 1, "whole": 2}
Take = Callable[[Measure, Ready, Mapping[str, Any]], Any]


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _part(ready: Ready, n: int) -> Ready:
    """Return the same network with n samples spread over all."""
    total = len(ready.samples)
    return ready.with_samples(ready.samples.subset(torch.arange(min(n, total)) * (total // min(n, total))))


@dataclass(frozen=True)
class _Cost:
    """Cost of a measure: seconds paid once (cached work), and seconds per sample."""

    once: float
    a_sample: float


def _cost(item: Measure, ready: Ready, options: Mapping[str, Any], take: Take, allowed: float) -> _Cost:
    """Return the cost of one measure from trials."""

    def run(part: Ready) -> None:
        take(item, part, options)

    return _time_growing_subsets(run, ready, allowed)


def _time_growing_subsets(run: Callable[[Ready], None], ready: Ready, allowed: float) -> _Cost:
    """Return the cost from two trials on a few samples, and on more while samples get cheaper."""

    # a pass of a recurrent network takes as long for ten samples as for a hundred
    def two(n: int) -> tuple[float, float]:
        # two parts: what is known of a part of samples is not worked out again
        first, again = (_timed(lambda: run(_part(ready, n))) for _ in range(2))
        return max(0.0, first - again), again / n

    n = TRIAL
    once, a_sample = two(n)
    while MORE * n <= len(ready.samples) and once + 2 * MORE * n * a_sample <= allowed:
        n *= MORE
        before, a_sample = a_sample, min(a_sample, two(n)[1])
        if a_sample > CHEAPER * before:
            break
    return _Cost(once, a_sample)


def _forward_seconds(ready: Ready, allowed: float) -> float:
    """Return the seconds per sample of one forward pass."""

    def run(part: Ready) -> None:
        with inspection_mode(ready.network):
            network_outputs(ready.network, part.samples.inputs)

    return _time_growing_subsets(run, ready, allowed).a_sample


def _fewer(n: int) -> int:
    """Return the next power of two below n, so that passes and groups have equal sizes."""
    return 1 << max(0, (n - 1).bit_length() - 1)


def _fit_to_budget(costs: Mapping[str, float], fewest: Mapping[str, int], total: int, budget: float) -> dict[str, int]:
    """Halve the samples of the most expensive measure until all fit the budget."""
    counts = dict.fromkeys(costs, total)
    while sum(costs[name] * n for name, n in counts.items()) > budget:
        able = [name for name, n in counts.items() if _fewer(n) >= fewest[name]]
        if not able:
            break
        dearest = max(able, key=lambda name: costs[name] * counts[name])
        counts[dearest] = _fewer(counts[dearest])
    return counts


def plan_budget(
    items: Sequence[Measure],
    ready: Ready,
    *,
    budget: float | None,
    options: Mapping[str, Mapping[str, Any]],
    take: Take,
    repeats: Mapping[str, float] | None = None,
    dispensable: Collection[str] = (),
    shown: bool = False,
) -> Plan:
    """Choose the number of samples and the method of each measure under a time budget.

    Measures with options of the caller's own, and those of which it is not known how they depend on the number of
    samples, are taken on all samples as they are. Dispensable ones that would not fit on the fewest samples either
    are left out before a trial, which would cost as much.

    Args:
        items: The measures.
        ready: The network and all samples.
        budget: Seconds; None takes everything on all samples.
        options: Measure name -> the caller's options.
        take: Takes one measure.
        repeats: Measure name -> how often all samples go through it; None for once.
        dispensable: Names of measures that may be left out.
        shown: Whether to show a bar while it is tried what they cost, where that lasts over two seconds.

    Raises:
        InvalidInput: The budget is not positive.
    """
    total = len(ready.samples)
    everything = {item.name: Allocation(total) for item in items}
    if budget is None:
        return Plan(everything, total)
    if not budget > 0:
        raise InvalidInput(f"budget must be a positive number of seconds, or None; got {budget}.")
    repeats = repeats or {}
    start, forward = time.perf_counter(), _forward_seconds(ready, PART_OF_LARGER * budget)
    samplings = {item.name: item.sampling for item in items if item.sampling is not None}
    known = [item for item in items if item.name in samplings]
    rough = {name: forward * sampling.passes(ready.n_outputs) for name, sampling in samplings.items()}
    times = {name: repeats.get(name, 1.0) for name in rough}
    surely_little = sum(rough[name] * times[name] for name in rough) * total < SKIP_TRIAL_BELOW * budget
    if total < 2 * TRIAL or surely_little:
        return Plan(everything, total)
    costs: dict[str, float] = {}
    once = 0.0
    least = {
        name: rough[name] * times[name] * min(total, found.fewest) * _GROUPED[found.kind]
        for name, found in samplings.items()
    }
    failed = _over_budget(least, budget, [name for name in dispensable if name not in options])
    shares = dict(everything)
    with progress("trying what it costs", len(known), shown=shown) as bar:
        for item in known:
            bar.step(item.name)
            bar.advance()
            if item.name in options or item.name in failed:
                continue
            try:
                cost, shares[item.name] = _tried(item, samplings[item.name], ready, budget, take)
            except NotMeasurable:  # perhaps of these few samples only: none of them may be right
                cost = _Cost(0.0, rough[item.name])
            except Exception as error:  # whatever else it raises here it would raise on all samples
                failed[item.name] = reason(error)
                continue
            costs[item.name] = times[item.name] * cost.a_sample
            once += cost.once  # once more, for passes of another size
    growing = [item for item in items if item.name in dispensable and item.cost_class == "superlinear"]
    for item in growing:
        if item.name not in options:
            failed |= _superlinear_over_budget(item, ready, forward, PART_OF_ONE * budget, take)
    left = max((1 - RESERVE_FRACTION) * (budget - once - (time.perf_counter() - start)), 0.05 * budget)
    fewest = {name: sampling.fewest for name, sampling in samplings.items()}
    for name, n in _fit_to_budget(costs, fewest, total, left).items():
        shares[name] = replace(shares[name], n=n, seconds=n * costs[name])
    seconds = once + sum(share.seconds for share in shares.values() if share.seconds == share.seconds)
    return Plan({name: share for name, share in shares.items() if name not in failed}, total, failed, seconds)


def _over_budget(least: Mapping[str, float], budget: float, dispensable: Collection[str]) -> dict[str, str]:
    """Return the dispensable measures over budget even on the fewest samples, with reasons."""
    failed: dict[str, str] = {}
    together = 0.0
    for name in sorted(least, key=least.__getitem__):
        if name in dispensable and together + least[name] > budget:
            failed[name] = (
                f"omitted to keep the budget of {budget:.3g} s: on the smallest informative subset it takes "
                f"about {least[name]:.2g} s, in addition to cheaper measures. {ASK_FOR_IT}"
            )
        else:
            together += least[name]
    return failed


def _superlinear_over_budget(item: Measure, ready: Ready, forward: float, allowed: float, take: Take) -> dict[str, str]:
    """Return the reason if a superlinear measure exceeds its allowance, by name."""
    total, n = len(ready.samples), TRIAL
    # a backward pass an output, each about two forward passes, is the least that it takes
    least = 2 * forward * ready.n_outputs * total
    if least > allowed:
        return {item.name: f"omitted to keep the budget: it takes at least {least:.2g} s. {ASK_FOR_IT}"}
    # on twice as many samples until even the cube fits into what is allowed, or a straight line does not
    while n < total:
        part = _part(ready, n)
        try:
            seconds = _timed(lambda part=part: take(item, part, {}))
        except GapscopeError:  # perhaps of these few samples only
            seconds = 0.0
        except Exception as error:  # whatever else it raises here it would raise on all samples
            return {item.name: reason(error)}
        if 0 < seconds * (total / n) ** 3 <= allowed:
            return {}
        if seconds * (total / n) > allowed:
            return {
                item.name: f"omitted to keep the budget: it took {seconds:.2g} s on {n} of {total:,} samples, and its "
                f"cost grows faster than their number. {ASK_FOR_IT}"
            }
        n *= 2
    return {}


def _tried(item: Measure, sampling: Sampling, ready: Ready, budget: float, take: Take) -> tuple[_Cost, Allocation]:
    """Return the cost of the exact measure, or of its probes if the exact one is too slow."""
    total, allowed = len(ready.samples), PART_OF_LARGER * budget
    if not sampling.probe:
        if item.name == "input_jacobian_norm" and ready.n_outputs > MANY_OUTPUTS:
            raise InvalidInput(
                f"it needs one backward pass an output, here {ready.n_outputs:,}; name it with "
                "options={'input_jacobian_norm': {'squared': True, 'method': 'probe'}}"
            )
        cost = _cost(item, ready, {}, take, allowed)
        return replace(cost, a_sample=_GROUPED[sampling.kind] * cost.a_sample), Allocation(total)
    by_probe = _cost(item, ready, sampling.probe, take, allowed)
    # an exact one costs about a probe an output; it is tried only where it may well fit
    if by_probe.a_sample * total * min(4, ready.n_outputs) < budget and ready.n_outputs <= MANY_OUTPUTS:
        exact = _cost(item, ready, {}, take, allowed)
        if exact.a_sample * total < budget / 2:
            return exact, Allocation(total)
    return by_probe, Allocation(total, sampling.probe)


def reason(error: BaseException) -> str:
    """Return the reason of a missing value: gapscope's message, or class and first line."""
    said = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in said:
        return "out of memory: pass fewer samples, or a smaller chunk_size"
    if isinstance(error, GapscopeError):
        return said
    return f"{type(error).__name__}: {said.splitlines()[0][:300] if said else 'no message'}"
