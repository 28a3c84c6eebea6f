"""What tests of studies share: the studies at smoke scale, and networks that are trained in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from smoke_studies import SmokeStudy, shared_folder


@pytest.fixture(scope="module", autouse=True)
def _no_processes(without_workers: None) -> None:
    """Starting a worker takes longer than all networks of a part at smoke scale."""


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SmokeStudy]:
    """A study by its name."""
    folder = shared_folder(tmp_path_factory) / "smoke-studies"
    return cache(lambda name: SmokeStudy(name, folder / name))
