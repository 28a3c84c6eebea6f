"""Second opinion about label errors: that of a random forest, which is unlike kernels and boosted trees.

The method of the smallest cross-entropy judges its own mistakes: where it is wrong with confidence, its noise model
takes correct labels for errors. A forest is wrong elsewhere. What its confident predictions contradict bounds the
errors, and a precision is promised only if the forest, too, holds some of the flagged labels for errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.random_streams import make_generator
from gapscope.base.randomness import derive_seed
from gapscope.labels.error_model import LOG_TEMPERATURES, confident_errors, error_probabilities
from gapscope.statistics.canonical_order import canonical_order, numbered_by_first_row
from gapscope.statistics.leave_group_out import N_FOLDS

# Trees and samples per leaf: held-out probabilities of 100 trees are smooth enough for the noise model; a leaf of one
# sample makes them less so. By judgment.
TREES, LEAF = 100, 2
# Rows that the forest sees: 1.5 CPU s for ten columns. With less than three seconds left, fewer.
MAX_ROWS, FEW_ROWS, MIN_SECONDS = 5000, 2000, 3.0
# values of the features that it sees, in memory some 0.4 GB
MAX_VALUES = 50_000_000


@dataclass(frozen=True)
class SecondOpinion:
    """What the forest holds of a part of the labels, by out-of-bag predictions.

    Attributes:
        rows: Rows of the part, [m].
        error: Probability of an error, [m].
        confident: Fraction of labels that its confident predictions contradict.
        accuracy: Fraction of labels that it predicts.
    """

    rows: Int[Tensor, " m"]
    error: Float[Tensor, " m"]
    confident: float
    accuracy: float


def forest_opinion(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"] | None = None,
    *,
    seed: int,
    seconds: float,
) -> SecondOpinion:
    """Fit a random forest to at most 5,000 rows, and return what it holds of their labels.

    Rows and columns are sorted by their values, so that their order does not decide what the forest holds.

    Args:
        features: Features of the samples.
        labels: Given labels.
        groups: Group of each sample. Five forests then predict the groups that they were not fitted to, in place of the
            out-of-bag samples of one, whose groups are in the bag.
        seed: Seed of the rows and the forest.
        seconds: CPU seconds that are left; with less than three, the forest sees at most 2,000 rows.
    """
    from sklearn.ensemble import RandomForestClassifier

    oob_score = groups is None
    if seconds >= MIN_SECONDS:
        most = MAX_ROWS
    else:
        most = FEW_ROWS
    most = max(min(most, MAX_VALUES // features.shape[1]), 1)
    generator = make_generator(seed, "second opinion")
    by_rows, by_columns = canonical_order(features.cpu(), labels.cpu())
    rows = by_rows[torch.randperm(len(labels), generator=generator)[:most]]
    classes, codes = labels.cpu()[rows].unique(return_inverse=True)
    forest = RandomForestClassifier(
        TREES,
        min_samples_leaf=LEAF,
        oob_score=oob_score,
        random_state=derive_seed(seed, "forest") % 2**32,
    )
    inputs = features.cpu()[rows][:, by_columns].float().numpy()
    if groups is None:
        forest.fit(inputs, codes.numpy())
        # a row that every tree has seen has no prediction
        probabilities = np.nan_to_num(forest.oob_decision_function_, nan=1 / len(classes))
    else:
        probabilities = _of_other_groups(
            forest, inputs, codes.numpy(), numbered_by_first_row(groups.cpu()[rows])
        )
    # no vote of a hundred trees is less than this
    scores = torch.as_tensor(probabilities).clamp_min(1e-3).log()
    found = error_probabilities(scores, codes, LOG_TEMPERATURES)
    accuracy = float((scores.argmax(1) == codes).double().mean())
    return SecondOpinion(rows, found.error, confident_errors(scores, codes), accuracy)


def _of_other_groups(forest: Any, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the probabilities [n, classes] of forests that were fitted without the groups they predict."""
    from sklearn.model_selection import GroupKFold

    probabilities = np.zeros((len(x), int(y.max()) + 1))
    folds = GroupKFold(min(N_FOLDS, len(np.unique(groups))))
    for train, test in folds.split(x, y, groups):
        forest.fit(x[train], y[train])
        # a class may have no row in the other folds
        probabilities[test[:, None], np.asarray(forest.classes_)] = forest.predict_proba(x[test])
    return probabilities
