"""How the loss rises around the weights."""
