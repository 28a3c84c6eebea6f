"""A budget in CPU seconds, for functions that may take long."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import nn

from gapscope.base.errors import BudgetSpent, check_range

# Largest dense copy of the data, and largest passes and temporaries: 50,000 images through LeNet-5 then fit into 4 GB
# with all else that a process holds (benchmarks/forecast).
MAX_BYTES = 2**31
# Seconds of functions with a budget, if none is passed.
DEFAULT_BUDGET = 60.0


def cpu_seconds(seconds: float) -> str:
    """Return seconds as text.

    >>> cpu_seconds(0.1234), cpu_seconds(2999.6)
    ('0.12', '3000')
    """
    if seconds < 10:
        return f"{seconds:.2g}"
    return f"{seconds:.0f}"


class CpuBudget:
    """CPU seconds of this process, all threads together, from now on.

    Args:
        seconds: The budget; None for no limit.
        spent: CPU seconds of it that were spent before.

    Raises:
        InvalidInput: It is not positive.

    >>> budget = CpuBudget(10.0)
    >>> budget.affords(1.0), budget.affords(60.0), CpuBudget(None).affords(1e9)
    (True, False, True)
    """

    def __init__(self, seconds: float | None, spent: float = 0.0) -> None:
        self.seconds = math.inf
        if seconds is not None:
            check_range("time_budget", seconds, 0, low_open=True)
            self.seconds = float(seconds)
        # what the caller passed, and of a part: what was spent before it, and which fraction of the rest it is
        self.passed = self.seconds
        self._before = 0.0
        self._fraction = 1.0
        self._start = time.process_time() - spent

    @property
    def spent(self) -> float:
        """CPU seconds since the start."""
        return time.process_time() - self._start

    @property
    def remaining(self) -> float:
        """CPU seconds that are left, at least 0."""
        return max(0.0, self.seconds - self.spent)

    def affords(self, seconds: float) -> bool:
        """Return whether work fits into what is left.

        Args:
            seconds: Estimated CPU seconds of the work.
        """
        return seconds <= self.remaining

    def shortage(self, seconds: float) -> str:
        """Return what a forward pass of all samples takes and which budget suffices; empty if it fits.

        Args:
            seconds: Estimated CPU seconds of the pass.
        """
        if self.affords(seconds):
            return ""
        return (
            f"a forward pass of all samples takes about {cpu_seconds(seconds)} CPU s, and "
            f"{cpu_seconds(self.remaining)} are left. "
            f"Pass time_budget={self.enough(seconds, 2.0)}."
        )

    def enough(self, seconds: float, factor: float = 1.5) -> int:
        """Return the budget to pass, in seconds, with which further work fits.

        Args:
            seconds: Estimated CPU seconds of this work.
            factor: How much longer it may take.
        """
        return math.ceil(factor * (self._before + (self.spent + seconds) / self._fraction))

    def part(self, fraction: float) -> CpuBudget:
        """Return a budget, from now on, of a part of what is left; its messages name the whole.

        Args:
            fraction: Fraction of what is left, above 0, at most 1.
        """
        if math.isinf(self.seconds):
            return CpuBudget(None)
        part = CpuBudget(max(fraction * self.remaining, 1e-9))
        part.passed = self.passed
        part._before = self._before + self.spent / self._fraction
        part._fraction = fraction * self._fraction
        return part

    def check(self) -> None:
        """Raise BudgetSpent once 1.1 times the budget is spent."""
        # a tenth more than the budget: estimates from few samples err by some per cent
        if self.spent > 1.1 * self.seconds:
            raise BudgetSpent(f"time_budget={self.passed:.3g} was spent before it ended.")

    @contextmanager
    def enforced(self, network: nn.Module) -> Generator[None]:
        """Raise BudgetSpent at a forward pass of the network, once 1.1 times the budget is spent.

        Args:
            network: Network whose forward passes in the body look at the budget.
        """

        def check(*_: Any) -> None:
            self.check()

        handle = network.register_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()
