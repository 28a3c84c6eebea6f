"""Versions and machine, as results and timings keep them."""

from __future__ import annotations

import json
from datetime import date

import torch

from gapscope.base.environment import environment


def test_a_timing_also_tells_processor_and_day() -> None:
    plain, timing = environment(), environment("cpu")
    assert timing.items() >= plain.items() and timing.keys() - plain.keys() == {"device", "date"}
    assert timing["device"] and date.fromisoformat(timing["date"]).year >= 2024
    assert plain["torch"] == torch.__version__ and plain["threads"] == torch.get_num_threads()
    assert json.loads(json.dumps(timing)) == timing
