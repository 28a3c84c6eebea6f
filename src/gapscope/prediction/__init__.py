"""Accuracy on new data: forecasts, estimates, learning curves, and gap estimators.

Common parameters:
    network: The network; it stays as it is.
    data, samples: Training data with targets, in any form that `gapscope.measure` takes.
    initial_state: State dictionary before training.
    max_exact: Number of samples up to which the NTK is exact.
    landmarks: Number of random samples that approximate it beyond.
    chunk_size: Samples per pass; None: as many as memory allows, up to a maximum.
    seed: Seed of all random numbers.
    data_root, root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache.
    records, table: Records of a pool, or one row per network as from `records_to_pandas`.
    X: Readings of networks (and the other columns that a parameter names), one row per network.
    target: Column that is estimated.
    level: Nominal coverage of the intervals.
    n_bootstrap: Number of resamples per interval.
    on_fit: Called after each fit with the numbers of fits done and of all.
"""

import lazy_loader

# scikit-learn, which GapEstimator derives from, takes 1.5 s to import
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
