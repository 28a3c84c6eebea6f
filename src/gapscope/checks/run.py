"""Run of the checks within a time budget."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import CpuBudget
from gapscope.base.errors import GapscopeError, InvalidInput, check_range, describe_value
from gapscope.base.loss_history import loss_history
from gapscope.base.samples import Samples, as_samples, with_task
from gapscope.base.second_data import as_second, joined_notes
from gapscope.base.targets import require_targets
from gapscope.checks.account import cap_costs, order_findings
from gapscope.checks.class_numbering import number_classes, with_class_names
from gapscope.checks.context import MAX_SAMPLES, Context
from gapscope.checks.estimators import EstimatorScores, with_rows
from gapscope.checks.headline import INTERRUPTED
from gapscope.checks.invalid_outputs import judge_invalid_outputs
from gapscope.checks.leaks import judge_through_leak
from gapscope.checks.registry import Check, Finding, NotChecked, Outcome, get_checks, list_checks
from gapscope.checks.result import CheckResult
from gapscope.checks.trainers import Trainer, has_diverged, make_trainer
from gapscope.checks.trials import TriedAdvice, try_fixes
from gapscope.data.frames import encode_inputs, source_texts
from gapscope.data.named_columns import column_by_name
from gapscope.data.table_encoding import source_columns, source_gaps, unseen_values
from gapscope.data.table_targets import split_frames
from gapscope.inspection.initial_states import matching_state
from gapscope.inspection.interrupts import whole_results
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.network_checks import estimator_task, is_estimator, unwrapped
from gapscope.inspection.network_errors import explained_errors
from gapscope.inspection.validation import ready
from gapscope.inspection.wrapped_networks import unwrap_estimator
from gapscope.labels.raw_columns import refuse_words
from gapscope.results.progress import progress
from gapscope.statistics.integer_inputs import settle_integers
from gapscope.training.loss_course import LOWER


def _run(check: Check, context: Context, budget: CpuBudget) -> Outcome:
    """Return the outcome of one check, as text with a space before each percent sign."""
    has_network = context.prepared is not None or context.estimator is not None
    if context.diverged is not None and check.code == "GS302":
        outcome: Outcome = Finding(
            "weights hold NaN or infinity: training has diverged",
            "lower the learning rate, and standardize the inputs",
            cost=context.shortfall,
            fixes=LOWER,
        )
    elif context.diverged is not None and check.needs_network:
        outcome = NotChecked("the weights of the network are not finite")
    elif check.needs_network and not has_network:
        outcome = NotChecked("there is no network")
    elif check.needs_network and context.prepared is None and not check.generalization:
        outcome = NotChecked("needs a torch network")
    else:
        if context.prepared is None:
            network = nn.Module()
        else:
            network = context.prepared.network
        try:
            with explained_memory(), explained_errors(), budget.enforced(network):
                invalid = judge_invalid_outputs(check, context)
                outcome = invalid or judge_through_leak(check, context) or check.function(context)
        except GapscopeError as error:
            outcome = NotChecked(str(error).rstrip("."))
    texts = {
        name: re.sub(r"(?<=\d)%", " %", text)
        for name, text in vars(outcome).items()
        if isinstance(text, str)
    }
    return replace(outcome, **texts | {"code": check.code, "title": outcome.title or check.title})


@check_arguments
def check(
    network: nn.Module | Any | None,
    data: Any,
    *,
    target: str | int | None = None,
    initial_state: Mapping[str, Tensor] | None = None,
    monitor: Any = None,
    history: Any = (),
    test: Any = None,
    batch_size: int | None = None,
    train_fn: Any = None,
    max_trainings: float | None = None,
    time_budget: float | None = 60.0,
    ignore: Sequence[str] | str = (),
    only: Sequence[str] | str | None = None,
    seed: int = 0,
) -> CheckResult:
    """Check what limits a network, from its training data.

    The result opens with an account: training accuracy, expected accuracy on new data, and what each finding costs.
    Findings have one recommendation each, and are ordered by this cost. Checks run from the cheapest to the most
    expensive, those of the network (GS2xx) last, until the time budget is used; the others are listed with a reason. A
    network is read on at most 2,000 evenly spaced samples; quantities of the data alone use all samples that the budget
    allows. Indices are those of the data. The network is restored exactly. Ctrl-C ends the running check and returns
    what is finished.

    Args:
        network: Trained or untrained network; None for the checks of the data alone; or a fitted scikit-learn
            estimator, for which checks of the data and of its accuracy (R^2 of a regressor) run.
        data: Training data with targets, in any form that `gapscope.measure` takes.
        target: Column of the labels or targets, if `data` (and `test`) is a raw frame (pandas, polars, Arrow). More
            than 20 different integers that are not numbered from 0 or 1 are targets of regression. Text becomes one
            column per value, and missing numbers are filled with the median; a scikit-learn estimator gets the raw
            columns.
        initial_state: Clone of the state dictionary before training; GS201 to GS204 and GS303 need it for a trained
            network.
        monitor: `gapscope.Monitor` of the training run, for GS301 and the losses of GS302.
        history: One mapping per epoch with `train_loss`, as `gapscope.train` returns it, or with `loss`, such as
            `trainer.state.log_history` of transformers, for GS302. Also as a frame, a mapping of columns, a list of
            losses, or the result of `gapscope.train`. Rows
            without a loss are omitted, others are sorted by `epoch`, several per epoch are averaged.
        test: Held-out samples, used by GS106, GS401 and GS402 in place of an estimate, and compared with `data` by
            GS101 and GS110; those that repeat training samples are not scored. Regression has an account, GS401 and
            GS402 with them alone, or with an estimator.
        batch_size: Batch size of training, for GS203.
        train_fn: Training configuration with which advice is tried (`gapscope.checks.trials`): a function
            `train_fn(inputs, targets)` that returns a newly trained network, a `TrainingSpec` for copies of `network`
            (from `initial_state`, else from resampled weights), or True for a scikit-learn estimator. Of a function's
            keywords `learning_rate`, `epochs`, `batch_size`, `weight_decay` and `width`, those with a default are
            changed by fixes. None tries nothing.
        max_trainings: Largest cost of tried advice, in trainings on all samples; None for 6, with fewer than 2,000
            samples 12,000 / n, and at most 24. From 12 on both halves of the samples are scored in turn.
        time_budget: CPU seconds of this process; None for no limit. A check that would exceed them is ended, and listed
            with the reason.
        ignore: Codes to omit: a list, or one code.
        only: Codes to run: a list, or one code; None for all.
        seed: Seed of all random numbers.

    Raises:
        InvalidInput: The network or the data cannot be used, or a code is unknown.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> labels = train.y.clone()
    >>> labels[:30] = (labels[:30] + 1) % 10  # a tenth of the labels is wrong
    >>> finding = gs.check(None, (train.inputs, labels), only=["GS102"]).findings[0]
    >>> print(finding.evidence)
    9 % of labels (90 % interval 4 to 16 %)
    >>> print(finding.action)
    review the 29 samples in result.label_issues and correct them
    """
    if time_budget is not None:
        check_range("time_budget", time_budget, 0)
    # a callback of a trainer holds it
    monitor = getattr(monitor, "monitor", monitor)
    if monitor is not None and not hasattr(monitor, "epochs"):
        raise InvalidInput(
            f"monitor must be the gapscope.Monitor of the training; got {describe_value(monitor)}. Pass it, or None."
        )
    if only is None:
        checks = list(list_checks().values())
    else:
        checks = get_checks(only)
    omitted = {item.code for item in get_checks(ignore)}
    # those of the network last: of a large one, its kernel would use the time of all others
    checks = sorted(
        (item for item in checks if item.code not in omitted),
        key=lambda item: (item.code.startswith("GS2"), item.seconds),
    )
    start = time.process_time()
    # a budget of 0 runs no check, but is one
    budget = CpuBudget(None if time_budget is None else max(time_budget, 1e-9))
    if target is not None:
        data, test = _split(network, data, test, target)
    context = _make_context(network, data, test, initial_state, is_raw=target is not None)
    context = replace(
        context,
        monitor=monitor,
        history=loss_history(history),
        batch_size=batch_size,
        seed=seed,
        budget=budget,
        ignored=frozenset(omitted),
    )
    trainer = None
    if train_fn is not None:
        if context.prepared is None:
            bare = context.diverged
        else:
            bare = context.prepared.bare
        trainer = make_trainer(train_fn, bare, context.initial_state, context.estimator, budget)
    outcomes: list[Outcome] = []
    tried: TriedAdvice | str | None = None
    interrupted = False
    n_steps = len(checks) + (trainer is not None)
    with progress("checking", n_steps) as bar, whole_results():
        try:
            for item in checks:
                bar.step(item.code)
                if context.seconds_left == 0:
                    reason = f"the time budget of {time_budget:g} s was used; pass time_budget=None"
                    outcomes.append(NotChecked(reason, item.code, item.title))
                else:
                    outcomes.append(_run(item, context, budget))
                bar.advance()
            if trainer is not None:
                bar.step("advice", is_timed=False)
                tried = _try_advice(trainer, context, outcomes, max_trainings)
                interrupted = isinstance(tried, TriedAdvice) and tried.interrupted
        except KeyboardInterrupt:
            interrupted = True
            done = {outcome.code for outcome in outcomes}
            outcomes += [
                NotChecked(INTERRUPTED, c.code, c.title) for c in checks if c.code not in done
            ]
    outcomes = [_with_row_numbers(outcome, context) for outcome in outcomes]
    result = CheckResult.from_outcomes(
        outcomes, context, time.process_time() - start, interrupted=interrupted
    )
    if result.label_issues is not None and context.given is not None:
        issues = replace(result.label_issues, samples=context.given)
        result = replace(result, label_issues=issues.with_row_numbers())
    if trainer is None:
        return result
    return result.with_tried(tried or INTERRUPTED, trainer.spec)


def _split(network: Any, data: Any, test: Any, target: str | int) -> tuple[Any, Any]:
    """Return raw frames as pairs; integers are classes where a classifier was fitted to them."""
    parts = split_frames(data, test, target)
    if is_estimator(network) and estimator_task(network) == "classifier":
        first, second = (
            part and (part[0], column_by_name(frame, target)[1])
            for part, frame in zip(parts, (data, test), strict=True)
        )
        return first, second
    return parts


def _with_row_numbers(outcome: Outcome, context: Context) -> Outcome:
    """Return an outcome with row numbers of the data that were passed in place of indices of the samples."""
    if not isinstance(outcome, Finding) or len(outcome.indices) == 0 or context.given is None:
        return outcome
    return replace(outcome, indices=tuple(context.given.original(outcome.indices).tolist()))


def _try_advice(
    trainer: Trainer, context: Context, outcomes: Sequence[Outcome], max_trainings: float | None
) -> TriedAdvice | str:
    """Return the tried fixes, or the reason why none was tried."""
    if context.seconds_left == 0:
        return "the checks used the time budget"
    capped = cap_costs(outcomes, vars(context).get("expected"), context.score_name)
    findings = order_findings([outcome for outcome in capped if isinstance(outcome, Finding)])
    # the first fix of every finding, then the second ones
    rounds = zip_longest(*(finding.fixes for finding in findings))
    suggested = [name for names in rounds for name in names if name is not None]
    balanced = context.is_classifier and any(finding.code == "GS104" for finding in findings)
    samples = context.everything
    if context.estimator is not None and context.given is not None:
        samples = with_rows(context.given)
    try:
        return try_fixes(
            trainer, samples, trainer.spec, suggested, balanced=balanced, max_trainings=max_trainings,
            budget=context.budget, seed=context.seed,
        )  # fmt: skip
    except GapscopeError as error:
        return str(error).rstrip(".")


def _make_context(
    network: Any,
    data: Any,
    test: Any,
    initial_state: Mapping[str, Tensor] | None,
    *,
    is_raw: bool = False,
) -> Context:
    """Return the context of a torch network, of a scikit-learn estimator, or of the data alone."""
    notes: tuple[str, ...] = ()
    raw = data
    raw_test = test
    if is_estimator(network) and estimator_task(network) == "classifier":
        data, test = with_class_names(data, test)
    module, contents = unwrap_estimator(network, data)
    # a pipeline that ends with a network encodes the columns itself
    if is_estimator(module) or module is None or (is_raw and module is network):
        data, test, notes = encode_inputs(data, test, reads_amounts=module is None)
        module, contents = unwrap_estimator(network, data)
    table: Any = {"unseen": unseen_values(test), "sources": source_columns(data)}
    _refuse_what_is_no_network(network, module, data)
    if is_raw and module is network:
        refuse_words(network, data)
    prepared = None
    if isinstance(module, nn.Module) and not has_diverged(module):
        prepared = ready(network, data, needs=("outputs",))
        given = replace(prepared.samples, notes=(*prepared.notes, *notes))
    else:
        given = _without_outputs(module, contents)
        given = replace(given, notes=(*given.notes, *notes))
    table["gaps"] = {name: list(given.per_sample(gaps)) for name, gaps in source_gaps(data).items()}
    table["texts"] = {
        name: list(given.per_sample(texts)) for name, texts in source_texts(raw).items()
    }
    # findings are about indices of these samples; `check` converts them to row numbers at its end
    samples = replace(given, rows=None, n_rows=0)
    require_targets(samples, "check")
    n = len(samples)
    if n < 2:
        raise InvalidInput(f"check needs two samples or more; got {n}. Pass more samples.")
    indices = torch.linspace(0, n - 1, min(n, MAX_SAMPLES), dtype=torch.float64).round().long()
    if prepared is not None:
        table["initial_state"] = _checked_initial_state(prepared.bare, initial_state)
        part = prepared.with_samples(samples.subset(indices))
        if test is not None:
            second = prepared.adapt(test)
            given = replace(given, notes=joined_notes(given.notes, second.samples))
            table |= {"test": second.samples, "test_network": second.network}
        return Context(part, samples, indices, given=given, **table)
    held_out = None if test is None else as_second(test, samples, "test")
    given, held_out = number_classes(given, held_out)
    given = replace(given, notes=joined_notes(given.notes, held_out))
    if is_estimator(module):
        table["estimator"] = EstimatorScores(module, raw, given, raw_test, held_out)
    elif module is not None:
        table["diverged"] = module
        table["initial_state"] = _checked_initial_state(module, initial_state)
    samples = replace(given, rows=None, n_rows=0)
    return Context(None, samples, indices, test=held_out, given=given, **table)


def _refuse_what_is_no_network(network: Any, module: Any, data: Any) -> None:
    """Raise InvalidInput for what is no network, no estimator and not None, such as exchanged arguments."""
    if module is None or isinstance(module, nn.Module) or is_estimator(module):
        return
    if isinstance(data, nn.Module) or is_estimator(data):
        raise InvalidInput(
            f"Got {type(network).__name__} as the network and {type(data).__name__} as the data; the network comes "
            "first. Call check(network, data), or return the network first."
        )
    ready(network, data)  # raises the error


def _without_outputs(module: Any, contents: Any) -> Samples:
    """Return the samples of an estimator, of a network that diverged, or of the data alone."""
    if isinstance(module, nn.Module):
        return as_samples(contents)
    given = settle_integers(as_samples(contents, is_exact=True), are_numbers=module is not None)
    if module is None or given.kind != "classification":
        return given
    is_regressor = estimator_task(module, given.targets) == "regressor"
    return with_task(given, "regression") if is_regressor else given  # integers


def _checked_initial_state(
    network: nn.Module, initial_state: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """Return the initial state with the keys of the network's own; None without one.

    The tensors of `network.state_dict()` are those of the network: without a clone, training changes them too, and a
    trained network would be judged as an untrained one.

    Raises:
        InvalidInput: It is of another network, or no copy.
    """
    if initial_state is None:
        return None
    network = unwrapped(network)
    state = matching_state(network, initial_state)
    # frozen parameters and buffers of whole numbers may be shared
    shared = [
        name
        for name, weight in network.named_parameters()
        if weight.requires_grad and weight.numel() and weight.data_ptr() == state[name].data_ptr()
    ]
    if shared:
        raise InvalidInput(
            f"initial_state must be a copy from before training; {shared[0]} shares its memory with the network, so "
            "that training changes both. Pass copy.deepcopy(network.state_dict()) from before training, or nothing."
        )
    return state
