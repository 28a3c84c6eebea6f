"""Expected accuracy from training data: pools of the shipped estimate and its evaluation."""
