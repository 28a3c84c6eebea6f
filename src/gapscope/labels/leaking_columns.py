"""Columns of a table that alone predict the label or target where all others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from gapscope.base.label_copies import is_copy_of
from gapscope.base.samples import Samples
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import rbf_ridge
from gapscope.statistics.row_groups import MIN_FRACTION, median_group_size

# A column gives the label away if it predicts this fraction alone, and the others predict less by this much; of
# regression targets, this fraction of their variance.
MIN_ALONE, MIN_LESS = 0.98, 0.03
# Errors that it leaves at most, of those of the most frequent class, by judgment: overlapping classes are predicted at
# 98 % as well, if more than 80 % of the labels are of one.
MAX_ERRORS_LEFT = 0.1
# fewer rows repeat by chance, and so do fewer different rows, by judgment
MIN_ROWS, MIN_DIFFERENT = 30, 10
# A table of noise may be expected to have so many columns with as few borders between classes: with more, the better of
# two neighbours has the label by chance.
MAX_BY_CHANCE = 0.005
# Counts of labels by value that are held at once, as more are no faster: 3 MB.
MAX_COUNTS = 400_000
# kernel machines are exact on so many evenly spaced rows
MAX_EXACT = 1000
# A column in other units has this correlation with the target, less than 1: rounding to 5 digits costs less.
ROUNDING = 1e-9
MAX_NAMES = 3  # columns that a sentence names

Columns = Float[Tensor, "n k"]
Targets = Shaped[Tensor, " n"]
# Name of a column of a raw table, and the indices of its encoded columns.
Source = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class LeakingColumns:
    """What the columns predict alone that predict most.

    Attributes:
        evidence: Which columns predict how much, and what all others predict, if that was computed.
        score: Fraction of the labels that they predict, or of the variance of the target.
        others: What all others together predict; None if these columns predict too little to give anything away.
        is_copy: Whether they are the label in other words: one value per class.
        reason: Why columns could not be judged; empty if they were.
    """

    evidence: str
    score: float
    others: float | None = None
    reason: str = ""
    is_copy: bool = False

    @property
    def is_leak(self) -> bool:
        """Whether they predict the labels where all others do not, or are the label in other words."""
        return self.is_copy or (self.others is not None and self.others <= self.score - MIN_LESS)

    @property
    def cost(self) -> float:
        """What they add to what all others predict."""
        return 0.0 if self.others is None else max(self.score - self.others, 0.0)


@dataclass
class _Judged:
    """A column or category of a table, and what its values, or their gaps, predict alone."""

    title: str
    indices: tuple[int, ...]
    values: Columns
    score: float


def _score(column: _Judged) -> float:
    return column.score


def name_columns(known: Sequence[str], columns: Sequence[int]) -> str:
    """Return the names of the first columns, or their numbers, and how many more there are.

    Args:
        known: Names of the columns of a frame; empty for an array.
        columns: Indices of columns.
    """
    names = [known[i] if i < len(known) else str(i) for i in columns[:MAX_NAMES]]
    more = len(columns) - MAX_NAMES
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _numbered(columns: Columns) -> Int[Tensor, "k n"]:
    """Return the number of the value of each sample, by size, of each column."""
    values, order = columns.T.sort(1)
    steps = torch.zeros_like(order)
    steps[:, 1:] = values[:, 1:] != values[:, :-1]
    return torch.zeros_like(order).scatter_(1, order, steps.cumsum(1))


def _beside(codes: Int[Tensor, "k n"]) -> tuple[Tensor, Tensor]:
    """Return the numbers of the values before and after those of the samples; the only neighbour of the ends twice."""
    last = codes.amax(1, keepdim=True)
    before = torch.where(codes > 0, codes - 1, 1).minimum(last)
    after = torch.where(codes < last, codes + 1, last - 1).clamp_min(0)
    return before, after


def _variance_explained(
    codes: Int[Tensor, "k n"], targets: Float[Tensor, " n"], *, has_order: bool
) -> Float[Tensor, " k"]:
    """Return R^2 of predicting each sample by others with its value, or with neighbouring values, if that is more.

    A value with less than two others is predicted by the mean targets of the values before and after it as well. Rows
    with equal values have no order: that passed may be that of time.
    """
    targets = targets.expand(codes.shape)
    zeros = targets.new_zeros(len(codes), int(codes.max()) + 1)
    sums = zeros.scatter_add(1, codes, targets)
    counts = zeros.scatter_add(1, codes, torch.ones_like(targets))
    total = sums.gather(1, codes) - targets
    n_others = counts.gather(1, codes) - 1
    # a value that no other sample has predicts the mean
    predicted = torch.where(
        n_others > 0, total / n_others.clamp_min(1), targets.mean(1, keepdim=True)
    )
    errors = (predicted - targets).square().mean(1)
    if has_order:
        means = sums / counts.clamp_min(1)
        before, after = _beside(codes)
        beside = (means.gather(1, before) + means.gather(1, after)) / 2
        needed = (2 - n_others).clamp_min(0)
        predicted = (total + needed * beside) / (n_others + needed)
        errors = errors.minimum((predicted - targets).square().mean(1))
    return 1 - errors / targets.var(1, correction=0)


def _chance_of_borders(
    usual: Int[Tensor, "k v"], n_values: Int[Tensor, "k 1"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "k 1"]:
    """Return at most how probable as few borders between classes are, in the order of each column, by chance.

    It is the number of ways to divide all classes into runs and to order these, of all orders of the labels.

    Args:
        usual: The most frequent class of each value, by size.
        n_values: Number of values of each column.
        labels: Numbers of the classes.
    """
    n, counts = len(labels), labels.bincount().double()
    is_border = (usual.diff(dim=1) != 0) & (torch.arange(1, usual.shape[1]) < n_values)
    n_borders = is_border.sum(1, keepdim=True).double()
    most = n - len(counts)
    cuts = (n_borders + 1 - len(counts)).clamp_min(0)
    places = math.lgamma(most + 1) - (cuts + 1).lgamma() - (most - cuts + 1).lgamma()
    ways = places + math.log(len(counts)) + n_borders * math.log(max(len(counts) - 1, 1))
    return (ways - math.lgamma(n + 1) + (counts + 1).lgamma().sum()).exp()


def _accuracy(
    codes: Int[Tensor, "k n"], targets: Shaped[Tensor, " n"], *, has_order: bool, n_columns: int
) -> Float[Tensor, " k"]:
    """Return in how many samples the others with their value, or the values next to a single one, have their label."""
    classes, labels = targets.unique(return_inverse=True)
    k, n = codes.shape
    n_values = codes.amax(1, keepdim=True) + 1
    start = (n_values.max() * torch.arange(k))[:, None]
    flat = (codes + start) * len(classes) + labels
    counts = flat.flatten().bincount(minlength=k * int(n_values.max()) * len(classes))
    counts = counts.view(-1, len(classes))
    others = counts[(codes + start).flatten()]
    others[torch.arange(k * n), labels.repeat(k)] -= 1
    is_single = (others.sum(1) == 0).view(k, n)
    correct = ((others.argmax(1).view(k, n) == labels) & ~is_single).double()
    # in few rows one of two neighbours has the label by chance too often
    if not has_order or n < MIN_ROWS:
        return correct.mean(1)
    usual = counts.argmax(1)
    agree = torch.stack([usual[beside + start] == labels for beside in _beside(codes)]).double()
    # the better of two neighbours has the label by chance more often than one has, as strong features show
    chance = _chance_of_borders(usual.view(k, -1), n_values, labels)
    is_by_chance = n_columns * chance > MAX_BY_CHANCE
    beside = torch.where((2 * n_values < n) | is_by_chance, agree.mean(0), agree.amax(0))
    return torch.where(is_single, beside, correct).mean(1)


def _alone(
    values: Columns, targets: Targets, n_columns: int, *, are_many: bool = False
) -> list[float]:
    """Return the accuracies (R^2) of predicting each sample from others by one column or category of the table.

    Args:
        values: Its values [n, 1], or [n, k] of a category, which have no order; or k columns.
        targets: Labels, or targets of regression in floating point, [n].
        n_columns: Number of all columns: the best of many predicts more labels by chance.
        are_many: Whether they are columns, and no category.
    """
    if targets.is_floating_point():
        n_classes, score = 1, _variance_explained
    else:
        n_classes, score = len(targets.unique()), partial(_accuracy, n_columns=n_columns)
    if values.shape[1] > 1 and not are_many:
        codes = values.unique(dim=0, return_inverse=True)[1][None]
        return score(codes, targets, has_order=False).tolist()
    size = max(MAX_COUNTS // (len(values) * n_classes), 1)
    blocks = values.split(size, dim=1)
    return torch.cat([score(_numbered(part), targets, has_order=True) for part in blocks]).tolist()


def _is_copy(columns: Columns, labels: Targets) -> bool:
    """Return whether each class has one value of a column, and each value one class, in several rows.

    Of regression targets, whether the column is the target in other units.

    Args:
        columns: Its values [n, 1], or [n, k] of a category.
        labels: Class labels [n], or targets of regression in floating point.
    """
    if labels.is_floating_point():
        both = torch.stack([columns[:, 0], labels])
        return columns.shape[1] == 1 and float(both.corrcoef()[0, 1].abs()) > 1 - ROUNDING
    values = columns.unique(dim=0, return_inverse=True)[1]
    return is_copy_of(values.tolist(), labels.tolist())


def _categories(x: Columns, columns: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the columns of a table, and neighbouring columns of zeros and ones that may be one category.

    Those that add up to one are a category, and no columns of their own. Those that never overlap may be all values of
    one but the first; each is also a column of its own.
    """
    is_indicator = ((x == 0) | (x == 1)).all(0).tolist()
    run: list[int] = []
    total = torch.zeros(len(x), dtype=x.dtype)

    def finished() -> Iterator[tuple[int, ...]]:
        if len(run) > 1:
            yield tuple(run)

    for column in columns:
        if len(column) != 1 or not is_indicator[column[0]]:
            if run:
                yield from finished()
                run.clear()
                total.zero_()
            yield column
            continue
        values = x[:, column[0]]
        if bool((total + values > 1).any()):
            yield from finished()
        while bool((total + values > 1).any()):
            total -= x[:, run.pop(0)]
        run.append(column[0])
        total += values
        if bool((total == 1).all()):
            yield tuple(run)
            run.clear()
            total.zero_()
    yield from finished()


def _candidates(x: Columns, columns: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return all columns and categories once; of complete categories not their single columns."""
    runs = list(_categories(x, columns))
    complete = {
        i for run in runs if len(run) > 1 and bool((x[:, list(run)].sum(1) == 1).all()) for i in run
    }
    singles = [column for column in columns if len(column) == 1 and column[0] not in complete]
    return list(dict.fromkeys([*runs, *singles]))


def _standardized(x: Columns) -> Columns:
    """Return the columns that vary with mean 0 and standard deviation 1."""
    x = x[:, (x != x[:1]).any(0)]
    return (x - x.mean(0)) / x.std(0, correction=0)


def different_rows(x: Columns, labels: Tensor | None = None) -> Int[Tensor, " m"]:
    """Return the indices of one row per group of copies or near copies; of near copies, if most rows have several.

    A column whose values name a group predicts its label without giving it away.

    Args:
        x: Columns of a table.
        labels: Class labels; None for regression.
    """
    _, group = x.unique(dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(x))
    rows = first.scatter_reduce(0, group, torch.arange(len(x)), "amin").sort().values
    features = _standardized(x[rows])
    if not features.shape[1]:
        return rows
    of_rows = None if labels is None else labels[rows]
    fraction, size = median_group_size(features, of_rows) or (0.0, 1)
    if fraction < MIN_FRACTION:
        return rows
    copies = torch.cdist(features, features).topk(min(size, len(rows)), largest=False).indices
    is_copy = torch.zeros(len(rows), dtype=torch.bool)
    kept: list[int] = []
    for i in range(len(rows)):
        if not bool(is_copy[i]):
            kept.append(i)
            is_copy[copies[i]] = True
    return rows[kept]


def predict_from(x: Columns, targets: Targets) -> float:
    """Return the leave-one-out accuracy (R^2) of an RBF ridge; without a column that varies, that of a constant.

    Args:
        x: Columns of any scale.
        targets: Labels, or targets of regression in floating point.
    """
    is_regression = targets.is_floating_point()
    varying = (x != x[:1]).any(0)
    if not bool(varying.any()):
        return 0.0 if is_regression else _most_frequent(targets)
    n_classes = None if is_regression else max(int(targets.max()) + 1, 2)
    return rbf_ridge(_standardized(x), targets, n_classes=n_classes).score


def reason_not_searched(samples: Samples, n_columns: int) -> str:
    """Return why columns that give the target away are not looked for; empty if they are.

    Args:
        samples: The samples, with targets.
        n_columns: Number of columns of the raw table.
    """
    labels = samples.y.cpu()
    if not samples.is_classification and (samples.kind != "regression" or labels[0].numel() != 1):
        return "is looked for with one label or one target per sample"
    if n_columns < 2 or len(samples) < MIN_ROWS:
        return f"needs two columns and {MIN_ROWS} rows"
    if samples.is_classification and _most_frequent(labels) > MIN_ALONE - MIN_LESS:
        return f"needs no class with more than {percent(MIN_ALONE - MIN_LESS)} of the rows"
    if not samples.is_classification and float(labels.double().var()) == 0:
        return "needs targets that vary"
    return ""


def _most_frequent(labels: Tensor) -> float:
    return float(labels.unique(return_counts=True)[1].max()) / len(labels)


def least_score(targets: Tensor) -> float:
    """Return what a column must predict alone to give the labels away.

    Args:
        targets: Class labels, or targets of regression in floating point.
    """
    if targets.is_floating_point():
        return MIN_ALONE
    return max(MIN_ALONE, 1 - MAX_ERRORS_LEFT * (1 - _most_frequent(targets)))


def find_leaking_columns(
    samples: Samples,
    sources: Sequence[Source] = (),
    gaps: Mapping[str, Sequence[bool]] = MappingProxyType({}),
) -> LeakingColumns:
    """Return what those columns predict that alone predict most of the labels, and what all others predict.

    Args:
        samples: Samples of a table [n, d] of floating point numbers, for which `reason_not_searched` is empty.
        sources: Columns of the raw table; without them, each column is one.
        gaps: Names of columns with missing values, and whether each sample lacks one: that alone may give the label
            away, such as a date that one class has.
    """
    rows = (
        torch.linspace(0, len(samples) - 1, min(len(samples), MAX_EXACT), dtype=torch.float64)
        .round()
        .long()
    )
    x = samples.inputs.cpu()[rows].double()
    targets = samples.y.cpu()[rows]
    is_regression = not samples.is_classification
    if is_regression:
        targets = targets.double().flatten()
    missing = {
        name: torch.tensor(lacks)[rows, None].double()
        for name, lacks in gaps.items()
        if len(lacks) == len(samples)
    }
    judged = _judged(x, targets, sources, missing, samples.columns)
    least = least_score(targets)
    leaking = [column for column in judged if column.score >= least]
    kept = every = torch.arange(len(x))
    if leaking:
        kept = different_rows(x, None if is_regression else targets)
        if len(kept) < MIN_DIFFERENT:
            if not any(_is_copy(column.values, targets) for column in leaking):
                reason = (
                    f"needs {MIN_DIFFERENT} different rows; {len(kept)} are no copies of others"
                )
                return LeakingColumns("", max(leaking, key=_score).score, reason=reason)
            kept = every  # the label is a copy of itself in any rows
        for column in leaking:
            column.score = min(
                column.score, *_alone(column.values[kept], targets[kept], len(judged))
            )
    best = max(judged, key=_score)
    chosen = _of_which_one_suffices([column for column in judged if column.score >= least])
    noun = "target" if is_regression else "label"
    of_what = "variance of the target" if is_regression else "labels"
    evidence = f"{_describe(chosen or [best])} of the {of_what}"
    if not chosen:
        return LeakingColumns(evidence, best.score)
    if 2 * len(kept) >= len(x):  # else, through their copies, all others would predict the label
        kept = every
    dropped = {k for column in chosen for k in column.indices}
    rest = [k for k in range(x.shape[1]) if k not in dropped]
    others = predict_from(x[kept][:, rest], targets[kept])
    together = f"all others together {percent(others)}"
    result = LeakingColumns(f"{evidence}, {together}", best.score, others)
    # other columns that predict the label well do not excuse one that is the label
    copies = [column for column in chosen if _is_copy(column.values[kept], targets[kept])]
    if result.is_leak or not copies:
        return result
    evidence = f"{_describe(copies, 1.0)} of the {noun}s, as a copy of the {noun} ({together})"
    return LeakingColumns(evidence, best.score, others, is_copy=True)


def _judged(
    x: Columns,
    targets: Targets,
    sources: Sequence[Source],
    missing: Mapping[str, Columns],
    known: Sequence[str],
) -> list[_Judged]:
    """Return what each column and category predicts alone, by its values or by those that are missing."""
    names = {indices: name for name, indices in sources}
    result: list[_Judged] = []
    candidates = _candidates(x, list(names) or [(i,) for i in range(x.shape[1])])
    alone = partial(_alone, targets=targets, n_columns=len(candidates))
    singles = [indices[0] for indices in candidates if len(indices) == 1]
    scores = dict(zip(singles, alone(x[:, singles], are_many=True) if singles else (), strict=True))
    for indices in candidates:
        listed = names.get(indices, name_columns(known, indices))
        is_one = len(indices) == 1 or indices in names
        title = f"column {listed}" if is_one else f"columns {listed} together"
        if len(indices) == 1:
            values = x[:, indices[0] :][:, :1]
            score = scores[indices[0]]
        else:
            values = x[:, list(indices)]
            (score,) = alone(values)
        column = _Judged(title, indices, values, score)
        gaps = missing.get(names.get(indices, ""))
        if gaps is not None:
            by_gaps = _Judged(f"{title}, by its missing values,", indices, gaps, *alone(gaps))
            column = max(column, by_gaps, key=_score)
        result.append(column)
    return result


def _of_which_one_suffices(columns: list[_Judged]) -> list[_Judged]:
    """Return the columns without categories of which one column alone is among them."""
    singles = {column.indices for column in columns if len(column.indices) == 1}
    return [
        column
        for column in columns
        if len(column.indices) == 1 or not singles & {(k,) for k in column.indices}
    ]


def _describe(columns: list[_Judged], score: float | None = None) -> str:
    """Return which columns predict how much, by default the least of them."""
    titles = [column.title for column in columns]
    score = min(map(_score, columns)) if score is None else score
    if len(titles) > 1:
        if len(titles) > MAX_NAMES:
            titles = [*titles[:MAX_NAMES], f"{len(titles) - MAX_NAMES} more"]
        at_least = "" if percent(score) == percent(1.0) else "at least "
        return f"{' and '.join(titles)} each predict {at_least}{percent(score)}"
    verb = "predict" if titles[0].startswith("columns") else "alone predicts"
    return f"{titles[0]} {verb} {percent(score)}"
