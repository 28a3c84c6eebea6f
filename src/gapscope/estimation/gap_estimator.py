"""From readings to the generalization gap: a scikit-learn regressor with intervals that refuses what it cannot know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from gapscope.base.errors import DamagedFile, InvalidInput, UnreadableFile, check_choice, check_range
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.estimation.columns import check_columns
from gapscope.estimation.conformal import jackknife_plus, split_conformal
from gapscope.estimation.fits import KINDS, fit_coefficients
from gapscope.estimation.region import FittedRegion

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
SCHEMA = 1
INTERVALS = ("jackknife+", "cv+", "split", "none")
COEFFICIENT_SIGNS = {"lower": 1.0, "higher": -1.0, "none": 0.0}


class GapEstimator(RegressorMixin, BaseEstimator):
    r"""Estimates the generalization gap of a network from its readings, with an interval and a verdict.

    $$\hat g = c + \sum_k a_k x_k$$

    fitted by least squares on networks whose gap is known: with unit sparsity's zeta and kappa as readings this is the
    paper's $\hat g = a\zeta + b\kappa + c$. `predict_interval` says how far off the estimate may be, `trust` whether
    the network is like those it was fitted on, `assess` both at once.

    Args:
        kind: "linear" (least squares, the paper's), "ridge" (standardised readings, strength by leave-one-out error;
            for many or strongly correlated readings) or "monotone" (least squares whose coefficients have the sign
            that each reading's stated direction demands; at worst zero).
        features: Columns of the table to use as readings; None uses all of them; an empty list fits the mean gap.
        logarithm: Those of the readings that enter by their natural logarithm (they must be positive).
        families: Columns that say what kind of network it is (architecture, normalisation). They do not enter the
            fit; `trust` refuses a network whose value no fitted network had (no value is a value, "absent").
        directions: For "monotone": direction of each reading, "lower" (a lower reading goes with a smaller gap, so
            the coefficient is at least 0), "higher" or "none". A reading that is not named counts as "none".
        interval: "jackknife+" (n refits; covers a new exchangeable network with probability at least
            2 level - 1, in practice about level), "cv+" (the same with `n_folds` refits, each without one fold of the
            networks; for hundreds of networks), "split" (fits on a part and takes the residuals of the rest; covers
            with probability at least level, but all estimates are a little worse) or "none" (one fit, infinite
            intervals).
        n_folds: Number of folds of "cv+".
        calibration_share: Share of the networks that "split" keeps for calibration.
        random_state: Seed of the split and of the folds.

    Attributes:
        coef_: Coefficients a, in units of the gap per unit of the reading (or of its logarithm).
        intercept_: Intercept c.
        feature_names_: Names of the readings in the order of `coef_`.
        region_: The region of readings it was fitted on.

    Zhao, Zhang, Hu, "Estimating the generalization in deep neural networks via sparsity", 2022, eq. 7.

    >>> import numpy
    >>> x = numpy.array([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    >>> estimator = GapEstimator().fit(x, 0.1 + 0.2 * x[:, 0] - 0.05 * x[:, 1])
    >>> estimator.coef_.round(6).tolist(), round(estimator.intercept_, 6)
    ([0.2, -0.05], 0.1)
    """

    def __init__(
        self,
        *,
        kind: str = "linear",
        features: Sequence[str] | None = None,
        logarithm: Sequence[str] = (),
        families: Sequence[str] = (),
        directions: Mapping[str, str] | None = None,
        interval: str = "jackknife+",
        n_folds: int = 20,
        calibration_share: float = 0.3,
        random_state: int = 0,
    ) -> None:
        self.kind = kind
        self.features = features
        self.logarithm = logarithm
        self.families = families
        self.directions = directions
        self.interval = interval
        self.n_folds = n_folds
        self.calibration_share = calibration_share
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("interval", self.interval, INTERVALS)
        check_range("n_folds", self.n_folds, 2)
        check_range("calibration_share", self.calibration_share, 0, 1, low_open=True, high_open=True)
        for name in ("features", "logarithm", "families"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"{name} must be a list of column names; got {getattr(self, name)!r}.")
        if self.kind == "monotone" and self.directions is None:
            raise InvalidInput(
                "kind='monotone' needs the direction of each reading; got directions=None. Pass "
                "directions={'name': 'lower' | 'higher' | 'none'}, for example reading_directions(records)."
            )
        for direction in (self.directions or {}).values():
            check_choice("directions", direction, COEFFICIENT_SIGNS)

    def _columns(self, X: Any, *, fitting: bool) -> Any:
        """Return the readings among the columns of a table (an array holds nothing else)."""
        if not hasattr(X, "columns"):
            if self.features or len(self.families):
                raise InvalidInput(
                    f"X must be a table with named columns, because features or families name some; got "
                    f"{type(X).__name__}. Pass a pandas DataFrame."
                )
            return numpy.zeros((len(X), 0)) if self.features is not None else X
        check_columns(X, [*(self.features or ()), *(self.families if fitting else ())])
        if self.features is not None:
            return X[list(self.features)] if len(self.features) else numpy.zeros((len(X), 0))
        return X.drop(columns=[name for name in self.families if name in X.columns])

    def _checked(self, X: Any, finite: bool, **fitting: Any) -> Any:
        """What scikit-learn's own validation returns for the readings (and the target, while fitting)."""
        columns = self._columns(X, fitting="y" in fitting)
        if hasattr(columns, "columns"):
            _check_numbers(columns, finite)
        few = 0 if self.features is not None else 1
        return validate_data(
            self, columns, dtype=numpy.float64, ensure_min_features=few, ensure_all_finite=finite, **fitting
        )

    def _readings(self, X: Any, *, finite: bool = True) -> tuple[Array, Array]:
        """Readings of new networks as they enter the fit, and the same as given."""
        shown = numpy.asarray(self._checked(X, finite, reset=False))
        return self._with_logarithms(shown, finite), shown

    def _fitted_readings(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Readings as they enter the fit, and the target; the names are remembered."""
        shown, target = self._checked(X, True, y=y, y_numeric=True, ensure_min_samples=2)
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(shown.shape[1])])
        self.feature_names_ = tuple(str(name) for name in names)
        return self._with_logarithms(shown, True), numpy.asarray(target, dtype=float)

    def _with_logarithms(self, shown: Array, finite: bool) -> Array:
        readings = shown.copy()
        for name in self.logarithm:
            if name not in self.feature_names_:
                raise InvalidInput(
                    f"logarithm must name readings among {', '.join(self.feature_names_)}; got {name!r}."
                )
            k = self.feature_names_.index(name)
            positive = shown[:, k] > 0
            if finite and not positive.all():
                raise InvalidInput(
                    f"{name} must be positive to enter by its logarithm; got {shown[:, k].min():.4g}. "
                    "Take it out of logarithm."
                )
            readings[:, k] = numpy.log(numpy.where(positive, shown[:, k], numpy.nan))
        return readings

    def _families(self, X: Any) -> dict[str, list[str]]:
        """Values of the family columns; a setting that a network does not have is "absent"."""
        return {
            column: [_family(value) for value in X[column]] if column in X.columns else ["absent"] * len(X)
            for column in self.families
        }

    def fit(self, X: Any, y: Any) -> GapEstimator:
        """Fit the coefficients, and whatever the intervals need.

        Args:
            X: Readings, one row a network: a pandas DataFrame, or an array.
            y: Gaps.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: A parameter is out of range, a column is missing or not numeric, a reading is not finite.
        """
        self._check_parameters()
        x, y = self._fitted_readings(X, y)
        directions = self.directions or {}
        signs = numpy.array([COEFFICIENT_SIGNS[directions.get(name, "none")] for name in self.feature_names_])
        families = {column: sorted(set(values)) for column, values in self._families(X).items()}
        if self.interval == "split":
            order = numpy.random.default_rng(self.random_state).permutation(len(y))
            n_calibration = min(max(round(self.calibration_share * len(y)), 1), len(y) - 1)
            calibration, fitted = order[:n_calibration], numpy.sort(order[n_calibration:])
        else:
            calibration, fitted = numpy.arange(0), numpy.arange(len(y))
        weights = fit_coefficients(self.kind, x[fitted], y[fitted], signs)
        self.intercept_, self.coef_ = float(weights[0]), weights[1:]
        self.region_ = FittedRegion.around(x[fitted], self.feature_names_, families)
        if self.interval == "split":
            self.residuals_ = numpy.abs(y - self._linear(x))[calibration]
            self.left_out_ = numpy.zeros((0, len(weights)))
        elif self.interval == "none":
            self.residuals_, self.left_out_ = numpy.zeros(0), numpy.zeros((0, len(weights)))
        else:
            self.left_out_ = numpy.zeros((len(y), len(weights)))
            for fold in self._folds(len(y)):
                rest = numpy.delete(x, fold, 0), numpy.delete(y, fold)
                self.left_out_[fold] = fit_coefficients(self.kind, *rest, signs)
            predictions = self.left_out_[:, 0] + (self.left_out_[:, 1:] * x).sum(1)
            self.residuals_ = numpy.abs(y - predictions)
        return self

    def _folds(self, n: int) -> list[Int[Array, " m"]]:
        """Networks that are left out together: one alone, or one of `n_folds` parts drawn at random."""
        if self.interval == "jackknife+":
            return [numpy.array([i]) for i in range(n)]
        order = numpy.random.default_rng(self.random_state).permutation(n)
        return numpy.array_split(order, min(self.n_folds, n))

    def _linear(self, x: Float[Array, "m p"]) -> Float[Array, " m"]:
        return self.intercept_ + x @ self.coef_

    def predict(self, X: Any) -> Float[Array, " m"]:
        """Estimated gap of each network, in units of the gap it was fitted on.

        Args:
            X: Readings, one row a network.

        Returns:
            The estimates.
        """
        check_is_fitted(self)
        return self._linear(self._readings(X)[0])

    def predict_interval(self, X: Any, level: float = 0.9) -> Float[Array, "m 2"]:
        """Interval for the gap of each network.

        Args:
            X: Readings, one row a network.
            level: Nominal coverage. What is guaranteed for networks exchangeable with the fitted ones, whatever the
                distribution: at least 2 level - 1 with "jackknife+" (about level in practice) and, up to about
                sqrt(2 / n), with "cv+"; at least level with "split". Nothing is guaranteed for a network that `trust`
                refuses.

        Returns:
            Lower and upper end of each; infinite where fewer networks were fitted than the level needs (9 for .9).

        Raises:
            InvalidInput: level is not between 0 and 1.
        """
        check_is_fitted(self)
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        return self._interval(self._readings(X)[0], level)

    def _interval(self, x: Float[Array, "m p"], level: float) -> Float[Array, "m 2"]:
        if self.interval == "split":
            return split_conformal(self._linear(x), self.residuals_, level)
        return jackknife_plus(self.left_out_[:, 0] + x @ self.left_out_[:, 1:].T, self.residuals_, level)

    def trust(self, X: Any) -> pandas.DataFrame:
        """Whether each network is like those the estimator was fitted on.

        A network is "outside" where a family value is new, a reading is not finite or leaves the fitted range too far,
        or its readings together have a larger leverage than any fitted network had, see `FittedRegion`. Some of the
        networks that are like the fitted ones are refused too, the more the fewer were fitted for the readings: for
        skewed readings (lognormal) 27 % with 12 networks and 8 readings, 9 % with 20 and 4, 6 % with 40 and 4, 2 % with
        100 and 2.

        Args:
            X: Readings, and the family columns if there are any, one row a network.

        Returns:
            `verdict` ("inside" or "outside") and `reason` (empty inside), indexed like X.
        """
        import pandas

        check_is_fitted(self)
        x, shown = self._readings(X, finite=False)
        reasons = [_joined(each) for each in self.region_.objections(x, shown, self._families(X))]
        verdicts = ["outside" if reason else "inside" for reason in reasons]
        return pandas.DataFrame({"verdict": verdicts, "reason": reasons}, index=getattr(X, "index", None))

    def assess(self, X: Any, *, level: float = 0.9, refuse: bool = True) -> pandas.DataFrame:
        """Estimate, interval and verdict of each network; no estimate where the verdict is "outside".

        Args:
            X: Readings, and the family columns if there are any, one row a network.
            level: Nominal coverage of the intervals.
            refuse: Whether a network outside the fitted region gets NaN instead of an estimate.

        Returns:
            `prediction`, `low`, `high`, `verdict`, `reason`, indexed like X.
        """
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        verdicts = self.trust(X)
        x = self._readings(X, finite=False)[0]
        answered = numpy.isfinite(x).all(1)
        if refuse:
            answered &= (verdicts["verdict"] == "inside").to_numpy()
        numbers = numpy.full((len(x), 3), numpy.nan)
        numbers[answered, 0] = self._linear(x[answered])
        numbers[answered, 1:] = self._interval(x[answered], level)
        for k, name in enumerate(("prediction", "low", "high")):
            verdicts.insert(k, name, numbers[:, k])
        return verdicts

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator as JSON, whole or not at all.

        Args:
            path: The file.
        """
        check_is_fitted(self)
        parameters = {
            key: list(value) if isinstance(value, tuple) else value for key, value in self.get_params().items()
        }
        if self.features is not None:
            parameters["features"] = [str(name) for name in self.features]
        fitted = {
            "intercept": self.intercept_,
            "coefficients": self.coef_.tolist(),
            "feature_names": list(self.feature_names_),
            "named": hasattr(self, "feature_names_in_"),
            "left_out": self.left_out_.tolist(),
            "residuals": self.residuals_.tolist(),
            "region": self.region_.to_dict(),
        }
        content = {"schema": SCHEMA, "what": "gap estimator", "parameters": parameters, "fitted": fitted}
        write_atomically(Path(path), to_json(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> GapEstimator:
        """Read an estimator that `save` wrote; it predicts bit for bit the same.

        Args:
            path: The file.

        Returns:
            The fitted estimator.

        Raises:
            DamagedFile: The file is damaged.
            UnreadableFile: The file is no estimator, or written by a newer gapscope.
        """
        path = Path(path)
        content = read_json(path)
        if not isinstance(content, dict) or content.get("what") != "gap estimator":
            raise UnreadableFile(f"{path} must hold a gap estimator; it does not. Fit one and save it there.")
        if not isinstance(content.get("schema"), int):
            raise DamagedFile(f"{path} is damaged (it has no 'schema' that is a number). Fit the estimator again.")
        if content["schema"] > SCHEMA:
            raise UnreadableFile(
                f"{path} must have schema {SCHEMA} or older; got {content['schema']}, written by a newer gapscope. "
                "Upgrade gapscope, or fit the estimator again."
            )
        try:
            estimator = cls(**content["parameters"])
            estimator._check_parameters()
            estimator._restore(content["fitted"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedFile(f"{path} is damaged ({error}). Fit the estimator again.") from None
        return estimator

    def _restore(self, fitted: Mapping[str, Any]) -> None:
        self.intercept_ = float(fitted["intercept"])
        self.coef_ = numpy.array(fitted["coefficients"], dtype=float)
        self.feature_names_ = tuple(fitted["feature_names"])
        self.n_features_in_ = len(self.feature_names_)
        if fitted["named"]:
            self.feature_names_in_ = numpy.array(self.feature_names_, dtype=object)
        self.left_out_ = numpy.array(fitted["left_out"], dtype=float).reshape(-1, 1 + len(self.coef_))
        self.residuals_ = numpy.array(fitted["residuals"], dtype=float).reshape(-1)
        self.region_ = FittedRegion.from_dict(fitted["region"])
        lengths = {len(self.coef_), len(self.feature_names_), len(self.region_.names), len(self.region_.low)}
        if len(lengths) > 1:
            raise ValueError(f"{len(self.feature_names_)} readings and {len(self.coef_)} coefficients")
        if self.interval != "split" and len(self.left_out_) != len(self.residuals_):
            raise ValueError(f"{len(self.left_out_)} refits and {len(self.residuals_)} residuals")


def _family(value: Any) -> str:
    return "absent" if value is None or value != value else str(value)


def _joined(reasons: list[str]) -> str:
    """The first two reasons, and how many more there are."""
    more = len(reasons) - 2
    return "; ".join(reasons[:2]) + (f"; and {more} more reason{'s' if more > 1 else ''}" if more > 0 else "")


def _check_numbers(columns: pandas.DataFrame, finite: bool) -> None:
    """Raise InvalidInput, naming the column, where a reading is text or (if asked) not finite."""
    for name in columns.columns:
        try:
            values = columns[name].to_numpy(dtype=float)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"Every reading must be a number; column {name!r} holds {columns[name].iloc[0]!r}. "
                "Name the readings to use in features."
            ) from None
        bad = int((~numpy.isfinite(values)).sum())
        if finite and bad:
            raise InvalidInput(
                f"Every reading must be finite; column {name!r} holds NaN or infinity in {bad} of {len(values)} rows. "
                "Drop these networks, or leave the column out of features."
            )
