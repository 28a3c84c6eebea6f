"""Estimator of the accuracy after training, and the readings it uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor, nn

from gapscope.base.errors import DamagedFile, check_choice, check_range
from gapscope.base.files import read_json, to_json, write_output
from gapscope.base.samples import Samples
from gapscope.base.tables import check_columns
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.gap.stored import check_stored, estimator_from_dict, estimator_to_dict
from gapscope.inspection.copies import copy_network
from gapscope.inspection.known_layers import known_layers
from gapscope.inspection.memory import FEWER_LANDMARKS, explained_memory
from gapscope.labels.noise_rate import clean_accuracy
from gapscope.measures.gradient_neighbours import neighbours_from_kernel
from gapscope.measures.kernel_leave_one_out import (
    kernel_alignment,
    kernel_leave_one_out,
    loo_from_kernel,
)
from gapscope.measures.ntk import empirical_ntk
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.formatting import pluralize
from gapscope.results.progress import progress
from gapscope.results.result import to_builtin

if TYPE_CHECKING:
    import pandas


MAX_PAIRS = 1000  # samples whose gradients are compared at the trained weights


def with_state(network: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network with the weights of a state dictionary."""
    with torch.inference_mode(False):
        before = copy_network(network)
        before.load_state_dict(dict(state))
    return before


def accuracy_readings(
    network: nn.Module,
    initial_state: Mapping[str, Tensor],
    samples: Samples,
    *,
    groups: Tensor | None = None,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
) -> dict[str, float]:
    """Return leave-one-out scores at the initial weights, neighbours' votes and alignment.

    The names are those of `gs.measure`, so that a pool's readings can be used: all of `kernel_leave_one_out` at the
    initial weights, its `alignment`, and for classification `gradient_neighbours`. Above 1,000 samples, neighbours and
    alignment are those of 1,000 random samples. With groups, samples are predicted by those of other groups.
    """
    before = with_data_statistics(with_state(network, initial_state), samples.inputs)
    pairs = samples
    groups_of_pairs = groups
    if len(samples) > MAX_PAIRS:
        indices = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[
            :MAX_PAIRS
        ]
        pairs = samples.subset(indices)
        groups_of_pairs = None if groups is None else groups[indices]
    kernels: list[Tensor] = []
    with (
        progress("estimating", 3) as bar,
        explained_memory(FEWER_LANDMARKS),
    ):
        for name, subject in (("initial", before), ("trained", network)):
            bar.step(f"gradients at the {name} weights")
            kernels.append(
                empirical_ntk(subject, pairs.inputs, outputs="traced", chunk_size=chunk_size)
            )
            bar.advance()
        bar.step("leave-one-out predictions")
        if len(pairs) == len(samples):
            loo = loo_from_kernel(kernels[0], network, samples.inputs, samples.y, groups)
        else:
            loo = kernel_leave_one_out(before, samples.inputs, samples.y, max_exact=max_exact, groups=groups,
                                       landmarks=landmarks, chunk_size=chunk_size)  # fmt: skip
    result = {
        f"kernel_leave_one_out.initial.{name}": value for name, value in loo.scalars().items()
    }
    if samples.is_classification:
        largest_group = 1
        if groups_of_pairs is not None:
            largest_group = int(groups_of_pairs.bincount().max())
        vote = neighbours_from_kernel(
            kernels[1],
            network,
            pairs.inputs,
            pairs.y,
            neighbours=min(20, len(pairs) - largest_group),
            groups=groups_of_pairs,
        )
        result |= {f"gradient_neighbours.{name}": value for name, value in vote.scalars().items()}
    return result | {"kernel_leave_one_out.alignment": kernel_alignment(*kernels)}


SHIPPED = Path(__file__).with_name("shipped_accuracy_estimator.json")
# raised when stored estimators change
SCHEMA = 1
LOO = "kernel_leave_one_out.initial"
TARGETS = ("like_training", "clean")
# columns that an estimate needs of each network
NEEDED = ("samples", "classes", "train_accuracy", f"{LOO}.accuracy", f"{LOO}.squared_error",
          f"{LOO}.effective_dimension", "gradient_neighbours.agreement", "gradient_neighbours.conflict",
          "kernel_leave_one_out.alignment")  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Limits of the fitted networks, beyond which there is no estimate.

    Attributes:
        alignment: Smallest cosine of the kernels before and after training.
        leverage: Largest mean leverage (effective dimension per sample).
        samples: Smallest number of samples.
    """

    alignment: float
    leverage: float
    samples: int


@dataclass(frozen=True)
class ErrorParts:
    """Standard deviations of the errors on data sets that were not fitted on.

    Attributes:
        between: That of the data sets' mean errors.
        within: That of networks around the mean of their data set.
    """

    between: float
    within: float


def with_features(table: pandas.DataFrame, spread: float) -> pandas.DataFrame:
    """Return the table with the columns that enter the fits, and expected errors."""
    check_columns(table, NEEDED)
    left_out = table[f"{LOO}.accuracy"]
    n = table["samples"]
    # one correct and one wrong sample are added, so that no accuracy has a standard error of 0
    smoothed = (left_out * n + 1) / (n + 2)
    return table.assign(
        left_out=left_out,
        residual=table[f"{LOO}.squared_error"],
        leverage=table[f"{LOO}.effective_dimension"] / n,
        agreement=table["gradient_neighbours.agreement"],
        conflict=table["gradient_neighbours.conflict"],
        fit=table["train_accuracy"],
        # positive if training stopped before it fitted what the data allow
        shortfall=numpy.maximum(left_out - table["train_accuracy"], 0.0),
        log_samples=numpy.log(n),
        expected_error=numpy.sqrt(smoothed * (1 - smoothed) / n + spread**2),
    )


def clean_label_accuracy(
    answer: IntervalEstimate, noise: float, classes: float, *, clip: bool = True
) -> IntervalEstimate:
    """Return the accuracy on clean labels, given that with evenly spread label errors."""
    ends = [
        clean_accuracy(each, noise, classes) for each in (answer.value, answer.low, answer.high)
    ]
    return IntervalEstimate(*(min(max(each, 0.0), 1.0) for each in ends) if clip else ends)


def implied_noise_rate(like: float, clean: float, classes: float) -> float:
    """Return the fraction of label errors that lowers the clean accuracy to the other (or 0)."""
    above = clean - (1 - clean) / (classes - 1)
    if above > 0:
        return min(max((clean - like) / above, 0.0), 1.0)
    return 0.0


@dataclass(frozen=True)
class AccuracyEstimator:
    """Corrections of the leave-one-out accuracy for each target, fitted on networks.

    Attributes:
        corrections: Target -> fitted estimator of accuracy minus held-out accuracy.
        spread: The tau of `with_features`.
        limits: Where it abstains.
        card: What it was fitted on and its errors on other data sets, as JSON-serializable values.
        errors: Target -> how its errors scatter between and within data sets.
        shifts: Target -> what `recalibrate` adds.
    """

    corrections: Mapping[str, GapEstimator]
    spread: float
    limits: Limits
    card: Mapping[str, Any]
    errors: Mapping[str, ErrorParts]
    shifts: Mapping[str, float] = field(default_factory=dict[str, float])

    def recalibrate(
        self, table: pandas.DataFrame, accuracy: Sequence[float], target: str = "like_training"
    ) -> AccuracyEstimator:
        """Return the estimator shifted to networks of known accuracy on the same data.

        An earlier shift of this target is replaced. Intervals keep their widths.

        Args:
            table: One row per known network, with the columns `NEEDED`.
            accuracy: Known accuracy of each of them, in [0, 1].
            target: "like_training" or "clean".
        """
        check_choice("target", target, TARGETS)
        for each in accuracy:
            check_range("accuracy", each, 0, 1)
        unshifted = replace(
            self, shifts={name: shift for name, shift in self.shifts.items() if name != target}
        )
        errors = numpy.asarray(accuracy) - [
            answer.value for answer in unshifted.predict(table)[target]
        ]
        parts = self.errors[target]
        if parts.between:
            weight = len(errors) / (len(errors) + (parts.within / parts.between) ** 2)
        else:
            weight = 0.0
        return replace(
            unshifted, shifts={**unshifted.shifts, target: float(errors.mean()) * weight}
        )

    def predict(
        self, table: pandas.DataFrame, *, level: float = 0.9
    ) -> dict[str, list[IntervalEstimate]]:
        """Return target -> accuracy of each network within 0 and 1, without abstaining.

        Args:
            table: One row per network, with the columns `NEEDED`.
            level: Nominal coverage of the intervals.
        """
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        features = with_features(table, self.spread)
        result: dict[str, list[IntervalEstimate]] = {}
        for target, correction in self.corrections.items():
            ends = correction.predict_interval(features, level)
            base = features["left_out"].to_numpy()[:, None] + self.shifts.get(target, 0.0)
            columns = numpy.column_stack([correction.predict(features), ends]) + base
            result[target] = [
                IntervalEstimate(*row) for row in numpy.clip(columns, 0.0, 1.0).tolist()
            ]
        return result

    def abstention_reasons(
        self, table: pandas.DataFrame, largest_class: Sequence[float]
    ) -> list[list[str]]:
        """Return the reasons to abstain from each network, one list of sentences per network.

        Args:
            table: One row per network, with the columns `NEEDED`.
            largest_class: Fraction of the most frequent label in the training data of each network.
        """
        features = with_features(table, self.spread)
        reasons: list[list[str]] = []
        for row, fraction in zip(features.to_dict("records"), largest_class, strict=True):
            domain_checks = self._domain_checks(row, fraction)
            reasons.append([reason for reason, applies in domain_checks.items() if applies])
        for correction in self.corrections.values():
            for result, each in zip(
                reasons, correction.in_domain(features).to_dict("records"), strict=True
            ):
                if each["reason"] and not result:
                    result.append(f"it is unlike the fitted networks: {each['reason']}")
        return reasons

    def _domain_checks(self, row: Mapping[Any, Any], largest_class: float) -> dict[str, bool]:
        limits = self.limits
        n = row["samples"]
        alignment = row["kernel_leave_one_out.alignment"]
        far = "its features are far from their initial values"
        if math.isnan(alignment):
            far = f"{far}: a kernel is 0 or not finite"
        else:
            far = f"{far} (alignment of the kernels {alignment:.2f}, smallest fitted {limits.alignment:.2f})"
        error = (largest_class * (1 - largest_class) / n) ** 0.5
        return {
            f"{n:.0f} samples are fewer than {limits.samples}": n < limits.samples,
            far: not alignment >= limits.alignment,
            f"the untrained kernel can fit any labels (mean leverage {row['leverage']:.2f}, largest fitted "
            f"{limits.leverage:.2f})": not row["leverage"] <= limits.leverage,
            "before training its gradients predict no better than the most frequent label (leave-one-out accuracy "
            f"{row['left_out']:.2f}, that label {largest_class:.2f})": not row["left_out"]
            > largest_class + 2 * error,
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, atomically.

        Args:
            path: File to write; its folder must exist.
        """
        values = to_builtin(replace(self, corrections={}))
        values["corrections"] = {
            target: estimator_to_dict(each) for target, each in self.corrections.items()
        }
        content = {"schema": SCHEMA, "what": "accuracy estimator", **values}
        write_output(path, to_json(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> AccuracyEstimator:
        """Read an estimator, bit for bit the same.

        Args:
            path: File that `save` wrote.

        Raises:
            DamagedFile: The file is damaged.
        """
        content = read_json(Path(path))
        check_stored(content, path, "accuracy estimator", SCHEMA)
        try:
            corrections = {
                target: estimator_from_dict(content["corrections"][target], str(path), GapEstimator)
                for target in TARGETS
            }
            return cls(
                corrections, float(content["spread"]), Limits(**content["limits"]), content["card"],
                {target: ErrorParts(**content["errors"][target]) for target in TARGETS},
                {target: float(shift) for target, shift in content["shifts"].items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(f"{path} is damaged ({error}). Fit the estimator again.") from None


@cache
def load_default() -> AccuracyEstimator:
    """Return the estimator that comes with the package."""
    return AccuracyEstimator.load(SHIPPED)


# Chosen on breast cancer and digits, two seeds each: of 7 estimates for networks with a layer of one or two units 5
# intervals missed the test accuracy, by up to 22 points; of 12 with three to eight units none did.
MIN_WIDTH = 3


def _narrowest(network: nn.Module) -> int:
    """Return the units of the narrowest hidden layer of a sequential network of linear layers (else enough)."""
    layers = [layer for layer in known_layers(network) if isinstance(layer, nn.Linear)]
    return min((layer.out_features for layer in layers[:-1]), default=MIN_WIDTH)


def early_reasons(fitted: AccuracyEstimator, n: int, network: nn.Module, unit: str) -> list[str]:
    """Return the reasons to abstain that are known before any work.

    Args:
        fitted: The estimator.
        n: Number of independent samples.
        network: The network.
        unit: What is counted, samples or groups.
    """
    reasons: list[str] = []
    if n < fitted.limits.samples:
        reasons.append(f"{n} {unit} are fewer than {fitted.limits.samples}")
    width = _narrowest(network)
    if width < MIN_WIDTH:
        reasons.append(
            f"its narrowest layer has {pluralize(width, 'unit')}, and {MIN_WIDTH} are needed"
        )
    return reasons
