"""Inspection of networks without side effects.

Common parameters: `network` is the network in the mode in which it is to be evaluated, `x` its inputs [n, ...],
`samples` inputs with targets, `chunk_size` the samples per forward pass (without effect beyond rounding; None for as
many as memory allows).
"""
