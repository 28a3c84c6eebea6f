"""Every way of saying the accuracy, as the protocol names them: value, interval, cost in training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import AccuracyEstimator
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope_studies.expected_accuracy.fit import COLUMNS, SPREAD, Candidate
from gapscope_studies.kit.study import Table

LEVEL = 0.9
NORMAL = 1.645
TARGET = "test_score_like_training"
MARGIN = "margin_signature.input.median"
ANSWERS = ("value", "low", "high")


@dataclass(frozen=True)
class Baseline:
    """One way: what it costs beside the training at hand, and what it says of each network (NaN where it does not)."""

    name: str
    cost: str
    predict: Callable[[Table], Table]


def _answers(value: np.ndarray, low: np.ndarray, high: np.ndarray, index: pandas.Index) -> pandas.DataFrame:
    return pandas.DataFrame(np.column_stack([value, low, high]), columns=list(ANSWERS), index=index)


def _from_gap(fitted: Table, readings: Sequence[str], logarithm: Sequence[str] = ()) -> Callable[[Table], Table]:
    """Training accuracy less a gap that was learned on the fitted pools; intervals from data sets left out."""
    usable = fitted[np.isfinite(fitted[list(readings)].to_numpy(dtype=float)).all(1)] if readings else fitted
    kind = "ridge" if len(readings) > 1 else "linear"
    model = GapEstimator(kind=kind, features=readings, log_features=logarithm, clusters=("data",))
    model.fit(usable, usable["train_accuracy"] - usable[TARGET])

    def predict(table: Table) -> pandas.DataFrame:
        if not set(readings) <= set(table.columns):
            return pandas.DataFrame(np.nan, columns=list(ANSWERS), index=table.index)
        known = model.assess(table, level=LEVEL, refuse=False)[["prediction", "high", "low"]].to_numpy(dtype=float)
        value, low, high = (table["train_accuracy"].to_numpy(dtype=float)[:, None] - known).T
        return _answers(value, low, high, table.index)

    return predict


def _binomial(column: str, share: float, spread: float = 0.0) -> Callable[[Table], Table]:
    """A score on a fraction of the samples, with its binomial interval; one right and one wrong sample are added."""

    def predict(table: Table) -> pandas.DataFrame:
        if column not in table:
            return pandas.DataFrame(np.nan, columns=list(ANSWERS), index=table.index)
        value = table[column].to_numpy(dtype=float)
        m = np.maximum(np.floor(share * table["samples"].to_numpy(dtype=float)), 1.0)
        smoothed = (value * m + 1) / (m + 2)
        half = NORMAL * np.sqrt(smoothed * (1 - smoothed) / m + spread**2)
        return _answers(value, np.clip(value - half, 0, 1), np.clip(value + half, 0, 1), table.index)

    return predict


def _shipped(estimator: AccuracyEstimator) -> Callable[[Table], Table]:
    def predict(table: Table) -> pandas.DataFrame:
        rows = [vars(answer) for answer in estimator.predict(table, level=LEVEL)["like_training"]]
        return pandas.DataFrame(rows, index=table.index)

    return predict


def _unseen_data(estimator: AccuracyEstimator, fitted: Table) -> Callable[[Table], Table]:
    """The same corrections fitted to all networks but those of the data set: as for one whose data are none of ours."""

    def predict(table: Table) -> pandas.DataFrame:
        parts = []
        for data, part in table.groupby("data"):
            others = fitted[fitted["data"] != data]
            corrections = {
                target: Candidate(each.kind, tuple(each.features or ())).unfitted()
                .fit(others, others[COLUMNS[target]] - others["left_out"])
                for target, each in estimator.corrections.items()
            }  # fmt: skip
            parts.append(_shipped(replace(estimator, corrections=corrections))(part))
        return pandas.DataFrame(pandas.concat(parts).loc[table.index])

    return predict


def all_baselines(fitted: Table, estimator: AccuracyEstimator) -> list[Baseline]:
    """All of them, in the order of their cost."""
    default = ["output_sensitivity", "input_jacobian_norm", "ntk_trace"]
    return [
        Baseline("**shipped estimate**", "0", _shipped(estimator)),
        Baseline("the same, fitted without the data set", "0", _unseen_data(estimator, fitted)),
        Baseline("initial kernel alone", "0", _binomial("left_out", 1.0, SPREAD)),
        Baseline("mean gap", "0", _from_gap(fitted, ())),
        Baseline("parameter count", "0", _from_gap(fitted, ["parameter_count"], ["parameter_count"])),
        Baseline("training fit", "0", _from_gap(fitted, ["train_accuracy"])),
        Baseline("margin signature", "0", _from_gap(fitted, [MARGIN])),
        Baseline(
            "default of before", "0", _from_gap(fitted, [*default, MARGIN, "train_loss", "train_accuracy"], default)
        ),
        Baseline("10 % hold-out", "0.9", _binomial("hold_out", 0.1)),
        Baseline("5-fold cross-validation", "4", _binomial("cross_validation", 1.0)),
    ]


def refused(estimator: AccuracyEstimator, table: Table) -> pandas.Series:
    """Whether the estimator refuses each network; drawn classes are taken to be equally frequent."""
    reasons = estimator.abstention_reasons(table, (1 / table["classes"]).tolist())
    return pandas.Series([bool(each) for each in reasons], index=table.index)
