"""`measure()`: evaluation of measures on all samples or, within a time budget, on subsets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, BudgetSpent, CpuBudget
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.loss_history import loss_history
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.inspection.execution import is_distributed
from gapscope.inspection.initial_states import equals_trained_weights, own_state
from gapscope.inspection.interrupts import may_be_partial
from gapscope.inspection.memoization import memo_scope, memoize
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.budget import Allocation, Plan, enforced_budget, plan_budget, reason
from gapscope.measures.registry import Measure, Options, get_measure, list_measures, not_exact
from gapscope.results.progress import SHOW_AFTER_SECONDS, notify, progress
from gapscope.results.readings import Reading, Readings

# groups for a standard error with seven degrees of freedom
GROUPS = 8
# extremes of a subset are biased inwards by more than their spread: no standard error
EXTREMES = "_fence"


@memoize
def interleaved_groups(samples: Samples, groups: int) -> list[Samples]:
    """Return interleaved groups that partition the samples."""
    return [samples.subset(torch.arange(j, len(samples), groups)) for j in range(groups)]


@memoize
def subsample(samples: Samples, n: int, seed: int) -> Samples:
    """Return n random samples in their original order (subsets with one seed are nested)."""
    generator = make_generator(seed, "samples within the budget")
    order = torch.randperm(len(samples), generator=generator)
    return samples.subset(order[:n].sort().values)


def evaluate_on_subset(
    item: Measure,
    ready: Ready,
    share: Allocation,
    *,
    initial_state: Options | None = None,
    history: Sequence[Options] = (),
    options: Options = MappingProxyType({}),
    seed: int = 0,
) -> Readings:
    """Evaluate one measure on its subset, as an estimate for all samples."""
    total = len(ready.samples)
    initial_state = ready.initial_for(item, initial_state)

    def evaluate(samples: Samples, purpose: str = "") -> Readings:
        keywords = {**share.options, **options}
        if "generator" in item.options:
            keywords.setdefault("generator", make_generator(seed, item.stream + purpose))
        return item(
            ready.network_for(item),
            samples,
            initial_state=initial_state,
            history=history,
            **keywords,
        )

    if share.n >= total:
        readings = evaluate(ready.samples)
        note = "one probe per sample" if share.options else ""
    else:
        subset = subsample(ready.samples, share.n, seed)
        note = f"{'probes on ' if share.options else ''}{share.n:,} of {total:,} samples"
        assert item.sampling is not None  # else the plan contains all samples
        match item.sampling.kind:
            case "mean":
                readings = _mean(evaluate, subset, total)
            case "whole":
                readings = _with_group_error(evaluate, subset)
            case "sum":
                factor = total / len(subset)
                readings = Readings(
                    replace(
                        each,
                        value=factor * each.value,
                        standard_error=factor * (each.standard_error or 0.0),
                    )
                    for each in evaluate(subset)
                )
            case "own":
                readings = not_exact(evaluate(subset))
    return Readings(replace(reading, note=reading.note or note) for reading in readings)


def _mean(evaluate: Callable[..., Readings], subset: Samples, total: int) -> Readings:
    """Estimate a mean over samples from group means, with finite-population standard error."""
    groups = interleaved_groups(subset, GROUPS)
    weights = [len(group) / len(subset) for group in groups]
    readings: list[Reading] = []
    for each in zip(
        *(evaluate(group, f" of group {j}") for j, group in enumerate(groups)), strict=True
    ):
        values = [reading.value for reading in each]
        value = sum(weight * number for weight, number in zip(weights, values, strict=True))
        spread = math.nan
        if all(map(math.isfinite, values)):
            spread = statistics.stdev(values)
        # n of N samples without replacement: the variance of their mean is smaller by 1 - n / N
        error = math.sqrt(1 - len(subset) / total) * spread / math.sqrt(GROUPS)
        seconds = sum(reading.seconds for reading in each)
        readings.append(replace(each[0], value=value, standard_error=error, seconds=seconds))
    return Readings(readings)


def _with_group_error(evaluate: Callable[..., Readings], subset: Samples) -> Readings:
    """Return the number of the subset, with a standard error from eighths of it and that of its own noise."""
    of_subset = evaluate(subset)
    try:
        of_groups = [evaluate(group) for group in interleaved_groups(subset, GROUPS)]
    except (
        GapscopeError
    ):  # such as no correctly classified sample in a group: the error stays unknown
        return Readings(replace(reading, standard_error=math.nan) for reading in of_subset)
    readings: list[Reading] = []
    for reading, *each in zip(of_subset, *of_groups, strict=True):
        spread = math.nan
        is_finite = all(math.isfinite(number.value) for number in (reading, *each))
        if is_finite and not reading.number.endswith(EXTREMES):
            spread = statistics.stdev(number.value for number in each)
        # the same noise for all eighths: their spread does not show it
        error = math.hypot(spread / math.sqrt(GROUPS), reading.standard_error or 0.0)
        readings.append(replace(reading, standard_error=error))
    return Readings(readings)


STOPPED = "stopped before it was finished"
ALL = "all"
SAME_STATE = (
    "initial_state equals the weights of the network. A state_dict() changes during training: pass a copy.deepcopy "
    "from before training."
)
Budget = float | Literal["auto"] | None


def measures_by_name(names: Sequence[str] | str | None) -> list[Measure] | None:
    """Return the measures with these names (None for "all" and None)."""
    if isinstance(names, str):
        names = [names]
    if names is None or list(names) == [ALL]:
        return None
    return [get_measure(name) for name in names]


def select_measures(
    names: Sequence[str] | None, samples: Samples, *, has_initial: bool, has_history: bool = False
) -> list[Measure]:
    """Return the measures with these names (for "all" and None those that the data allow)."""
    if (chosen := measures_by_name(names)) is not None:
        return chosen
    known = [item for item in list_measures().values() if item.default or names is not None]
    return [
        item
        for item in known
        if not item.lacking(has_initial=has_initial, has_history=has_history)
        and not item.unsuitable(samples)
    ]


def select_applicable(
    names: Sequence[str] | None, ready: Ready, *, has_initial: bool, has_history: bool = False
) -> tuple[list[Measure], dict[str, str]]:
    """Return the applicable measures, and the reasons of inapplicable ones by name."""
    if (selected := measures_by_name(names)) is not None:
        return selected, {}
    chosen = []
    reasons = {}
    for item in list_measures().values():
        missing = item.lacking(has_initial=has_initial, has_history=has_history)
        if names is None and (missing or not item.default):
            continue
        if missing := missing or ready.inapplicable_reason(item):
            reasons[item.name] = missing
        else:
            chosen.append(item)
    return chosen, reasons


def check_options(
    options: Options, chosen: Sequence[Measure], unmeasured: Mapping[str, str]
) -> None:
    """Raise InvalidInput for options of measures that are not selected, and unknown options."""
    names = [item.name for item in chosen]
    for name in options:
        if name not in names and name not in unmeasured:
            raise InvalidInput(
                f"options must be for the selected measures, {', '.join(names)}; got {name!r}."
            )
    for item in chosen:
        item.check_options(options.get(item.name, {}))


@check_arguments
def measure(
    network: nn.Module | Any,
    data: Any,
    measures: Sequence[str] | str | None = None,
    *,
    initial_state: Mapping[str, Tensor] | None = None,
    history: Any = (),
    options: Mapping[str, Options] | None = None,
    seed: int = 0,
    time_budget: Budget = "auto",
    progress: bool = True,
    strict: bool = False,
) -> Readings:
    """Measure a network: return readings with direction, units and standard error.

    The network does not change, nor do its modes, gradients and the global random states. A measure without a value for
    this network or these data does not stop the others: `readings.unmeasured` has its reason. Ctrl-C returns the
    finished readings, with `interrupted`.

    With a time budget short trials first estimate the cost of each measure. If the sum exceeds the budget, the trace of
    the kernel is estimated by probes, and the most expensive measures on random subsets of at least some hundred
    samples; such readings have a standard error and a note. Of "all" those that still do not fit are omitted. A
    measure that is not finished once 1.1 times the budget is spent has no value.

    Args:
        network: A module that returns raw outputs [n, K] (or [n]), or an object or mapping that holds them as `logits`;
            outputs with positions (pixels, tokens) if the targets have them too.
        data: A pair (x, y), inputs alone, a mapping of inputs with `labels`, Samples, a Dataset or a DataLoader of any
            of these, of tensors, numpy arrays or pandas objects; see `gapscope.base.samples.as_samples`.
        measures: Names of measures; "all" for every registered measure that the data allow, None for the default ones
            among them: those of the four papers (except `ntk_logdet`, whose cost grows faster than the number of
            samples), size, norms, loss and accuracy. Shared work is done once.
        initial_state: State dictionary before training, for measures that need it.
        history: Training history, one mapping per epoch with its `train_loss`, for measures that need it; also in the
            other forms of `gapscope.check`.
        options: Measure name -> keyword options of that measure.
        seed: Seed of noise, probes and the choice of samples; each has its own random stream.
        time_budget: CPU seconds of this process for all measures together; None for exact measures on all samples at
            any cost. "auto" is 60 for `measures` None or "all", else None; it is None if several processes measure
            together (`gapscope.inspection.execution.distribute_over`).
        progress: Whether to show the estimated cost and a progress bar if measuring lasts over two seconds.
        strict: Whether the first measure that fails, or Ctrl-C, raises immediately.

    Returns:
        The readings, in the order of the measures.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    >>> print(gs.measure(network, train, ["accuracy", "loss", "parameter_count"]))
    measure          value  error  better  what it is
    accuracy         0.07   exact  -       fraction of correctly classified samples [fraction of samples]
    loss             2.316  exact  -       mean loss on the samples [nats (cross-entropy)]
    parameter_count  8970   exact  lower   number of parameters [parameters]
    no reference values exist: compare networks that were trained alike
    """
    has_names = measures_by_name(measures) is not None
    if time_budget == "auto":
        time_budget = None
        if not has_names:
            time_budget = DEFAULT_BUDGET
    if is_distributed():  # processes that time their own trials would choose different subsets
        time_budget = None
    budget = CpuBudget(time_budget)
    subject = ready(network, data)
    history = loss_history(history, needs_every_epoch=True)
    if initial_state is not None:
        initial_state = own_state(subject.bare, initial_state)
        if equals_trained_weights(subject.bare, initial_state):
            subject = replace(subject, notes=(*subject.notes, SAME_STATE))
    options = options or {}
    chosen, unmeasured = select_applicable(
        measures, subject, has_initial=initial_state is not None, has_history=bool(history)
    )
    check_options(options, chosen, unmeasured)
    evaluate = partial(evaluate_on_subset, initial_state=initial_state, history=history, seed=seed)
    with eager_mode(), memo_scope(), enforced_budget(budget, subject):
        unnamed = [] if has_names else [item.name for item in chosen]
        plan = plan_budget(
            chosen,
            subject,
            evaluate,
            budget=time_budget,
            options=options,
            dispensable=unnamed,
            shown=progress,
        )
        if progress and plan.seconds > SHOW_AFTER_SECONDS:
            notify(f"measuring {type(subject.bare).__name__}: {plan}", plan.seconds)
        return _evaluate_all(
            chosen,
            subject,
            plan,
            evaluate,
            options,
            unmeasured,
            budget,
            strict=strict,
            shown=progress,
        )


def _evaluate_all(
    items: Sequence[Measure],
    subject: Ready,
    plan: Plan,
    evaluate: Callable[..., Readings],
    options: Mapping[str, Options],
    unmeasured: Mapping[str, str],
    budget: CpuBudget,
    *,
    strict: bool,
    shown: bool,
) -> Readings:
    """Evaluate all measures as planned, with reasons in place of readings that fail."""
    readings: list[Reading] = []
    unmeasured = {**unmeasured, **plan.failed}
    first_error = None
    interrupted = False
    items = [item for item in items if item.name in plan.shares]
    seconds = [plan.shares[item.name].seconds for item in items]
    costs = [0.01 if math.isnan(cost) else cost for cost in seconds]
    with progress("measuring", sum(costs), shown=shown) as bar:
        for i, item in enumerate(items):
            bar.step(item.name)
            try:
                if cause := subject.inapplicable_reason(item):
                    labels = ""
                    if subject.samples.kind == "regression":
                        labels = " Pass y.long() if they are labels."
                    raise InvalidInput(f"{item.name} {cause}.{labels}")
                share = plan.shares[item.name]
                if item.cost_class != "weights":
                    budget.check()
                readings.extend(evaluate(item, subject, share, options=options.get(item.name, {})))
            except KeyboardInterrupt:
                if strict or not readings or not may_be_partial():
                    raise
                notify("stopped: finished measures are returned")
                unmeasured |= {each.name: STOPPED for each in items[i:]}
                interrupted = True
                break
            except Exception as error:  # the readings of other measures must survive it
                if not isinstance(error, BudgetSpent):
                    shape = list(subject.samples.inputs.shape)
                    error.add_note(
                        f"while measuring {item.name} of {type(subject.bare).__name__} on {shape}"
                    )
                    if strict:
                        raise
                first_error = first_error or error
                unmeasured[item.name] = reason(error)
            bar.advance(costs[i])
    if not readings and first_error is not None:
        raise first_error
    return Readings(readings, unmeasured, subject.notes, interrupted=interrupted)
