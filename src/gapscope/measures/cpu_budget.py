"""What of the NTK fits into a budget of CPU seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gapscope.base.budget import BudgetSpent, CpuBudget, cpu_seconds
from gapscope.base.samples import Samples
from gapscope.gradients.projections import PROJECTIONS
from gapscope.inspection.timing import TRIAL, pass_seconds, seconds_of, smallest_timing
from gapscope.inspection.validation import Ready
from gapscope.measures.budget import LARGER_TRIAL_FRACTION, SKIP_TRIAL_BELOW
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out, projected_leave_one_out

# Fraction of the budget for all trials.
TRIAL_FRACTION = 0.1
# samples of a larger trial, by judgment
LARGEST_TRIAL = 128
# Random combinations of the outputs, and numbers of landmarks, in place of the exact kernel. Few choices, so that noise
# of a timing seldom changes the result.
COMBINATIONS, LANDMARKS = 4, (1000, 500, 250, 125)
# Of an estimated NTK, in which each costs little: with 4 of 10 the accuracy was 0.02 lower than with all, see
# results/pretrained/ntk_exact.json. Its projections have at most so many numbers (1 GiB in float32).
MANY_COMBINATIONS, MAX_PROJECTED = 16, 2**28
# A pass back takes at least as long as a pass forward per output, and all gradients at most 10 times as long; one
# core multiplies and adds at least 5e9 numbers per second.
MIN_PASSES, MAX_PASSES, OPERATIONS_PER_SECOND = 1.0, 10.0, 5e9

_COMBINED = f"It is that of {COMBINATIONS} random combinations of the outputs."


def forward_seconds(prepared: Ready) -> float:
    """Return the estimated CPU seconds of a forward pass of all samples."""
    return pass_seconds(prepared.network, prepared.samples.inputs)


@dataclass
class _KernelCost:
    """CPU seconds of an NTK ridge per sample and per entry of the kernel, from trials."""

    network: nn.Module
    samples: Samples
    options: dict[str, Any]
    passes: float
    per_sample: float = 0.0
    per_pair: float = 0.0

    def _work(self, n: int) -> Callable[[], Any]:
        """Return the exact kernel of n samples as a function without arguments."""
        part = self.samples.subset(torch.linspace(0, len(self.samples) - 1, n).long())
        options = {**self.options, "max_exact": n}
        return lambda: kernel_leave_one_out(self.network, part.inputs, part.y, **options)

    def measure(self, budget: CpuBudget) -> None:
        """Time two sizes, and larger ones while they are cheap.

        The kernel of few samples is not timed further if it fits even where the first trial had no fixed cost.

        Raises:
            BudgetSpent: The first trial is too expensive.
        """
        trials = self.passes * len(self.samples) / TRIAL
        first = seconds_of(self._work(TRIAL))
        if first * trials > budget.remaining and first < TRIAL_FRACTION * budget.remaining:
            # without the fixed costs of a first call
            first = min(first, seconds_of(self._work(TRIAL)))
        # further trials would take about 9 times as long
        if 9 * first > TRIAL_FRACTION * budget.remaining and first * trials > budget.remaining:
            seconds = first * trials
            raise BudgetSpent(
                f"The kernel takes about {cpu_seconds(seconds)} CPU s or more. {_left(budget)}"
            )
        # half as much again for pairs of samples in the kernel of few, of which further trials would take as long
        if len(self.samples) <= LARGEST_TRIAL and 1.5 * first * trials <= budget.remaining:
            self.per_sample = first / TRIAL
            return
        n = 2 * TRIAL
        small = smallest_timing(self._work(TRIAL))
        large = smallest_timing(self._work(n))
        while (
            2 * n <= min(LARGEST_TRIAL, len(self.samples))
            and 6 * large < LARGER_TRIAL_FRACTION * budget.seconds
        ):
            n *= 2
            small = large
            large = smallest_timing(self._work(n))
        # small = h (s + h p) and large = 2 h (s + 2 h p) for h = n / 2 samples, s per sample and p per pair
        half = n / 2
        self.per_pair = max(large - 2 * small, 0.0) / (2 * half**2)
        self.per_sample = max(small / half - half * self.per_pair, 0.0)

    def seconds(self, n: int, columns: float, more_columns: float = 0.0) -> float:
        """Return the estimated seconds of n samples with so many columns."""
        # gradients of landmarks are computed in addition
        samples = self.passes * n
        if columns < n:
            samples += columns
        return samples * self.per_sample + n * (columns + more_columns) * self.per_pair


def affordable_kernel(
    network: nn.Module,
    samples: Samples,
    options: dict[str, Any],
    budget: CpuBudget,
    *,
    n_outputs: int,
    forward: float | None = None,
    more_columns: float = 0.0,
    passes: float = 1.0,
) -> tuple[dict[str, Any] | None, str]:
    """Return options of the NTK that fit into a budget, None if there are none, and a note on the difference.

    The trials are inside the budget: 10 and 20 samples, the smallest of three timings, larger ones while they are
    cheap. None are made for a kernel that certainly fits, or certainly does not. If the kernel does not fit, it is that
    of 4 random combinations of the outputs, then that of 1,000, 500, 250 or 125 landmarks.

    Args:
        network: `Ready.network`, with batch norm statistics as `with_data_statistics` gives them.
        samples: Its samples, with targets.
        options: Options of `kernel_leave_one_out`: max_exact, landmarks, and combinations where there are more outputs.
        budget: The budget.
        n_outputs: Number of outputs of the network.
        forward: CPU seconds of a forward pass of all samples, if they are known.
        more_columns: Columns of further kernels of the same samples.
        passes: Gradients of each sample that are computed, on average, those of further kernels included.
    """
    if math.isinf(budget.seconds):
        return options, ""
    n = len(samples)
    columns = n
    if n > options["max_exact"]:
        columns = min(n, options["landmarks"])
    k = min(n_outputs, options.get("combinations") or n_outputs)
    note = ""
    if forward is not None:
        parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
        pairs = n * (columns + more_columns) * parameters * k / OPERATIONS_PER_SECOND
        if MAX_PASSES * forward * k * passes + pairs < SKIP_TRIAL_BELOW * budget.remaining:
            return options, ""
        least = MIN_PASSES * forward * min(k, COMBINATIONS) * passes
        if not budget.affords(least):
            return (
                None,
                f"The kernel takes at least {cpu_seconds(least)} CPU s, and {cpu_seconds(budget.remaining)} are left.",
            )
        whole = MIN_PASSES * forward * k * passes
        if k > COMBINATIONS and not budget.affords(whole):
            # a trial of all outputs could take longer than the kernel of a few
            note = f"All of the kernel would take at least {cpu_seconds(whole)} CPU s. {_COMBINED}"
            options = options | {"combinations": COMBINATIONS}
    cost = _KernelCost(network, samples, options, passes)
    try:
        with budget.enforced(network):
            cost.measure(budget)
    except BudgetSpent as error:
        return None, str(error)
    seconds = cost.seconds(n, columns, more_columns)
    if budget.affords(seconds):
        return options, note
    note = note or f"All of the kernel would take about {cpu_seconds(seconds)} CPU s."
    if options.get("combinations", COMBINATIONS) is None:
        options = options | {"combinations": COMBINATIONS}
        note += f" {_COMBINED}"
        # the pass forward does not depend on the number of outputs
        factor = (1 + COMBINATIONS) / (1 + n_outputs)
        cost.per_sample *= factor
        cost.per_pair *= factor
        if budget.affords(cost.seconds(n, columns, more_columns)):
            return options, note
    for landmarks in LANDMARKS:
        if landmarks < columns and budget.affords(cost.seconds(n, landmarks, more_columns)):
            note += f" It is approximated with {landmarks} landmarks."
            return options | {"max_exact": 1, "landmarks": landmarks}, note
    return None, f"The kernel takes about {cpu_seconds(seconds)} CPU s. {_left(budget)}"


def affordable_projection(
    network: nn.Module,
    samples: Samples,
    options: dict[str, Any],
    budget: CpuBudget,
    *,
    n_outputs: int,
    forward: float,
) -> tuple[int | None, str]:
    """Return the number of combinations of the outputs for a projected NTK, None if it does not fit, and a note.

    They are 16 (or as many as outputs, or as fit into 1 GB), 4, or 1. The trials of 10 samples are inside the budget.

    Args:
        network: `Ready.network`, with batch norm statistics as `with_data_statistics` gives them.
        samples: Its samples, with targets.
        options: Options of `projected_leave_one_out`: max_exact, landmarks, chunk_size and seed.
        budget: The budget.
        n_outputs: Number of outputs of the network.
        forward: CPU seconds of a forward pass of all samples.
    """
    n = len(samples)
    # at most so many numbers per sample and combination, of all samples or of the landmarks
    numbers = sum(min(p.numel(), PROJECTIONS) for p in network.parameters() if p.requires_grad)
    rows = n if n <= options["max_exact"] else options["landmarks"]
    fitting = max(1, MAX_PROJECTED // max(1, rows * numbers))
    largest = min(n_outputs, MANY_COMBINATIONS, fitting)
    if math.isinf(budget.seconds):
        return largest, ""
    # landmarks are passed in addition
    passes = 1 if n <= options["max_exact"] else 1 + options["landmarks"] / n
    least = (1 + MIN_PASSES) * forward * passes
    if not budget.affords(least):
        return (
            None,
            f"The NTK takes at least {cpu_seconds(least)} CPU s, and {cpu_seconds(budget.remaining)} are left. "
            f"Pass time_budget={budget.enough(least)}.",
        )
    part = samples.subset(torch.linspace(0, n - 1, min(n, TRIAL)).long())
    settings = {**options, "combinations": 1, "max_exact": n}

    def work() -> None:
        projected_leave_one_out(network, part.inputs, part.y, **settings)

    try:
        with budget.enforced(network):
            # the first one verifies the gradients
            seconds_of(work)
            of_one = seconds_of(work) * n / len(part) * passes
    except BudgetSpent as error:
        return None, str(error)
    per_combination = max(of_one - forward * passes, MIN_PASSES * forward * passes)
    for k in sorted({largest, min(largest, COMBINATIONS), 1}, reverse=True):
        seconds = of_one + (k - 1) * per_combination
        if budget.affords(seconds):
            return k, ""
    return (
        None,
        f"The NTK takes about {cpu_seconds(of_one)} CPU s. {_left(budget)} Pass time_budget={budget.enough(of_one)}.",
    )


def _left(budget: CpuBudget) -> str:
    return f"Of time_budget={budget.passed:.3g}, {cpu_seconds(budget.remaining)} s are left for it."
