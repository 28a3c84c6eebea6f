"""Layers that take batch normalization apart, one idea a file."""
