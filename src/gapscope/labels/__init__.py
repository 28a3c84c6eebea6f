"""Label noise rate, label errors, and canaries.

Common parameters:
    source: An untrained network, or None; or a `Monitor` of a run with canaries, its callback or its `CanaryAlarm`.
        Trained weights have fitted the labels to be checked and are not suitable.
    data: Training data with class labels or regression targets, in any form that `gapscope.measure` takes; None with a
        monitor.
    features: Embeddings [n, d] in place of a network and data.
    labels: Labels of the features or of `pred_probs`; strings are accepted.
    seed: Seed of the landmarks, the folds and the resampling.
    margins: Score of each sample's label less the largest other score.
    n_classes: Number of classes C.
    quantile: Fraction of the canaries whose margin must be below the threshold t.
    generator: Source of random numbers.
"""
