"""One family of layers a file; importing this package registers them all."""

from gapscope.gradients.rules import convolution, embedding, linear, normalization, prelu

__all__ = ["convolution", "embedding", "linear", "normalization", "prelu"]
