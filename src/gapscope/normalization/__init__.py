"""Batch normalisation taken apart, and the decay that it amounts to."""
