"""Gap estimators, cross-validation and rank protocols over tables of readings (never torch)."""
