"""Advice on batch norm, estimated from a network and its training data."""
