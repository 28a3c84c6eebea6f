r"""Labels compared with predictions of the user's own model, and whether these have seen the labels.

A model that was trained on the labels follows errors too, so that few or none are found. Where there are inputs, the
predictions are compared with those of the held-out methods of `gapscope.labels.kernel_views`, in two ways.

**Preference.** At labels that the held-out method holds for errors, take a class that it finds at least as likely as
the given label, and that is not the one it suggests. To a model that has not seen the label, the given label is the
more likely one of the two in at most half of the errors, and in all of the labels that are no errors. A model that has
fitted the labels prefers nearly always the given one.

**Accuracy.** Where too few labels are held for errors, or with two classes, the predictions look fitted if they agree
with significantly more labels than the held-out method, unless the labels contradict those that are surest. A much
better model looks the same, so that the note says how to use its predictions all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.labels.class_labels import assess_classes, assess_labels, assess_with_second_opinion
from gapscope.labels.error_model import error_probabilities
from gapscope.labels.given_view import given_view, note_on_certain
from gapscope.labels.kernel_views import ClassView, TargetView, best_view, target_views
from gapscope.labels.noise_rate import robust_spread
from gapscope.labels.prediction_columns import (
    check_finite,
    exchanged_columns,
    is_held_out,
    to_values,
)
from gapscope.labels.regression_targets import assess_targets
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.measures.fitted_labels import contradiction
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import sample_features
from gapscope.statistics.intervals import normal_quantile, wilson_interval

# Chosen on digits, MNIST, breast cancer, California thirds and features of CIFAR-10 with eight models, fitted and in
# five folds; evaluated on others (results/labels/fitted.json). One-sided levels of 99 %.
LEVEL = 0.98
# a label more likely wrong than right; preferences for a first and for a sufficient test: by judgment
HELD_FOR_ERROR, MIN_PREFERENCES, ENOUGH_PREFERENCES = 0.5, 15, 30
# at least 0.03 more labels of each sample, by judgment
MIN_GAIN = 0.03
# contradicted labels, relative to those that the most frequent class contradicts: those of 0.5 % in two equal classes
MAX_CONTRADICTED = 0.01
# Median residuals of passed predictions in units of those of the held-out method: fitted models of five tables had 0.2
# to 0.9, the same models in five folds 0.95 to 2.8. Above 1.5, and with targets beyond six spreads, which spoil what is
# fitted to them, the robust held-out method predicts better: by judgment.
MIN_RESIDUAL, MAX_RESIDUAL, GROSS = 0.7, 1.5, 6.0
# largest error of a sum of probabilities that were rounded to bfloat16, 8 binary digits
HALF_PRECISION = 2**-8
NOT_LOOKED_AT = (
    "Whether the model was trained on these {what} was not looked at, because {why}. If it was, its predictions follow "
    "the errors: pass out-of-sample ones."
)
NO_INPUTS = "there are no inputs"
TOO_GOOD = (
    "The rate is not estimated from pred_probs: they agree with {agreed} of the labels, as those of a model that was "
    "trained on them do. Pass the inputs too, data=(x, y), to have them compared with held-out predictions."
)
PERFECT = (
    "The rate is not estimated from pred_probs: they agree with {agreed} of the labels, as those of a model that was "
    "trained on them do. Pass out-of-sample probabilities, such as gs.out_of_sample(model, data, cost=5)."
)
POSSIBLY_FITTED = (
    "That the model was trained on these labels is not excluded. If it was, its predictions follow the errors: pass "
    "out-of-sample ones."
)
OUTPUT = {"labels": "probabilities", "targets": "predictions"}


def _normalized(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return probabilities whose rows sum to 1, where rounding explains that they do not.

    Raises:
        InvalidInput: A row has NaN or negative numbers, or does not sum to 1.
    """
    check_finite(probabilities)
    sums = probabilities.sum(1)
    tolerance = HALF_PRECISION
    for digits in (1, 2, 3):
        scaled = probabilities * 10**digits
        if bool(((scaled - scaled.round()).abs() < 1e-4).all()):
            # each number may be wrong by half of its last digit
            tolerance = max(tolerance, probabilities.shape[1] * 0.5 * 10**-digits)
            break
    is_negative = (probabilities < 0).any(1)
    off = ((sums - 1).abs() > tolerance + 1e-6) | is_negative | (sums <= 0)
    if not bool(off.any()):
        return probabilities / sums[:, None]
    first = int(off.nonzero()[0])
    if bool(is_negative.any()) or float(probabilities.max()) > 100:
        advice = "Pass logits.softmax(1)."
    elif bool(((sums - 100).abs() <= 1).all()):
        advice = "These are percent: divide them by 100."
    elif float(probabilities.max()) > 1:
        advice = "Pass logits.softmax(1)."
    else:
        advice = "Pass the columns of all classes, or divide each row by its sum."
    raise InvalidInput(
        f"Got pred_probs of which row {first} sums to {float(sums[first]):.4g}; probabilities that sum to 1 are "
        f"needed. {advice}"
    )


def check_probabilities(
    pred_probs: Any, labels: Int[Tensor, " n"], class_names: Sequence[str] = ()
) -> Float[Tensor, "n c"]:
    """Return probabilities [n, C] in float64, checked.

    Args:
        pred_probs: Array or tensor [n, C] of out-of-sample probabilities; column k belongs to the label k.
        labels: Given labels.
        class_names: Names of the classes, for messages.

    Raises:
        InvalidInput: The shape does not fit, a row does not sum to 1, or a label has no column.
    """
    probabilities = to_values(pred_probs)
    n = len(labels)
    if probabilities.ndim != 2 or len(probabilities) != n or probabilities.shape[1] < 2:
        got = list(probabilities.shape)
        advice = "Pass a probability for each class."
        if probabilities.shape in ((n,), (n, 1)):
            advice += (
                " For two classes that is torch.stack([1 - p, p], 1); if the labels are numbers to be predicted, pass "
                "them as floating-point targets, y.float()."
            )
        raise InvalidInput(
            f"Got pred_probs {got} with class labels; [{n}, classes] is needed. {advice}"
        )
    probabilities = _normalized(probabilities)
    if int(labels.max()) >= probabilities.shape[1]:
        label: Any = int(labels.max())
        advice = "Number the classes from 0 on."
        if label < len(class_names):
            label = repr(class_names[label])
            advice = f"Pass one each, in this order: {join_names(class_names)}; or a frame that names its columns."
        raise InvalidInput(
            f"Got the label {label} and pred_probs of {probabilities.shape[1]} classes; a column for each class is "
            f"needed. {advice}"
        )
    return probabilities


def _check_targets(predictions: Any, targets: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
    """Return predicted targets [n, 1] in float64, checked.

    Raises:
        InvalidInput: Their shape is neither [n] nor [n, 1], or they are not finite.
    """
    values = to_values(predictions)
    n = len(targets)
    if values.shape not in ((n,), (n, 1)):
        raise InvalidInput(
            f"Got pred_probs {list(values.shape)} and regression targets [{n}, 1]; predicted targets [{n}] are needed. "
            "Pass one prediction per sample, or class labels as integers."
        )
    check_finite(values)
    return values.reshape(n, 1)


def _preferences(
    probabilities: Float[Tensor, "n c"],
    scores: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    error: Tensor,
) -> Bool[Tensor, " m"]:
    """Return whether the given label is more probable than a class that the scores find at least as likely.

    Only for labels that are held for errors and have such a class beside the suggested one; of several, the least
    likely.
    """
    own = labels[:, None]
    as_likely = scores >= scores.gather(1, own)
    as_likely.scatter_(1, scores.argmax(1, keepdim=True), False).scatter_(1, own, False)
    used = (error >= HELD_FOR_ERROR) & as_likely.any(1)
    other = scores.masked_fill(~as_likely, torch.inf).argmin(1, keepdim=True)
    return (probabilities.gather(1, own) > probabilities.gather(1, other)).squeeze(1)[used]


def _fitted_labels(
    probabilities: Float[Tensor, "n c"], samples: Samples, labels: Int[Tensor, " n"], seed: int
) -> str | None:
    """Return why probabilities look fitted to the labels ("" if they do not, None if no input varies)."""
    # a fit of labels is evident on 5,000 samples
    n = min(len(labels), 5000)
    rows = (
        torch.randperm(len(labels), generator=make_generator(seed, "compared samples"))[:n]
        .sort()
        .values
    )
    classes, codes = labels[rows].unique(return_inverse=True)
    probabilities = probabilities[rows][:, classes]
    part = samples.subset(rows.to(samples.inputs.device))
    view, _ = best_view(None, part, codes, len(classes), seed=seed)
    if view is None:
        return None
    reason = preference_reason(probabilities, view, codes)
    if reason is not None:
        return reason
    if contradiction(probabilities, codes):
        return ""
    own = probabilities.argmax(1) == codes
    held_out = view.scores.cpu().argmax(1) == codes
    return agreement_reason(own, held_out, view.method, MIN_GAIN)


def preference_reason(
    probabilities: Float[Tensor, "n c"], view: ClassView, labels: Int[Tensor, " n"]
) -> str | None:
    """Return why probabilities look fitted by their preferences ("" if they do not, None if too few decide it).

    Args:
        probabilities: Probabilities of the classes that occur.
        view: Held-out scores of these classes.
        labels: Given labels, columns of the scores.
    """
    scores = view.scores.cpu()
    error = error_probabilities(scores, labels, view.temperatures).error
    prefers = _preferences(probabilities, scores, labels, error)
    if len(prefers) < MIN_PREFERENCES:
        return None
    fraction = float(prefers.double().mean())
    expected = float(error[error >= HELD_FOR_ERROR].mean())
    if wilson_interval(fraction, len(prefers), LEVEL)[0] > 1 - expected / 2:
        return (
            f"of {len(prefers)} labels that {view.method} holds for errors, they prefer the given one to another "
            f"class as likely in {percent(fraction)}"
        )
    return "" if len(prefers) >= ENOUGH_PREFERENCES else None


def agreement_reason(
    own: Bool[Tensor, "n ..."], held_out: Bool[Tensor, "n ..."], method: str, least: float
) -> str:
    """Return why probabilities look fitted by the labels that they agree with ("" if they do not).

    Args:
        own: Whether they agree with each label.
        held_out: Whether held-out predictions do.
        method: Method of these.
        least: Smallest difference of the agreement that counts.
    """
    gain = (own.double() - held_out.double()).reshape(len(own), -1).mean(1)
    error_of_mean = float(gain.std()) / len(gain) ** 0.5
    if float(gain.mean()) <= max(least, normal_quantile(LEVEL) * error_of_mean):
        return ""
    agreed, predicted = (percent(float(part.double().mean()), 1) for part in (own, held_out))
    return f"they agree with {agreed} of the labels, and held-out predictions by {method} with {predicted}"


def is_perfect(accuracy: float, most_frequent: float) -> bool:
    """Return whether predictions agree with nearly all labels, compared with the most frequent class."""
    return 1 - accuracy <= MAX_CONTRADICTED * (1 - most_frequent)


def least_gain(most_frequent: float) -> float:
    """Return the gain of agreement that counts: of rare classes, few labels can be gained.

    Args:
        most_frequent: Fraction of labels that the most frequent class has.
    """
    return MIN_GAIN * 2 * (1 - most_frequent)


def perfect_agreement(noise: LabelNoiseEstimate) -> str:
    """Return why probabilities of several labels or positions look fitted if nearly all labels agree, else "".

    Args:
        noise: The rate by these probabilities.
    """
    if not is_perfect(noise.accuracy, noise.most_frequent):
        return ""
    return PERFECT.format(agreed=percent(noise.accuracy, 1))


def fitted_note(reason: str, what: str) -> str:
    """Return a note on predictions that look fitted, for this reason, to these labels or targets."""
    return (
        f"The rate is not estimated from pred_probs, which look fitted to the same {what}: {reason}. They were not "
        f"used. Pass out-of-sample {OUTPUT[what]}, as cross_val_predict returns; if they are that already, pass "
        "labels= and pred_probs= without the inputs."
    )


def _refused(
    held_out: tuple[LabelIssues, LabelNoiseEstimate], reason: str, what: str
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    return without_rate(*held_out, fitted_note(reason, what))


def without_rate(
    issues: LabelIssues, noise: LabelNoiseEstimate, note: str
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Return the ranking and the rate, refused for this reason."""
    return replace(issues, noise=None, note=note), replace(noise, refused=note)


def _with_note(issues: LabelIssues, what: str) -> LabelIssues:
    return replace(issues, notes=(*issues.notes, NOT_LOOKED_AT.format(what=what, why=NO_INPUTS)))


def possible_classes(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"]
) -> tuple[Tensor, Tensor]:
    """Return the classes that have a label or are predicted, and the number [n] of each label among them.

    Args:
        probabilities: Predicted probabilities.
        labels: Class labels.
    """
    is_possible = probabilities.sum(0) > 0
    is_possible[labels] = True
    classes = is_possible.nonzero().flatten()
    return classes, torch.searchsorted(classes, labels)


def _assess_possible_classes(
    probabilities: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    samples: Samples | None,
    seed: int,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess labels by probabilities; a class without labels that is never predicted is no error's class.

    With samples, a forest on their inputs is the second opinion.
    """
    classes, codes = possible_classes(probabilities, labels)
    view = given_view(probabilities[:, classes], codes)
    if samples is None or not sample_features(samples).shape[1]:
        issues, noise = assess_labels(view, codes)
    else:
        issues, noise = assess_with_second_opinion(view, codes, samples, seed=seed)
    named = replace(
        issues,
        given_labels=classes[issues.given_labels],
        suggested_labels=classes[issues.suggested_labels],
        notes=(*issues.notes, *note_on_certain(view)),
    )
    return named, noise


def assess_given(
    pred_probs: Any, samples: Samples, *, with_inputs: bool, seed: int
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess labels or regression targets by predictions of the user's own model.

    Predictions that look fitted to the labels are replaced by the held-out ones, and the rate is refused.

    Args:
        pred_probs: Out-of-sample probabilities [n, C], or predicted targets [n].
        samples: Samples with labels or targets.
        with_inputs: Whether the samples have inputs that a held-out method can be fitted to.
        seed: Seed of the folds and the landmarks of that method.

    Raises:
        InvalidInput: The predictions have another shape, or are no probabilities.
    """
    is_known = is_held_out(pred_probs)
    if not samples.is_classification:
        return _assess_targets(pred_probs, samples, with_inputs, is_known, seed)
    labels = samples.y.cpu()
    probabilities = check_probabilities(pred_probs, labels, samples.class_names)
    exchanged = exchanged_columns(probabilities, labels, samples.class_names)
    if with_inputs and not is_known and not exchanged:
        reason = _fitted_labels(probabilities, samples, labels, seed)
    else:
        reason = None
    if reason:
        return _refused(assess_classes(None, samples, seed=seed), reason, "labels")
    if with_inputs:
        looked_at = samples
    else:
        looked_at = None
    issues, noise = _assess_possible_classes(probabilities, labels, looked_at, seed)
    if exchanged:
        return without_rate(issues, noise, exchanged)
    if reason is None and not is_known:
        # without inputs, predictions that agree with so many of the labels are taken for fitted ones. Few labels are
        # so clean and so easy that held-out predictions reach it; with inputs these are compared and accepted.
        if noise.accuracy >= 0.995:
            return without_rate(issues, noise, TOO_GOOD.format(agreed=percent(noise.accuracy, 1)))
        issues = _with_note(issues, "labels")
    return issues, noise


def _assess_targets(
    pred_probs: Any, samples: Samples, with_inputs: bool, is_known: bool, seed: int
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    targets = samples.y.cpu().double()
    predictions = _check_targets(pred_probs, targets)
    error = float((targets - predictions).abs().median())
    given = TargetView("pred_probs", None, targets, 0.0, predictions, error)
    views: list[TargetView] = []
    if with_inputs:
        views, _ = target_views(None, samples, seed=seed)
    largest = (targets - targets.median()).abs().max() / robust_spread(targets).max()
    if views and float(largest) > GROSS and error > MAX_RESIDUAL * views[0].error:
        ratio = f"{error / views[0].error:.1f}"
        issues, noise = assess_targets(views[0], samples.y, seed)
        note = (
            f"pred_probs were not used: their median residual is {ratio} times that of {views[0].method}, which limits "
            "the weight of errors. Pass labels= and pred_probs= without the inputs to rank by them all the same."
        )
        return replace(issues, notes=(note, *issues.notes)), noise
    if views and not is_known and error < MIN_RESIDUAL * views[0].error:
        ratio = percent(error / views[0].error)
        reason = (
            f"their median residual is {ratio} of that of held-out predictions by {views[0].method}"
        )
        return _refused(assess_targets(views[0], samples.y, seed), reason, "targets")
    issues, noise = assess_targets(given, samples.y, seed)
    return (issues if views or is_known else _with_note(issues, "targets")), noise
