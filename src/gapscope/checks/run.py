"""Run of the checks within a time budget."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, check_range
from gapscope.base.samples import as_samples
from gapscope.base.targets import require_targets
from gapscope.checks.context import MAX_SAMPLES, Context
from gapscope.checks.registry import Check, NotChecked, Outcome, get_checks, list_checks
from gapscope.checks.result import CheckResult
from gapscope.inspection.validation import ready, unwrap_estimator
from gapscope.results.progress import progress


def _run(check: Check, context: Context) -> Outcome:
    """Return the outcome of one check, as text with a space before each percent sign."""
    try:
        outcome = check.function(context)
    except GapscopeError as error:
        outcome = NotChecked(str(error))
    texts = {name: re.sub(r"(?<=\d)%", " %", text) for name, text in vars(outcome).items() if isinstance(text, str)}
    return replace(outcome, **texts | {"code": check.code, "title": check.title})


def check(
    network: nn.Module,
    data: Any,
    *,
    initial_state: Mapping[str, Tensor] | None = None,
    monitor: Any = None,
    history: Sequence[Mapping[str, Any]] = (),
    test: Any = None,
    batch_size: int | None = None,
    time_budget: float | None = 60.0,
    ignore: Sequence[str] = (),
    only: Sequence[str] | None = None,
    seed: int = 0,
) -> CheckResult:
    """Check what limits a network, from its training data.

    Findings have one recommendation each, and are ordered by their expected cost in accuracy. Checks run from the
    cheapest to the most expensive until the time budget is used; the others are listed with a reason. Above 2,000
    samples an evenly spaced subset is checked, except for duplicates and class balance. Indices are those of the data.
    The network is restored exactly. Ctrl-C returns what is finished.

    Args:
        network: Trained or untrained network.
        data: Training data with targets, in any form that `gapscope.measure` takes.
        initial_state: Clone of the state dictionary before training; GS201 to GS204 need it for a trained network.
        monitor: `gapscope.Monitor` of the training run, for GS301.
        history: One mapping per epoch with `train_loss`, as `gapscope.train` returns it, for GS302.
        test: Held-out samples, used by GS401 and GS402 in place of an estimate.
        batch_size: Batch size of training, for GS203.
        time_budget: Approximate limit in seconds; None for no limit.
        ignore: Codes to omit.
        only: Codes to run; None for all.
        seed: Seed of all random numbers.

    Raises:
        InvalidInput: The network or the data cannot be used, or a code is unknown.

    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> check(nn.Linear(1, 2), (torch.cat([x, x[:6]]), (torch.arange(66) % 2)), only=["GS101"]).findings[0].code
    'GS101'
    """
    if time_budget is not None:
        check_range("time_budget", time_budget, 0)
    test = None if test is None else unwrap_estimator(network, test)[1]
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data)
    require_targets(samples.targets, "check")
    n = len(samples)
    indices = torch.linspace(0, n - 1, min(n, MAX_SAMPLES), dtype=torch.float64).round().long()
    prepared = ready(network, samples.subset(indices), needs=("outputs",))
    held_out = None if test is None else as_samples(test)
    start = time.perf_counter()
    deadline = None if time_budget is None else start + time_budget
    context = Context(
        prepared, samples, indices, initial_state, monitor, tuple(history), held_out, batch_size, seed, deadline
    )
    checks = list(list_checks().values()) if only is None else get_checks(list(only))
    omitted = {item.code for item in get_checks(list(ignore))}
    checks = sorted((item for item in checks if item.code not in omitted), key=lambda item: item.seconds)
    outcomes: list[Outcome] = []
    with progress("checking", len(checks)) as bar:
        try:
            for item in checks:
                bar.step(item.code)
                if context.seconds_left == 0:
                    reason = f"the time budget of {time_budget:g} s was used; pass time_budget=None"
                    outcomes.append(NotChecked(reason, item.code, item.title))
                else:
                    outcomes.append(_run(item, context))
                bar.advance()
        except KeyboardInterrupt:
            done = {outcome.code for outcome in outcomes}
            outcomes += [NotChecked("interrupted", c.code, c.title) for c in checks if c.code not in done]
    return CheckResult.from_outcomes(outcomes, context, time.perf_counter() - start)
