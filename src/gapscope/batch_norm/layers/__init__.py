"""Layers that take batch normalisation apart, one idea a file."""
