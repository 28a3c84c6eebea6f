"""Look at a network without leaving a trace: outputs, losses, hooks, streaming moments."""
