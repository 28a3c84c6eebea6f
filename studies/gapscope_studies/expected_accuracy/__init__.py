"""What accuracy to expect from training data alone: the pools behind the shipped estimate, and its judgement."""
