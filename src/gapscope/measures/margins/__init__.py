"""Distances to the class boundary."""
