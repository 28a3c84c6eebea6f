"""Gap estimators: the generalization gap from measures, fitted on networks whose gap is known.

Common parameters:
    records, table: Records of a pool, or one row per network as from `records_to_pandas`.
    X: Readings of networks (and the other columns that a parameter names), one row per network.
    target: Column that is estimated.
    level: Nominal coverage of the intervals.
    n_bootstrap: Number of resamples per interval.
    seed: Seed of all random numbers.
    on_fit: Called after each fit with the numbers of fits done and of all.
"""

import lazy_loader

# scikit-learn, which GapEstimator derives from, takes 1.5 s to import
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
