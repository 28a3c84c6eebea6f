"""Label noise rate, label errors, and canaries."""
