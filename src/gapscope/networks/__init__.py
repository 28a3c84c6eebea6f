"""The architectures of the papers, built by name."""
