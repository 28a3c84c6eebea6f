"""Foundations without other gapscope imports: errors, files, samples, specs, options, randomness."""
