"""Measure, watch, predict and improve how a neural network generalises, from its training data alone."""

__version__ = "0.1.0"
