"""Settings of every test: one thread, so that two workers do not fight, and where the real data lie."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# workers of pytest-xdist get a width of 80; commands are tested as they print to a pipe
os.environ.pop("COLUMNS", None)

import jaxtyping
import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, settings

from support.shape_checks import check_anew

# a busy machine is no fault of the code
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
torch.set_num_threads(1)
# torch says some things once a process: a warning is then an error in whichever test happens to come first
torch.set_warn_always(True)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no search for garbage looks at it again."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Each test checks the shapes of its first calls, whichever tests ran before it."""
    check_anew()


@pytest.fixture(scope="session")
def pgdl() -> pandas.DataFrame:
    """CIFAR-10 networks of the PGDL competition, task 1: gap, hyperparameters (hp.*), measures (m.*)."""
    return pandas.read_csv(Path(__file__).parent / "fixtures" / "pgdl_task1_v4.csv")


def _data_root() -> Path:
    given = os.environ.get("GAPSCOPE_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(given) if given else beside


@pytest.fixture(autouse=True)
def _same_random_state() -> None:
    """Every test draws the same numbers, whichever tests ran before it in the same process."""
    torch.default_generator.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _monitors_record_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine recordings may take more than a tenth of the time: no test may depend on that."""
    monkeypatch.setattr("gapscope.training.recordings.FREE_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def _wrong_input_reaches_our_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and types of calls are not checked where a test expects an error: it gives wrong input on purpose."""
    raises: Any = pytest.raises

    @contextmanager
    def unchecked(*expected: Any, **options: Any) -> Iterator[Any]:
        checked = jaxtyping.config.jaxtyping_disable
        with raises(*expected, **options) as caught:
            jaxtyping.config.update("jaxtyping_disable", True)
            try:
                yield caught
            finally:
                jaxtyping.config.update("jaxtyping_disable", checked)

    monkeypatch.setattr(pytest, "raises", unchecked)


@pytest.fixture
def unchecked_shapes() -> None:
    """For tests that give what may be refused, and look whether our own sentence comes."""
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is made of the boosted trees of tables, whose fits take longer than all the rest."""
    monkeypatch.setattr("gapscope.labels.boosted_trees.ITERATIONS", 5)


@pytest.fixture(scope="module")
def without_workers() -> Iterator[None]:
    """Pools train their networks in this process: starting two workers costs more than all the rest."""
    from support.standins import in_this_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gapscope.pools.engines.run_local", in_this_process)
        yield


@pytest.fixture(scope="session")
def real_data_root() -> Path:
    """Folder of the real data sets; tests of their published numbers are skipped where it is absent."""
    root = _data_root()
    if not root.is_dir():
        pytest.skip("the real data sets are not on this machine (set GAPSCOPE_DATA)")
    return root


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the real data sets, or of stand-ins of the same layout and sizes."""
    from support.standin_data import write_standins

    root = _data_root()
    return root if root.is_dir() else write_standins(tmp_path_factory.mktemp("data"))
