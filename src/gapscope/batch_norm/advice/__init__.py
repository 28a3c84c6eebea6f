"""Advice that a user can take, estimated from a network and its training data."""
