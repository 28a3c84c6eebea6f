"""Gap estimator: a scikit-learn regressor with intervals and a region."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin  # pyright: ignore[reportMissingTypeStubs]
from sklearn.utils.validation import (  # pyright: ignore[reportMissingTypeStubs]
    check_is_fitted,  # pyright: ignore[reportUnknownVariableType]
    validate_data,  # pyright: ignore[reportUnknownVariableType]
)

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import (
    DamagedFile,
    InvalidInput,
    UnreadableFile,
    check_choice,
    check_range,
)
from gapscope.base.files import read_json, to_json, write_output
from gapscope.base.renamed import RENAMED
from gapscope.base.tables import check_columns
from gapscope.base.type_guards import is_dict, is_list_or_tuple
from gapscope.gap.columns import finite_rows, log_transform
from gapscope.gap.fits import (
    KINDS,
    ApplicabilityDomain,
    Kernel,
    fit_coefficients,
    fit_kernel,
    join_reasons,
)
from gapscope.results.estimate import percent
from gapscope.results.progress import progress
from gapscope.results.result import to_builtin
from gapscope.statistics.intervals import configuration_ids, jackknife_plus

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
# of stored estimators
SCHEMA = 2
# parameters of older files: intervals from a part of the networks, and stated signs of coefficients
REMOVED = ("calibration_share", "calibration_fraction", "directions")
INTERVALS = ("jackknife+", "cv+", "none")


class GapEstimator(RegressorMixin, BaseEstimator):
    r"""Regressor of the generalization gap on readings, with intervals and a region.

    $$\hat g = c + \sum_k a_k x_k$$

    fitted on networks of known gap. With unit sparsity's zeta and kappa as readings this is the paper's
    $\hat g = a\zeta + b\kappa + c$.

    Args:
        kind: "linear" (least squares, the paper's), "ridge" (standardized readings, strength by leave-one-out error;
            for many or strongly correlated readings) or "gaussian_process" (a smooth function of few standardized
            readings, see `gapscope.gap.fits`; refits keep the kernel of all networks).
        features: Columns of the readings; None uses all, an empty list fits the mean gap.
        log_features: Readings that enter by their natural logarithm (they must be positive).
        families: Columns of the kind of network (architecture, normalization). They do not enter the fit; a value that
            no fitted network had is outside the region (a missing one is "absent").
        clusters: Columns whose equal values make networks of one kind (training configuration, data set), which refits
            omit together, so that intervals hold for unseen kinds. They do not enter the fit.
        error_scale: Column of the expected error of each network, up to a factor: the width of its interval. Empty for
            the same width, or the posterior deviation of a Gaussian process.
        interval: "jackknife+" (n refits), "cv+" (`n_folds` refits, for hundreds of networks) or "none" (one fit,
            infinite intervals).
        n_folds: Number of folds of "cv+".
        random_state: Seed of the folds.

    Attributes:
        coef_: Coefficients a, in units of the gap per unit of the reading (or of its logarithm); of a Gaussian process
            those of the similarities with the fitted networks.
        intercept_: Intercept c.
        feature_names_: Names of the readings in the order of `coef_`.
        kernel_, region_: Similarity of networks (None for the linear kinds), and the region of the fitted readings.

    Zhao, Zhang, Hu, "Estimating the generalization in deep neural networks via sparsity", 2022, eq. 7.
    """

    def __init__(
        self,
        *,
        kind: str = "linear",
        features: Sequence[str] | None = None,
        log_features: Sequence[str] = (),
        families: Sequence[str] = (),
        clusters: Sequence[str] = (),
        error_scale: str = "",
        interval: str = "jackknife+",
        n_folds: int = 20,
        random_state: int = 0,
    ) -> None:
        self.kind = kind
        self.features = features
        self.log_features = log_features
        self.families = families
        self.clusters = clusters
        self.error_scale = error_scale
        self.interval = interval
        self.n_folds = n_folds
        self.random_state = random_state

    def check_parameters(self) -> None:
        """Raise InvalidInput for parameters out of range (`fit` calls it, as in scikit-learn)."""
        parameters = vars(self)
        check_choice("kind", self.kind, KINDS)
        check_choice("interval", self.interval, INTERVALS)
        check_range("n_folds", self.n_folds, 2)
        for name in ("features", "log_features", "families", "clusters"):
            texts = isinstance(parameters[name], Collection) and not isinstance(
                parameters[name], str
            )
            if not texts and (parameters[name], name) != (None, "features"):
                raise InvalidInput(
                    f"{name} must be a list of column names; got {parameters[name]!r}."
                )
        if not isinstance(parameters["error_scale"], str):
            raise InvalidInput(
                f"error_scale must be the name of a column; got {self.error_scale!r}."
            )

    def _checked(self, X: Any, finite: bool, **fitting: Any) -> Any:
        """Return readings (and target, while fitting) as scikit-learn validates them."""
        metadata = [
            *self.families,
            *self.clusters,
            *([self.error_scale] if self.error_scale else []),
        ]
        features = []
        if self.features is not None:
            features = list(self.features)
        columns: Any = X
        if not hasattr(X, "columns"):
            if features or metadata:
                raise InvalidInput(
                    "X must be a table with named columns, because features, families, clusters or error_scale name "
                    f"some; got {type(X).__name__}. Pass a pandas DataFrame."
                )
        else:
            if "y" in fitting:
                needed = metadata
            else:
                needed = []
                if self.error_scale:
                    needed = [self.error_scale]
            check_columns(X, [*features, *needed])
            if features:
                columns = X[features]
            else:
                columns = X.drop(columns=metadata, errors="ignore")
        if self.features is not None and not features:
            columns = numpy.zeros((len(X), 0))
        for name in getattr(columns, "columns", ()):
            try:
                n_missing = int((~numpy.isfinite(columns[name].to_numpy(dtype=float))).sum())
            except (TypeError, ValueError):
                raise InvalidInput(
                    f"Every reading must be a number; column {name!r} holds {columns[name].iloc[0]!r}. "
                    "Name the readings to use in features."
                ) from None
            if finite and n_missing:
                raise InvalidInput(
                    f"Every reading must be finite; column {name!r} holds NaN or infinity in {n_missing} of {len(X)} "
                    "rows. Drop these networks, or leave the column out of features."
                )
        options: dict[str, Any] = {
            "dtype": numpy.float64,
            "ensure_min_features": 0 if self.features is not None else 1,
            "ensure_all_finite": finite,
            **fitting,
        }
        return validate_data(self, columns, **options)  # pyright: ignore[reportUnknownVariableType]

    def _readings(self, X: Any, *, finite: bool = True) -> tuple[Array, Array]:
        """Return readings of new networks, transformed for the fit, and untransformed."""
        readings = numpy.asarray(self._checked(X, finite, reset=False))
        return log_transform(
            readings, self.feature_names_, self.log_features, finite=finite
        ), readings

    def fit(self, X: Any, y: Any) -> GapEstimator:
        """Fit the coefficients, and the refits of the intervals, to the gaps y.

        Args:
            X: Table, one row per network, with the readings as named columns.
            y: Gap of each network, [n], finite numbers in one unit.

        Raises:
            InvalidInput: A parameter is out of range, a column is missing or not numeric, a reading is not finite.
        """
        self.check_parameters()
        readings, y = self._checked(X, True, y=y, y_numeric=True, ensure_min_samples=2)
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(readings.shape[1])])
        self.feature_names_ = tuple(str(name) for name in names)
        x = log_transform(readings, self.feature_names_, self.log_features, finite=True)
        y = numpy.asarray(y, dtype=float)
        families = {column: sorted(set(values)) for column, values in self._families_of(X).items()}
        if self.kind == "gaussian_process":
            self.kernel_ = fit_kernel(x, y)
        else:
            self.kernel_ = None
        weights = self._weights(x, y, numpy.arange(len(y)))
        self.intercept_, self.coef_ = float(weights[0]), weights[1:]
        self.region_ = ApplicabilityDomain.fit(x, self.feature_names_, families)
        spread = self._spread(X, x)
        if self.interval == "none":
            self.residuals_, self.left_out_ = numpy.zeros(0), numpy.zeros((0, len(weights)))
        else:
            self.left_out_, basis = numpy.zeros((len(y), len(weights))), self._basis(x)
            folds = self._folds(X, len(y))
            with progress("fitting", len(folds)) as bar:
                for fold in folds:
                    rest = numpy.delete(numpy.arange(len(y)), fold)
                    self.left_out_[fold] = self._weights(x, y, rest)
                    if self.kernel_ is not None and not self.error_scale:
                        spread[fold] = self.kernel_.deviation(x[fold], rest)
                    bar.advance()
            predictions = self.left_out_[:, 0] + (self.left_out_[:, 1:] * basis).sum(1)
            self.residuals_ = numpy.abs(y - predictions) / spread
        return self

    def _weights(self, x: Array, y: Array, rows: Int[Array, " r"]) -> Array:
        """Intercept and weights of the basis, fitted to these rows."""
        if self.kernel_ is not None:
            return self.kernel_.weights(y, rows)
        return fit_coefficients(self.kind, x[rows], y[rows])

    def _basis(self, x: Float[Array, "m p"]) -> Float[Array, "m b"]:
        """Return the basis of the estimate: readings, or similarities with the fitted networks."""
        if self.kernel_ is None:
            return x
        return self.kernel_(x)

    def _spread(self, X: Any, x: Float[Array, "m p"]) -> Float[Array, " m"]:
        """Return the expected error of each network, up to a factor."""
        if not self.error_scale:
            if self.kernel_ is None:
                return numpy.ones(len(x))
            return self.kernel_.deviation(x)
        spread = X[self.error_scale].to_numpy(dtype=float)
        if not (spread > 0).all():
            raise InvalidInput(
                f"The column of error_scale must hold positive numbers; column {self.error_scale!r} holds "
                f"{spread.min():.4g}."
            )
        return spread

    def _families_of(self, X: Any) -> dict[str, list[str]]:
        """Return the values of the family columns, "absent" if missing."""
        result = {}
        for column in self.families:
            values = [None] * len(X)
            if column in X.columns:
                values = list(X[column])
            result[column] = [
                "absent" if value is None or value != value else str(value) for value in values
            ]
        return result

    def _folds(self, X: Any, n: int) -> list[Int[Array, " m"]]:
        """Return the parts of the refits: single networks or clusters, or `n_folds` random parts."""
        if len(self.clusters):
            kinds = configuration_ids(X, list(self.clusters))
        else:
            kinds = numpy.arange(n)
        if kinds.max() == 0:
            raise InvalidInput(
                "clusters must separate the networks into two kinds or more; "
                f"{', '.join(self.clusters)} has one value. Leave clusters out."
            )
        parts = [numpy.array([kind]) for kind in range(kinds.max() + 1)]
        if self.interval == "cv+":
            order = numpy.random.default_rng(self.random_state).permutation(kinds.max() + 1)
            parts = numpy.array_split(order, min(self.n_folds, len(order)))
        return [numpy.flatnonzero(numpy.isin(kinds, part)) for part in parts]

    def _estimates(self, x: Float[Array, "m p"]) -> Float[Array, " m"]:
        return self.intercept_ + self._basis(x) @ self.coef_

    def predict(self, X: Any) -> Float[Array, " m"]:
        """Return the estimated gap of each network, in units of the gap it was fitted on.

        Args:
            X: Table, one row per network, with the columns of the fit.
        """
        check_is_fitted(self)
        return self._estimates(self._readings(X)[0])

    def predict_interval(self, X: Any, level: float = 0.9) -> Float[Array, "m 2"]:
        """Return the lower and upper end of an interval for the gap of each network.

        For networks exchangeable with the fitted ones the coverage is at least 2 level - 1 with "jackknife+" (about
        level in practice) and, up to about sqrt(2 / n), with "cv+", for any distribution. Nothing is guaranteed outside
        the fitted region. Ends are infinite if fewer networks were fitted than the level needs (9 for 0.9).

        Args:
            X: Table, one row per network, with the columns of the fit.
            level: Probability that the interval is meant to cover, in (0, 1).

        Raises:
            InvalidInput: level is not between 0 and 1.
        """
        check_is_fitted(self)
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        x = self._readings(X)[0]
        return self._interval(x, self._spread(X, x), level)

    def _interval(
        self, x: Float[Array, "m p"], spread: Float[Array, " m"], level: float
    ) -> Float[Array, "m 2"]:
        left_out = self.left_out_[:, 0] + self._basis(x) @ self.left_out_[:, 1:].T
        return jackknife_plus(left_out, self.residuals_, level, spread)

    def in_domain(self, X: Any) -> pandas.DataFrame:
        """Return `verdict` ("inside" or "outside") and `reason` of each network, indexed like X.

        A network is "outside" if a family value is new, a reading is not finite or leaves the fitted range too far, or
        its readings together have a larger leverage than those of all fitted networks, see `ApplicabilityDomain`. Some
        networks of the same distribution are outside, too: 6 % with 40 networks and 4 skewed readings, 2 % with 100
        and 2.

        Args:
            X: Table, one row per network, with the columns of the fit.
        """
        import pandas

        check_is_fitted(self)
        x, readings = self._readings(X, finite=False)
        families = self._families_of(X)
        reasons = [
            join_reasons(each) for each in self.region_.out_of_domain_reasons(x, readings, families)
        ]
        verdicts = ["outside" if reason else "inside" for reason in reasons]
        return pandas.DataFrame(
            {"verdict": verdicts, "reason": reasons}, index=getattr(X, "index", None)
        )

    def assess(self, X: Any, *, level: float = 0.9, refuse: bool = True) -> pandas.DataFrame:
        """Return prediction, low, high, verdict and reason of each network, indexed like X.

        With `refuse` a network outside the fitted region gets NaN instead of an estimate.

        Args:
            X: Table, one row per network, with the columns of the fit.
            level: Probability that the interval is meant to cover, in (0, 1).
            refuse: Whether a network outside the fitted region gets NaN instead of an estimate.
        """
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        verdicts = self.in_domain(X)
        x = self._readings(X, finite=False)[0]
        answerable = finite_rows(x)
        if refuse:
            answerable &= (verdicts["verdict"] == "inside").to_numpy()
        numbers = numpy.full((len(x), 3), numpy.nan)
        numbers[answerable, 0] = self._estimates(x[answerable])
        spread = self._spread(X[answerable] if self.error_scale else X, x[answerable])
        numbers[answerable, 1:] = self._interval(x[answerable], spread, level)
        for k, name in enumerate(("prediction", "low", "high")):
            verdicts.insert(k, name, numbers[:, k])
        if self.interval != "none":
            is_infinite = (verdicts["reason"] == "").to_numpy() & numpy.isinf(numbers[:, 1:]).any(1)
            verdicts.loc[is_infinite, "reason"] = (
                f"fitted on too few networks for an interval of {percent(level)}"
            )
        return verdicts

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write the fitted estimator as JSON, atomically.

        Args:
            path: File to write; an existing one is replaced.
        """
        check_is_fitted(self)
        write_output(path, to_json(estimator_to_dict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> GapEstimator:
        """Read an estimator that `save` wrote, bit for bit the same.

        Args:
            path: File that `save` wrote.
        """
        return estimator_from_dict(read_json(Path(path)), str(path), cls)


def estimator_to_dict(estimator: GapEstimator) -> dict[str, Any]:
    """Return all parameters and fitted values of an estimator, for JSON."""
    values = {name: getattr(estimator, name) for name in signature(type(estimator)).parameters}
    parameters = {
        name: list(value) if is_list_or_tuple(value) else value for name, value in values.items()
    }
    if estimator.features is not None:
        parameters["features"] = [str(name) for name in estimator.features]
    fitted = {
        "intercept": estimator.intercept_,
        "coefficients": estimator.coef_.tolist(),
        "feature_names": list(estimator.feature_names_),
        "named": hasattr(estimator, "feature_names_in_"),
        "left_out": estimator.left_out_.tolist(),
        "residuals": estimator.residuals_.tolist(),
        "region": to_builtin(estimator.region_),
    }
    if estimator.kernel_ is not None:
        fitted["kernel"] = to_builtin(estimator.kernel_)
    return {"schema": SCHEMA, "what": "gap estimator", "parameters": parameters, "fitted": fitted}


def check_stored(content: Any, path: str | Path, what: str, schema: int) -> None:
    """Raise unless a file holds an estimator of this kind that this version can read."""
    if not is_dict(content) or content.get("what") != what:
        article = "a"
        if what.startswith("a"):
            article = "an"
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
    metadata = (*estimator.families, *estimator.clusters)
    names = [
        *(estimator.features or ()),
        *estimator.log_features,
        *metadata,
        *estimator.feature_names_,
    ]
    if not all(isinstance(name, str) for name in names) or set(estimator.families) != set(
        estimator.region_.families
    ):
        raise ValueError("names of readings and families must be texts and agree")
    numbers = (estimator.intercept_, estimator.coef_, estimator.left_out_, estimator.residuals_)
    if not all(numpy.isfinite(part).all() for part in numbers):
        raise ValueError("a coefficient, refit or residual is not finite")
    if estimator.kernel_ is None:
        basis = estimator.n_features_in_
    else:
        basis = len(estimator.kernel_.points)
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
