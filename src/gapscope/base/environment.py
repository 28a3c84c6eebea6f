"""Versions and machine, as results keep them."""

from __future__ import annotations

import platform
from typing import Any

from gapscope.base.version import version


def environment() -> dict[str, Any]:
    """Versions of gapscope, torch, numpy and Python, the machine, and the number of threads."""
    import numpy
    import torch

    return {
        "gapscope": version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }
