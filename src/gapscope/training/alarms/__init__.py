"""Overfitting alarms: early-stopping criteria from training data, chosen by name."""
