"""Variants of batch normalization, one per file."""
