"""Out-of-fold class probabilities of boosted trees, for tables."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.statistics.leave_group_out import N_FOLDS

# One tree per class and iteration: with more classes or columns, trees cost more than all kernels.
MAX_CLASSES, MAX_COLUMNS = 5, 100

# Iterations of boosting: the default of scikit-learn.
ITERATIONS = 100

# Rows of fits of few trees, whose times tell that of all: of 300 to 12,000 rows of 60 columns within two
# fifths. No fit is timed with less than a second left.
TIMED_ROWS, MIN_SECONDS = 8000, 1.0


def out_of_fold_log_probabilities(
    samples: Samples,
    labels: Int[Tensor, " n"],
    n_classes: int,
    *,
    seed: int,
    seconds: float = math.inf,
) -> Float[Tensor, "n c"] | None:
    """Return logarithms of out-of-fold probabilities, or None if the inputs are no table of moderate size.

    None too if five fits would take longer than `seconds`, by the times of two small ones.

    Trees are `sklearn.ensemble.HistGradientBoostingClassifier` with its defaults, in five stratified folds.

    Args:
        samples: Samples; only inputs [n, d] of floating point are a table.
        labels: Labels 0 to C - 1.
        n_classes: Number of classes C.
        seed: Seed of the folds and the trees.
        seconds: CPU seconds that may be used.
    """
    inputs = samples.inputs
    is_table = inputs.ndim == 2 and inputs.is_floating_point() and samples.has_one_input
    # the number of samples by judgment, for the time of five fits
    if (
        not is_table
        or inputs.shape[1] > MAX_COLUMNS
        or n_classes > MAX_CLASSES
        or len(inputs) > 200_000
    ):
        return None
    # with fewer samples in the smallest class, some folds would have none of it
    if int(labels.bincount(minlength=n_classes).min()) < N_FOLDS:
        return None
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits

    x, y = inputs.detach().double().cpu().numpy(), labels.cpu().numpy()
    random_state = derive_seed(seed, "boosted trees") % 2**32
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=random_state)
    probabilities = np.zeros((len(x), n_classes))
    # Threads of OpenMP wait without sleeping: beside another process, two are some 50 times as slow as one.
    with threadpool_limits(1):
        if math.isfinite(seconds) and (
            seconds < MIN_SECONDS or _expected_seconds(x, y, random_state) > seconds
        ):
            return None
        for train, test in folds.split(x, y):
            trees = HistGradientBoostingClassifier(max_iter=ITERATIONS, random_state=random_state)
            trees.fit(x[train], y[train])
            probabilities[test] = trees.predict_proba(x[test])
    # trees without noise would give a single surprising label an infinite loss
    return torch.as_tensor(probabilities).clamp_min(1e-4).log()


def _expected_seconds(x: Any, y: Any, random_state: int) -> float:
    """Return the CPU seconds of five fits to four fifths of the rows, from few iterations on few rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    order = np.random.default_rng(0).permutation(len(x))
    n = min(len(x), TIMED_ROWS)

    def timed(iterations: int) -> float:
        start = time.process_time()
        trees = HistGradientBoostingClassifier(max_iter=iterations, random_state=random_state)
        trees.fit(x[order[:n]], y[order[:n]])
        return time.process_time() - start

    timed(1)  # the first fit of a process takes longer
    few, more = timed(2), timed(6)
    per_iteration = max(more - few, 0.0) / 4
    return N_FOLDS * (few + (ITERATIONS - 2) * per_iteration) * len(x) / n
