"""Warnings that point to the line of the user's program."""

from __future__ import annotations

import inspect
import warnings

# Packages between the line of a user and the warning: calls of networks, context managers, trainers.
INTERMEDIATE = ("gapscope", "torch", "contextlib", "lightning", "transformers")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is none of gapscope.

    Args:
        text: What happened, and what to do.
        category: Class of the warning.
    """
    frame = inspect.currentframe()
    level = 1
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in INTERMEDIATE:
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)
