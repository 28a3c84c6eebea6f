"""One self-contained HTML page from records (never torch)."""
