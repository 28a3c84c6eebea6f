"""One paper, one file: the grid of its networks, its tables and figures, and the paper's numbers beside ours."""
