"""Section: cross-validated gap estimates against true gaps, with baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.prediction.columns import check_columns
from gapscope.prediction.cross_validation import baseline_errors
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.report.figures import Prediction, interval_strip, predicted_against_true
from gapscope.report.formatting import expected_test_accuracy, format_fixed, format_number
from gapscope.report.pool_view import PoolView
from gapscope.report.svg import Scale

if TYPE_CHECKING:
    import pandas

MOST_ROWS = 200


def _predictions(view: PoolView, held_out: pandas.DataFrame) -> list[Prediction]:
    check_columns(held_out, ["prediction", "low", "high", "verdict", "reason"])
    known = {record.id: record for record in view.finished}
    if held_out.index.has_duplicates:
        raise InvalidInput(
            f"held_out must have one row per network; got {len(held_out)} rows of {held_out.index.nunique()} networks. "
            "Pass predictions of one split, or of scheme='leave_one_out'."
        )
    foreign = [str(key) for key in held_out.index if key not in known]
    if foreign:
        raise InvalidInput(
            f"held_out must be indexed by ids of finished networks among the records; got {foreign[0]!r}. "
            "Pass what GapEstimator.assess returned for rows of records_to_pandas(records)."
        )
    columns = [held_out[name].tolist() for name in ("prediction", "low", "high", "verdict")]
    items: list[Prediction] = []
    for key, prediction, low, high, verdict in zip(held_out.index, *columns, strict=True):
        record = known[str(key)]
        name = view.descriptions[record.id]
        items.append(
            Prediction(record.id, name, record.gap, float(prediction), float(low), float(high), verdict == "outside")
        )
    return items


def _errors(name: str, errors: list[float], *, own: bool = False) -> dict[str, Any]:
    values = numpy.array(errors)
    rmse = math.sqrt((values**2).mean()) if len(values) else math.nan
    mae = float(numpy.abs(values).mean()) if len(values) else math.nan
    return {"name": name, "rmse": format_fixed(rmse), "mae": format_fixed(mae), "own": own, "share": rmse}


def _expected(view: PoolView) -> dict[str, float]:
    """Return the training accuracy by run id (empty if gaps are losses)."""
    if view.gap_kind != "accuracy":
        return {}
    return {record.id: record.scores["train_accuracy"] for record in view.finished}


def _row(item: Prediction, reason: str, scale: Scale, train_accuracy: Mapping[str, float]) -> dict[str, Any]:
    known = item.id in train_accuracy and math.isfinite(item.prediction)
    return {
        "name": item.name,
        "expect": expected_test_accuracy(train_accuracy[item.id], item.prediction, item.low, item.high)
        if known
        else "",
        "gap": format_fixed(item.gap),
        "prediction": format_fixed(item.prediction),
        "interval": f"{format_fixed(item.low)} to {format_fixed(item.high)}" if math.isfinite(item.prediction) else "–",
        "error": format_fixed(item.prediction - item.gap),
        "strip": interval_strip(item, scale),
        "verdict": "outside" if item.outside else "held" if item.covered else "missed",
        "reason": reason,
    }


def _formula(estimator: GapEstimator) -> list[dict[str, str]]:
    """Return the terms of the fitted model, intercept first (empty for a Gaussian process)."""
    if estimator.kernel_ is not None:
        return []
    names = [f"log({name})" if name in estimator.log_features else name for name in estimator.feature_names_]
    terms = [(estimator.intercept_, ""), *zip(estimator.coef_.tolist(), names, strict=True)]
    return [
        {"sign": "−" if weight < 0 else "+", "size": format_number(abs(weight)), "name": name} for weight, name in terms
    ]


def held_out_section(
    view: PoolView, held_out: pandas.DataFrame, estimator: GapEstimator | None, level: float
) -> dict[str, Any]:
    """Figure, table, and errors next to those of mean gap, parameter count and train loss.

    `held_out` is the result of `GapEstimator.assess` or `cross_val_predict`, indexed by run id.
    """
    items = _predictions(view, held_out)
    answered = [item for item in items if math.isfinite(item.prediction)]
    accepted = [item for item in answered if not item.outside]
    ends = [end for item in answered for end in (item.low, item.high) if math.isfinite(end)]
    scale = Scale.around([*(item.gap for item in items), *ends], padding=0.02)
    ordered = sorted(zip(items, held_out["reason"], strict=True), key=lambda pair: pair[0].gap)
    models = [_errors("this estimator", [item.prediction - item.gap for item in answered], own=True)]
    if answered:
        same = baseline_errors(view.table, [item.id for item in items], [item.id for item in answered])
        models += [_errors(name, errors) for name, errors in same.items()]
    own, fit = models[0]["share"], _expected(view)
    largest = max((model["share"] for model in models if math.isfinite(model["share"])), default=1.0) or 1.0
    return {
        "figure": predicted_against_true(items, view.gap_label, level) if answered else "",
        "rows": [_row(item, reason, scale, fit) for item, reason in ordered[:MOST_ROWS]],
        "of": len(ordered),
        "level": f"{level:.0%}",
        "answered": len(answered),
        "outside": sum(item.outside for item in items),
        "covered": sum(item.covered for item in accepted),
        "kept": len(accepted),
        "beaten_by": [model["name"] for model in models[1:] if model["share"] < own],
        "models": [{**model, "share": f"{100 * model['share'] / largest:.0f}%"} for model in models],
        "formula": _formula(estimator) if estimator is not None else [],
        "kind": estimator.kind if estimator is not None else "",
    }
