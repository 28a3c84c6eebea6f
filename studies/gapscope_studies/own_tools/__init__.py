"""Claims about gapscope's own tools, read from results that other programs have stored. Nothing is trained here."""
