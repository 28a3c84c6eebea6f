"""How training went, and its gradients at the end."""
