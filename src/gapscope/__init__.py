"""Measure, monitor, predict and improve how a neural network generalizes.

Public names are loaded when they are first used: `import gapscope` alone loads nothing heavy.
"""

import warnings
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [*__all__, "__version__"]  # noqa: F822 (given by `__getattr__`)


# public names of 0.4, kept for one release
RENAMED = {"prediction": "gap"}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name == "__version__":
        from gapscope.base.environment import version

        return version()
    if name in __all__:
        return _load(name)
    if name in RENAMED:
        warnings.warn(f"gapscope.{name} is now gapscope.{RENAMED[name]}.", DeprecationWarning, stacklevel=2)
        return _load(RENAMED[name])
    from gapscope.base.errors import did_you_mean

    raise AttributeError(f"gapscope has no public name {name!r}.{did_you_mean(name, __all__)}")
