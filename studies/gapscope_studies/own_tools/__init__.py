"""Claims about gapscope's own tools from the stored results of other programs.

Nothing is trained here.
"""
