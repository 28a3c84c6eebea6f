"""`measure()`: all measures of a network, and the samples that each is evaluated on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.inspection.execution import processes_joined
from gapscope.inspection.memoization import memo_scope, memoize
from gapscope.inspection.moments import unwrap_estimator
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.validation import Ready, equals_trained_weights, ready
from gapscope.measures.budget import DEFAULT_SECONDS, Allocation, Plan, plan_budget, reason
from gapscope.measures.registry import Measure, get_measure, list_measures
from gapscope.results.progress import SHOW_AFTER_SECONDS, notify, progress
from gapscope.results.readings import Reading, Readings

GROUPS = 8
# extremes of a subset are biased inwards by more than their spread
EXTREMES = "_fence"


@memoize
def interleaved_groups(samples: Samples, groups: int) -> list[Samples]:
    """Return interleaved groups that partition the samples."""
    return [samples.subset(torch.arange(j, len(samples), groups)) for j in range(groups)]


@memoize
def subsample(samples: Samples, n: int, seed: int) -> Samples:
    """Return n random samples in their order (subsets of one seed are nested)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "samples within the budget"))
    order = torch.randperm(len(samples), generator=generator)
    return samples.subset(order[:n].sort().values)


def evaluate_on_subset(
    item: Measure,
    ready: Ready,
    share: Allocation,
    *,
    initial_state: Mapping[str, Any] | None,
    history: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any],
    seed: int,
) -> Readings:
    """Evaluate one measure on its subset of the samples.

    Args:
        item: The measure.
        ready: The network and all samples.
        share: Number of samples, and what else the plan says.
        options: The caller's options.
        seed: Seed of the samples and of what is drawn.

    Returns:
        Its readings; where samples are left out, each is an estimate of the number of all samples.
    """
    total, before = len(ready.samples), ready.initial_for(item, initial_state)

    def take(samples: Samples, purpose: str = "") -> Readings:
        given = {**share.options, **options}
        if "generator" in item.options:
            generator = torch.Generator().manual_seed(derive_seed(seed, item.stream + purpose))
            given.setdefault("generator", generator)
        return item(ready.network_for(item), samples, initial_state=before, history=history, **given)

    if share.n >= total:
        return _noted(take(ready.samples), "one probe a sample" if share.options else "")
    part = subsample(ready.samples, share.n, seed)
    how = f"{'probes on ' if share.options else ''}{share.n:,} of {total:,} samples"
    assert item.sampling is not None  # the plan leaves no samples out otherwise
    return _noted(_ESTIMATES[item.sampling.kind](take, part, total), how)


def _noted(readings: Readings, note: str) -> Readings:
    return Readings(replace(reading, note=reading.note or note) for reading in readings) if note else readings


Take = Callable[..., Readings]


def _mean(take: Take, part: Samples, total: int) -> Readings:
    """Estimate a mean over samples from group means, with finite-population standard error."""
    groups = interleaved_groups(part, GROUPS)
    taken_groups = [take(group, f" of group {j}") for j, group in enumerate(groups)]
    weights = [len(group) / len(part) for group in groups]
    left_out = math.sqrt(1 - len(part) / total)
    readings: list[Reading] = []
    for each in zip(*taken_groups, strict=True):
        values = [reading.value for reading in each]
        value = sum(weight * number for weight, number in zip(weights, values, strict=True))
        spread = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        error = left_out * spread / math.sqrt(GROUPS)
        readings.append(_estimate(each, value, error))
    return Readings(readings)


def _sum(take: Take, part: Samples, total: int) -> Readings:
    """Estimate a sum over samples: value and standard error of the subset, scaled."""
    factor = total / len(part)
    return Readings(
        replace(reading, value=factor * reading.value, standard_error=factor * (reading.standard_error or 0.0))
        for reading in take(part)
    )


def _as_measured(take: Take, part: Samples, total: int) -> Readings:
    return take(part)


def _with_group_error(take: Take, part: Samples, total: int) -> Readings:
    """Return the number of the subset, with a standard error from eighths of it."""
    whole = take(part)
    try:
        groups = [take(group) for group in interleaved_groups(part, GROUPS)]
    except GapscopeError:  # no sample of a group is right, say: the number stands, its error is not known
        return Readings(replace(reading, standard_error=math.nan) for reading in whole)
    readings: list[Reading] = []
    for reading, *each in zip(whole, *groups, strict=True):
        known = not reading.number.endswith(EXTREMES)
        known = known and all(math.isfinite(found.value) for found in (reading, *each))
        spread = statistics.stdev(group.value for group in each) if known else math.nan
        readings.append(replace(reading, standard_error=spread / math.sqrt(GROUPS)))
    return Readings(readings)


_ESTIMATES: Mapping[str, Callable[[Take, Samples, int], Readings]] = {
    "mean": _mean,
    "sum": _sum,
    "own": _as_measured,
    "whole": _with_group_error,
}


def _estimate(each: Sequence[Reading], value: float, error: float) -> Reading:
    return replace(each[0], value=value, standard_error=error, seconds=sum(reading.seconds for reading in each))


STOPPED = "stopped before it was finished"
ALL = "all"
SAME_STATE = (
    "initial_state equals the weights of the network. A state_dict() changes while the network trains: keep a "
    "copy.deepcopy of it from before training."
)
Budget = float | Literal["auto"] | None


def _are_all(names: Sequence[str] | None) -> bool:
    return names is not None and list([names] if isinstance(names, str) else names) == [ALL]


def select_measures(
    names: Sequence[str] | None, samples: Samples, *, has_initial: bool, has_history: bool = False
) -> list[Measure]:
    """Return the named measures (for "all" and None those that the data allow)."""
    if names is None or _are_all(names):
        known = [item for item in list_measures().values() if item.default or names is not None]
        return [item for item in known if item.applies_to(samples, has_initial=has_initial, has_history=has_history)]
    return [get_measure(name) for name in ([names] if isinstance(names, str) else names)]


def _missing(item: Measure, *, has_initial: bool, has_history: bool) -> str:
    if "initial" in item.needs and not has_initial:
        return "needs the weights before training; pass initial_state=, a copy.deepcopy of network.state_dict() of then"
    if "history" in item.needs and not has_history:
        return "needs the training history; pass history=, one mapping an epoch with its train_loss"
    return ""


def select_applicable(
    names: Sequence[str] | None, found: Ready, *, has_initial: bool, has_history: bool = False
) -> tuple[list[Measure], dict[str, str]]:
    """Return the applicable measures, and the reasons of the others."""
    if names is not None and not _are_all(names):
        return select_measures(names, found.samples, has_initial=has_initial), {}
    if names is None:
        known = [item for item in list_measures().values() if item.default]
        known = [item for item in known if not _missing(item, has_initial=has_initial, has_history=has_history)]
    else:
        known = list(list_measures().values())
    why = {
        item.name: _missing(item, has_initial=has_initial, has_history=has_history) or found.inapplicable_reason(item)
        for item in known
    }
    return [item for item in known if not why[item.name]], {name: said for name, said in why.items() if said}


def check_options(options: Mapping[str, Any], chosen: Sequence[Measure], unmeasured: Mapping[str, str]) -> None:
    """Raise InvalidInput for options of measures that are not selected, and unknown options."""
    names = [item.name for item in chosen]
    for name in options:
        if name not in names and name not in unmeasured:
            raise InvalidInput(f"options must be for the selected measures, {', '.join(names)}; got {name!r}.")
    for item in chosen:
        item.check_options(options.get(item.name, {}))


def measure(
    network: nn.Module | Any,
    data: Any,
    measures: Sequence[str] | str | None = None,
    *,
    initial_state: Mapping[str, Tensor] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    time_budget: Budget = "auto",
    progress: bool = True,
    strict: bool = False,
) -> Readings:
    """Measure a network: return readings with direction, units and standard error.

    The network is left exactly as it was: weights, buffers, modes, gradients and all random states. A measure that has
    no value for this network or these data does not end the others: `readings.unmeasured` says why. Ctrl-C ends the
    measuring and returns what is finished.

    With a budget a short trial shows first what each measure costs. Where all together would exceed the budget, the
    trace of the kernel is taken by probes, and the most expensive measures are taken on random parts of the samples;
    every such reading is an estimate with a standard error, and its note says how it came about. The budget holds in
    seconds of wall time on this machine, about: measures are never taken on less than some hundred samples. Of "all"
    those that would not fit even so are left out, the most expensive first, each with its reason in
    `readings.unmeasured`.

    Args:
        network: A module that returns raw outputs [n, K] (or [n]), or an object or mapping that holds them as `logits`;
            outputs with positions (pixels, tokens) where the targets have them too.
        data: A pair (x, y), inputs alone, a mapping of inputs with `labels`, Samples, a Dataset or a DataLoader of any
            of these, of tensors, numpy arrays or pandas objects; see `gapscope.base.samples.as_samples`.
        measures: Names of measures; "all" takes every registered measure that the data allow, None those of them that
            are taken by default: the four papers' (except ntk_logdet, whose cost grows faster than the number of
            samples), size, norms, loss and accuracy. Work that several measures need is done once.
        initial_state: The state dictionary before training, for measures that need it.
        history: The training history, one mapping an epoch with its `train_loss`, for measures that need it.
        options: Measure name -> keyword options of that measure.
        seed: Seed of the measures that draw noise or probes, and of the choice of samples; each has its own stream.
        time_budget: Seconds for all measures together; None for exact measures on all samples, whatever they cost.
            "auto" is 60 where no measures are named or "all" are asked for, and None where they are named, or where
            several processes measure together (`gapscope.inspection.execution.over_processes`).
        progress: Whether to show a bar, and before it what it will cost, where it lasts over two seconds on a terminal
            or in a notebook.
        strict: Whether the first measure that fails, or Ctrl-C, raises at once.

    Returns:
        The readings, in the order of the measures.

    >>> import torch
    >>> readings = measure(nn.Linear(3, 2), torch.ones(4, 3), ["parameter_count"])
    >>> readings["parameter_count"].value
    8.0
    """
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data)
    found = ready(network, samples)
    if initial_state is not None and equals_trained_weights(found.bare, initial_state):
        found = replace(found, notes=(*found.notes, SAME_STATE))
    options = options or {}
    chosen, unmeasured = select_applicable(
        measures, found, has_initial=initial_state is not None, has_history=bool(history)
    )
    check_options(options, chosen, unmeasured)
    seconds = (
        (DEFAULT_SECONDS if measures is None or _are_all(measures) else None) if time_budget == "auto" else time_budget
    )

    if processes_joined():  # what each process finds expensive on its own would part their ways
        seconds = None

    def trial(item: Measure, part: Ready, given: Mapping[str, Any]) -> Readings:
        share = Allocation(len(part.samples), given)
        return evaluate_on_subset(
            item, part, share, initial_state=initial_state, history=history, options={}, seed=seed
        )

    with eager_mode(), memo_scope():
        extras = [item.name for item in chosen if not item.default] if _are_all(measures) else []
        plan = plan_budget(
            chosen, found, budget=seconds, options=options, take=trial, dispensable=extras, shown=progress
        )
        if progress and plan.seconds > SHOW_AFTER_SECONDS:
            notify(f"measuring {type(found.bare).__name__}: {plan}")
        taking = _MeasurementRun(found, plan, initial_state, history, options, seed, strict)
        return taking.all(chosen, unmeasured, shown=progress)


class _MeasurementRun:
    """Sequential run of all measures of one call."""

    def __init__(
        self,
        found: Ready,
        plan: Plan,
        initial_state: Mapping[str, Tensor] | None,
        history: Sequence[Mapping[str, Any]],
        options: Mapping[str, Mapping[str, Any]],
        seed: int,
        strict: bool,
    ) -> None:
        self.found, self.plan, self.initial, self.history = found, plan, initial_state, history
        self.options, self.seed, self.strict = options, seed, strict
        self.readings: list[Any] = []
        self.unmeasured: dict[str, str] = {}
        self.error: Exception | None = None

    def all(self, items: Sequence[Measure], unmeasured: Mapping[str, str], *, shown: bool) -> Readings:
        """Evaluate all measures, recording failures as reasons."""
        self.unmeasured = {**unmeasured, **self.plan.failed}
        items = [item for item in items if item.name in self.plan.shares]
        costs = [self.plan.shares[item.name].seconds for item in items]
        costs = [cost if cost == cost else 0.01 for cost in costs]
        with progress("measuring", sum(costs), shown=shown) as bar:
            for item, cost in zip(items, costs, strict=True):
                bar.step(item.name)
                try:
                    self._one(item)
                except KeyboardInterrupt:
                    if self.strict or not self.readings:
                        raise
                    notify("stopped: finished measures are returned")
                    rest = items[items.index(item) :]
                    self.unmeasured |= {waiting.name: STOPPED for waiting in rest}
                    break
                bar.advance(cost)
        if not self.readings and self.error is not None:
            raise self.error
        return Readings(self.readings, self.unmeasured, self.found.notes)

    def _one(self, item: Measure) -> None:
        share = self.plan.shares[item.name]
        options = self.options.get(item.name, {})
        try:
            if because := self.found.inapplicable_reason(item):
                labels = " Pass y.long() if they are labels." if "regression" in because else ""
                raise InvalidInput(f"{item.name} {because}.{labels}")
            found = evaluate_on_subset(
                item,
                self.found,
                share,
                initial_state=self.initial,
                history=self.history,
                options=options,
                seed=self.seed,
            )
            self.readings.extend(found)
        except Exception as error:  # whatever a measure raises must not throw away what the others found
            shape = list(self.found.samples.inputs.shape)
            error.add_note(f"while measuring {item.name} of {type(self.found.bare).__name__} on {shape}")
            if self.strict:
                raise
            self.error = self.error or error
            self.unmeasured[item.name] = reason(error)
