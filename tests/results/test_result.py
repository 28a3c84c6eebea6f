"""Every result is a table, JSON and HTML, in the same way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.accuracy.forecast_result import AccuracyForecast
from gapscope.results.estimate import Estimate
from gapscope.results.readings import Reading, Readings
from gapscope.results.result import MAX_ROWS, Result, picture, to_builtin, to_html

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2
FEATURES = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))


def _network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)]
    network = nn.Sequential(*layers)
    network(X)
    return network.eval()


def _monitor() -> gs.Monitor:
    monitor = gs.Monitor((X, Y), ["parameter_count"])
    for epoch in (1, 2):
        monitor.observe(_network(), epoch)
    return monitor


def _ranking() -> Any:
    candidates = {f"{width}": gs.NetworkSpec(options={"width": width}) for width in (2, 4)}
    return gs.rank_networks(candidates, (X, Y), by="output_sensitivity", initializations=2)


RESULTS: dict[str, Callable[[], Any]] = {
    "Readings": lambda: gs.measure(_network(), (X, Y), ["parameter_count", "loss"]),
    "UnitSparsity": lambda: gs.functional.unit_sparsity(_network(), X, Y),
    "MarginSignature": lambda: gs.functional.margin_signature(_network(), X, Y),
    "GammaDecay": lambda: gs.batch_norm.gamma_decay(_network(), (X, Y), batch_size=4),
    "BatchNormExcess": lambda: gs.batch_norm.batch_norm_excess(
        _network(), (X, Y), batch_sizes=(4,), passes=2
    ),
    "BatchNormAdvice": lambda: gs.advise_batch_norm(_network(), (X, Y), batch_size=4, passes=2),
    "NetworkRanking": _ranking,
    "Monitor": _monitor,
    "AccuracyForecast": lambda: gs.forecast_accuracy(None, (X, Y)),
    "LabelIssues": lambda: gs.find_label_issues(None, (FEATURES, FEATURES[:, 0])),
    "LabelNoiseEstimate": lambda: gs.estimate_label_noise(None, (FEATURES, FEATURES[:, 0])),
    "HeldOutPredictions": lambda: gs.out_of_sample(None, (FEATURES, FEATURES[:, 0])),
}

# results with a row per sample or epoch, of which the text shows a part
SHORTENED = ("Monitor", "LabelIssues", "HeldOutPredictions")


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_a_table_and_json(name: str) -> None:
    result = RESULTS[name]()
    assert isinstance(result, Result) and type(result).__name__ == name
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame) and len(table)
    content = result.to_dict()
    assert content and all(isinstance(key, str) for key in content)
    # what json writes by itself; results that can be read again keep numbers that are not finite
    is_read_again = hasattr(result, "from_json") or hasattr(result, "load")
    assert json.dumps(json.loads(json.dumps(content))) == json.dumps(content)
    assert is_read_again or json.loads(json.dumps(content, allow_nan=False)) == json.loads(
        result.to_json()
    )
    assert json.loads(result.to_json()).keys() == content.keys()
    assert result.to_json(indent=1).count("\n") > 2
    page = result._repr_html_()
    assert page.lstrip().startswith(("<table", "<div"))
    if isinstance(result, AccuracyForecast):
        assert result.headline in page and "data:image/png;base64," in page
    assert len(repr(result).splitlines()) >= len(table) or name in SHORTENED


def test_plain_values() -> None:
    @dataclass
    class Inner:
        weights: torch.Tensor
        error: Estimate

    value = {
        1: Inner(torch.eye(2), Estimate(math.inf)),
        "b": (np.float64(2.5), np.arange(2), None, "text", True),
    }
    assert to_builtin(value) == {
        "1": {
            "weights": [[1.0, 0.0], [0.0, 1.0]],
            "error": {"value": math.inf, "standard_error": None},
        },
        "b": [2.5, [0, 1], None, "text", True],
    }


class _Plain:
    def to_pandas(self) -> pandas.DataFrame:
        return pandas.DataFrame({"a": range(MAX_ROWS + 3)})


def test_sentences_are_escaped_and_long_tables_cut() -> None:
    page = to_html(_Plain(), ["x < y"])
    assert "<p>x &lt; y</p>" in page and "3 more rows" in page
    assert page.count("<tr") == 1 + MAX_ROWS
    assert picture(_Plain()) == ""


def test_readings_are_found_by_name() -> None:
    loss = Reading(measure="loss", number="loss", value=0.5)
    readings = Readings([loss], {"accuracy": "needs labels"})
    assert "loss" in readings and loss in readings and readings.get("loss") is loss
    for missing in ("accuracy", "los", "value"):
        assert missing not in readings and readings.get(missing) is None
        assert readings.get(missing, 1.0) == 1.0
    assert replace(loss, value=1.0) not in readings
