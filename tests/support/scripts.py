"""Python files outside packages, loaded as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load_script(path: str | Path) -> Any:
    """Return the module of a file that no package holds."""
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
