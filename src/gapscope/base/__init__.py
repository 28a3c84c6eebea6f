"""What everything stands on: errors, files, samples, records, specs, randomness (imports nothing else of gapscope)."""
