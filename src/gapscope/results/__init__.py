"""Results of public functions: text, tables, JSON and plots, with progress display."""
