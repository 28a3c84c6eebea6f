"""Versions and machine, as stored with results."""

from __future__ import annotations

import platform
from datetime import date
from typing import Any

from gapscope.base.version import version


def _processor(device: str) -> str:
    import torch

    return platform.processor() or platform.machine() if device == "cpu" else torch.cuda.get_device_name(device)


def environment(device: str = "") -> dict[str, Any]:
    """Return versions, machine and threads (with `device` also its name and the day)."""
    import numpy
    import torch

    timing = {"device": _processor(device), "date": date.today().isoformat()} if device else {}
    return timing | {
        "gapscope": version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }
