"""Numbers on a second device equal the CPU's, wherever network, data and labels are; the device is simulated."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("second device"),
    pytest.mark.skipif(
        shutil.which("c++") is None, reason="no C++ compiler to build the simulated device with"
    ),
]
TESTS = Path(__file__).parents[1]
# a growth in copies by fewer than one per four samples: a larger data set may be cut into more parts
SAMPLES = (40, 80)
MAX_GROWTH = 10


def output(*arguments: str) -> str:
    """What Python prints in a process of its own: a registered device stays."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for ninja
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PATH": tools, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=TESTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(module: str, *arguments: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in output("-m", module, *arguments).splitlines()
        if line.startswith("{")
    ]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return run("second_device.battery")


def differences(row: dict[str, Any]) -> list[str]:
    cpu, device = row["cpu"], row["device"]
    if "error" in cpu or "error" in device:
        if cpu.get("error") == device.get("error"):
            return []  # the call does not apply to the network, here as there
        # as in PyTorch, a step of a user's own loop needs its batch where the network is
        is_apart = row["placement"] != "all on the device"
        is_own_step = row["call"].startswith("penalty") and is_apart and "error" not in cpu
        return (
            [] if is_own_step and "RuntimeError" in device["error"] else [f"{cpu} against {device}"]
        )
    return [
        f"{name}: {value} against {device['numbers'].get(name)}"
        for name, value in cpu["numbers"].items()
        if not math.isclose(value, device["numbers"][name], rel_tol=1e-4, abs_tol=1e-6)
        and not (math.isnan(value) and math.isnan(device["numbers"][name]))
    ]


def test_numbers_equal_those_of_the_cpu(rows: list[dict[str, Any]]) -> None:
    wrong = {
        f"{row['call']}, {row['placement']}": differences(row) for row in rows if differences(row)
    }
    assert not wrong, json.dumps(wrong, indent=1)


def test_most_calls_return_numbers(rows: list[dict[str, Any]]) -> None:
    """Else equal errors would pass for equal numbers."""
    answered = [row for row in rows if "numbers" in row["device"]]
    assert len(answered) > 0.9 * len(rows) > 200


def test_a_wrong_number_would_be_seen(rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["call"] == "measure ntk_trace, batch norm")
    value = row["cpu"]["numbers"]["ntk_trace"]
    assert differences(row | {"device": {"numbers": {"ntk_trace": 1.01 * value}}})


def test_no_measure_copies_per_sample() -> None:
    small, large = (run("second_device.copies", str(n)) for n in SAMPLES)
    growth = {
        row["measure"]: after["copies"] - row["copies"]
        for row, after in zip(small, large, strict=True)
    }
    assert len(growth) > 40 and not {
        name: count for name, count in growth.items() if count > MAX_GROWTH
    }


def test_the_simulated_device_tells_the_devices_apart() -> None:
    program = (
        "from second_device.device import load; copies = load().copies; import torch;"
        "a = torch.ones(3, device='second'); before = copies(); float(a.sum()); print(copies() - before)\n"
        "try: a + torch.ones(3)\nexcept RuntimeError: print('apart')\n"
        "import copy\ntry: copy.deepcopy(a)\nexcept RuntimeError: print('no copy of the storage')"
    )
    assert output("-c", program).splitlines() == ["1", "apart", "no copy of the storage"]
