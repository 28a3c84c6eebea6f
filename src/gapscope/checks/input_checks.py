"""Checks of the inputs: GS105 and GS108."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.checks.context import Context
from gapscope.checks.costs import cost_of_scales, thinned
from gapscope.checks.fixes import find_varying
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.results.formatting import format_number
from gapscope.statistics.baselines import sample_features
from gapscope.statistics.row_groups import describe_groups

# Largest spread of a column relative to the typical one (or the reverse), mean relative to spread, and typical
# spread.
MAX_SPREAD_RATIO, MAX_MEAN_RATIO, MAX_SPREAD = 30.0, 30.0, 30.0
MAX_NAMES = 3  # columns that one line of evidence names


def _is_floating_table_or_image(context: Context) -> bool:
    return context.everything.inputs.is_floating_point() and context.everything.has_one_input


def _nouns(noun: str, indices: Sequence[int]) -> str:
    return noun if len(indices) == 1 else f"{noun}s"


@register_check("GS105", title="unscaled inputs", seconds=0.01)
def scaling(context: Context) -> Outcome:
    """Report columns of deviating scale, and inputs far from zero or of a large scale."""
    if not _is_floating_table_or_image(context):
        return NotChecked("scaling needs one floating point input")
    x = context.samples.inputs.double().cpu()
    is_table = x.ndim == 2
    columns = x if is_table else x.movedim(1, -1).flatten(0, -2)
    spread, center = columns.std(0), columns.mean(0)
    mean = center.abs()
    varying = find_varying(spread, center)
    if not bool(varying.any()):
        return Finding("no input varies", "pass inputs that differ between samples", cost=1.0)
    typical = float(spread[varying].median())
    noun = "column" if is_table else "channel"
    far = _indices(varying & (mean > MAX_MEAN_RATIO * spread))
    large = _indices(varying & (spread > MAX_SPREAD_RATIO * typical))
    # a column of two values, such as a rare indicator, has a small spread whatever its scale
    small = [
        i
        for i in _indices(varying & (spread < typical / MAX_SPREAD_RATIO))
        if len(columns[:, i].unique()) > 2
    ]
    evidence = ""
    if large:
        most = f"{float(spread.max()) / typical:,.0f} times the typical spread"
        up_to = "up to " if len(large) > 1 else ""
        evidence = f"{_nouns(noun, large)} {name_columns(context, large)}: {up_to}{most}"
    elif small:
        smallest = float(spread[torch.tensor(small)].min())
        down_to = "down to " if len(small) > 1 else ""
        evidence = (
            f"{_nouns(noun, small)} {name_columns(context, small)}: {down_to}{smallest / typical:.2g} times the "
            "typical spread"
        )
    elif far:
        # the column whose mean is largest beside its spread
        worst = max(far, key=lambda i: float(mean[i] / spread[i]))
        around = (
            f"{format_number(float(spread[worst]))} around {format_number(float(center[worst]))}"
        )
        is_far = "are" if len(far) > 1 else "is"
        evidence = f"{_nouns(noun, far)} {name_columns(context, far)} {is_far} far from 0: a spread of {around}"
    elif typical > MAX_SPREAD:
        evidence = f"{noun}s have a typical spread of {format_number(typical)}"
    if not evidence:
        constant = int((~varying).sum())
        return Fine(
            f"spread {typical:.3g}"
            + (f", {constant} constant {noun}s" if constant and is_table else "")
        )
    if context.estimator is not None and is_table and not context.estimator.depends_on_scale:
        return Fine(f"{evidence}; the estimator predicts the same from standardized columns")
    cost, interval, cause = None, None, ""
    is_scored = context.everything.kind != "positions" and context.most_frequent < 1
    # a kernel machine is blind to the mean and to the scale that all columns share
    if is_table and is_scored and (large or small):
        answer = cost_of_scales(context.data, context.n_classes if context.is_classifier else 0)
        # no more than it loses: what a network loses by the scale is known once it was tried
        cost = min(max(answer.value, 0.0), 1.0)
        interval = min(max(answer.low, 0.0), 1.0), min(max(answer.high, 0.0), 1.0)
        # a small column is ignored by either, while large ones disturb a network more than a kernel machine
        if not large and answer.low <= 0:
            cause = "small columns"  # and no part of what the training costs
    return Finding(
        evidence,
        "standardize the inputs (mean 0, standard deviation 1) before training",
        cost=cost,
        interval=interval,
        fixes=("standardize inputs",),
        cause=cause,
    )


def _indices(mask: Tensor) -> list[int]:
    return torch.nonzero(mask).flatten().tolist()


def name_columns(context: Context, columns: list[int]) -> str:
    """Return the names of columns of a frame, or their numbers."""
    known = context.everything.columns
    names = [
        known[column] if column < len(known) else str(column) for column in columns[:MAX_NAMES]
    ]
    more = len(columns) - MAX_NAMES
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


# fewer rows repeat by chance, by judgment
MIN_ROWS = 30

GROUPED = (
    "pass groups= to gapscope.forecast_accuracy or gapscope.out_of_sample, and split by groups; accuracies by "
    "leave-one-out and by random splits are too high"
)


@register_check("GS108", title="rows are not independent", seconds=0.1, information=True)
def order_of_rows(context: Context) -> Outcome:
    """Report rows in groups of nearly equal ones, and rows that resemble the next one, such as sliding windows."""
    n = len(context.everything)
    if n < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} samples or more")
    groups = describe_groups(context.everything, "rows", seed=context.seed)
    if groups:
        return Finding(
            groups, f"rows of one person, object or recording belong together: {GROUPED}"
        )
    # of a stretch in order, for evenly spaced samples are not neighbours
    part = context.everything.first(2 * len(thinned(n)))
    features = sample_features(part).float()
    if not features.shape[1]:
        return NotChecked("no input varies")
    step = (features[1:] - features[:-1]).norm(dim=1)
    generator = torch.Generator().manual_seed(context.seed)
    other = torch.randperm(len(part), generator=generator)
    same = torch.ones(len(part), dtype=torch.bool)
    next_same = torch.ones(len(part) - 1, dtype=torch.bool)
    if context.is_classifier:
        labels = part.y.cpu()
        same = labels[other] == labels
        next_same = labels[1:] == labels[:-1]
    same &= other != torch.arange(len(part))
    if int(same.sum()) < MIN_ROWS or int(next_same.sum()) < MIN_ROWS:
        return NotChecked("too few rows in order have the same label")
    random = float((features[other] - features).norm(dim=1)[same].median())
    ratio = float(step[next_same].median()) / max(random, 1e-12)
    text = f"the distance of neighbouring rows is {ratio:.2f} times that of random rows"
    # distance of neighbouring rows in units of that of random pairs: windows that overlap by half have 0.7, by nine
    # tenths 0.3. Features of independent rows have 1.
    if ratio >= 0.6:
        return Fine(text)
    return Finding(
        text,
        f"rows are in order (windows, time, one person after the other): {GROUPED}",
    )
