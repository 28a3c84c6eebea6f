"""Foundations: errors, files, samples, specs, options, randomness."""
