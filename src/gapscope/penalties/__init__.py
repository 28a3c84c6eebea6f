"""One regulariser a file."""
