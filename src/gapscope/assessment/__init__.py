"""Front doors, one verb a file: measure one network, compare several, rank architectures before training."""
