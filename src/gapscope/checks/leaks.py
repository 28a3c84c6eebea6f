"""Check of columns that give the label or target away: GS107."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gapscope.base.foreign_data import TEXT_COLUMNS, hashed_words
from gapscope.checks.context import Context
from gapscope.checks.costs import thinned
from gapscope.checks.input_checks import MAX_NAMES, MIN_ROWS, name_columns
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.checks.text_leaks import MIN_ROWS_PER_CLASS, decided_by_words, named_in_text
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import rbf_ridge

# A column gives the label away if it predicts this fraction alone, and the others predict less by this much; of
# regression targets, this fraction of their variance.
MIN_ALONE, MIN_LESS = 0.98, 0.03
# Two intents of banking77 are told apart by a word each in 98.1 % of the rows.
MIN_BY_WORDS = 0.99
# one fit per column, by judgment for its time
MAX_COLUMNS = 512


def _in_order(column: Tensor, targets: Tensor) -> Tensor:
    """Return whether the neighbours of each sample in the order of a column have its label [n].

    Of regression targets: one minus the squared error of their mean, in units of the variance.
    """
    order = column.argsort(stable=True)
    ordered = targets[order]
    if targets.is_floating_point():
        before, after = (
            torch.cat([ordered[1:2], ordered[:-1]]),
            torch.cat([ordered[1:], ordered[-2:-1]]),
        )
        return 1 - ((before + after) / 2 - ordered).square() / targets.var(correction=0)
    agree = (ordered[1:] == ordered[:-1]).double()
    before, after = torch.cat([agree[:1], agree]), torch.cat([agree, agree[-1:]])
    return torch.maximum(before, after)


def _by_value(codes: Tensor, targets: Tensor) -> Tensor:
    """Return whether the others with the value of each sample mostly have its label [n]; as `_in_order`."""
    n_values = int(codes.max()) + 1
    if targets.is_floating_point():
        zeros = targets.new_zeros(n_values)
        sums = zeros.index_add(0, codes, targets)[codes] - targets
        others = zeros.index_add(0, codes, torch.ones_like(targets))[codes] - 1
        errors = sums / others.clamp_min(1) - targets
        # a value that no other sample has predicts the mean
        errors = torch.where(others > 0, errors, targets.mean() - targets)
        return 1 - errors.square() / targets.var(correction=0)
    classes, labels = targets.unique(return_inverse=True)
    ones = torch.nn.functional.one_hot(labels, len(classes))
    others = ones.new_zeros(n_values, len(classes)).index_add_(0, codes, ones)[codes] - ones
    correct = others.argmax(1) == labels
    return (correct & (others.sum(1) > 0)).double()


def _alone(columns: Tensor, targets: Tensor) -> float:
    """Return the accuracy (R^2) of predicting each sample from others by one column of the table.

    Args:
        columns: Its values [n, 1], or [n, k] of a category.
        targets: Labels, or targets of regression in floating point, [n].
    """
    values, codes = columns.unique(dim=0, return_inverse=True)
    by_value = float(_by_value(codes, targets).mean())
    if columns.shape[1] > 1:  # the values of a category have no order
        return by_value
    in_order = float(_in_order(columns[:, 0], targets).mean())
    if targets.is_floating_point():
        return max(by_value, in_order)
    # the better of two neighbours has the label by chance more often than one has
    return by_value if len(values) < len(columns) / 2 else in_order


def _indicator_runs(x: Tensor, columns: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, ...]]:
    """Yield the columns of a table, those of zeros and ones that add up to one as a single category."""
    is_indicator = ((x == 0) | (x == 1)).all(0)
    run: tuple[int, ...] = ()
    total = torch.zeros(len(x), dtype=x.dtype)
    for column in columns:
        single = len(column) == 1 and bool(is_indicator[column[0]])
        if not single or bool((total + x[:, column[0]] > 1).any()):
            yield from ((i,) for i in run)
            run, total = (), torch.zeros_like(total)
        if not single:
            yield column
            continue
        run, total = (*run, column[0]), total + x[:, column[0]]
        if bool((total == 1).all()):
            yield run
            run, total = (), torch.zeros_like(total)
    yield from ((i,) for i in run)


def _rest(x: Tensor, targets: Tensor, context: Context) -> float:
    """Return the leave-one-out accuracy (R^2) from these columns; of none, from the most frequent class (0)."""
    spread = x.std(0)
    x = ((x - x.mean(0)) / spread)[:, spread > 0]
    if not x.shape[1]:
        return context.most_frequent if context.is_classifier else 0.0
    n_classes = context.n_classes if context.is_classifier else None
    return rbf_ridge(x, targets, n_classes=n_classes).score


def _why_not(context: Context, n_columns: int) -> str:
    """Return why columns that give the target away are not looked for; empty if they are."""
    is_single = context.is_classifier or (
        context.everything.kind == "regression" and context.everything.y[0].numel() == 1
    )
    if not is_single:
        return "is looked for with one label or one target per sample"
    if n_columns < 2 or len(context.everything) < MIN_ROWS:
        return f"needs two columns and {MIN_ROWS} rows"
    if context.is_classifier and context.most_frequent > MIN_ALONE - MIN_LESS:
        return f"needs no class with more than {percent(MIN_ALONE - MIN_LESS)} of the rows"
    if not context.is_classifier and float(context.everything.y.double().var()) == 0:
        return "needs targets that vary"
    return ""


def _title(context: Context, columns: tuple[int, ...], names: dict[tuple[int, ...], str]) -> str:
    """Return the name of a column of the table, or of those that are one category."""
    if columns in names and len(context.sources):
        return f"column {names[columns]}"
    listed = name_columns(context, list(columns))
    return f"column {listed}" if len(columns) == 1 else f"columns {listed} together"


def _describe(titles: list[str], score: float) -> str:
    """Return which columns predict how much."""
    if len(titles) > 1:
        if len(titles) > MAX_NAMES:
            titles = [*titles[:MAX_NAMES], f"{len(titles) - MAX_NAMES} more"]
        at_least = "" if percent(score) == percent(1.0) else "at least "
        return f"{' and '.join(titles)} each predict {at_least}{percent(score)}"
    verb = "predict" if titles[0].startswith("columns") else "alone predicts"
    return f"{titles[0]} {verb} {percent(score)}"


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
    reason = _why_not(context, n_columns)
    if not reason and not context.is_classifier:
        reason = "is looked for in texts with class labels"
    if reason:
        return NotChecked(f"whether a text gives the target away {reason}") if are_words else None
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
        rest = _rest(others, labels, context)
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
    of_text = _text_leak(context)
    if of_text is not None:
        return of_text
    x = context.everything.inputs
    if not context.everything.has_one_input or not x.is_floating_point() or x.ndim != 2:
        return NotChecked("needs a table")
    x = x.double().cpu()
    if x.shape[1] > MAX_COLUMNS:
        return NotChecked(f"needs at most {MAX_COLUMNS} columns; there are {x.shape[1]}")
    steps = x[1:] - x[:-1]
    is_counter = (steps > 0).all(0) & (
        (steps - steps.mean(0)).abs() <= 1e-6 * steps.abs().amax(0)
    ).all(0)
    if len(x) > 2 and bool(is_counter.any()):
        counters = torch.nonzero(is_counter).flatten().tolist()
        return Finding(
            f"column counts the rows: {name_columns(context, counters)}",
            "remove it: it says nothing about new samples",
            fixes=("drop column",),
        )
    known = context.sources or tuple((str(i), (i,)) for i in range(x.shape[1]))
    columns = tuple(_indicator_runs(x, tuple(indices for _, indices in known)))
    reason = _why_not(context, len(columns))
    if reason:
        return NotChecked(f"no column counts the rows; whether one gives the target away {reason}")
    rows = thinned(len(x))
    x, targets = x[rows], context.everything.y.cpu()[rows]
    if not context.is_classifier:
        targets = targets.double().flatten()
    scores = [_alone(x[:, list(indices)], targets) for indices in columns]
    best = max(range(len(columns)), key=scores.__getitem__)
    alone = [i for i, score in enumerate(scores) if score >= MIN_ALONE] or [best]
    names = {indices: name for name, indices in known}
    text = _describe(
        [_title(context, columns[i], names) for i in alone], min(scores[i] for i in alone)
    )
    text += " of the labels" if context.is_classifier else " of the variance of the target"
    if scores[best] < MIN_ALONE:
        return Fine(text)
    dropped = {k for i in alone for k in columns[i]}
    rest = _rest(x[:, [k for k in range(x.shape[1]) if k not in dropped]], targets, context)
    if rest > scores[best] - MIN_LESS:
        return Fine(f"{text}, the others {percent(rest)}")
    return _finding(f"{text}, all others together {percent(rest)}", scores[best] - rest)
