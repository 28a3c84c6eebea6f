"""Import every file of a package, so that what they register is there."""

from __future__ import annotations

import importlib
import pkgutil


def import_all(package: str) -> None:
    """Import all modules directly inside a package."""
    module = importlib.import_module(package)
    for item in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{item.name}")
