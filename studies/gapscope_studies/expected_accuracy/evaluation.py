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
from gapscope_studies.expected_accuracy.pools import REGRESSION, judged_in_turn
from gapscope_studies.expected_accuracy.rows import behind, error_claim, plain, rms_difference, rms_error, shown
from gapscope_studies.expected_accuracy.runs import probed, stored_or_read
from gapscope_studies.kit.claims import Claim
from gapscope_studies.kit.study import Outcome, RunSettings, Table

OURS, HOLD_OUT, FOLDS, KERNEL = (
    "**shipped estimate**", "10 % hold-out", "5-fold cross-validation", "initial kernel alone",
)  # fmt: skip
RIVALS = {
    HOLD_OUT: "a hold-out of a tenth of the data",
    FOLDS: "five-fold cross-validation, which trains four times more",
    KERNEL: "the left-out accuracy of the untrained network alone",
}


def evaluate_baseline(rival: Baseline, table: Table) -> dict[str, Any] | None:
    """Error, width and coverage of one way on these networks; None where it answers none of them."""
    message: Table = rival.predict(table)
    answered = message["value"].notna()
    if not answered.any():
        return None
    message, truth = message[answered], table.loc[answered, TARGET]
    inside: Any = (message["low"] <= truth) & (truth <= message["high"])
    return {
        "method": rival.name,
        "trainings": rival.cost,
        "networks": int(answered.sum()),
        "error": rms_error(message["value"] - truth, table.loc[answered, "data"].tolist()),
        "bias": float((message["value"] - truth).mean()),
        "width": float((message["high"] - message["low"]).mean()),
        "covered": float(inside.mean()),
    }


def _regression_rows(table: Table) -> list[dict[str, Any]]:
    """For regression the left-out R² alone, and the baselines that train."""
    rows = []
    for name, column in {KERNEL: "initial.explained", HOLD_OUT: "hold_out", FOLDS: "cross_validation"}.items():
        errors = (table.get(column, pandas.Series(dtype=float)) - table["test_score"]).dropna()
        if len(errors):
            error = rms_error(errors, table.loc[errors.index, "data"].tolist())
            rows.append(
                {"method": name, "networks": len(errors), "error": error, "median": float(errors.abs().median())}
            )
    return rows


def evaluate(setting: RunSettings) -> Outcome:
    """All ways on all judging pools."""
    order = judged_in_turn()
    if setting.scale == "smoke":
        order = [item for item in order if item.data == "concrete_quartiles" and item.samples == 100][:4]
    # small: what is stored; paper: all that were drawn
    read = partial(probed, device=setting.device, rivals=True)
    rows = stored_or_read(
        setting, order, "networks", read, stored=setting.scale != "smoke", train=setting.scale != "small"
    )
    table, estimator = as_table([row for row in rows if row["pool"] != REGRESSION.name]), load_default()
    for name in ("hold_out", "cross_validation"):
        table[name] = table.get(name, np.nan)
    said_no = refused(estimator, table)
    ways = all_baselines(fitted_table(), estimator)
    groups: dict[str, Table] = {
        "all that were answered": table[~said_no],
        "all": table,
        "answered, with cross-validation": table[~said_no & table["cross_validation"].notna()],
        "answered, right labels": table[~said_no & (table["noise"] == 0)],
        "answered, wrong labels": table[~said_no & (table["noise"] > 0)],
        **{f"{pool}, answered": part[~said_no[part.index]] for pool, part in table.groupby("pool")},
    }
    result = {
        name: [row for way in ways if (row := evaluate_baseline(way, part)) is not None]
        for name, part in groups.items()
        if len(part)
    }
    regression = pandas.DataFrame([row for row in rows if row["pool"] == REGRESSION.name])
    regression_rows = _regression_rows(regression) if len(regression) else []
    tables = {name: pandas.DataFrame(map(shown, part)) for name, part in result.items()}
    if regression_rows:
        tables["regression, R²"] = pandas.DataFrame(map(shown, regression_rows))
    judged = result.get("answered, with cross-validation") or result.get("all that were answered") or []
    own = next((row["error"].value for row in judged if row["method"] == OURS), float("nan"))
    ahead = [f"{row['method']} ({row['trainings']} training runs)" for row in judged if row["error"].value < own]
    first = f"It is beaten by {', '.join(ahead)}." if ahead else "No baseline errs less."
    return Outcome(
        numbers={
            "judged": {name: [plain(row) for row in part] for name, part in result.items()},
            "regression": [plain(row) for row in regression_rows],
            "refused": {str(pool): int(part.sum()) for pool, part in said_no.groupby(table["pool"])},
            "trained": dict(Counter(row["pool"] for row in rows)),
            "drawn": len(order),
            "estimator": dict(estimator.card),
        },
        claims=_claims(table[~said_no], ways),
        tables=tables,
        verdict=(
            f"{first} {len(rows)} of the {len(order)} drawn networks were trained; {int(said_no.sum())} were refused. "
            "The estimator was committed before the first of them; the networks are small, and intervals are over data "
            "sets."
        ),
        **behind(setting, rows),
    )


def _claims(table: Table, ways: list[Baseline]) -> list[Claim]:
    """Whether ours errs less than a baseline, on the networks where the baseline was paid for."""
    errors = {way.name: way.predict(table)["value"] - table[TARGET] for way in ways}
    claims = []
    for name, rival in RIVALS.items():
        both = errors[name].notna()
        if both.any():
            difference = rms_difference(errors[OURS][both], errors[name][both], table.loc[both, "data"].tolist())
            says = f"without any training, the shipped estimate errs less than {rival}"
            claims.append(error_claim(says, "root mean squared error minus the baseline's", difference, below=0.0))
    return claims
