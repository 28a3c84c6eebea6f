"""Networks: LeNet-5, AlexNet, VGG, ResNet, MobileNet, fully connected and plain ones, and models of other packages."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapscope.networks.adapters import from_timm as from_timm
    from gapscope.networks.adapters import from_torchvision as from_torchvision
    from gapscope.networks.adapters import from_transformers as from_transformers
    from gapscope.networks.build import build as build
    from gapscope.networks.build import check_options as check_options
    from gapscope.networks.build import names as names
    from gapscope.networks.initialization import initialize as initialize

_HOMES = {
    "from_timm": "adapters",
    "from_torchvision": "adapters",
    "from_transformers": "adapters",
    "build": "build",
    "check_options": "build",
    "names": "build",
    "initialize": "initialization",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
