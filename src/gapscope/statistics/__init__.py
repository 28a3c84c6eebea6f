"""Bootstrap and conformal intervals, kernel ridge regression, and baselines without a network."""
