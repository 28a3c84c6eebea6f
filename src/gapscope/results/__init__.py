"""Results of every public function: text, tables, JSON, plots, and progress while they are computed."""
