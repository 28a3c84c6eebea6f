"""Label noise: rates on clean but hard data, and on known rates."""
