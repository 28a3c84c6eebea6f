"""Copies between host and device of every measure for a number of samples, on the simulated device, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings

import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import NotMeasurable
from second_device.battery import HISTORY
from second_device.device import load

if __name__ == "__main__":
    copies, n = load().copies, int(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    network = nn.Sequential(*layers).to("second")
    state = network.state_dict()
    initial = {
        name: 0.9 * part if part.is_floating_point() else part for name, part in state.items()
    }
    data = torch.randn(n, 1, 8, 8).to("second"), (torch.arange(n) % 3).to("second")
    for name in gs.list_measures():
        before = copies()
        with contextlib.suppress(NotMeasurable):  # a power law needs more layers
            gs.measure(
                network, data, [name], initial_state=initial, history=HISTORY, time_budget=None
            )
        print(json.dumps({"measure": name, "copies": copies() - before}))
