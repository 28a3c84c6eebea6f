"""Bootstrap and conformal intervals, kernel ridge regression, and kernel baselines."""
