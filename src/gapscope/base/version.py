"""The version, which stands in pyproject.toml alone."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Version of the installed package; "unknown" where the source is used without being installed."""
    try:
        return metadata.version("gapscope")
    except metadata.PackageNotFoundError:
        return "unknown"
