"""Measure, monitor, predict and improve how a neural network generalizes.

Public names are loaded when they are first used: `import gapscope` alone loads nothing heavy.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [*__all__, "__version__"]  # noqa: F822 (given by `__getattr__`)


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name == "__version__":
        from gapscope.base.environment import version

        return version()
    if name in __all__:
        return _load(name)
    from gapscope.base.errors import did_you_mean
    from gapscope.base.renamed import new_name

    renamed = new_name("gapscope", name)
    if renamed is not None:
        return _load(renamed)

    raise AttributeError(f"gapscope has no public name {name!r}.{did_you_mean(name, __all__)}")
