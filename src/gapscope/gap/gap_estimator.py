"""Gap estimator: a scikit-learn regressor with intervals and a region."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin  # pyright: ignore[reportMissingTypeStubs]
from sklearn.exceptions import NotFittedError  # pyright: ignore[reportMissingTypeStubs]
from sklearn.utils.validation import (  # pyright: ignore[reportMissingTypeStubs]
    check_is_fitted,  # pyright: ignore[reportUnknownVariableType]
    validate_data,  # pyright: ignore[reportUnknownVariableType]
)

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import (
    InvalidInput,
    check_choice,
    check_range,
)
from gapscope.base.files import read_json, to_json, write_output
from gapscope.base.tables import check_columns, check_comparable
from gapscope.gap.columns import finite_rows, log_transform
from gapscope.gap.fits import (
    KINDS,
    ApplicabilityDomain,
    fit_coefficients,
    fit_kernel,
    join_reasons,
)
from gapscope.gap.stored import estimator_from_dict, estimator_to_dict
from gapscope.results.estimate import percent
from gapscope.results.progress import progress
from gapscope.statistics.intervals import configuration_ids, jackknife_plus

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
INTERVALS = ("jackknife+", "cv+", "none")


# what `fit` needs, for scikit-learn's own messages
USAGE = "Pass X, a table with one row of finite readings per network, and y, its gaps."


class NotFitted(InvalidInput, NotFittedError):
    """The estimator has not been fitted."""


@contextmanager
def _explained() -> Iterator[None]:
    """Convert scikit-learn's errors about readings and gaps into InvalidInput."""
    try:
        yield
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{' '.join(str(error).split()).rstrip('.')}. {USAGE}") from error


def _check_rows(X: Any, y: Any) -> None:
    """Raise InvalidInput for swapped arguments, and for gaps in another order than the rows of X."""
    if getattr(X, "ndim", 0) == 1 and getattr(y, "ndim", 0) == 2:
        raise InvalidInput(
            f"X must be a table and y one gap per row; got shapes {list(X.shape)} and {list(y.shape)}. Swap them."
        )
    from gapscope.base.columns import check_row_order  # it loads torch

    check_row_order(X, y)


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
        scale = [self.error_scale] if self.error_scale else []
        metadata = [*self.families, *self.clusters, *scale]
        features = [] if self.features is None else list(self.features)
        columns: Any = X
        if not hasattr(X, "columns"):
            if features or metadata:
                raise InvalidInput(
                    "X must be a table with named columns, because features, families, clusters or error_scale name "
                    f"some; got {type(X).__name__}. Pass a pandas DataFrame."
                )
        else:
            check_columns(X, [*features, *(metadata if "y" in fitting else scale)])
            fitted_names = getattr(self, "feature_names_in_", ())
            if "y" not in fitting and len(fitted_names):
                features = list(fitted_names)
                check_columns(X, features)
            columns = X[features] if features else X.drop(columns=metadata, errors="ignore")
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
        with _explained():
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
            InvalidInput: A parameter is out of range, a column is missing or not numeric, a reading or gap is not
                finite, or X and y have the same index in another order.
        """
        self.check_parameters()
        _check_rows(X, y)
        if hasattr(X, "columns"):
            check_comparable(X, str(getattr(y, "name", "")))
        readings, y = self._checked(X, True, y=y, y_numeric=True, ensure_min_samples=2)
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(readings.shape[1])])
        self.feature_names_ = tuple(str(name) for name in names)
        x = log_transform(readings, self.feature_names_, self.log_features, finite=True)
        with _explained():
            y = numpy.asarray(y, dtype=float)
        families = {column: sorted(set(values)) for column, values in self._families_of(X).items()}
        self.kernel_ = fit_kernel(x, y) if self.kind == "gaussian_process" else None
        weights = self._weights(x, y, numpy.arange(len(y)))
        self.intercept_ = float(weights[0])
        self.coef_ = weights[1:]
        self.region_ = ApplicabilityDomain.fit(x, self.feature_names_, families)
        spread = self._spread(X, x)
        if self.interval == "none":
            self.residuals_ = numpy.zeros(0)
            self.left_out_ = numpy.zeros((0, len(weights)))
        else:
            self.left_out_ = numpy.zeros((len(y), len(weights)))
            basis = self._basis(x)
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
            values = X[column] if column in X.columns else [None] * len(X)
            result[column] = [
                "absent" if value is None or value != value else str(value) for value in values
            ]
        return result

    def _folds(self, X: Any, n: int) -> list[Int[Array, " m"]]:
        """Return the parts of the refits: single networks or clusters, or `n_folds` random parts."""
        kinds = numpy.arange(n)
        if len(self.clusters):
            kinds = configuration_ids(X, list(self.clusters))
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
        self._check_fitted()
        return self._estimates(self._readings(X)[0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2 of the estimated gaps.

        Args:
            X: Table, one row per network, with the columns of the fit.
            y: Gap of each network, [n].
            sample_weight: Weight of each network, [n]; None for equal ones.
        """
        self._check_fitted()
        _check_rows(X, y)
        with _explained():
            return float(super().score(X, y, sample_weight))

    def _check_fitted(self) -> None:
        try:
            check_is_fitted(self)
        except NotFittedError:
            raise NotFitted(
                f"Got a {type(self).__name__} that is not fitted. Call fit(X, y) first, or load one."
            ) from None

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
        self._check_fitted()
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

        self._check_fitted()
        x, readings = self._readings(X, finite=False)
        families = self._families_of(X)
        reasons = [
            join_reasons(each) for each in self.region_.out_of_domain_reasons(x, readings, families)
        ]
        verdicts = ["outside" if reason else "inside" for reason in reasons]
        return pandas.DataFrame(
            {"verdict": verdicts, "reason": reasons},
            index=X.index if hasattr(X, "columns") else None,
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
        self._check_fitted()
        write_output(path, to_json(estimator_to_dict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> GapEstimator:
        """Read an estimator that `save` wrote, bit for bit the same.

        Args:
            path: File that `save` wrote.
        """
        return estimator_from_dict(read_json(Path(path)), str(path), cls)
