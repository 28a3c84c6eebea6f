"""Norms of the weights."""
