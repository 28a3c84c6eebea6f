"""Type checker of `pytest --jaxtyping-packages=...,shape_checks.checked`: shapes and types of every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

checked: Callable[[Any], Any]
try:
    from beartype import BeartypeConf, beartype

    checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as PEP 484 has it
except ImportError:  # machines with a GPU may lack it; shapes are then not checked
    checked = lambda obj: obj  # noqa: E731
