"""Out-of-fold class probabilities of boosted trees, for tables."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.budget import BudgetSpent, CpuBudget, cpu_seconds
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.statistics.canonical_order import canonical_order, numbered_by_first_row
from gapscope.statistics.leave_group_out import N_FOLDS

# One tree per class and iteration: with more classes or columns, trees cost more than all kernels. There a forest alone
# is the second opinion (`gapscope.labels.second_opinion`).
MAX_CLASSES, MAX_COLUMNS = 5, 100

# Iterations of boosting: the default of scikit-learn.
ITERATIONS = 100

# Rows of fits of few trees, whose times tell that of all: of 300 to 12,000 rows of 60 columns within two
# fifths. No fit is timed with less than a second left.
TIMED_ROWS, MIN_SECONDS = 8000, 1.0

# Rows that each of the five fits sees at most, for the time. With so many, a clean but hard table of 250,000 rows is
# not taken for one with errors (at most 21 %, none flagged; by the linear ridge 32,723 flagged).
FITTED_ROWS = 40_000


def _apply(samples: Samples, labels: Int[Tensor, " n"], n_classes: int) -> bool:
    """Return whether the inputs are a table of few columns, with few classes that all folds can have."""
    inputs = samples.inputs
    is_table = inputs.ndim == 2 and inputs.is_floating_point() and samples.has_one_input
    if not is_table or inputs.shape[1] > MAX_COLUMNS or n_classes > MAX_CLASSES:
        return False
    # with fewer samples in the smallest class, some folds would have none of it
    return int(labels.bincount(minlength=n_classes).min()) >= N_FOLDS


def out_of_fold_log_probabilities(
    samples: Samples,
    labels: Int[Tensor, " n"],
    n_classes: int,
    *,
    seed: int,
    groups: Int[Tensor, " n"] | None = None,
    budget: CpuBudget | None = None,
) -> Float[Tensor, "n c"] | None:
    """Return logarithms of out-of-fold probabilities, or None if the inputs are no table of few columns and classes.

    Trees are `sklearn.ensemble.HistGradientBoostingClassifier` with its defaults, in five stratified folds. Each is
    fitted to at most 40,000 of the rows of the other folds. Rows and columns are sorted by their values first, so that
    their order decides nothing.

    Args:
        samples: Samples; only inputs [n, d] of floating point are a table.
        labels: Labels 0 to C - 1.
        n_classes: Number of classes C.
        seed: Seed of the folds and the trees.
        groups: Group of each sample, which the folds do not divide.
        budget: CPU seconds that may be used; None for no limit.

    Raises:
        BudgetSpent: Five fits would take longer than the budget, by the times of small ones.
    """
    if not _apply(samples, labels, n_classes):
        return None
    if groups is not None and int(groups.max()) + 1 < N_FOLDS:
        return None
    budget = budget or CpuBudget(None)
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
    from threadpoolctl import threadpool_limits

    inputs = samples.inputs.detach().cpu()
    labels = labels.cpu()
    by_rows, by_columns = canonical_order(inputs, labels)
    x = inputs[by_rows][:, by_columns].double().numpy()
    y = labels[by_rows].numpy()
    by_group = None if groups is None else numbered_by_first_row(groups.cpu()[by_rows])
    random_state = derive_seed(seed, "boosted trees") % 2**32
    divide = StratifiedKFold if groups is None else StratifiedGroupKFold
    folds = divide(N_FOLDS, shuffle=True, random_state=random_state)
    rng = np.random.default_rng(random_state)
    probabilities = np.zeros((len(x), n_classes))
    # Threads of OpenMP wait without sleeping: beside another process, two are some 50 times as slow as one.
    with threadpool_limits(1):
        if math.isfinite(budget.seconds):
            if budget.remaining < MIN_SECONDS:
                raise BudgetSpent(_shortage(budget, MIN_SECONDS, "at least"))
            needed = _expected_seconds(x, y, random_state)
            if not budget.affords(needed):
                raise BudgetSpent(_shortage(budget, needed, "about"))
        for train, test in folds.split(x, y, by_group):
            fitted = train
            if len(train) > FITTED_ROWS:
                fitted = rng.permutation(train)[:FITTED_ROWS]
            trees = HistGradientBoostingClassifier(max_iter=ITERATIONS, random_state=random_state)
            trees.fit(x[fitted], y[fitted])
            # a rare class may have no fitted row
            probabilities[by_rows[test][:, None], np.asarray(trees.classes_)] = trees.predict_proba(
                x[test]
            )
    # trees without noise would give a single surprising label an infinite loss
    return torch.as_tensor(probabilities).clamp_min(1e-4).log()


def _shortage(budget: CpuBudget, seconds: float, how: str) -> str:
    """Return the sentence about trees that the budget does not allow."""
    return (
        f"Boosted trees were omitted: they take {how} {cpu_seconds(seconds)} CPU s, and "
        f"{cpu_seconds(budget.remaining)} are left. Pass time_budget={budget.enough(seconds)}."
    )


def _expected_seconds(x: Any, y: Any, random_state: int) -> float:
    """Return the CPU seconds of five fits and of predictions of all rows, from few iterations on few rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    order = np.random.default_rng(0).permutation(len(x))
    n = min(len(x), TIMED_ROWS)
    rows = order[:n]

    def timed(iterations: int) -> tuple[float, float]:
        start = time.process_time()
        trees = HistGradientBoostingClassifier(max_iter=iterations, random_state=random_state)
        trees.fit(x[rows], y[rows])
        fit = time.process_time() - start
        trees.predict_proba(x[rows])
        return fit, time.process_time() - start - fit

    timed(1)  # the first fit of a process takes longer
    few, _ = timed(2)
    more, predict = timed(6)
    per_iteration = max(more - few, 0.0) / 4
    n_fitted = min(len(x), FITTED_ROWS)
    fits = N_FOLDS * (few + (ITERATIONS - 2) * per_iteration) * n_fitted / n
    return fits + predict * ITERATIONS / 6 * len(x) / n
