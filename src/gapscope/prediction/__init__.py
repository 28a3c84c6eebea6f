"""Accuracy on new data: before training, after training, from partial training runs, and from other networks."""

import lazy_loader

# scikit-learn, which GapEstimator derives from, takes 1.5 s to import
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
