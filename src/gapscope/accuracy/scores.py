"""Scores of unseen samples, and their sampling variance."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gapscope.accuracy.extrapolation import SizedScore
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import PRESENT
from gapscope.statistics.grouped_scores import variance_of_mean
from gapscope.statistics.intervals import r_squared_scales

LOSSES = ("loss", "error", "mae", "mse", "mape", "msle", "nll", "perplexity", "entropy", "deviance")
"""Ends of the words by which a function is recognized as a loss."""
NO_LOSSES = ("neg", "negative", "negated", "minus", "inverse", "accuracy", "score")
"""Words in the name of a function that is not one."""


# Beginnings of the names of scorers of scikit-learn by their range. Others are judged by the observed scores.
FRACTIONS = (
    "accuracy", "average_precision", "balanced_accuracy", "f1", "jaccard", "precision", "recall", "roc_auc",
    "top_k_accuracy",
)  # fmt: skip
UP_TO_ONE = ("R^2", "d2_", "explained_variance", "matthews_corrcoef", "r2")


def range_of(name: str) -> tuple[float, float] | None:
    """Return the range of a scorer of scikit-learn, or of R^2 (infinite ends for none); None if it is not known.

    >>> [range_of(name) for name in ("f1_macro", "r2", "neg_log_loss", "rand_score")]
    [(0.0, 1.0), (-inf, 1.0), (-inf, 0.0), None]
    """
    if name.startswith(FRACTIONS):
        return 0.0, 1.0
    if name.startswith(UP_TO_ONE):
        return -math.inf, 1.0
    if name.startswith("neg_"):
        return -math.inf, 0.0
    return None


def is_name_of_loss(name: str) -> bool:
    """Return whether the name of a score is that of a loss.

    >>> [is_name_of_loss(name) for name in ("loss", "meanAbsoluteError", "rmse", "neg_log_loss", "glossary")]
    [True, True, True, False, False]
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower().replace("_", " ").split()
    return any(word.endswith(LOSSES) for word in words) and not set(words) & set(NO_LOSSES)


@dataclass(frozen=True)
class Scores:
    """One score per sample; or one score of all samples, with its variance."""

    values: np.ndarray
    variance: float | None = None

    @property
    def mean(self) -> float:
        """The score of all samples."""
        return float(self.values.mean())

    def sized(self, groups: np.ndarray) -> SizedScore:
        """Return the mean with its sampling variance, for as many training samples.

        Args:
            groups: Group of each sample.
        """
        if self.variance is not None:
            variance = self.variance
        elif len(self.values) != len(groups):
            variance = 0.0  # one score of all samples, whose variance was not asked for
        else:
            variance = variance_of_mean(self.values, groups)
        return SizedScore(len(groups), self.mean, variance)


def block_jackknife(
    score: Callable[[np.ndarray], float], rows: np.ndarray, groups: np.ndarray
) -> float:
    r"""Return the variance of a score of all rows by the delete-block jackknife.

    $\frac{b - 1}{b} \sum_j (\theta_{-j} - \bar\theta)^2$ over b = 10 random blocks of whole groups, with
    $\theta_{-j}$ the score without block j (Efron and Tibshirani 1993, chapter 11). Metrics such as the mean average
    precision are no means over samples, so that their variance has no closed form.

    Args:
        score: Returns the score of some rows.
        rows: Row numbers.
        groups: Group of each sample of all data.
    """
    names = np.random.default_rng(0).permutation(np.unique(groups[rows]))
    # ten blocks, by judgment: the variance has nine degrees of freedom
    blocks = np.array_split(names, min(10, len(names)))
    if len(blocks) < 2:
        return math.inf
    without = np.array([score(rows[~np.isin(groups[rows], block)]) for block in blocks])
    b = len(blocks)
    return float((b - 1) / b * ((without - without.mean()) ** 2).sum())


def target_scales(targets: Any) -> np.ndarray:
    """Return the units of residuals of regression targets [n, ...] (`r_squared_scales`).

    Args:
        targets: The targets.

    Raises:
        InvalidInput: None of them varies.
    """
    scales = r_squared_scales(targets)
    if not np.isfinite(scales).any():
        raise InvalidInput("Regression targets must differ; all are equal. Pass targets that vary.")
    return scales


def scales_of(samples: Samples) -> np.ndarray | None:
    """Return the units of residuals of regression targets (None for labels)."""
    if samples.kind != "regression":
        return None
    return target_scales(samples.y.cpu().double().numpy())


def constant_targets_note(data: Any) -> tuple[str, ...]:
    """Return a sentence on targets that are constant, beside others that vary.

    Args:
        data: Samples, or regression targets [n, ...].
    """
    if isinstance(data, Samples):
        if data.kind != "regression":
            return ()
        data = data.y.cpu().double().numpy()
    constant = np.flatnonzero(np.isinf(r_squared_scales(data)))
    if not len(constant):
        return ()
    listed = ", ".join(map(str, constant[:5]))
    return (f"R^2 is the mean over targets that vary; all values of target {listed} are equal.",)


def base_rate_note(labels: np.ndarray) -> str:
    """Return a sentence on the accuracy per label of a constant answer.

    Args:
        labels: Several labels of each sample, [n, K].
    """
    counts = [np.unique(column, return_counts=True)[1].max() for column in labels.T]
    base = float(np.mean(counts)) / len(labels)
    return f"The most frequent value of each label alone has an accuracy per label of {percent(base, 1)}."


def scores_of_predictions(
    predictions: Tensor, samples: Samples, scales: np.ndarray | None
) -> np.ndarray:
    """Return each sample's score, given predictions [n, C] or [n, k]; of several labels, the fraction that is right."""
    targets = samples.y.cpu()
    if samples.kind == "multi-label":
        return ((predictions.cpu() > PRESENT) == targets).double().mean(1).numpy()
    if samples.is_classification:
        return (predictions.argmax(1).cpu() == targets).double().numpy()
    assert scales is not None
    residuals = predictions.cpu() - targets.double().reshape(len(targets), -1)
    return 1 - ((residuals.numpy() / scales) ** 2).sum(1)


def check_score_arguments(score: Callable[..., Any], name: str) -> None:
    """Raise InvalidInput for a function that does not take (object, inputs, targets), such as a metric (y, predicted).

    Args:
        score: The function.
        name: Its name.

    Raises:
        InvalidInput: The message has the name of scikit-learn's scorer of the metric, if there is one.
    """
    try:
        signature = inspect.signature(score)
    except (TypeError, ValueError):  # a function of another language
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        listed = ", ".join(signature.parameters)
        advice = "Wrap it, such as lambda model, x, y: metric(y, model.predict(x))."
        if scorer := _scorer_name(score):
            advice = f"Pass the name of its scorer, score={scorer!r}; or a function."
        raise InvalidInput(
            f"score must be a function (object, inputs, targets); {name} takes ({listed}). {advice}"
        ) from None


def _scorer_name(metric: Any) -> str:
    """Return the name of the scorer of a metric of scikit-learn; empty without one."""
    if not str(getattr(metric, "__module__", "")).startswith("sklearn."):
        return ""
    from sklearn.metrics import get_scorer, get_scorer_names

    names: Any = get_scorer_names()
    found = (each for each in names if getattr(get_scorer(each), "_score_func", None) is metric)
    return next(found, "")


def scorer_of(name: str) -> Any:
    """Return a scorer of scikit-learn.

    Args:
        name: Its name.

    Raises:
        InvalidInput: There is none of this name.
    """
    from difflib import get_close_matches

    from sklearn.metrics import get_scorer, get_scorer_names

    names: Any = get_scorer_names()
    if name not in names:
        close = (
            ", ".join(map(repr, get_close_matches(name, names, 3, 0.5)))
            or "sklearn.metrics.get_scorer_names()"
        )
        raise InvalidInput(
            f"score={name!r} is no scorer of scikit-learn. Pass one of {close}, or a function."
        )
    return get_scorer(name)
