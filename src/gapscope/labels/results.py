"""Results of label checks: noise rate and ranked label issues."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.arguments import check_arguments
from gapscope.base.files import write_output
from gapscope.base.samples import Samples
from gapscope.labels.conflicting_copies import sentences_on_copies
from gapscope.labels.label_cells import N_ROWS, count_rows, written_names
from gapscope.labels.sample_details import SampleDetails
from gapscope.results.csv_files import write_csv
from gapscope.results.estimate import percent, percents_apart
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

# by judgment
RECALL = 0.9
# Below this accuracy on clean labels, label errors cannot be distinguished from mistakes of the kernel machine.
MIN_CLEAN_ACCURACY = 0.6
# The same for regression: below, the residuals of correct targets are as large as those of wrong ones.
MIN_R_SQUARED = 0.7
# Below this accuracy on clean labels, the rate is an upper bound only and no precision is promised. Of 50 data sets
# with planted errors, the lower end was nowhere above the true rate between 0.80 and 0.90; lists of a promised
# precision of 0.5 held 0.60 from 0.84 on, and 0.49 at 0.80 to 0.82.
TIGHT_FROM = 0.85
# A rate that is far too high makes `clean_accuracy` too high, but its interval is wide: 0.40 in the only such case of
# 65, at most 0.25 in the others.
MAX_WIDTH = 0.3


# How predictions are independent of the label, where not by leave-one-out.
HELD_OUT = {"boosted trees": "five folds", "pred_probs": "as passed"}


NO_PROMISE = (
    "No precision can be promised, because a hard problem is not excluded: no label is flagged, and the order tells "
    "where to look first. Pass features that suit the data better, or leave out precision=."
)

# What is ranked, where a sample has more than one label.
UNIT = {"multi-label": "labels", "positions": "positions"}


@dataclass(frozen=True, repr=False)
class LabelNoiseEstimate(Result):
    """Estimated fraction of label errors.

    Attributes:
        rate: The fraction; an upper bound that is tight if clean labels are predicted well.
        low: Lower end of its 90 % interval; 0 if the rate is an upper bound only.
        high: Upper end.
        clean_accuracy: Leave-one-out accuracy on clean labels; NaN for regression.
        samples: Number of samples.
        accuracy: Leave-one-out accuracy on the labels; NaN if it was not computed.
        most_frequent: Fraction of the most frequent class; NaN likewise.
        width: Width of the interval before its lower end was set to 0.
        is_upper_bound: Whether all labels may be clean and the problem hard.
        r_squared: For regression, 1 - (spread of the leave-one-out residuals / spread of the targets)^2, with robust
            spreads; NaN for class labels.
        refused: Why the rate is refused, whatever its interval: the predictions had seen the labels, or most inputs
            occur several times. Else empty.
        has_canaries: Whether the rate follows from the canaries of a monitored run.
        notes: Sentences about what was omitted.
    """

    rate: float
    low: float
    high: float
    clean_accuracy: float
    samples: int
    accuracy: float = math.nan
    most_frequent: float = math.nan
    width: float = math.nan
    is_upper_bound: bool = False
    r_squared: float = math.nan
    refused: str = ""
    has_canaries: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)

    def bounded_if_hard(self, *, hard: bool = False) -> LabelNoiseEstimate:
        """Return an upper bound (low 0) if under 85 % of clean labels are predicted, or if `hard`.

        Args:
            hard: Whether the problem is hard for another reason.
        """
        if math.isnan(self.width):
            width = self.high - self.low
        else:
            width = self.width
        bound = hard or self.is_upper_bound or not self.clean_accuracy >= TIGHT_FROM
        return replace(self, low=0.0 if bound else self.low, width=width, is_upper_bound=bound)

    @property
    def abstained_because(self) -> str:
        """Reason why the estimate is unreliable (empty if it is reliable)."""
        if self.refused:
            return self.refused
        if math.isnan(self.width):
            width = self.high - self.low
        else:
            width = self.width
        # 0.3 above chance: chosen on data with seeds 0 to 2 and evaluated on others (results/labels/hard_clean.json).
        needed = self.most_frequent + 0.3 * (1 - self.most_frequent)
        advice = "Pass more samples"
        if self.r_squared < MIN_R_SQUARED:
            reason = f"targets are predicted with an R^2 of {self.r_squared:.2f}, at least {MIN_R_SQUARED} is needed"
        elif math.isnan(self.r_squared) and not self.clean_accuracy >= MIN_CLEAN_ACCURACY:
            accuracy, least = percents_apart(max(self.clean_accuracy, 0), MIN_CLEAN_ACCURACY)
            reason = f"clean labels are predicted at {accuracy}, at least {least} is needed"
            if self.clean_accuracy <= self.most_frequent:
                # an extrapolation, which may be negative
                frequent = percent(self.most_frequent)
                reason = (
                    f"labels are not predicted better than by the most frequent class ({frequent})"
                )
        elif self.accuracy < needed:
            accuracy, least, frequent = percents_apart(self.accuracy, needed, self.most_frequent)
            reason = (
                f"labels are predicted at {accuracy}, at least {least} is needed (the most "
                f"frequent class has {frequent})"
            )
        elif width > MAX_WIDTH:
            interval = f"{100 * self.low:.0f} to {percent(self.high)}"
            reason = (
                f"the interval would be {interval}, at most {percent(MAX_WIDTH)} wide is useful"
            )
            if self.has_canaries:
                advice = "Pass more samples or more canaries"
        else:
            return ""
        advice += ", or features that suit the data better."
        return f"The rate of label noise cannot be estimated: {reason}. {advice}"

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row."""
        import pandas

        return pandas.DataFrame([vars(self)])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The rate with its interval, as one sentence, and the notes."""
        return (self._rate_sentence(), *self.notes)

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _rate_sentence(self) -> str:
        """Return the rate with its interval."""
        highest = percent(self.high, 1)
        interval = f"90 % interval {100 * self.low:.1f} to {highest}"
        if not math.isnan(self.r_squared):
            return (
                f"Estimated label noise: at most {highest} of {self.samples:,} targets ({interval}), not counting "
                f"errors as small as the usual residual; targets are predicted with an R^2 of {self.r_squared:.2f}"
            )
        predicted = f"clean labels are predicted at {percent(self.clean_accuracy)}"
        if self.is_upper_bound:
            return (
                f"Estimated label noise: at most {highest} of {self.samples:,} labels ({interval}); {predicted}, "
                "so a hard problem is not excluded"
            )
        return f"Estimated label noise: {percent(self.rate, 1)} of {self.samples:,} labels ({interval}); {predicted}"


@dataclass(frozen=True, repr=False)
class LabelIssues(Result):
    """Samples ranked by how likely their label is wrong.

    Attributes:
        indices: Row numbers of the samples in the data that were passed, most likely errors first, [n].
        given_labels: Their labels, in the same order, [n].
        suggested_labels: Predicted class (the label itself if it agrees) or regression target, [n].
        margin: Score of the label less the largest other score, [n]; for regression minus the absolute residual in
            units of the robust spread.
        n_flagged: Number of flagged samples, the first of the ranking.
        expected_precision: Expected fraction of errors among them; NaN without a rate, and if the rate is an upper
            bound, because all of them may then be correct.
        noise: Rate of label noise; None if it cannot be estimated.
        note: Why it cannot be estimated, or empty.
        probability: Probability of the suggested label, [n]; empty for regression and monitored runs, and without a
            rate; NaN for one of several labels that cannot be predicted.
        error_probability: Probability that the given label is wrong, [n]; empty likewise.
        precision_curve: Expected fraction of errors among the first 1, 2, ..., n samples; empty if it cannot be
            known: without a rate, or if the rate is an upper bound.
        method: Kernel machine of the ranking; empty for a monitored run.
        samples: The data, for `write_html`; None for a monitored run.
        conflicts: Pairs of (near-)duplicates with different labels: of several labels, or labels of positions, one
            differs at least. Regression targets differ by more than 0.1 % of their spread; the largest differences come
            first.
        test: Test samples, adapted to the data; None without.
        test_duplicates: Pairs (index, index in the test set) of (near-)duplicates, those with different labels first.
        test_conflicts: Those of these pairs with different labels.
        test_details: As `details`, of the test samples.
        notes: Sentences about the data.
        details: Columns, paths or names of the samples, for `write_html` and `to_csv`.
        kind: Kind of the task. With several labels per sample ("multi-label") and with labels of positions, every
            single label has its place in the ranking, and samples repeat.
        places: Place of each ranked label within its sample, [m, p]: number of the label; token; row and column of the
            pixel. Empty for one label per sample.
        place_name: Name of the column of the places in tables. There labels of a frame have the names of its columns.
        log_odds: Log odds of an error that rank class labels and labels of positions, [n]; else empty.
        groups: Number of groups, if labels were compared with predictions of other groups; else None.
    """

    indices: Int[Tensor, " n"]
    given_labels: Tensor
    suggested_labels: Tensor
    margin: Float[Tensor, " n"]
    n_flagged: int
    expected_precision: float
    noise: LabelNoiseEstimate | None
    note: str = ""
    probability: Tensor = field(default_factory=lambda: torch.empty(0))
    error_probability: Tensor = field(default_factory=lambda: torch.empty(0))
    precision_curve: Tensor = field(default_factory=lambda: torch.empty(0))
    method: str = ""
    samples: Samples | None = None
    conflicts: tuple[tuple[int, int], ...] = ()
    test: Samples | None = None
    test_duplicates: tuple[tuple[int, int], ...] = ()
    test_conflicts: tuple[tuple[int, int], ...] = ()
    test_details: SampleDetails = field(default_factory=SampleDetails)
    notes: tuple[str, ...] = ()
    details: SampleDetails = field(default_factory=SampleDetails)
    kind: str = "classification"
    places: Int[Tensor, "m p"] = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    place_name: str = ""
    log_odds: Tensor = field(default_factory=lambda: torch.empty(0))
    groups: int | None = None

    @property
    def is_answered(self) -> bool:
        """Whether samples can be flagged."""
        return self.noise is not None or self.n_flagged > 0 or len(self.precision_curve) > 0

    @property
    def flagged(self) -> Tensor | None:
        """Indices of the flagged samples (None if the labels cannot be predicted well enough)."""
        if self.is_answered:
            return self.indices[: self.n_flagged]
        return None

    def with_row_numbers(self) -> LabelIssues:
        """Return the ranking with row numbers of the data that were passed in place of indices of the samples."""
        samples = self.samples
        if samples is None:
            return self
        rows = samples.original(torch.arange(len(samples))).tolist()
        return replace(
            self,
            indices=samples.original(self.indices.cpu()),
            conflicts=tuple((rows[i], rows[j]) for i, j in self.conflicts),
            test_duplicates=tuple((rows[i], j) for i, j in self.test_duplicates),
            test_conflicts=tuple((rows[i], j) for i, j in self.test_conflicts),
        )

    @check_arguments
    def with_precision(self, precision: float) -> LabelIssues:
        """Return the ranking with the longest flagged list of at least this expected precision.

        A note says why nothing is flagged: no list reaches the precision, or a hard problem is not excluded, so that
        all flagged labels may be correct.

        Args:
            precision: Smallest expected fraction of label errors among the flagged samples, in [0, 1].
        """
        curve = self.precision_curve
        notes = self.notes
        sufficient = torch.nonzero(curve >= precision).flatten()
        if len(sufficient):
            n = int(sufficient[-1]) + 1
            return replace(self, n_flagged=n, expected_precision=float(curve[n - 1]))
        if len(curve):
            largest = percent(float(curve.max()))
            notes = (
                *notes,
                f"No list reaches a precision of {percent(precision)}; {largest} is the most.",
            )
        elif self.is_answered:
            notes = (*notes, NO_PROMISE)
        return replace(self, n_flagged=0, expected_precision=math.nan, notes=notes)

    def _names(self, labels: Tensor) -> list[Any]:
        """Return labels [m] as a list for review has them: names of classes, or numbers."""
        if self.samples is None or self.kind == "multi-label":
            names = ()
        else:
            names = written_names(self.samples.class_names)
        known = dict(enumerate(names))
        if names or self.given_labels.dtype == torch.int64:
            return [known.get(int(label), int(label)) for label in labels.tolist()]
        # as passed: the shortest number that is this one in the precision of the targets
        values = labels.detach().cpu().to(self.given_labels.dtype)
        if values.dtype == torch.bfloat16:  # which NumPy lacks
            return values.tolist()
        return [float(str(value)) for value in values.numpy()]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per sample, likely errors first (none is `flagged` without a rate)."""
        import pandas

        n = len(self.indices)
        missing = [math.nan] * n
        return pandas.DataFrame(
            {
                "sample": self.indices.tolist(),
                **({self.place_name: self._place_texts()} if self.place_name else {}),
                "given": self._names(self.given_labels),
                "suggested": self._names(self.suggested_labels),
                "probability": self.probability.tolist() or missing,
                "error_probability": self.error_probability.tolist() or missing,
                "margin": self.margin.tolist(),
                "flagged": [rank < self.n_flagged for rank in range(n)],
            }
        )

    def _place_texts(self) -> list[Any]:
        """Return the places as numbers or names, or as text such as "3, 17" for row and column."""
        rows = self.places.tolist()
        if self.kind == "multi-label" and self.samples is not None and self.samples.named_targets:
            return [self.samples.named_targets[row[0]] for row in rows]
        return [row[0] if len(row) == 1 else ", ".join(map(str, row)) for row in rows]

    def rank_samples(self) -> pandas.DataFrame:
        """Return one row per sample, those with the labels that are most likely wrong first.

        Samples with several labels are ranked by their worst label, those of positions by the mean log odds of their
        two worst. Columns are `sample`, the `error_probability` of its worst label, the number of its `labels` that
        were ranked, and how many are `flagged`.
        """
        import pandas

        table = pandas.DataFrame(
            {
                "sample": self.indices.numpy(),
                "error_probability": self.error_probability.numpy()
                if len(self.error_probability)
                else math.nan,
                "labels": 1,
                "flagged": torch.arange(len(self.indices)).numpy() < self.n_flagged,
            }
        )
        # the order of the ranking decides between samples of equal probability
        grouped = table.groupby("sample", sort=False)
        rows = grouped.agg(
            {"error_probability": "first", "labels": "sum", "flagged": "sum"}
        ).reset_index()
        if self.kind != "positions":
            return rows
        # the two worst labels of a sample of positions rank it: with one, average precision was 0.93 for lines and
        # 0.91 for masks, with two 0.94 and 0.96, with three 0.93 and 0.96 (digits, MNIST and Fashion-MNIST with
        # planted errors).
        worst = table.assign(odds=self.log_odds.numpy()).groupby("sample", sort=False).head(2)
        odds = worst.groupby("sample", sort=False)["odds"].mean().to_numpy()
        return rows.iloc[(-odds).argsort(kind="stable")].reset_index(drop=True)

    def _content(self) -> dict[str, Any]:
        """Return the ranking and the rate, without the data,."""
        return {
            "rows": self.to_pandas().to_dict("records"),
            "n_flagged": self.n_flagged,
            "expected_precision": self.expected_precision,
            "noise": None if self.noise is None else self.noise.to_dict(),
            "note": self.note,
            "notes": list(self.notes),
            "method": self.method,
            "conflicts": [list(pair) for pair in self.conflicts],
            "test_duplicates": [list(pair) for pair in self.test_duplicates],
            "test_conflicts": [list(pair) for pair in self.test_conflicts],
        }

    @check_arguments
    def to_csv(self, path: str | Path) -> None:
        """Write the ranking as CSV, with an empty column `label`, and names of the samples if there are any.

        Fill it with correct labels or "drop"; then call `gapscope.apply_label_corrections`.

        Args:
            path: File to write; its folder must exist.
        """
        table = self.to_pandas()
        table.insert(1, "label", "")
        if len(self.details.names):
            table.insert(2, "name", [self.details.name(index) for index in self.indices.tolist()])
        table[N_ROWS] = count_rows(self.samples)
        write_csv(path, table)

    @check_arguments
    def write_html(self, path: str | Path, *, n: int | None = None) -> None:
        """Write a self-contained page to review suspected samples, with pairs of conflicting duplicates.

        Args:
            path: File to write; its folder must exist.
            n: Number of samples, at most 500; None for the flagged ones, at least 24.
        """
        from gapscope.labels.work_list import render

        write_output(path, render(self, n))

    def _flagged_sentence(self) -> str:
        if not self.n_flagged:
            return "No sample is flagged."
        if self.kind == "regression":
            others = "correct ones rarely"
            if self.method == "pred_probs":
                others = "and so may correct ones, if an error near them was learned"
            return f"{self.n_flagged} flagged: swapped targets often have residuals as large, {others}."
        if math.isnan(self.expected_precision):
            return f"{self.n_flagged} flagged; all of them may be correct, because a hard problem is not excluded."
        return f"{self.n_flagged} flagged; about {percent(self.expected_precision)} of them are expected to be wrong."

    @property
    def _held_out(self) -> str:
        """How predictions are independent of the label."""
        default = "leave-one-out"
        of_groups = ""
        if self.kind == "positions":
            default = "leave-one-sample-out"
        if self.groups is not None:
            default = "leave-one-group-out"
            of_groups = f", {self.groups} groups"
        return HELD_OUT.get(self.method, default) + of_groups

    @property
    def sentences(self) -> tuple[str, ...]:
        """The rate, the flagged samples, duplicates and notes, one sentence each."""
        lines = [self.note if self.noise is None else f"{self.noise!r}."]
        if self.kind in UNIT:
            n = len(set(self.indices.tolist()))
            lines.append(f"{len(self.indices):,} {UNIT[self.kind]} of {n:,} samples are ranked.")
        if self.is_answered:
            lines.append(self._flagged_sentence())
        if self.method:
            lines.append(f"Ranked by {self.method} ({self._held_out}).")
        lines += sentences_on_copies(
            self.samples, self.conflicts, self.test, self.test_duplicates, self.test_conflicts
        )
        return (*lines, *self.notes)

    def __repr__(self) -> str:
        table = self.to_pandas().head(8).to_string(index=False, float_format="{:.3f}".format)
        return "\n".join([*self.sentences, "", table])
