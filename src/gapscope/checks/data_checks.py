"""Checks of the data: GS101 to GS105."""

from __future__ import annotations

import torch

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.labels.results import TIGHT_FROM

MIN_DUPLICATES = 0.02


@register_check("GS101", title="near-duplicates", seconds=0.3)
def duplicates(context: Context) -> Outcome:
    """Report near-duplicates, if they are 2 % of the samples or more."""
    pairs, n = context.duplicates, len(context.everything)
    repeats = sorted({j for _, j in pairs})
    fraction = len(repeats) / n
    if fraction < MIN_DUPLICATES:
        return Fine(f"{len(repeats)} of {n} samples repeat another one")
    conflicts = 0
    if context.is_classifier and context.everything.targets is not None:
        labels = context.everything.targets
        conflicts = sum(int(labels[i]) != int(labels[j]) for i, j in pairs)
    note = f", {conflicts} pairs have different labels" if conflicts else ""
    return Finding(
        f"{len(repeats)} of {n} samples repeat another one{note}",
        "remove them: accuracies measured on these data are too high",
        cost=fraction / 2,
        indices=tuple(repeats),
    )


MIN_NOISE = 0.02


@register_check("GS102", title="label errors", seconds=0.5, information=True)
def label_errors(context: Context) -> Outcome:
    """Report a rate of label noise whose 90 % interval excludes 0."""
    if not context.is_classifier:
        return NotChecked("the rate of label errors needs class labels; find_label_issues ranks regression targets")
    issues = context.label_issues
    if issues is None:
        return NotChecked(context.failures["labels"])
    noise = issues.noise
    if noise is None:
        return NotChecked(issues.note)
    interval = f"90 % interval {noise.low:.0%} to {noise.high:.0%}"
    if noise.is_upper_bound and noise.high >= MIN_NOISE:
        return NotChecked(
            f"at most {noise.high:.0%} of labels are wrong; clean labels are predicted at {noise.clean_accuracy:.0%}, "
            f"{TIGHT_FROM:.0%} is needed to distinguish errors from hard samples. Pass more samples"
        )
    if noise.low <= 0 or noise.rate < MIN_NOISE:
        return Fine(f"at most {noise.high:.0%} of labels")
    flagged = issues.flagged
    assert flagged is not None
    return Finding(
        f"{noise.rate:.0%} of labels ({interval})",
        f"review the {len(flagged)} samples in result.label_issues and correct them",
        cost=noise.rate,
        indices=flagged,
    )


MIN_GAIN = 0.03


@register_check("GS103", title="more data would help", seconds=0.5, information=True)
def more_data(context: Context) -> Outcome:
    """Report an extrapolated gain of three percentage points or more from twice the data."""
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    if forecast.abstained_because or not forecast.curve:
        return NotChecked(forecast.abstained_because or "no input varies")
    gain = forecast.gain_from_doubling_data
    if gain < MIN_GAIN:
        return Fine(f"twice the data add about {100 * gain:.1f} points")
    return Finding(
        f"twice the data add about {100 * gain:.0f} points (power law of leave-one-out scores)",
        "collect more samples; confirm with gapscope.learning_curve",
        cost=gain,
    )


MAX_RATIO, MIN_SAMPLES = 5.0, 5


@register_check("GS104", title="class imbalance", seconds=0.01)
def imbalance(context: Context) -> Outcome:
    """Report a class ratio of five or more, or a class with fewer than five samples."""
    if not context.is_classifier or context.everything.targets is None or context.samples.targets is None:
        return NotChecked("class balance needs class labels")
    labels, counts = context.samples.targets.cpu(), context.everything.targets.cpu().bincount()
    present = counts[counts > 0]
    ratio = float(present.max()) / float(present.min())
    if ratio < MAX_RATIO and int(present.min()) >= MIN_SAMPLES:
        return Fine(f"{int(present.min())} to {int(present.max())} samples per class")
    rarest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    name = context.samples.class_names[rarest] if context.samples.class_names else str(rarest)
    correct = (context.logits.argmax(1) == labels).double()
    balanced = torch.stack([correct[labels == c].mean() for c in labels.unique()]).mean()
    return Finding(
        f"class {name} has {int(present.min())} samples, the largest {int(present.max())}; training accuracy "
        f"{context.train_accuracy:.0%}, balanced {float(balanced):.0%}",
        "report balanced accuracy, and collect or weight samples of the rare classes",
        cost=max(0.0, float(correct.mean() - balanced)) / 2 + 0.01,
    )


# Largest spread of a column relative to the typical one, mean relative to spread, and typical spread.
MAX_SPREAD_RATIO, MAX_MEAN_RATIO, MAX_SPREAD = 30.0, 30.0, 30.0


@register_check("GS105", title="unscaled inputs", seconds=0.01)
def scaling(context: Context) -> Outcome:
    """Report columns of deviating scale, and inputs far from zero or of a large scale."""
    x = context.samples.inputs
    if not x.is_floating_point() or context.samples.form is not None:
        return NotChecked("scaling needs one floating point input")
    x = x.double().cpu()
    columns = x.flatten(1) if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)
    spread, mean = columns.std(0), columns.mean(0).abs()
    varying = spread > 1e-12 * (1 + mean)
    if not bool(varying.any()):
        return Finding("no input varies", "pass inputs that differ between samples", cost=1.0)
    typical = float(spread[varying].median())
    column = "column" if x.ndim == 2 else "channel"
    names = [str(int(i)) for i in torch.nonzero((spread > MAX_SPREAD_RATIO * typical) & varying).flatten()]
    evidence = ""
    if names:
        evidence = f"{column} {', '.join(names[:5])} has {float(spread.max()) / typical:,.0f} times the typical spread"
    elif bool(((mean > MAX_MEAN_RATIO * spread) & varying).any()) or typical > MAX_SPREAD:
        evidence = f"values have a spread of {typical:,.3g} around {float(mean[varying].median()):,.3g}"
    if evidence:
        return Finding(evidence, "standardize the inputs (mean 0, standard deviation 1) before training", cost=0.1)
    constant = int((~varying).sum())
    return Fine(f"spread {typical:.3g}" + (f", {constant} constant {column}s" if constant and x.ndim == 2 else ""))
