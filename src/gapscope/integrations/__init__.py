"""Callbacks and sinks for other frameworks (each file needs its own extra)."""
