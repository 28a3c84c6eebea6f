"""One measure a file; every file is found by the registry."""
