"""Versions, devices and imports of the environment."""

from __future__ import annotations

import importlib
import pkgutil
import platform
from datetime import date
from importlib import metadata
from typing import Any

from gapscope.base.errors import DeviceNotFound, first_line


def check_device(name: str) -> None:
    """Raise DeviceNotFound unless tensors can be created on the device."""
    import torch

    try:
        usable = torch.empty(1, device=torch.device(name)).device.type != "meta"
        reason = "it holds no numbers"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = False
        reason = first_line(error)
    if not usable:
        raise DeviceNotFound(
            f"device must be one that torch can use on this machine, such as 'cpu'; got {name!r} ({reason})."
        )


def version() -> str:
    """Return the version of the installed package, "unknown" if not installed."""
    try:
        return metadata.version("gapscope")
    except metadata.PackageNotFoundError:
        return "unknown"


def environment(device: str = "") -> dict[str, Any]:
    """Return versions, machine and threads (with `device` also its name and the date)."""
    import numpy
    import torch

    timing: dict[str, Any] = {}
    if device:
        processor = platform.processor() or platform.machine()
        timing["device"] = processor if device == "cpu" else torch.cuda.get_device_name(device)
        timing["date"] = date.today().isoformat()
    return timing | {
        "gapscope": version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def import_all(package: str) -> None:
    """Import all modules of a package, recursively."""
    module = importlib.import_module(package)
    for item in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(item.name)
