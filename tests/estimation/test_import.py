"""Estimation and report never load torch."""

from __future__ import annotations

import subprocess
import sys


def _loads_torch(modules: str) -> bool:
    program = f"import sys, {modules}; sys.exit(7 if 'torch' in sys.modules else 0)"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 7


def test_torch_is_not_loaded() -> None:
    assert not _loads_torch("gapscope.estimation, gapscope.report")


def test_the_check_can_fail() -> None:
    assert _loads_torch("types; sys.modules['torch'] = types")
