"""Import every file of a package, so that what they register is there."""

from __future__ import annotations

import importlib
import pkgutil


def import_all(package: str) -> None:
    """Import all modules inside a package, those of its own packages too."""
    module = importlib.import_module(package)
    for item in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(item.name)
