"""Continued subset runs, validation with control variates and `estimate_accuracy`, judged on fresh networks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.subset_designs import CONTINUED_ERROR
from gapscope.prediction.subset_runs import move_towards_kernel
from gapscope_studies.expected_accuracy.curves import fresh_configurations, read
from gapscope_studies.expected_accuracy.rows import plain, root_mean_square, shown
from gapscope_studies.expected_accuracy.scale import behind
from gapscope_studies.expected_accuracy.stored_results import job_name
from gapscope_studies.kit.claims import Claim, measured
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

STORED = Path(__file__).with_name("curves.jsonl")
HOLD_OUT, FOLDS, SHORT, LONG = "20 % hold-out", "five folds", "short continued halves", "continued halves"
COSTS = {"RBF ridge": 0.0, SHORT: 0.5, HOLD_OUT: 1.0, "two halves as scored": 2.0, LONG: 2.0, FOLDS: 5.0}
SECONDS = {SHORT: "short.seconds", LONG: "long.seconds", FOLDS: "folds.seconds"}
# (value, low, high) less the truth, of `validated_accuracy` and of the validation samples alone
VALIDATED = {"control variates": slice(0, 3), "validation samples alone": slice(3, 6)}
LINES = {"same_noise": "same label noise", "clean_labels": "clean labels"}


def stored_rows() -> dict[str, dict[str, Any]]:
    """What is stored of every fresh network, by the name of its job."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def predictions(table: Table) -> dict[str, np.ndarray]:
    """Predicted score of each network by every method."""
    columns = {"RBF ridge": "rbf", HOLD_OUT: "hold_out", "two halves as scored": "long.raw", FOLDS: "folds"}
    found = {name: table[column].to_numpy(dtype=float) for name, column in columns.items()}
    for name, part in ((SHORT, "short"), (LONG, "long")):
        rows = table[[f"{part}.continued", "rbf", "rbf_half"]].to_numpy(dtype=float)
        found[name] = np.array([move_towards_kernel(*row) for row in rows])
    return {name: found[name] for name in COSTS}


def _is_covered(value: np.ndarray, truth: np.ndarray, samples: np.ndarray) -> np.ndarray:
    variance = np.maximum(value * (1 - value), (1 - 1 / samples) / samples)
    return np.abs(value - truth) <= 1.645 * np.sqrt(variance * (1 / samples + 4 * CONTINUED_ERROR**2))


def _cost_in_seconds(table: Table, name: str) -> float:
    """CPU seconds in multiples of the training's; a column of seconds is a mean over two halves, or a sum of folds."""
    factor = 1 if name == FOLDS else 2
    return factor * float(table[SECONDS[name]].sum() / table["seconds"].sum())


def _errors(table: Table, group: str) -> list[dict[str, Any]]:
    truth, samples = table["truth"].to_numpy(dtype=float), table["samples"].to_numpy(dtype=float)
    data = table["data"].tolist()
    all_errors = {name: value - truth for name, value in predictions(table).items()}
    rows = []
    for name, errors in all_errors.items():
        rival = all_errors[FOLDS if COSTS[name] >= 2 else HOLD_OUT]

        def minus(chosen: np.ndarray, errors: np.ndarray = errors, rival: np.ndarray = rival) -> float:
            return root_mean_square(errors[chosen]) - root_mean_square(rival[chosen])

        own = name in (SHORT, LONG)
        rows.append({
            "networks": group, "n": len(table), "method": name, "cost in trainings (steps)": COSTS[name],
            "cost in trainings (CPU seconds)": _cost_in_seconds(table, name) if name in SECONDS else float("nan"),
            "RMSE": bootstrap(lambda chosen, e=errors: root_mean_square(e[chosen]), len(table), data),
            "bias": float(errors.mean()),
            "minus the rival": bootstrap(minus, len(table), data),
            "rival": FOLDS if COSTS[name] >= 2 else HOLD_OUT,
            "covered": float(_is_covered(truth + errors, truth, samples).mean()) if own else float("nan"),
        })  # fmt: skip
    return rows


def _validated(table: Table) -> list[dict[str, Any]]:
    rows = []
    for size, column in (("10 %", "validated.tenth"), ("20 %", "validated.fifth")):
        data = [name for name, values in zip(table["data"], table[column], strict=True) for _ in values]
        values = np.array([value for values in table[column] for value in values], dtype=float)
        plain_errors = values[:, VALIDATED["validation samples alone"]][:, 0]
        for name, columns in VALIDATED.items():
            error, low, high = values[:, columns].T

            def share(chosen: np.ndarray, error: np.ndarray = error, alone: np.ndarray = plain_errors) -> float:
                return float((alone[chosen] ** 2).mean() / (error[chosen] ** 2).mean())

            rows.append({
                "validation split": size, "method": name, "networks": len(values),
                "RMSE": bootstrap(lambda chosen, e=error: root_mean_square(e[chosen]), len(values), data),
                "worth, in multiples of the split": bootstrap(share, len(values), data),
                "covered": float(((low <= 0) & (high >= 0)).mean()), "width": float((high - low).mean()),
            })  # fmt: skip
    return rows


def _estimates(table: Table) -> list[dict[str, Any]]:
    """Coverage and error of both lines of `estimate_accuracy`, by label noise and initial weights."""
    rows = []
    for weights in ("given", "resampled"):
        for line, shown_line in LINES.items():
            column = f"estimate.{weights}.{line}"
            truth = "truth" if line == "same_noise" else "clean_truth"
            for noise, part in [("all", table), *((f"{value:.0%}", each) for value, each in table.groupby("noise"))]:
                answered = part[part[column].map(lambda value: isinstance(value, list))]
                if not len(answered):
                    rows.append({"line": shown_line, "initial weights": weights, "label noise": noise, "n": len(part),
                                 "answered": 0, "covered": float("nan"), "RMSE": float("nan"),
                                 "bias": float("nan")})  # fmt: skip
                    continue
                values = np.array(answered[column].tolist())
                right = answered[truth].to_numpy(dtype=float)
                inside = (values[:, 1] <= right) & (right <= values[:, 2])
                rows.append({
                    "line": shown_line, "initial weights": weights, "label noise": noise, "n": len(part),
                    "answered": len(answered), "covered": float(inside.mean()),
                    "RMSE": root_mean_square(values[:, 0] - right), "bias": float((values[:, 0] - right).mean()),
                })  # fmt: skip
    return rows


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return [
        measured(
            "ours", f"{row['method']} err less than {row['rival']}, which cost more",
            "root mean squared error minus the rival's", row["minus the rival"], below=0.0, ours=True, unit="data sets",
            compared=(), untrained="errors of estimates; networks of any accuracy count",
        )
        for row in rows
        if row["method"] in (SHORT, LONG)
    ]  # fmt: skip


def curves(setting: RunSettings) -> Outcome:
    """Judge all of them on the fresh networks that are stored, or that are trained now."""
    order = fresh_configurations()
    if setting.scale == "smoke":
        tables = [item for item in order if item.pool == "third_table"][:3]
        jobs = {job_name(item): partial(read, item, setting.data_root) for item in tables}
        found = list(setting.cached("curves", jobs).values())
    else:
        known = stored_rows()
        if setting.scale == "paper":
            missing = [item for item in order if job_name(item) not in known]
            jobs = {job_name(item): partial(read, item, setting.data_root) for item in missing}
            known |= setting.cached("curves", jobs)
        found = [known[job_name(item)] for item in order if job_name(item) in known]
    every = pandas.DataFrame(found)
    table = every[every["pool"] != "third_regression"].reset_index(drop=True)
    regression = every[every["pool"] == "third_regression"].reset_index(drop=True)
    groups = {
        "all classifiers": table,
        "clean labels": table[table["noise"] == 0],
        "20 and 40 % label noise": table[table["noise"] > 0],
        "CNNs with batch norm": table[table["recipe"].str.contains("cnn") & table["recipe"].str.contains("batch_norm")],
        "regression, R2": regression,
    }
    rows = {name: _errors(part.reset_index(drop=True), name) for name, part in groups.items() if len(part)}
    validated, estimates = _validated(table), _estimates(table)
    return Outcome(
        numbers={
            "errors": {name: [plain(row) for row in part] for name, part in rows.items()},
            "validated": [plain(row) for row in validated],
            "estimates": estimates,
            "networks": len(table),
            "drawn": len(order),
        },
        claims=_claims(rows["all classifiers"]),
        tables={
            **{name: pandas.DataFrame(map(shown, part)) for name, part in rows.items()},
            "Validation accuracy with control variates": pandas.DataFrame(map(shown, validated)),
            "estimate_accuracy": pandas.DataFrame(map(shown, estimates)),
        },
        verdict=(
            f"{len(found)} of {len(order)} drawn networks were trained, after the rule had been committed. Intervals "
            "are over data sets. The rival from a cost of two trainings is five folds, else the hold-out."
        ),
        **behind(setting, found),
    )  # fmt: skip
