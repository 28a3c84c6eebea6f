"""Accuracy on new data: forecasts, estimates, learning curves, held-out predictions, and rankings of networks.

Common parameters:
    network: The network; it stays as it is.
    data, samples: Training data with targets, in any form that `gapscope.measure` takes.
    initial_state: State dictionary before training.
    max_exact: Number of samples up to which the NTK is exact.
    landmarks: Number of random samples that approximate it beyond.
    chunk_size: Samples per pass; None: as many as memory allows, up to a maximum.
    seed: Seed of all random numbers.
    data_root, root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache.
    level: Nominal coverage of the intervals.
"""
