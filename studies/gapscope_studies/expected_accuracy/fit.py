"""Shipped estimator, selected by leave-one-data-set-out errors, then fitted to all data.

`python -m gapscope_studies.expected_accuracy.fit` writes it into the package. Judging pools have no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas

from gapscope.accuracy.accuracy_estimator import (
    LOO,
    SHIPPED,
    AccuracyEstimator,
    ErrorParts,
    Limits,
    with_features,
)
from gapscope.gap.gap_estimator import GapEstimator
from gapscope_studies.expected_accuracy.pools import (
    FIRST_JUDGED,
    FITTED,
    Configuration,
    in_random_order,
    load_rows,
)
from gapscope_studies.expected_accuracy.rows import root_mean_square
from gapscope_studies.kit.study import Table, commit

SPREAD = 0.04
# a kernel with nearly one direction per sample fits any labels: its leave-one-out predictions are uninformative
LARGEST_LEVERAGE = 0.98
LEVEL = 0.9
COLUMNS = {"like_training": "test_score_like_training", "clean": "test_score"}
KINDS = ("ridge", "gaussian_process")
READINGS: tuple[tuple[str, ...], ...] = (
    (),
    ("shortfall",),
    ("left_out",),
    ("left_out", "fit"),
    ("left_out", "agreement", "fit"),
    ("left_out", "shortfall"),
    ("left_out", "agreement", "shortfall"),
    ("left_out", "agreement", "fit", "shortfall"),
    ("left_out", "agreement", "conflict", "fit"),
    ("left_out", "residual", "leverage", "fit", "log_samples"),
    ("left_out", "residual", "leverage", "agreement", "fit", "log_samples"),
)
# column of stored networks -> column of the estimator
_NAMES = {
    **{f"initial.{name}": f"{LOO}.{name}"
       for name in ("accuracy", "squared_error", "explained", "effective_dimension", "largest_leverage")},
    "agreement": "gradient_neighbours.agreement",
    "conflict": "gradient_neighbours.conflict",
    "alignment": "kernel_leave_one_out.alignment",
    "train_score": "train_accuracy",
}  # fmt: skip


def as_table(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return networks as the table that the estimator reads."""
    table = pandas.DataFrame(list(rows)).rename(columns=_NAMES)
    return with_features(
        table.assign(**{name: np.nan for name in _NAMES.values() if name not in table}), SPREAD
    )


def fitted_items() -> list[Configuration]:
    """Return the trained networks of the first evaluation pools and of the fitted pool."""
    stored = load_rows("networks")
    return [
        item
        for plan in (*FIRST_JUDGED, FITTED)
        for item in in_random_order(plan)
        if item.job in stored
    ]


def fitted_table() -> pandas.DataFrame:
    """Return the networks that the shipped estimator is fitted to."""
    stored = load_rows("networks")
    return as_table([stored[item.job] for item in fitted_items()])


@dataclass(frozen=True)
class Candidate:
    """Correction of the leave-one-out accuracy: kind of regression and readings."""

    kind: str
    readings: tuple[str, ...]

    def estimator(self, **options: Any) -> GapEstimator:
        """Return the unfitted estimator, with intervals from held-out data sets."""
        options = {"clusters": ("data",), "error_scale": "expected_error"} | options
        return GapEstimator(kind=self.kind, features=self.readings, **options)


def left_out_errors(candidate: Candidate, table: Table, target: str) -> pandas.Series:
    """Return estimate minus truth of every network by a fit without its data set."""
    offset = table[COLUMNS[target]] - table["left_out"]
    errors = pandas.Series(np.nan, index=table.index)
    for name in sorted(set(table["data"])):
        test = table["data"] == name
        estimator = candidate.estimator(interval="none", clusters=()).fit(
            table[~test], offset[~test]
        )
        errors[test] = estimator.predict(table[test]) - offset[test]
    return errors


def _errors(errors: Any, table: Table) -> dict[str, float]:
    by_data = {str(name): root_mean_square(part) for name, part in errors.groupby(table["data"])}
    return {"all": root_mean_square(errors), **by_data}


def select_simplest(squares: Mapping[Candidate, Any]) -> Candidate:
    """Return the simplest candidate within one standard error of the least squared error."""
    best = min(squares.values(), key=lambda each: float(each.mean()))
    excess = {candidate: each - best for candidate, each in squares.items()}
    candidates = [
        candidate for candidate, each in excess.items() if float(each.mean()) <= float(each.sem())
    ]
    # fewest readings, then ridge before a Gaussian process
    return min(candidates, key=lambda each: (len(each.readings), KINDS.index(each.kind)))


def error_parts(errors: pandas.Series, table: Table) -> ErrorParts:
    """Estimate standard deviations of the errors between and within data sets by moments."""
    groups: Any = errors.groupby(table["data"]).agg(["mean", "var", "size"])
    within = float((groups["var"] * groups["size"]).sum() / groups["size"].sum())
    # the variance of the means contains that of their own errors
    between = float(groups["mean"].var(ddof=1) - (groups["var"] / groups["size"]).mean())
    return ErrorParts(max(between, 0.0) ** 0.5, within**0.5)


def fit(table: Table) -> AccuracyEstimator:
    """Select and fit both corrections, and describe them on the card."""
    corrections, parts = {}, {}
    limits = Limits(
        alignment=float(table["kernel_leave_one_out.alignment"].min()),
        leverage=min(float(table["leverage"].max()), LARGEST_LEVERAGE),
        samples=int(table["samples"].min()),
    )
    card: dict[str, Any] = {
        "fitted_on": {
            "networks": len(table),
            "data_sets": {
                str(name): int(count)
                for name, count in table["data"].value_counts().sort_index().items()
            },
            "samples": sorted({int(value) for value in table["samples"]}),
            "shares_of_wrong_labels": sorted({float(value) for value in table["noise"]}),
            "recipes": sorted(set(table["recipe"])),
        },
        "refuses": {
            "alignment_below": limits.alignment,
            "mean_leverage_above": limits.leverage,
            "samples_below": limits.samples,
            "left_out_accuracy": "not two standard errors above the fraction of the most frequent label",
            "readings": "outside the region of the fitted networks",
        },
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    # without readings both kinds are the same mean correction
    candidates = [
        Candidate(kind, names) for kind in KINDS for names in READINGS if names or kind == "ridge"
    ]
    for target, column in COLUMNS.items():
        errors = {each: left_out_errors(each, table, target) for each in candidates}
        best = select_simplest({each: result**2 for each, result in errors.items()})
        corrections[target] = best.estimator().fit(table, table[column] - table["left_out"])
        parts[target] = error_parts(errors[best], table)
        alone = _errors(table["left_out"] - table[column], table)
        rows = {each: _errors(result, table) for each, result in errors.items()}
        card[target] = {
            "kind": best.kind,
            "readings": list(best.readings),
            "error_on_data_sets_left_out": rows[best],
            "left_out_accuracy_alone": alone,
            "compared": [
                {"kind": "none", "readings": "", **alone},
                *(
                    {"kind": each.kind, "readings": ", ".join(each.readings), **row}
                    for each, row in rows.items()
                ),
            ],
        }
    return AccuracyEstimator(corrections, SPREAD, limits, card, parts)


if __name__ == "__main__":
    estimator = fit(fitted_table())
    estimator.save(SHIPPED)
    for name in COLUMNS:
        print(name, estimator.card[name])
