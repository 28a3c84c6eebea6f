"""JSON of fitted gap estimators."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import DamagedFile, UnreadableFile
from gapscope.base.renamed import RENAMED
from gapscope.base.type_guards import is_dict
from gapscope.gap.fits import ApplicabilityDomain, Kernel
from gapscope.results.result import to_builtin

if TYPE_CHECKING:
    from gapscope.gap.gap_estimator import GapEstimator

# of stored estimators
SCHEMA = 2
# parameters of older files: intervals from a part of the networks, and stated signs of coefficients
REMOVED = ("calibration_share", "calibration_fraction", "directions")


def estimator_to_dict(estimator: GapEstimator) -> dict[str, Any]:
    """Return all parameters and fitted values of an estimator, for JSON."""
    parameters = {name: getattr(estimator, name) for name in signature(type(estimator)).parameters}
    if estimator.features is not None:
        parameters["features"] = [str(name) for name in estimator.features]
    fitted = {
        "intercept": estimator.intercept_,
        "coefficients": estimator.coef_,
        "feature_names": estimator.feature_names_,
        "named": hasattr(estimator, "feature_names_in_"),
        "left_out": estimator.left_out_,
        "residuals": estimator.residuals_,
        "region": estimator.region_,
    }
    if estimator.kernel_ is not None:
        fitted["kernel"] = estimator.kernel_
    content = {"schema": SCHEMA, "what": "gap estimator", "parameters": parameters}
    return to_builtin({**content, "fitted": fitted})


def check_stored(content: Any, path: str | Path, what: str, schema: int) -> None:
    """Raise unless a file holds an estimator of this kind that this version can read."""
    if not is_dict(content) or content.get("what") != what:
        article = "an" if what.startswith("a") else "a"
        raise UnreadableFile(
            f"{path} must hold {article} {what}; it does not. Fit one and save it there."
        )
    stored = content.get("schema")
    if not isinstance(stored, int):
        raise DamagedFile(
            f"{path} is damaged (it has no 'schema' that is a number). Fit the estimator again."
        )
    if stored > schema:
        raise UnreadableFile(
            f"{path} must have schema {schema} or older; got {stored}, written by a newer gapscope. "
            "Upgrade gapscope, or fit the estimator again."
        )


def estimator_from_dict(content: Any, path: str, kind: type[GapEstimator]) -> GapEstimator:
    """Return the estimator with the values that `estimator_to_dict` returned."""
    check_stored(content, path, "gap estimator", SCHEMA)
    try:
        parameters: dict[str, Any] = {
            str(RENAMED["GapEstimator"].get(name, name)): value
            for name, value in content["parameters"].items()
            if name not in REMOVED
        }
        estimator = kind(**parameters)
        estimator.check_parameters()
        _restore(estimator, content["fitted"])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DamagedFile(f"{path} is damaged ({error}). Fit the estimator again.") from None
    return estimator


def _restore(estimator: Any, fitted: Mapping[str, Any]) -> None:
    estimator.intercept_ = float(fitted["intercept"])
    estimator.coef_ = numpy.array(fitted["coefficients"], dtype=float)
    if estimator.kind == "gaussian_process":
        estimator.kernel_ = Kernel.from_dict(fitted["kernel"])
    else:
        estimator.kernel_ = None
    estimator.feature_names_ = tuple(fitted["feature_names"])
    estimator.n_features_in_ = len(estimator.feature_names_)
    if fitted["named"]:
        estimator.feature_names_in_ = numpy.array(estimator.feature_names_, dtype=object)
    estimator.left_out_ = numpy.array(fitted["left_out"], dtype=float).reshape(
        -1, 1 + len(estimator.coef_)
    )
    estimator.residuals_ = numpy.array(fitted["residuals"], dtype=float).reshape(-1)
    estimator.region_ = ApplicabilityDomain.from_dict(fitted["region"])
    names = [
        *(estimator.features or ()),
        *estimator.log_features,
        *estimator.families,
        *estimator.clusters,
        *estimator.feature_names_,
    ]
    if not all(isinstance(name, str) for name in names) or set(estimator.families) != set(
        estimator.region_.families
    ):
        raise ValueError("names of readings and families must be texts and agree")
    numbers = (estimator.intercept_, estimator.coef_, estimator.left_out_, estimator.residuals_)
    if not all(numpy.isfinite(part).all() for part in numbers):
        raise ValueError("a coefficient, refit or residual is not finite")
    basis = estimator.n_features_in_ if estimator.kernel_ is None else len(estimator.kernel_.points)
    if len(estimator.coef_) != basis:
        raise ValueError(f"{basis} readings or networks and {len(estimator.coef_)} coefficients")
    readings = {estimator.n_features_in_, len(estimator.region_.names), len(estimator.region_.low)}
    if estimator.kernel_ is not None:
        readings.add(len(estimator.kernel_.centre))
    if len(readings) > 1:
        raise ValueError(f"{estimator.n_features_in_} readings, and a region of other readings")
    if len(estimator.left_out_) != len(estimator.residuals_):
        raise ValueError(
            f"{len(estimator.left_out_)} refits and {len(estimator.residuals_)} residuals"
        )
