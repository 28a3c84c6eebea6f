"""Every public function on the CPU and on the simulated device; one JSON line per call.

Run it in a process of its own: `python -m second_device.battery [--table FILE] [CALL ...]`, with tests/ on the path.
Each call is made with everything on the device, with the data on the CPU, and with the labels alone on the CPU. Without
names, these are all calls of `test_every_verb`, every measure, penalty and alarm, and a pool.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gapscope as gs
from gapscope.penalties.base import make_penalty, penalties
from gapscope.pools.readings import RunOptions
from gapscope.pools.run import run
from gapscope.training.alarms.base import alarms

DEVICE = "second"
Numbers = Mapping[str, float]
Call = Callable[[nn.Module, Any], Numbers]
PLACEMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "all on the device": lambda x, y: (x.to(DEVICE), y.to(DEVICE)),
    "data on the CPU": lambda x, y: (x, y),
    "labels on the CPU": lambda x, y: (x.to(DEVICE), y),
    "labels on the device": lambda x, y: (x, y.to(DEVICE)),
}
# the smallest network with batch norm has all placements and all measures, the others what differs with the layers
ALL_PLACEMENTS = ("mlp", "batch norm")
SUBJECTS = (*ALL_PLACEMENTS, "lenet5", "resnet18", "attention", "gru")
HALF_PRECISION = (
    "measure", "forecast_accuracy", "Monitor", "record_network", "embed", "out_of_sample", "check", "train",
)  # fmt: skip
HISTORY = [{"epoch": 1, "train_loss": 1.0, "train_accuracy": 0.5, "seconds": 1.0}]


class LastOfGRU(nn.Module):
    """A GRU over 6 steps of 5 numbers, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(5, 8), layer, nn.Flatten(), nn.Linear(48, 3))


SEQUENCES: dict[str, Callable[[], nn.Module]] = {"attention": _attention, "gru": LastOfGRU}


def made(subject: str) -> Any:
    """A network with its data."""
    from test_every_verb import SUBJECTS as MAKERS
    from test_every_verb import _of_tensor

    if subject not in SEQUENCES:
        return MAKERS[subject]()
    torch.manual_seed(0)
    return _of_tensor(SEQUENCES[subject](), 6, 5)


def _embedded(network: nn.Module, data: Any) -> Numbers:
    features = gs.embed(network, data)
    return {"sum": float(features.sum()), "norm": float(features.norm())}


def _measure(name: str) -> Call:
    def measured(network: nn.Module, data: Any) -> Numbers:
        state = network.state_dict()
        initial = {
            key: 0.9 * part if part.is_floating_point() else part for key, part in state.items()
        }
        readings = gs.measure(
            network, data, [name], initial_state=initial, history=HISTORY, time_budget=None
        )
        return readings.values()

    return measured


def _penalty(name: str) -> Call:
    def penalized(network: nn.Module, data: Any) -> Numbers:
        network.train()
        value = make_penalty(name, {"strength": 0.1})(network, *data)
        value.backward()
        squares = [float(p.grad.square().sum()) for p in network.parameters() if p.grad is not None]
        return {"value": float(value), "gradient": math.sqrt(sum(squares))}

    return penalized


def _alarm(name: str) -> Call:
    def watched(network: nn.Module, data: Any) -> Numbers:
        monitor = gs.Monitor(data, ["loss"], alarm=name, n_samples=40)
        gs.train(network, data, gs.TrainingSpec(epochs=2, batch_size=20), on_epoch=monitor)
        return {
            key: value for key, value in monitor.observe(network, 3).items() if "second" not in key
        }

    return watched


def calls(subject: str) -> dict[str, Call]:
    """The calls that one kind of network is put through, by name."""
    from test_every_verb import FUNCTIONS, HAS_BATCH_NORM, OF_BATCH_NORM

    result: dict[str, Call] = {
        name: call
        for name, call in FUNCTIONS.items()
        if subject in HAS_BATCH_NORM or name not in OF_BATCH_NORM
    }
    result["embed"] = _embedded
    if subject == "batch norm":
        result |= {f"measure {name}": _measure(name) for name in gs.list_measures()}
        # that of dropout has no value; canaries are made of samples
        result |= {
            f"penalty {name}": _penalty(name) for name in penalties() if name != "automatic_dropout"
        }
        result |= {f"alarm {name}": _alarm(name) for name in alarms() if name != "canaries"}
    return result


def _pool(device: str) -> Numbers:
    """A run of a pool in this process: the workers of `Pool.run` do not know the device."""
    spec = gs.RunSpec.from_dict(
        {"data": {"name": "digits"}, "network": {"name": "small_cnn"}, "training": {"epochs": 1}}
    )
    with tempfile.TemporaryDirectory() as folder:
        record = run(spec, Path(folder), RunOptions(measures=("ntk_trace", "loss"), device=device))
    assert record.status == "finished", record.message
    return dict(record.scores) | record.readings.values()


def _result(call: Callable[[], Numbers], copies: Callable[[], int]) -> dict[str, Any]:
    """Numbers and copies of one call, or its error."""
    before = copies()
    try:
        torch.manual_seed(0)
        return {
            "numbers": {name: float(value) for name, value in call().items()},
            "copies": copies() - before,
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def results(chosen: list[str], copies: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Each call's name, placement, and results on the CPU and on the device."""
    for subject in SUBJECTS:
        one = made(subject)
        placements = (
            PLACEMENTS
            if subject in ALL_PLACEMENTS
            else {"all on the device": PLACEMENTS["all on the device"]}
        )
        for name, call in calls(subject).items():
            if chosen and name not in chosen:
                continue

            def result(network: nn.Module, x: Any, y: Any, call: Call = call) -> dict[str, Any]:
                return _result(lambda: call(network, (x, y)), copies)

            cpu = result(copy.deepcopy(one.network), one.x, one.y)
            for placement, place in placements.items():
                device = result(copy.deepcopy(one.network).to(DEVICE), *place(one.x, one.y))
                yield {
                    "call": f"{name}, {subject}",
                    "placement": placement,
                    "cpu": cpu,
                    "device": device,
                }
            if subject == "mlp" and name in HALF_PRECISION:
                half, x = copy.deepcopy(one.network).half(), one.x.half()
                cpu, device = (
                    result(copy.deepcopy(half), x, one.y),
                    result(half.to(DEVICE), x.to(DEVICE), one.y.to(DEVICE)),
                )
                yield {
                    "call": f"{name}, {subject}",
                    "placement": "half precision",
                    "cpu": cpu,
                    "device": device,
                }
    if not chosen or "Pool.run" in chosen:
        cpu, device = _result(lambda: _pool("cpu"), copies), _result(lambda: _pool(DEVICE), copies)
        yield {"call": "Pool.run", "placement": "all on the device", "cpu": cpu, "device": device}


def main(arguments: list[str]) -> None:
    """Print the results; with `--table FILE` also write how often each call copies between the devices."""
    from second_device.device import load

    copies = load().copies
    warnings.simplefilter("ignore")
    table = Path(arguments[1]) if arguments[:1] == ["--table"] else None
    lines = ["| call | copies between host and device |", "|---|---|"]
    for row in results(arguments[2 * (table is not None) :], copies):
        print(json.dumps(row), flush=True)
        if row["placement"] == "all on the device" and "copies" in row["device"]:
            lines.append(f"| {row['call']} | {row['device']['copies']:,} |")
    if table:
        heading = "# Copies between host and device per call, counted on a simulated device (60 samples)\n\n"
        table.write_text(heading + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
