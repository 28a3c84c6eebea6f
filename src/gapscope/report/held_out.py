"""Section: cross-validated gap estimates against true gaps, with baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.base.tables import check_columns
from gapscope.gap.cross_validation import baseline_errors
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.report.figures import Prediction, interval_strip, predicted_against_true
from gapscope.report.pool_view import PoolView
from gapscope.report.svg import Scale
from gapscope.results.estimate import percent
from gapscope.results.formatting import expected_test_accuracy

if TYPE_CHECKING:
    import pandas

ESTIMATOR = "this estimator"


def held_out_errors(view: PoolView, held_out: pandas.DataFrame) -> dict[str, list[float]]:
    """Return errors of the estimates and of their baselines by name ({} without estimates)."""
    check_columns(held_out, ["prediction"])
    _check_ids(view, held_out)
    estimates = held_out["prediction"][numpy.isfinite(held_out["prediction"].to_numpy(dtype=float))]
    if estimates.empty:
        return {}
    errors = (estimates - view.table.loc[estimates.index, "gap"]).tolist()
    return {ESTIMATOR: errors} | baseline_errors(
        view.table, list(held_out.index), list(estimates.index)
    )


def root_mean_square(errors: list[float]) -> float:
    """Return the square root of the mean square."""
    return float(numpy.sqrt(numpy.square(errors).mean()))


def _check_ids(view: PoolView, held_out: pandas.DataFrame) -> None:
    if held_out.index.has_duplicates:
        raise InvalidInput(
            f"held_out must have one row per network; got {len(held_out)} rows of {held_out.index.nunique()} networks. "
            "Pass predictions of one split, or of scheme='leave_one_out'."
        )
    unknown = [str(key) for key in held_out.index if key not in view.finished_rows.index]
    if unknown:
        raise InvalidInput(
            f"held_out must be indexed by ids of finished networks among the records; got {unknown[0]!r}. "
            "Pass the result of GapEstimator.assess for rows of records_to_pandas(records)."
        )


def _predictions(view: PoolView, held_out: pandas.DataFrame) -> list[Prediction]:
    check_columns(held_out, ["low", "high", "verdict", "reason"])
    records = {record.id: record for record in view.finished}
    items: list[Prediction] = []
    for row in held_out.rename_axis("id").reset_index().to_dict("records"):
        record = records[str(row["id"])]
        prediction = float(row["prediction"])
        expected = ""
        if view.gap_kind == "accuracy" and math.isfinite(prediction):
            expected = expected_test_accuracy(
                record.scores["train_accuracy"], prediction, row["low"], row["high"]
            )
        items.append(
            Prediction(
                view.describe(record.id),
                record.gap,
                prediction,
                float(row["low"]),
                float(row["high"]),
                row["verdict"] == "outside",
                row["reason"],
                expected,
            )
        )
    return sorted(items, key=lambda item: item.gap)


def _formula(estimator: GapEstimator | None) -> list[tuple[float, str]]:
    """Return the terms of the fitted model, intercept first (none of a Gaussian process)."""
    if estimator is None or estimator.kernel_ is not None:
        return []
    names = [
        f"log({name})" if name in estimator.log_features else name
        for name in estimator.feature_names_
    ]
    return [(estimator.intercept_, ""), *zip(estimator.coef_.tolist(), names, strict=True)]


def held_out_section(
    view: PoolView,
    held_out: pandas.DataFrame,
    errors: Mapping[str, list[float]],
    estimator: GapEstimator | None,
    level: float,
) -> dict[str, Any]:
    """Return figure, table, and errors of the estimates and of their baselines.

    `held_out` is the result of `GapEstimator.assess` or `cross_val_predict`, indexed by run id, `errors` that of
    `held_out_errors`.
    """
    items = _predictions(view, held_out)
    estimated = [item for item in items if math.isfinite(item.prediction)]
    inside = [item for item in estimated if item.kind != "outside"]
    ends = [end for item in estimated for end in (item.low, item.high) if math.isfinite(end)]
    scale = Scale.around([*(item.gap for item in items), *ends], padding=0.02)
    models: list[dict[str, Any]] = [
        {"name": name, "rmse": root_mean_square(values), "mae": numpy.abs(values).mean()}
        for name, values in errors.items()
    ]
    finite = [model["rmse"] for model in models if math.isfinite(model["rmse"])]
    return {
        "figure": predicted_against_true(items, view.gap_label, level) if estimated else "",
        # what a reader scrolls through
        "rows": [(item, interval_strip(item, scale)) for item in items[:200]],
        "of": len(items),
        "level": percent(level),
        "estimated": len(estimated),
        "outside": sum(item.kind == "outside" for item in items),
        "covered": sum(item.kind == "held" for item in inside),
        "inside": len(inside),
        "beaten_by": [model["name"] for model in models[1:] if model["rmse"] < models[0]["rmse"]],
        "models": models,
        "largest": max(finite, default=1.0) or 1.0,
        "formula": _formula(estimator),
        "kind": "" if estimator is None else estimator.kind,
    }
