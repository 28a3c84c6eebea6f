"""Version of the installed package."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the version of the installed package, "unknown" if not installed."""
    try:
        return metadata.version("gapscope")
    except metadata.PackageNotFoundError:
        return "unknown"
