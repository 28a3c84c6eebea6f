"""Second derivatives of the loss at the weights."""
