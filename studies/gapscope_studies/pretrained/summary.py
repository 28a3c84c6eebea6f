"""Tables of the study: errors, coverage, rankings of labels, regret of a choice, and the gain of the NTK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from gapscope_studies.expected_accuracy.rows import rms_difference, rms_error, root_mean_square
from gapscope_studies.kit.statistics import bootstrap_mean, to_list
from gapscope_studies.pretrained.cells import CURVE, FOLDS, FORECAST, HOLD_OUT, LOGME, SIZE

PREDICTIONS = (FORECAST, CURVE, FOLDS, HOLD_OUT)
CHOICES = (FORECAST, FOLDS, HOLD_OUT, LOGME, SIZE)
Cells = Sequence[Mapping[str, Any]]


def _predictions(cells: Cells) -> pandas.DataFrame:
    rows = []
    for cell in cells:
        for method, answer in cell["methods"].items():
            facts = {key: cell[key] for key in ("data", "network", "n", "seed", "truth")}
            rows.append(
                {"low": None, "high": None, "answered": True, **facts, "method": method, **answer}
            )
    table = pandas.DataFrame(rows)
    table["error"] = table["value"] - table["truth"]
    return table


def _error_row(part: pandas.DataFrame) -> dict[str, Any]:
    """Return error, bias, coverage and cost of the answers of one method."""
    answered = part[part["answered"].astype(bool)]
    row: dict[str, Any] = {"cells": len(part), "answered": len(answered)}
    if len(answered):
        row["error"] = to_list(rms_error(answered["error"], answered["data"].tolist()))
        row["bias"] = float(answered["error"].mean())
        row["cpu_seconds"] = float(answered["cpu_seconds"].astype(float).median())
        if answered["low"].notna().all():
            low, high = answered["low"].astype(float), answered["high"].astype(float)
            covered = answered["truth"].between(low - 1e-9, high + 1e-9)
            row["coverage"] = to_list(bootstrap_mean(covered, answered["data"].tolist()))
            row["width"] = float((high - low).median())
    return row


def accuracy(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return errors and coverage by method, size, data set and network, and paired differences of errors."""
    table = _predictions(cells)
    pretrained = table[~table["network"].str.contains("untrained")]
    overall = [
        {"method": m, **_error_row(pretrained[pretrained["method"] == m])} for m in PREDICTIONS
    ]
    grouped = {
        f"by {key}": [
            {key: value, "method": method, **_error_row(part[part["method"] == method])}
            for value, part in (table if key == "network" else pretrained).groupby(key, sort=False)
            for method in PREDICTIONS
            if (part["method"] == method).any()
        ]
        for key in ("n", "data", "network")
    }
    wide = pretrained[pretrained["answered"].astype(bool)].pivot(
        index=["data", "network", "n", "seed"], columns="method", values="error"
    )
    differences = []
    for method in (CURVE, FOLDS, HOLD_OUT):
        both = wide[[FORECAST, method]].astype(float).dropna()
        data = both.index.get_level_values("data").tolist()
        difference = rms_difference(both[FORECAST], both[method], data)
        differences.append({
            "minus": method, "cells": len(both), "difference": to_list(difference),
            "forecast": root_mean_square(both[FORECAST]), "other": root_mean_square(both[method]),
        })  # fmt: skip
    of = {row["minus"]: row["difference"] for row in differences}
    return {
        "cells": len(cells),
        "overall": overall,
        **grouped,
        "differences": differences,
        "bars": [
            _bar("coverage of the forecast", overall[0]["coverage"], above=bars["coverage"]),
            _bar(
                "error minus that of a 20 % hold-out",
                of[HOLD_OUT],
                below=bars["forecast_minus_hold_out"],
            ),
            _bar("error minus that of five folds", of[FOLDS], below=bars["forecast_minus_folds"]),
        ],
    }


def _bar(
    what: str, interval: Sequence[float], *, above: float | None = None, below: float | None = None
) -> Any:
    """Return whether a value is on the right side of its bar, and whether its interval is."""
    value, low, high = interval
    if above is not None:
        met, certain, bar = value >= above, low >= above, f"at least {above:g}"
    else:
        assert below is not None
        met, certain, bar = value <= below, high <= below, f"at most {below:g}"
    verdict = "met" if certain else "met, not significantly" if met else "not met"
    return {"what": what, "bar": bar, "value": list(interval), "verdict": verdict}


def choice(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return regret and cost of choosing a network by each score, with and without untrained candidates."""
    result: dict[str, Any] = {}
    groups: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["data"], cell["n"], cell["seed"]), []).append(cell)
    for name in ("pretrained", "with untrained"):
        rows = []
        for score in CHOICES:
            regrets, data, seconds, best = [], [], [], []
            for (source, _, _), members in groups.items():
                has_untrained = any("untrained" in cell["network"] for cell in members)
                if name == "pretrained":
                    members = [cell for cell in members if "untrained" not in cell["network"]]
                elif not has_untrained:
                    continue
                if len(members) < 2:
                    continue
                answers = [(cell["methods"] | cell["scores"])[score] for cell in members]
                truth = np.array([cell["truth"] for cell in members])
                chosen = int(np.argmax([answer["value"] for answer in answers]))
                regrets.append(float(truth.max() - truth[chosen]))
                best.append(bool(truth[chosen] >= truth.max()))
                data.append(source)
                seconds.append(sum(answer["cpu_seconds"] for answer in answers))
            if not regrets:
                continue
            rows.append({"score": score, "choices": len(regrets), "regret": to_list(bootstrap_mean(regrets, data)),
                         "largest regret": max(regrets), "best": float(np.mean(best)),
                         "cpu_seconds": float(np.median(seconds))})  # fmt: skip
        result[name] = rows
    regret = result["pretrained"][0]["regret"]
    return result | {
        "bars": [_bar("regret of a choice by the forecast", regret, below=bars["choice_regret"])]
    }


def labels(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return AUROC and average precision by kind of error and by data set, and paired differences."""
    rows = [
        {"data": cell["data"], "kind": cell["kind"], "method": method, **values}
        for cell in cells
        for method, values in cell["methods"].items()
    ]
    table = pandas.DataFrame(rows)
    numbers = ["auroc", "average_precision", "cpu_seconds"]
    first, second = table["method"].unique()
    differences = []
    for kind, part in [("all", table), *table.groupby("kind", sort=False)]:
        a, b = (part[part["method"] == method] for method in (first, second))
        data = a["data"].tolist()
        differences.append({
            "kind": kind, "cells": len(a),
            **{number: to_list(bootstrap_mean(a[number].to_numpy() - b[number].to_numpy(), data))
               for number in numbers[:2]},
        })  # fmt: skip
    return {
        "cells": len(cells),
        "by kind": table.groupby(["kind", "method"], sort=False)[numbers]
        .mean()
        .reset_index()
        .to_dict("records"),
        "by data": table.groupby(["data", "method"], sort=False)[numbers]
        .mean()
        .reset_index()
        .to_dict("records"),
        "differences": differences,
        "bars": [
            _bar(
                "AUROC minus cleanlab's",
                differences[0]["auroc"],
                above=bars["labels_minus_cleanlab"],
            ),
        ],
    }


def ntk(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return test accuracies of the kernels, and the gain of the NTK in addition to features."""
    table = pandas.DataFrame([dict(cell) for cell in cells])
    table["gain"] = table["features and NTK"] - table["features"]
    numbers = ["features", "NTK", "features and NTK", "gain", "feature_seconds", "ntk_seconds"]
    gain = to_list(bootstrap_mean(table["gain"], table["data"].tolist()))
    return {
        "cells": len(cells),
        "by network": table.groupby("network", sort=False)[numbers]
        .mean()
        .reset_index()
        .to_dict("records"),
        "by data": table.groupby(["data", "network"], sort=False)[numbers]
        .mean()
        .reset_index()
        .to_dict("records"),
        "gain": gain,
        "bars": [_bar("gain of the NTK in addition to features", gain, above=bars["ntk_gain"])],
    }


def ntk_forecast(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return errors of forecasts by features and NTK against both truths, and their paired differences."""
    truths = list(cells[0]["truths"])
    data = [cell["data"] for cell in cells]
    errors = {
        (method, truth): np.array(
            [cell["forecasts"][method] - cell["truths"][truth] for cell in cells]
        )
        for method in cells[0]["forecasts"]
        for truth in truths
    }
    features = {truth: errors["features", truth] for truth in truths}
    rows = [
        {"method": method, "truth": truth, "cells": len(cells), "error": to_list(rms_error(values, data)),
         "bias": float(values.mean()), "minus features": to_list(rms_difference(values, features[truth], data))}
        for (method, truth), values in errors.items()
    ]  # fmt: skip
    table = pandas.DataFrame([
        {"data": cell["data"], "network": cell["network"], **cell["forecasts"], **cell["truths"],
         **{f"{name}, seconds": value for name, value in cell["cpu_seconds"].items()}}
        for cell in cells
    ])  # fmt: skip
    by_data = table.groupby(["data", "network"], sort=False).mean().reset_index().to_dict("records")
    judged = next(
        row for row in rows if (row["method"], row["truth"]) == ("features and NTK", "fine-tune")
    )
    bar = _bar(
        "error with the NTK minus that of the features",
        judged["minus features"],
        below=bars["ntk_forecast"],
    )
    is_better = bar["verdict"] != "not met" and judged["minus features"][2] < 0
    return {
        "cells": len(cells),
        "errors": rows,
        "by data": by_data,
        "bars": [bar],
        "NTK joins the forecast": is_better,
    }


def ntk_projected(cells: Cells, bars: Mapping[str, float]) -> dict[str, Any]:
    """Return what `ntk_forecast` does, for the library's estimate of the NTK."""
    return ntk_forecast(cells, bars)


def ntk_exact(cells: Cells, _: Mapping[str, float]) -> dict[str, Any]:
    """Return means over seeds of leave-one-out accuracies of the exact NTK and of its estimates."""
    table = pandas.DataFrame(cells).drop(columns="seed").groupby("network", sort=False).mean()
    return {"by network": table.reset_index().to_dict("records")}
