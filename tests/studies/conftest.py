"""What tests of studies share: the studies at smoke scale, and networks that are trained in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from gapscope_studies.kit.statistics import bootstrap
from support.smoke_studies import SmokeStudy, shared_folder


@pytest.fixture(scope="module", autouse=True)
def _no_processes(without_workers: None) -> None:
    """Starting a worker takes longer than all networks of a part at smoke scale."""


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at values and not at their intervals."""
    monkeypatch.setattr(bootstrap, "__kwdefaults__", {"draws": 100, "seed": 0})


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SmokeStudy]:
    """A study by its name."""
    folder = shared_folder(tmp_path_factory) / "smoke-studies"
    return cache(lambda name: SmokeStudy(name, folder / name))
