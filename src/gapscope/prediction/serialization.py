"""JSON of a fitted gap estimator, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import DamagedFile, UnreadableFile
from gapscope.base.type_guards import is_dict, is_list_or_tuple
from gapscope.prediction.fits import Kernel
from gapscope.prediction.region import ApplicabilityDomain

if TYPE_CHECKING:
    from gapscope.prediction.gap_estimator import GapEstimator

SCHEMA = 2
# names of the constructor's parameters in files of schema 1
RENAMED = {"spread": "error_scale", "logarithm": "log_features"}
# of files that were written when intervals could come from a part of the networks
REMOVED = ("calibration_share", "calibration_fraction")


def estimator_to_dict(estimator: GapEstimator) -> dict[str, Any]:
    """Return all parameters and fitted values of an estimator, for JSON."""
    given = {name: getattr(estimator, name) for name in signature(type(estimator)).parameters}
    parameters = {name: list(value) if is_list_or_tuple(value) else value for name, value in given.items()}
    if estimator.features is not None:
        parameters["features"] = [str(name) for name in estimator.features]
    fitted = {
        "intercept": estimator.intercept_,
        "coefficients": estimator.coef_.tolist(),
        "feature_names": list(estimator.feature_names_),
        "named": hasattr(estimator, "feature_names_in_"),
        "left_out": estimator.left_out_.tolist(),
        "residuals": estimator.residuals_.tolist(),
        "region": estimator.region_.to_dict(),
    }
    if estimator.kernel_ is not None:
        fitted["kernel"] = estimator.kernel_.to_dict()
    return {"schema": SCHEMA, "what": "gap estimator", "parameters": parameters, "fitted": fitted}


def estimator_from_dict(content: Any, path: str, kind: type[GapEstimator]) -> GapEstimator:
    """Return the estimator that `estimator_to_dict` gave these values of."""
    if not is_dict(content) or content.get("what") != "gap estimator":
        raise UnreadableFile(f"{path} must hold a gap estimator; it does not. Fit one and save it there.")
    if not isinstance(content.get("schema"), int):
        raise DamagedFile(f"{path} is damaged (it has no 'schema' that is a number). Fit the estimator again.")
    if content["schema"] > SCHEMA:
        raise UnreadableFile(
            f"{path} must have schema {SCHEMA} or older; got {content['schema']}, written by a newer gapscope. "
            "Upgrade gapscope, or fit the estimator again."
        )
    try:
        parameters: dict[str, Any] = {
            str(RENAMED.get(name, name)): value for name, value in content["parameters"].items() if name not in REMOVED
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
    estimator.kernel_ = Kernel.from_dict(fitted["kernel"]) if estimator.kind == "gaussian_process" else None
    estimator.feature_names_ = tuple(fitted["feature_names"])
    estimator.n_features_in_ = len(estimator.feature_names_)
    if fitted["named"]:
        estimator.feature_names_in_ = numpy.array(estimator.feature_names_, dtype=object)
    estimator.left_out_ = numpy.array(fitted["left_out"], dtype=float).reshape(-1, 1 + len(estimator.coef_))
    estimator.residuals_ = numpy.array(fitted["residuals"], dtype=float).reshape(-1)
    estimator.region_ = ApplicabilityDomain.from_dict(fitted["region"])
    beside = (*estimator.families, *estimator.clusters)
    names = [*(estimator.features or ()), *estimator.log_features, *beside, *estimator.feature_names_]
    if not all(isinstance(name, str) for name in names) or set(estimator.families) != set(estimator.region_.families):
        raise ValueError("names of readings and families must be texts, and the same throughout")
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
        raise ValueError(f"{estimator.n_features_in_} readings and a region of others")
    if len(estimator.left_out_) != len(estimator.residuals_):
        raise ValueError(f"{len(estimator.left_out_)} refits and {len(estimator.residuals_)} residuals")
