"""Predictions on changed inputs."""
