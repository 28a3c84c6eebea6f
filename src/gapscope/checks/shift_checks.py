"""Check of the test samples: GS110, whether they resemble the training samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gapscope.base.errors import join_names
from gapscope.base.samples import Samples
from gapscope.base.second_data import join_samples
from gapscope.base.targets import IGNORED
from gapscope.checks.compared_labels import ComparedLabels, compare_labels, in_words
from gapscope.checks.context import Context
from gapscope.checks.costs import thinned
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.data.table_encoding import UnseenValues
from gapscope.labels.text_copies import are_word_frequencies
from gapscope.results.estimate import percent
from gapscope.results.formatting import format_number
from gapscope.statistics.baselines import rbf_ridge, sample_features
from gapscope.statistics.intervals import wilson_interval

# A column moved if the distributions differ by this much (Kolmogorov-Smirnov), labels if their fractions do.
MIN_DISTANCE, MIN_DISTANCE_OF_LABELS = 0.2, 0.1
# Both are significant at this level, divided by the number of columns (Bonferroni).
LEVEL = 0.001
# A kernel machine tells test from training samples if it is right for this fraction, significantly at 99.9 %.
MIN_TOLD, LEVEL_OF_TOLD = 0.65, 0.999
# fraction of test values that the training samples lack, by judgment
MIN_OUTSIDE = 0.02
# samples of each set, rows compared, rows told apart, columns that are named: by judgment
MIN_SAMPLES, MAX_ROWS, MAX_TOLD, MAX_NAMES = 10, 5000, 500, 3


@register_check("GS110", title="test samples differ from the training samples", seconds=0.2)
def shift(context: Context) -> Outcome:
    """Report columns, targets, classes or samples that are distributed differently in the test samples."""
    return context.shift[0]


def find_shift(context: Context) -> tuple[Outcome, ComparedLabels | None]:
    """Return the outcome of GS110, and how the test labels differ (None if that is not known)."""
    test = context.test
    if test is None:
        return NotChecked("pass test=, held-out samples"), None
    train = context.everything
    if min(len(train), len(test)) < MIN_SAMPLES:
        return NotChecked(f"needs {MIN_SAMPLES} training and test samples or more"), None
    columns = torch.empty(len(train), 0), torch.empty(len(test), 0)
    if not are_word_frequencies(train):
        columns = _columns(train), _columns(test)
    names = train.columns or tuple(f"column {i}" for i in range(columns[0].shape[1]))
    if train.inputs.ndim > 2:
        names = tuple(
            f"{word} of channel {i}"
            for word in ("mean", "spread")
            for i in range(columns[0].shape[1] // 2)
        )
    of_inputs = [
        f"{part.name}: {percent(part.fraction)} of the test rows have values that no training row has, {part.listed}"
        for part in context.unseen
        if _is_unusual(part, len(train))
    ]
    of_inputs += _moved(*columns, names, MIN_DISTANCE)
    of_targets = _moved_targets(context, train, test)
    moved = of_targets + of_inputs
    if not moved:
        moved = of_inputs = _told_apart(train, test, context.seed)
    labels = None if test.targets is None else compare_labels(context, test, bool(of_inputs))
    # inputs that moved may be predicted as another class; with other classes, inputs move too
    if labels is not None and labels.renumbering is not None and (of_targets or not of_inputs):
        words = in_words(labels.renumbering, _label_names(train), MAX_NAMES)
        words = f"the training samples predict {words} ({labels.method})"
        finding = Finding(
            "; ".join([words, *moved[:MAX_NAMES]]),
            "number the classes of both by one list, or pass their names in place of numbers",
            headline="The test labels number the classes otherwise than the training labels.",
        )
        return finding, labels
    if labels is not None and (labels.falls or not moved):
        moved = [*_contradicted(labels, train), *moved]
    if not moved:
        return Fine("test samples are distributed as the training samples"), labels
    more = len(moved) - MAX_NAMES
    finding = Finding(
        "; ".join(moved[:MAX_NAMES]) + (f"; and {more} more" if more > 0 else ""),
        "find out why (another time, source, unit or preparation): scores on these test samples are not those of new "
        "data like the training samples, and no estimate from these holds for them",
    )
    return finding, labels


def _columns(samples: Samples) -> Tensor:
    """Return columns [n, d] of a table, mean and spread per channel of images; none of other inputs."""
    x = samples.inputs.detach().cpu()
    if not samples.has_one_input or not x.is_floating_point():
        return torch.empty(len(x), 0)
    if x.ndim == 2:
        return x.double()
    pixels = x.double().flatten(2)
    return torch.cat([pixels.mean(2), pixels.std(2)], 1)


def _moved_targets(context: Context, train: Samples, test: Samples) -> list[str]:
    """Return targets that moved, classes whose fractions changed, or labels that became more or less frequent."""
    if test.targets is None:
        return []
    if train.kind == "regression":
        columns = _target_columns(train), _target_columns(test)
        names = ("the target",)
        if columns[0].shape[1] > 1:
            names = train.target_names("target")
        return _moved(*columns, names, MIN_DISTANCE)
    if train.kind == "multi-label":
        columns = _target_columns(train), _target_columns(test)
        names = train.target_names("label")
        return _moved(*columns, names, MIN_DISTANCE_OF_LABELS, are_fractions=True)
    n_classes = int(max(train.y.max(), test.y.max())) + 1
    first, second = (_class_fractions(part.y.cpu(), n_classes) for part in (train, test))
    # a number without a sample is no class of which one might move by chance
    classes = torch.nonzero(first.sum(0) + second.sum(0)).flatten().tolist()
    known = train.class_names
    names = tuple(f"class {known[i] if i < len(known) else i}" for i in classes)
    return _moved(
        first[:, classes], second[:, classes], names, MIN_DISTANCE_OF_LABELS, are_fractions=True
    )


def _label_names(samples: Samples) -> tuple[str, ...]:
    if samples.kind == "multi-label":
        return samples.target_names("label")
    return samples.class_names


def _contradicted(labels: ComparedLabels, train: Samples) -> list[str]:
    """Return the labels or targets that the training samples predict worse in the test samples than in their own."""
    what = f"error of predictions from the training samples ({labels.method})"
    names = (what,)
    noun = "target" if train.kind == "regression" else "label"
    if labels.errors[0].shape[1] > 1:
        names = tuple(f"{what} of {name}" for name in train.target_names(noun))
    first, second = labels.errors
    worse = torch.nonzero(second.mean(0) > first.mean(0)).flatten().tolist()
    is_regression = train.kind == "regression"
    found = _moved(
        first[:, worse],
        second[:, worse],
        tuple(names[i] for i in worse),
        MIN_DISTANCE if is_regression else MIN_DISTANCE_OF_LABELS,
        are_fractions=not is_regression,
    )
    if found and labels.falls:
        found.insert(0, f"{join_names(labels.falls)}: lower where predictions are higher")
    return found


def _target_columns(samples: Samples) -> Tensor:
    return samples.y.detach().cpu().double().reshape(len(samples), -1)


def _class_fractions(labels: Tensor, n_classes: int) -> Tensor:
    """Return the fraction of each class in the labels of each sample [n, K]: one, or those of positions."""
    flat = labels.reshape(len(labels), -1)
    counts = torch.zeros(len(flat), n_classes + 1, dtype=torch.float64)
    counts.scatter_add_(
        1, torch.where(flat == IGNORED, n_classes, flat), torch.ones_like(flat, dtype=torch.float64)
    )
    return counts[:, :n_classes] / counts[:, :n_classes].sum(1, keepdim=True).clamp_min(1)


def _moved(
    train: Tensor,
    test: Tensor,
    names: tuple[str, ...],
    min_distance: float,
    *,
    are_fractions: bool = False,
) -> list[str]:
    """Return the columns that moved, as text, those that moved most first.

    Args:
        train: Columns [n, d] of the training samples.
        test: Columns [m, d] of the test samples.
        names: Names of the columns.
        min_distance: Smallest Kolmogorov-Smirnov distance.
        are_fractions: Whether columns are fractions of a class or label, whose means are compared.
    """
    d = train.shape[1]
    rows = thinned(len(train), MAX_ROWS), thinned(len(test), MAX_ROWS)
    if d:
        significant = _significant_distance(len(rows[0]), len(rows[1]), d)
    else:
        significant = 1.0
    found: list[tuple[float, str]] = []
    for i in range(d):
        first = train[:, i]
        second = test[:, i]
        if are_fractions:
            distance = float((first.mean() - second.mean()).abs())
        else:
            distance = ks_distance(first[rows[0]], second[rows[1]])
        if distance >= max(min_distance, significant):
            found.append((distance, f"{names[i]}: {_change(first, second, are_fractions)}"))
            continue
        if are_fractions:
            outside = 0.0
        else:
            outside = _fraction_outside(first, second, d)
        # also if a fiftieth of the test values lies outside the range of the training values
        if outside >= MIN_OUTSIDE:
            low = format_number(float(first.min()))
            high = format_number(float(first.max()))
            found.append(
                (
                    outside,
                    f"{names[i]}: {percent(outside)} of the test values are outside {low} to {high}",
                )
            )
    return [text for _, text in sorted(found, key=lambda item: -item[0])]


def _change(first: Tensor, second: Tensor, are_fractions: bool) -> str:
    """Return how a column changed, in words."""
    if are_fractions:
        shares = [percent(float(values.mean())) for values in (first, second)]
        return f"{shares[0]} of the training labels, {shares[1]} of the test labels"
    middle = [float(values.median()) for values in (first, second)]
    if middle[0] == middle[1]:
        middle = [float(values.mean()) for values in (first, second)]
        return f"mean {format_number(middle[0])}, of the test samples {format_number(middle[1])}"
    return f"median {format_number(middle[0])}, of the test samples {format_number(middle[1])}"


def ks_distance(first: Tensor, second: Tensor) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples.

    Args:
        first: Values [n].
        second: Values [m].
    """
    a = first.sort().values
    b = second.sort().values
    values = torch.cat([a, b])
    below = [torch.searchsorted(part, values, right=True).double() / len(part) for part in (a, b)]
    return float((below[0] - below[1]).abs().max())


def _significant_distance(n: int, m: int, d: int) -> float:
    """Return the distance that one of d equal columns exceeds with probability `LEVEL` (Massey 1951)."""
    return math.sqrt(math.log(2 * d / LEVEL) / 2 * (n + m) / (n * m))


def _fraction_outside(first: Tensor, second: Tensor, d: int) -> float:
    """Return the fraction of test values beyond one end of the training values; 0 if it is not significant.

    That the k largest of n + m values are all of the m test samples has a probability of at most (m / (n + m))^k.
    """
    n = len(first)
    m = len(second)
    needed = math.log(2 * d / LEVEL) / math.log((n + m) / m)
    counts = [int((second > first.max()).sum()), int((second < first.min()).sum())]
    return sum(count for count in counts if count >= needed) / m


def _is_unusual(part: UnseenValues, n: int) -> bool:
    """Return whether a test table has significantly more new values of a category than one like the training table.

    Of n training rows, those with a value of their own are about as frequent as new values in further rows (Good 1953).

    Args:
        part: The values.
        n: Number of training rows.
    """
    needed = math.log(2 / LEVEL) / math.log((n + part.n) / part.n)
    if part.fraction < MIN_OUTSIDE or part.count < needed:
        return False
    return wilson_interval(part.fraction, part.n, LEVEL_OF_TOLD)[0] > part.single


def _told_apart(train: Samples, test: Samples, seed: int) -> list[str]:
    """Return whether an RBF ridge tells test from training samples, as text; as many of the ones as of the others."""
    m = min(len(train), len(test), MAX_TOLD)
    parts = [samples.subset(thinned(len(samples), m)) for samples in (train, test)]
    features = sample_features(join_samples(*parts)).float()
    if not features.shape[1] or m < MIN_SAMPLES:
        return []
    order = torch.randperm(2 * m, generator=torch.Generator().manual_seed(seed))
    labels = (torch.arange(2 * m) >= m).long()
    told = rbf_ridge(features[order], labels[order], n_classes=2).score
    if told < MIN_TOLD or wilson_interval(told, 2 * m, LEVEL_OF_TOLD)[0] <= 0.5:
        return []
    return [f"an RBF ridge tells {percent(told)} of test and training samples apart"]
