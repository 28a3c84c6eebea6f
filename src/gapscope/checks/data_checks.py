"""Checks of labels and samples: GS101 to GS104, GS106 and GS109."""

from __future__ import annotations

import torch

from gapscope.checks.context import Context
from gapscope.checks.costs import (
    balanced,
    cost_of_imbalance,
    cost_of_labels,
    gain_of_twice_the_data,
)
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.labels.duplicates import MIN_REPEATS, repeat_by_design, row_numbers
from gapscope.labels.leaking_columns import MAX_NAMES, name_columns
from gapscope.labels.results import TIGHT_FROM, LabelIssues
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.formatting import pluralize
from gapscope.statistics.baselines import RBF


@register_check("GS101", title="near-duplicates", seconds=0.3)
def duplicates(context: Context) -> Outcome:
    """Report near-duplicates, if they are 2 % of the samples or more, or of the test samples."""
    n = len(context.everything)
    all_repeats = {j for _, j in context.copies.pairs}
    pairs = context.copies.beyond_chance or context.copies.pairs
    repeats = sorted({j for _, j in pairs})
    # of templates, exact repeats alone
    is_part = len(repeats) < len(all_repeats)
    evidence = f"{len(repeats):,} of {n:,} samples repeat another one"
    if is_part:
        evidence += " exactly"
    elif not context.copies.compares_all_pairs:
        evidence += " exactly (near-duplicates were not searched)"
    in_test = 0.0
    across: tuple[tuple[int, int], ...] = ()
    if context.test is not None:
        across = tuple(context.copies.beyond_chance_in_test) or context.copies.in_test
        in_test = len(across) / len(context.test)
        evidence += (
            f"; {len(across):,} of {len(context.test):,} test samples repeat a training sample"
        )
        if len(across) < len(context.copies.in_test):
            evidence += " exactly"
    if context.copies.are_features:
        evidence += (
            "; of features, near-exact copies are found: pass pictures or texts to find others"
        )
    if max(len(repeats) / n, in_test) >= MIN_REPEATS and not is_part:
        by_chance = context.copies.by_chance
        if by_chance > 0:
            if repeat_by_design(context.everything):
                evidence += "; so few columns repeat by design"
            else:
                evidence += f"; {percent(by_chance)} would if columns were independent"
            evidence += ": their values are few" if context.copies.has_few_values else ""
    is_in_training = bool(context.copies.beyond_chance)
    if not is_in_training and not context.copies.beyond_chance_in_test:
        numbers = row_numbers(context.everything)
        if numbers is not None:
            name = name_columns(context.everything.columns, [numbers])
            return NotChecked(
                f"column {name} numbers the rows, so that none repeats another: remove it to find copies"
            )
        return Fine(evidence)
    conflicts = 0
    if context.is_classifier and context.everything.targets is not None:
        labels = context.everything.targets
        conflicts = sum(int(labels[i]) != int(labels[j]) for i, j in pairs)
    if conflicts:
        note = f"; {pluralize(conflicts, 'pair')} with different labels"
    else:
        note = ""
    if not is_in_training:
        return Finding(
            evidence + note,
            "remove them from the test samples, whose score is too high",
            indices=tuple(sorted({i for i, _ in across})),
            headline="Test samples repeat training samples: their score is too high for new data.",
        )
    action = "remove them: scores measured on these data are too high"
    if conflicts:
        action = f"find out which label is right where they differ, then {action}"
    return Finding(
        evidence + note,
        action,
        indices=tuple(repeats),
        fixes=("drop duplicates",),
    )


# by judgment
MIN_NOISE = 0.02


# more than the checks of the forecast, whose kernels it uses
@register_check("GS102", title="label errors", seconds=0.6, information=True)
def label_errors(context: Context) -> Outcome:
    """Report a rate of label noise whose 90 % interval excludes 0, and 2 % or more of targets with large residuals."""
    issues = context.label_issues
    if issues is None:
        return NotChecked(context.failures["labels"])
    noise = issues.noise
    if noise is None:
        return NotChecked(issues.note)
    noun = "target" if issues.kind == "regression" else "label"
    n_flagged = issues.n_flagged
    if issues.kind == "regression" and n_flagged >= MIN_NOISE * noise.samples:
        evidence = f"{n_flagged} of {noise.samples:,} targets are far from their predictions"
        return _errors(
            context, issues, f"{evidence}; at most {percent(noise.high)} are wrong by as much"
        )
    if noise.is_upper_bound and noise.high >= MIN_NOISE:
        reason = (
            f"clean labels are predicted at {percent(noise.clean_accuracy)}, {percent(TIGHT_FROM)} is needed to "
            "distinguish errors from hard samples"
        )
        if issues.kind == "regression":
            reason = f"{n_flagged} are far from their predictions, too few for a finding"
        elif noise.clean_accuracy >= TIGHT_FROM:
            reason = (
                "a random forest does not confirm these errors, or classes have too few samples, so that hard samples "
                "are not excluded"
            )
        return NotChecked(f"at most {percent(noise.high)} of {noun}s are wrong; {reason}")
    if noise.low <= 0 or noise.rate < MIN_NOISE:
        return Fine(f"at most {percent(noise.high)} of {noun}s")
    ends = f"{100 * noise.low:.0f} to {percent(noise.high)}"
    return _errors(context, issues, f"{percent(noise.rate)} of labels (90 % interval {ends})")


def _errors(context: Context, issues: LabelIssues, evidence: str) -> Finding:
    """Return the finding of flagged labels; one label or target per sample has a cost, and fixes."""
    assert issues.flagged is not None
    flagged = issues.flagged.cpu()
    samples = tuple(dict.fromkeys(flagged.tolist()))
    if issues.kind in ("positions", "multi-label"):
        number = f"{pluralize(len(flagged), 'label')} of {pluralize(len(samples), 'sample')}"
        action = f"review the {number} in result.label_issues and correct them"
        return Finding(evidence, action, indices=samples)
    inside = torch.searchsorted(context.rows, flagged)
    score = None
    # held-out labels show by how much the network suffers; an estimate is of labels with errors
    expected = None if context.test is None else context.comparable
    if expected is not None and expected.is_new:
        score = IntervalEstimate(expected.value, expected.low, expected.high)
    memorized = 1.0
    n_classes = 0
    if issues.kind == "classification":
        memorized = _memorized(context, flagged)
        n_classes = context.n_classes
    cost = cost_of_labels(context.described, inside, n_classes, memorized, score)
    return Finding(
        evidence,
        f"review the {len(flagged)} samples in result.label_issues and correct them",
        cost=max(cost.value, 0.0),
        interval=(max(cost.low, 0.0), max(cost.high, 0.0)),
        indices=flagged,
        fixes=("drop flagged labels", "correct flagged labels"),
    )


def _memorized(context: Context, flagged: torch.Tensor) -> float:
    """Return the fraction of flagged labels that the network predicts (1 without a trained network)."""
    if context.untrained_because:
        return 1.0
    inside = torch.isin(context.indices, flagged.cpu())
    if bool(inside.any()):
        return float(context.correct[inside].double().mean())
    return 1.0


# accuracy that is worth collecting twice the data, by judgment
MIN_GAIN = 0.03


@register_check(
    "GS103", title="more data would help", seconds=0.5, information=True, min_cost=MIN_GAIN
)
def more_data(context: Context) -> Outcome:
    """Report a gain of three points or more from twice the data, whose 90 % interval excludes 0."""
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    if forecast.abstained_because:
        return NotChecked(forecast.abstained_because)
    if context.everything.kind == "positions":
        return NotChecked("no learning curve for labels of positions")
    if all(row.name != RBF for row in forecast.rows):
        return NotChecked("no input varies")
    if not context.is_classifier:
        return _more_data_without_interval(forecast.gain_from_doubling_data, context.has_accuracy)
    score = None if context.best_method is None else context.best_method[1].value
    gain = gain_of_twice_the_data(
        context.distinct_described, context.n_classes, context.seed, score=score
    )
    ends = f"{100 * gain.low:.1f} to {100 * gain.high:.1f}"
    of_features = "" if context.features is None else " on the network's features"
    text = f"a kernel machine{of_features} gains about {100 * gain.value:.1f} points from twice the data ({ends})"
    if gain.value < MIN_GAIN or gain.low <= 0:
        return Fine(text)
    return Finding(
        text,
        "collect more samples; confirm with gapscope.learning_curve",
        cost=gain.value,
        interval=(gain.low, gain.high),
    )


def _more_data_without_interval(gain: float, is_accuracy: bool) -> Outcome:
    if is_accuracy:
        points = f"{100 * gain:.1f} points"
    else:
        points = f"{gain:.3f} of R^2"
    how = "power law of leave-one-out scores, without an interval"
    text = f"a kernel machine gains about {points} from twice the data ({how})"
    if gain < MIN_GAIN:
        return Fine(text)
    return Finding(text, "collect more samples; confirm with gapscope.learning_curve", cost=gain)


# samples of the largest class per sample of the smallest; samples of a class that can be learned: by judgment
MAX_RATIO, MIN_SAMPLES = 5.0, 5


@register_check("GS104", title="class imbalance", seconds=0.01)
def imbalance(context: Context) -> Outcome:
    """Report a largest class with five times the samples of the smallest or more, and regression targets that agree."""
    if not context.has_accuracy:
        return _equal_targets(context) or NotChecked("class balance needs class labels")
    if context.everything.kind == "multi-label":
        return NotChecked("needs one class per sample; GS109 names rare labels")
    classes, present = context.labels.unique(return_counts=True)
    if len(present) == 1:
        only = _class_name(context, int(classes[0]))
        return Finding(
            f"all labels are of class {only}",
            "pass samples of other classes too, and check which column the labels are: there is nothing to learn",
        )
    ratio = float(present.max()) / float(present.min())
    text = f"{int(present.min())} to {int(present.max())} samples per class"
    if ratio < MAX_RATIO:
        return Fine(text)
    if int(present.max()) < MIN_SAMPLES:
        return Fine(f"{text}, too few to be unequal")
    rarest = int(classes[present.argmin()])
    fewest = pluralize(int(present.min()), "sample")
    evidence = (
        f"class {_class_name(context, rarest)} has {fewest}, the largest {int(present.max())}"
    )
    if context.is_classifier and (context.prepared is not None or context.estimator is not None):
        mean = balanced(context.correct, context.samples.y.cpu())
        evidence += f"; training accuracy {percent(context.train_score)}, balanced {percent(mean)}"
    row = context.kernel() if context.is_classifier else None
    if row is None:
        cost = None
    else:
        cost = max(cost_of_imbalance(row, context.distinct.y.cpu()), 0.0)
    return Finding(
        evidence,
        "report balanced accuracy, and collect or weight samples of the rare classes",
        cost=cost,
        fixes=("balance classes",),
    )


def _class_name(context: Context, label: int) -> str:
    names = context.everything.class_names
    if label < len(names):
        return names[label]
    return str(label)


# Spread of targets, in parts of the largest, that rounding explains: eight times the precision of float32. Fraction of
# samples with another target than the usual one: by judgment.
ROUNDING, MAX_OTHERS = 1e-6, 0.05


def _equal_targets(context: Context) -> Finding | None:
    """Return the finding about regression targets that agree, but for rounding or fewer than five samples."""
    samples = context.everything
    if samples.targets is None or samples.kind != "regression" or samples.y.ndim > 2:
        return None
    values = samples.y.detach().cpu().double().reshape(len(samples), -1)
    usual = values.median(0).values
    n_others = (values != usual).sum(0)
    is_equal = (n_others < MIN_SAMPLES) & (n_others <= MAX_OTHERS * len(values))
    is_rounded = ~is_equal & (values.std(0) <= ROUNDING * values.abs().amax(0))
    columns = torch.nonzero(is_equal | is_rounded).flatten().tolist()
    if not columns:
        return None
    is_single = values.shape[1] == 1
    names = ("the target",) if is_single else samples.target_names("target")
    texts: list[str] = []
    for k in columns[:MAX_NAMES]:
        if is_rounded[k]:
            texts.append(f"{names[k]} differs by no more than rounding from {float(usual[k]):.6g}")
        else:
            n_equal = len(values) - int(n_others[k])
            texts.append(
                f"{names[k]} is {float(usual[k]):.6g} in {n_equal} of {len(values)} samples"
            )
    more = len(columns) - MAX_NAMES
    evidence = "; ".join(texts) + (f"; and {more} more targets" if more > 0 else "")
    action = "pass samples with other targets, and check which column the targets are"
    if not is_single:
        action = "leave these targets out, or pass samples with other ones"
    if bool(is_rounded.any()):
        action += "; if such small differences matter, subtract the mean and rescale"
    else:
        action += ": there is nothing to learn"
    return Finding(evidence, action, title="equal targets")


@register_check("GS109", title="few samples per class", seconds=0.01)
def rare_classes(context: Context) -> Outcome:
    """Report classes with fewer than five samples."""
    if context.everything.kind == "multi-label":
        return _rare_labels(context)
    if not context.has_accuracy:
        return NotChecked("class balance needs class labels")
    classes, counts = context.labels.unique(return_counts=True)
    few = classes[counts < MIN_SAMPLES].tolist()
    if not few:
        return Fine(f"{int(counts.min())} samples or more per class")
    names = ", ".join(_class_name(context, label) for label in few[:5]) + (
        ", ..." if len(few) > 5 else ""
    )
    verb = "has" if len(few) == 1 else "have"
    return Finding(
        f"{len(few)} of {pluralize(len(classes), 'class')} {verb} fewer than {MIN_SAMPLES} samples: {names}",
        "collect samples of these classes, or merge them: their accuracy can be neither learned nor measured",
        indices=tuple(_with_label(context.everything.y.cpu(), few)),
    )


def _with_label(labels: torch.Tensor, few: list[int]) -> list[int]:
    """Return the samples that have one of these labels, at any position."""
    found = torch.isin(labels, torch.tensor(few)).reshape(len(labels), -1).any(1)
    return torch.nonzero(found).flatten().tolist()


def _rare_labels(context: Context) -> Outcome:
    """Report labels, of several per sample, that fewer than five samples have."""
    counts = context.labels.sum(0)
    few = torch.nonzero(counts < MIN_SAMPLES).flatten().tolist()
    if not few:
        return Fine(f"every label is present in {int(counts.min())} samples or more")
    all_names = context.everything.target_names("label")
    names = ", ".join(all_names[label] for label in few[:5]) + (", ..." if len(few) > 5 else "")
    verb = "is" if len(few) == 1 else "are"
    return Finding(
        f"{len(few)} of {len(counts)} labels {verb} present in fewer than {MIN_SAMPLES} samples: {names}",
        "collect samples with these labels, or leave them out: they can be neither learned nor measured",
        indices=tuple(torch.nonzero(context.labels[:, few].any(1)).flatten().tolist()),
    )


# Training accuracy from which a network without a signal has memorized: chosen on coin-toss labels, n = 60 to 400.
MEMORIZED, MIN_ABOVE = 0.9, 0.15


@register_check("GS106", title="no signal found", seconds=0.5)
def no_signal(context: Context) -> Outcome:
    """Report labels that a network fits, and that no method predicts better than the most frequent class."""
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    best = max(forecast.rows[1:], key=lambda row: row.score, default=forecast.rows[0])
    text = f"held-out labels predicted by {best.method}: {percent(best.score)}, by the most frequent class: "
    text += percent(forecast.rows[0].score)
    if not context.has_accuracy:
        text = f"R^2 on held-out samples by {best.method}: {best.score:.2f}, by the mean target: 0"
    if not forecast.abstained_because:
        return Fine(text)
    if context.initial_network is not None:
        trained = context.network_forecast
    else:
        trained = None
    if trained is not None and not trained.abstained_because:
        return Fine(f"{text}; the network's kernel predicts more")
    if context.untrained_because:
        return NotChecked(f"{text}: more samples, other features or a trained network are needed")
    measured = None
    # an estimator may use columns that the forecast does not, such as texts beside numbers
    if context.test is not None or context.estimator is not None:
        measured = context.expected
    if measured is not None and not measured.unclear and measured.low > context.most_frequent:
        return Fine(
            f"{text}; the {context.score_name} is {context.show(measured.value)} {measured.source}"
        )
    score = context.train_score
    training = f"training {context.score_name}"
    if score < MEMORIZED or score < context.most_frequent + MIN_ABOVE:
        return NotChecked(f"{forecast.abstained_because}, and {training} is {context.show(score)}")
    return Finding(
        f"{training} {context.show(score)}; {text}",
        "check that inputs and labels belong together: what this network learned from them is memorized, or lies in "
        "features that no kernel of the inputs sees (pass test=, or embeddings as data)",
        cost=score - best.score,
    )
