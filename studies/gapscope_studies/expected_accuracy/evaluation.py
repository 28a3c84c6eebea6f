"""The judgement: every way of saying the accuracy on pools that nothing was chosen on; see results/.../PROTOCOL.md."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import load_default
from gapscope_studies.expected_accuracy.baselines import TARGET, Baseline, all_baselines, refused
from gapscope_studies.expected_accuracy.fit import as_table, fitted_table
from gapscope_studies.expected_accuracy.pools import REGRESSION, Configuration, judged_in_turn
from gapscope_studies.expected_accuracy.rows import plain, root_mean_square, shown
from gapscope_studies.expected_accuracy.runs import probed
from gapscope_studies.expected_accuracy.scale import behind
from gapscope_studies.expected_accuracy.stored_results import job_name, load_results
from gapscope_studies.kit.claims import Claim, measured
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

OURS, HOLD_OUT, FOLDS, KERNEL = (
    "**shipped estimate**", "10 % hold-out", "5-fold cross-validation", "initial kernel alone",
)  # fmt: skip
RIVALS = {
    HOLD_OUT: "a hold-out of a tenth of the data",
    FOLDS: "five-fold cross-validation, which trains four times more",
    KERNEL: "the left-out accuracy of the untrained network alone",
}


def rows_of(setting: RunSettings, configurations: list[Configuration], *, train: bool) -> list[dict[str, Any]]:
    """What was found of each network: what is kept, and the rest trained now (or left out)."""
    known = load_results() if setting.scale != "smoke" else {}
    missing = [item for item in configurations if job_name(item) not in known]
    jobs = {job_name(i): partial(probed, i, setting.data_root, setting.device, True) for i in missing} if train else {}
    known |= setting.cached("networks", jobs)
    return [known[job_name(item)] for item in configurations if job_name(item) in known]


def _error(errors: np.ndarray, table: Table) -> Interval:
    """Root mean squared error; intervals are over data sets."""
    return bootstrap(lambda rows: root_mean_square(errors[rows]), len(errors), table["data"].tolist())


def evaluate_baseline(rival: Baseline, table: Table) -> dict[str, Any] | None:
    """Error, width and coverage of one way on these networks; None where it answers none of them."""
    said: Table = rival.predict(table)
    answered = said["value"].notna()
    if not answered.any():
        return None
    said, truth = said[answered], table.loc[answered, TARGET]
    inside: Any = (said["low"] <= truth) & (truth <= said["high"])
    return {
        "method": rival.name,
        "trainings": rival.cost,
        "networks": int(answered.sum()),
        "error": _error((said["value"] - truth).to_numpy(dtype=float), table[answered]),
        "bias": float((said["value"] - truth).mean()),
        "width": float((said["high"] - said["low"]).mean()),
        "covered": float(inside.mean()),
    }


def _regression_rows(table: Table) -> list[dict[str, Any]]:
    """For regression the left-out R² alone, beside the baselines that train."""
    ways = {KERNEL: "initial.explained", HOLD_OUT: "hold_out", FOLDS: "cross_validation"}
    rows = []
    for name, column in ways.items():
        found = (table.get(column, pandas.Series(dtype=float)) - table["test_score"]).dropna()
        if not len(found):
            continue
        errors = found.to_numpy(dtype=float)
        median = float(np.median(np.abs(errors)))
        row = {"method": name, "networks": len(errors), "error": _error(errors, table.loc[found.index])}
        rows.append({**row, "median": median})
    return rows


def _groups(table: Table, said_no: pandas.Series) -> dict[str, pandas.DataFrame]:
    half = table["cross_validation"].notna()
    return {
        "all that were answered": table[~said_no],
        "all": table,
        "answered, with cross-validation": table[~said_no & half],
        "answered, right labels": table[~said_no & (table["noise"] == 0)],
        "answered, wrong labels": table[~said_no & (table["noise"] > 0)],
        **{f"{pool}, answered": part[~said_no[part.index]] for pool, part in table.groupby("pool")},
    }


def evaluate(setting: RunSettings) -> Outcome:
    """All ways on all judging pools."""
    order = judged_in_turn()
    if setting.scale == "smoke":
        order = [item for item in order if item.data == "concrete_quartiles" and item.samples == 100][:4]
    # small: what is kept, which `stored_results.import_results` adds to; paper: all that were drawn
    rows = rows_of(setting, order, train=setting.scale != "small")
    networks = [row for row in rows if row["pool"] != REGRESSION.name]
    table, estimator = as_table(networks), load_default()
    for name in ("hold_out", "cross_validation"):
        table[name] = table.get(name, np.nan)
    said_no = refused(estimator, table)
    ways = all_baselines(fitted_table(), estimator)
    found = {
        name: [row for way in ways if (row := evaluate_baseline(way, part)) is not None]
        for name, part in _groups(table, said_no).items()
        if len(part)
    }
    regression = pandas.DataFrame([row for row in rows if row["pool"] == REGRESSION.name])
    regression_rows = _regression_rows(regression) if len(regression) else []
    tables = {name: pandas.DataFrame(map(shown, part)) for name, part in found.items()}
    if regression_rows:
        tables["regression, R²"] = pandas.DataFrame(map(shown, regression_rows))
    return Outcome(
        numbers={
            "judged": {name: [plain(row) for row in part] for name, part in found.items()},
            "regression": [plain(row) for row in regression_rows],
            "refused": {str(pool): int(part.sum()) for pool, part in said_no.groupby(table["pool"])},
            "trained": dict(Counter(row["pool"] for row in rows)),
            "drawn": len(order),
            "estimator": dict(estimator.card),
        },
        claims=_claims(table[~said_no], ways),
        tables=tables,
        verdict=_verdict(found, len(rows), len(order), int(said_no.sum())),
        **behind(setting, rows),
    )


def _against(ours: np.ndarray, theirs: np.ndarray, rival: str, data: np.ndarray) -> list[Claim]:
    """Whether ours errs less than a baseline, on the networks where the baseline was paid for."""
    both = np.isfinite(theirs)
    ours, theirs, data = ours[both], theirs[both], data[both]
    if not len(ours):
        return []

    def difference(rows: np.ndarray) -> float:
        return root_mean_square(ours[rows]) - root_mean_square(theirs[rows])

    return [
        measured(
            "ours", f"without any training, the shipped estimate errs less than {rival}",
            "root mean squared error minus the baseline's", bootstrap(difference, len(ours), data.tolist()), below=0.0,
            ours=True, unit="data sets",
            compared=(), untrained="errors of estimates; networks of any accuracy count",
        )
    ]  # fmt: skip


def _claims(table: Table, ways: list[Baseline]) -> list[Claim]:
    errors = {way.name: (way.predict(table)["value"] - table[TARGET]).to_numpy(dtype=float) for way in ways}
    data = table["data"].to_numpy()
    return [claim for name, rival in RIVALS.items() for claim in _against(errors[OURS], errors[name], rival, data)]


def _verdict(found: dict[str, list[dict[str, Any]]], trained: int, drawn: int, said_no: int) -> str:
    rows = found.get("answered, with cross-validation") or found.get("all that were answered") or []
    own = next((row["error"].value for row in rows if row["method"] == OURS), float("nan"))
    better = [f"{row['method']} ({row['trainings']} training runs)" for row in rows if row["error"].value < own]
    first = f"It is beaten by {', '.join(better)}." if better else "No baseline errs less."
    return (
        f"{first} {trained} of the {drawn} drawn networks were trained; {said_no} were refused. The estimator was "
        "committed before the first of them; the networks are small, and intervals are over data sets."
    )
