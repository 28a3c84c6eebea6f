"""Import of all modules of a package, to run their registrations."""

from __future__ import annotations

import importlib
import pkgutil


def import_all(package: str) -> None:
    """Import all modules of a package, recursively."""
    module = importlib.import_module(package)
    for item in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(item.name)
