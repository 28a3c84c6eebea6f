"""The note of a search for label issues that took more than its time budget."""

from __future__ import annotations

from dataclasses import replace

from gapscope.base.budget import CpuBudget, cpu_seconds
from gapscope.labels.results import LabelIssues


def with_spent_budget(issues: LabelIssues, budget: CpuBudget) -> LabelIssues:
    """Return the ranking with a note if more than the time budget was spent.

    Args:
        issues: The ranking.
        budget: The budget, from the beginning of the search on.
    """
    # a tenth more than the budget: estimates from few samples err by some per cent
    if budget.spent <= 1.1 * budget.seconds:
        return issues
    note = (
        f"time_budget={budget.passed:.3g} was exceeded, {cpu_seconds(budget.spent)} CPU s were spent: the held-out "
        "predictions from the inputs are always made, and a forest is always asked about the errors that they find."
    )
    return replace(issues, notes=(*issues.notes, note))
