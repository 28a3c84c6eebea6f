"""Gradients of the outputs by the weights, layer by layer, without ever forming the whole Jacobian."""
