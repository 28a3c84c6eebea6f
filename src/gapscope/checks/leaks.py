"""Check of columns that give the label or target away: GS107."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.foreign_data import TEXT_COLUMNS, hashed_words
from gapscope.checks.context import Context
from gapscope.checks.costs import thinned
from gapscope.checks.registry import (
    Check,
    Finding,
    Fine,
    NotChecked,
    Outcome,
    register_check,
)
from gapscope.checks.text_leaks import MIN_ROWS_PER_CLASS, decided_by_words, named_in_text
from gapscope.labels.copied_inputs import N_FIRST, as_table, find_copied_inputs
from gapscope.labels.leaking_columns import (
    MIN_ALONE,
    MIN_LESS,
    find_leaking_columns,
    name_columns,
    predict_from,
    reason_not_searched,
)
from gapscope.results.estimate import percent

# Two intents of banking77 are told apart by a word each in 98.1 % of the rows.
MIN_BY_WORDS = 0.99


def _finding(evidence: str, cost: float) -> Finding:
    return Finding(
        evidence,
        "check whether it is known before the label is; if not, remove it and train again",
        cost=cost,
        fixes=("drop column",),
    )


def _told_by_text(
    texts: list[str], labels: Tensor, names: Sequence[str], *, few: bool
) -> tuple[float, str] | None:
    """Return in which fraction of the rows a text gives the label away, and how; None if it does not.

    Args:
        texts: One text per row.
        labels: Class labels [n].
        names: Names of the classes.
        few: Whether classes have too few rows for a word of each.
    """
    named = named_in_text(texts, labels, names)
    if named >= MIN_ALONE:
        return named, "contains the name of the class in"
    if few:
        return None
    decided = decided_by_words(texts, labels)
    if decided >= MIN_BY_WORDS:
        return decided, "alone predicts, by one word per class,"
    return None


def _text_leak(context: Context) -> Outcome | None:
    """Return the finding about a text whose words give the label away; for texts alone why it was not looked for."""
    x = context.everything.inputs
    texts = context.texts
    if not texts or not context.everything.has_one_input or x.ndim != 2:
        return None
    are_words = x.shape[1] == TEXT_COLUMNS
    n_columns = len(texts) if are_words else len(texts) + x.shape[1]
    reason = reason_not_searched(context.everything, n_columns)
    if not reason and not context.is_classifier:
        reason = "is looked for in texts with class labels"
    if reason:
        if are_words:
            return NotChecked(f"whether a text gives the target away {reason}")
        return None
    labels = context.everything.y.cpu()
    few = len(labels) < MIN_ROWS_PER_CLASS * len(labels.unique())
    rows = thinned(len(labels))
    labels = labels[rows]
    columns = {name: [column[row] for row in rows.tolist()] for name, column in texts.items()}
    names = context.everything.class_names or tuple(map(str, range(context.n_classes)))
    for name, column in columns.items():
        told = _told_by_text(column, labels, names, few=few)
        if told is None:
            continue
        score, how = told
        others = x[rows].double().cpu()
        if are_words:
            rest_of_texts = [part for key, part in columns.items() if key != name]
            others = torch.from_numpy(
                hashed_words([" ".join(row) for row in zip(*rest_of_texts, strict=True)])
            ).double()
        rest = predict_from(others, labels)
        if rest <= score - MIN_LESS:
            return _finding(
                f"column {name} {how} {percent(score)} of the rows, all others together predict {percent(rest)}",
                score - rest,
            )
    if not are_words:
        return None
    if few:
        return NotChecked(
            f"whether a text gives the label away needs {MIN_ROWS_PER_CLASS} rows per class"
        )
    return Fine("no text gives the label away by one word per class")


@register_check("GS107", title="a column gives the label away", seconds=0.2)
def leak(context: Context) -> Outcome:
    """Report columns that alone predict the label or target where the others do not, and columns of row numbers."""
    return context.leak


def _counters(x: Tensor) -> Tensor:
    """Return the numbers of the columns that grow by equal steps."""
    steps = x.double().diff(dim=0)
    is_equal = (steps - steps.mean(0)).abs() <= 1e-6 * steps.abs().amax(0)
    return torch.nonzero(((steps > 0) & is_equal).all(0)).flatten()


def find_leak(context: Context) -> Outcome:
    """Return the outcome of GS107."""
    copied = find_copied_inputs(context.everything)
    if copied is not None:
        return _finding(copied.evidence, copied.cost)
    of_text = _text_leak(context)
    if of_text is not None:
        return of_text
    table = as_table(context.everything)
    if table is None and len(context.everything.first(1).parts) > 1:
        return NotChecked("no input is a copy of the target; single columns need a table")
    if table is None:
        return NotChecked("needs a table")
    x = table.inputs.cpu()
    counters = _counters(x[:N_FIRST])
    counters = counters[_counters(x[:, counters])].tolist()
    if len(x) > 2 and counters:
        return Finding(
            f"column counts the rows: {name_columns(table.columns, counters)}",
            "remove it: it says nothing about new samples",
            fixes=("drop column",),
        )
    reason = reason_not_searched(table, len(context.sources) or x.shape[1])
    if reason:
        return NotChecked(f"no column counts the rows; whether one gives the target away {reason}")
    columns = find_leaking_columns(table, context.sources, context.gaps)
    if columns.reason:
        return NotChecked(f"whether a column gives the target away {columns.reason}")
    if columns.others is None or not columns.is_leak:
        return Fine(columns.evidence)
    return _finding(columns.evidence, columns.cost)


# Checks that compare labels, or the network, with what all columns predict.
THROUGH_COLUMNS = ("GS102", "GS103", "GS106", "GS401")


def leak_in_words(context: Context) -> str:
    """Return which column gives the label away; empty for none, and if GS107 is ignored.

    Args:
        context: Network and data.
    """
    outcome = None if "GS107" in context.ignored else context.leak
    # a column that counts the rows has no cost
    if not isinstance(outcome, Finding) or outcome.cost is None:
        return ""
    return outcome.evidence


def judge_through_leak(check: Check, context: Context) -> Outcome | None:
    """Return the outcome of a check that would judge labels by a column that gives them away, else None.

    Args:
        check: A check.
        context: Network and data.
    """
    if check.code not in THROUGH_COLUMNS:
        return None
    leak = leak_in_words(context)
    if not leak:
        return None
    return NotChecked(f"{leak} (GS107): drop it, or pass ignore=['GS107'] if it is no leak")
