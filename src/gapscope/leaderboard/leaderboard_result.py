"""Leaderboard of measures: scores, verdicts and their table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import join_names
from gapscope.leaderboard.network_tables import SIZES
from gapscope.results.formatting import pluralize
from gapscope.results.result import StoredRows, axes_or_new, numbers_of, to_builtin, to_html
from gapscope.statistics.intervals import percentile_interval

if TYPE_CHECKING:
    import pandas


EVIDENCE, NO_EVIDENCE, NOT_JUDGED = "evidence", "no evidence", "not judged"
# by judgment
MIN_CONFIGURATIONS = 12
NO_SETTINGS = "no hyperparameter of the networks is known to vary"


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number with its 95 % bootstrap interval over training configurations and its p-value.

    Attributes:
        value: The number; NaN where it is not defined.
        low: Lower end of the interval; NaN without one.
        high: Upper end.
        p: Permutation p-value, corrected over all rows; NaN if there is none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def of(cls, value: Any, resampled: Any) -> Score:
        """Return a value with its interval, without a p-value.

        Args:
            value: The number.
            resampled: The number in each bootstrap resample.
        """
        low, high = percentile_interval(resampled, 0.95)
        return cls(value=float(value), low=low, high=high)

    @property
    def significant(self) -> bool:
        """True if p is at most 5 %, the level of all tests by convention."""
        return self.p <= 0.05


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one measure, with the scores on which it rests.

    Attributes:
        role: "measure", "size" (the baseline) or "random" (random numbers, a baseline).
        verdict: Whether it predicts the gap beyond the hyperparameters: "evidence", "no evidence" or "not judged".
        why: Reason of the verdict, in words.
        partial: Partial correlation with the gap given the hyperparameters; its p decides the verdict.
        kendall: Kendall's tau-b with the gap over all networks.
    """

    role: str
    verdict: str
    why: str
    partial: Score
    kendall: Score


def skipped_measures(left_out: Collection[str], n_all: int) -> list[str]:
    """Name the measures that are not ranked, and state what to do (nothing if all are).

    Args:
        left_out: Names of their numbers.
        n_all: Number of all numbers.
    """
    if not left_out:
        return []
    measures = {name.removeprefix("m.").split(".")[0] for name in left_out}
    return [
        f"Not ranked, since networks lack values: {len(left_out)} of {pluralize(n_all, 'number')}, of "
        f"{join_names(sorted(measures))}. Run the same measures on all networks, or rank those that have them."
    ]


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow(Verdict):
    """All scores of one measure on a table of networks.

    Attributes:
        role: "measure", "size" (the baseline) or "random" (random numbers, a baseline).
        verdict: Whether it predicts the gap beyond the hyperparameters: "evidence", "no evidence" or "not judged".
        why: Reason of the verdict, in words.
        partial: Partial correlation with the gap given the hyperparameters; its p decides the verdict.
        kendall: Kendall's tau-b with the gap over all networks.
        measure: Name of the measure, a column of the table.
        granulated: Mean tau-b where one hyperparameter varies.
        granulated_groups: Number of groups in which one hyperparameter varies.
        granulated_dropped: Groups in which measure or gap is constant, so that tau is undefined.
        mutual_information: Conditional mutual information, symmetric and with ties, 0 to 1.
        competition: 100 times the score of the 2020 competition; NaN with fewer than two hyperparameters.
        r_squared: R^2 of a straight line, on held-out training configurations.
        mae: Mean absolute error of that line, in units of the gap.
        sign_error: Mean over environments; the measure is negated if its tau is negative.
        worst_sign_error: The largest over environments.
        environments: Number of environments in which the gaps differ significantly.
        explained: Fraction of its variance that hyperparameters explain on held-out training configurations.
    """

    measure: str
    granulated: Score
    granulated_groups: int
    granulated_dropped: int
    mutual_information: Score
    competition: float
    r_squared: Score
    mae: Score
    sign_error: Score
    worst_sign_error: float
    environments: int
    explained: float


def _too_few(recipes: int) -> str:
    return (
        f"{recipes} training configurations are too few; at least {MIN_CONFIGURATIONS} are needed"
    )


def _subject(target: str) -> str:
    """Return the name of the predicted column as sentences need it."""
    return "the gap" if target == "gap" else target


def verdict_of(
    *,
    partial: Score,
    kendall: Score,
    fixed: str,
    hyperparameters: int,
    recipes: int,
    target: str = "gap",
) -> tuple[str, str]:
    """Return "evidence", "no evidence" or "not judged", and why.

    `fixed` is the result of `explain_by_settings`, `recipes` the number of training configurations, and `target` the
    column that is predicted.
    """
    subject = _subject(target)
    if not hyperparameters:
        return NOT_JUDGED, NO_SETTINGS
    if recipes < MIN_CONFIGURATIONS:
        return NOT_JUDGED, _too_few(recipes)
    if fixed:
        return NO_EVIDENCE, fixed
    # only measures that use the test labels reach such a tau; the best of 13 in the competition has 0.81
    if abs(kendall.value) >= 0.95:
        return (
            NO_EVIDENCE,
            f"its order is that of {subject} (tau {kendall.value:.2f}); it seems to use test labels",
        )
    if partial.significant:
        effect = "larger" if partial.value > 0 else "smaller"
        return (
            EVIDENCE,
            f"larger values predict a {effect} {target} at equal hyperparameters (partial r {partial.value:.2f})",
        )
    if kendall.significant:
        return (
            NO_EVIDENCE,
            f"it correlates with {subject} (tau {kendall.value:.2f}), but not beyond the hyperparameters",
        )
    return NO_EVIDENCE, f"it does not correlate with {subject}"


# rows and characters that fit a terminal
MAX_ROWS = 10
# characters in a column
LONGEST_NAME = 20
SCORES = tuple(item.name for item in fields(LeaderboardRow) if item.type == "Score")


def shorten_names(measures: Sequence[str], longest: int = LONGEST_NAME) -> list[str]:
    """Drop the prefix "m." of names, and cut them to `longest` letters if they stay distinct.

    Names with equal beginnings are cut further left until they differ; if no cut is distinct, the names stay whole.

    >>> shorten_names(["m.rbf", "spectral_complexity.log_product", "margins.conv1_relu.low", "margins.conv1_relu.high"])
    ['rbf', 'spectral_complexit..', 'margins.c.._relu.low', 'margins.c..relu.high']
    """
    names = [measure.removeprefix("m.") for measure in measures]
    ends = [name if len(name) <= longest else f"{name[: longest - 2]}.." for name in names]
    for n_head in range((longest - 2) // 2, -1, -1):
        counts = Counter(ends)
        n_tail = longest - 2 - n_head
        ends = [
            end if counts[end] == 1 else f"{name[:n_head]}..{name[-n_tail:]}"
            for name, end in zip(names, ends, strict=True)
        ]
    counts = Counter(ends)
    return [end if counts[end] == 1 else name for name, end in zip(names, ends, strict=True)]


def _list_names(rows: Sequence[LeaderboardRow]) -> str:
    return join_names(row.measure.removeprefix("m.") for row in rows)


class Leaderboard(StoredRows[LeaderboardRow]):
    """Measures evaluated on networks whose gap (or another column) is known, baselines first.

    Attributes:
        rows: One `Row` per number, baselines first.
        **attributes: The attributes below, by name.
        source: What the networks are.
        networks: Number of networks.
        recipes: Number of training configurations; networks that agree in all hyperparameters are one.
        hyperparameters: Columns of the hyperparameters.
        left_out: Excluded measure -> reason.
        dropped: Number of networks excluded because they have no gap, no finite value of a measure or no settings.
        drawn_from: Number of networks from which training configurations were sampled; 0 if all are used.
        target: Column that was predicted, "gap" by default.
    """

    _kind, _keys = "a leaderboard", frozenset({"correction"})
    source: str
    networks: int
    recipes: int
    hyperparameters: tuple[str, ...]
    left_out: Mapping[str, str]
    dropped: int
    drawn_from: int
    target: str

    @property
    def subject(self) -> str:
        """What was predicted, in words."""
        return _subject(self.target)

    def row(self, measure: str) -> LeaderboardRow:
        """Return the row of one measure, with or without the prefix "m." of its name.

        Args:
            measure: Name of a measure, with or without the prefix "m.".
        """
        return {row.measure.removeprefix("m."): row for row in self}[measure.removeprefix("m.")]

    @property
    def trusted(self) -> list[LeaderboardRow]:
        """Measures with evidence beyond the hyperparameters, the strongest first."""
        trusted = [row for row in self if row.role == "measure" and row.verdict == EVIDENCE]
        return sorted(trusted, key=lambda row: -abs(row.partial.value))

    @property
    def verdict(self) -> tuple[str, ...]:
        """Conclusions in sentences."""
        measures = [row for row in self if row.role == "measure"]
        trusted = self.trusted
        judged = [row for row in measures if row.verdict != NOT_JUDGED]
        n_judged = pluralize(len(judged), "measure")
        if not judged:
            sentences = [self._why_not_judged()]
        elif trusted:
            predict = "predicts" if len(trusted) == 1 else "predict"
            sentences = [
                f"{len(trusted)} of {n_judged} {predict} {self.subject} beyond the hyperparameters: "
                f"{_list_names(trusted)}."
            ]
        else:
            sentences = [f"None of {n_judged} predicts {self.subject} beyond the hyperparameters."]
        confounded = [row for row in judged if row.verdict != EVIDENCE and row.kendall.significant]
        confounded.sort(key=lambda row: -abs(row.kendall.value))
        if confounded:
            sentences.append(
                f"Correlated with {self.subject}, but not beyond the hyperparameters: {_list_names(confounded)}."
            )
        predictive = [
            row for row in measures if row.r_squared.significant and row.r_squared.value > 0
        ]
        if predictive:
            best = max(predictive, key=lambda row: row.r_squared.value)
            sentences.append(
                f"If the hyperparameters are not known, {_list_names([best])} predicts best: "
                f"R2 {best.r_squared.value:.2f}."
            )
        size = next((row for row in self if row.role == "size"), None)
        if size is None:
            lacking = next((name for name in SIZES if name in self.left_out), None)
            message = "The table has no size (parameter_count) to compare with"
            if lacking is not None:
                message = f"No size to compare with: of {lacking}, {self.left_out[lacking]}"
        else:
            message = (
                f"Size alone has R2 {size.r_squared.value:.2f} on held-out training configurations"
            )
            if trusted:
                better = sum(row.r_squared.value > size.r_squared.value for row in trusted)
                message += f"; measures with more: {better} of {len(trusted)}"
        return (*sentences, f"{message}.", *self._skipped_measures())

    def _skipped_measures(self) -> list[str]:
        n_all = len(self.left_out) + sum(row.role != "random" for row in self)
        return skipped_measures(self.left_out, n_all)

    def _why_not_judged(self) -> str:
        """Return why no measure was judged at equal hyperparameters, and what to do."""
        why = (
            f"{NO_SETTINGS}. Pass settings= when networks are added to a pool (--set on the command line), or columns "
            "hp.NAME of a table."
        )
        if self.hyperparameters:
            why = f"{_too_few(self.recipes)}."
        return (
            f"Not judged whether measures predict {self.subject} beyond the hyperparameters: {why}"
        )

    def _ordered(self) -> list[LeaderboardRow]:
        """Sort rows: baselines, then by association beyond the hyperparameters, evidence first."""

        def key(row: LeaderboardRow) -> tuple[int, bool, float]:
            strength = 0.0 if math.isnan(row.partial.value) else abs(row.partial.value)
            return ("size", "random", "measure").index(row.role), row.verdict != EVIDENCE, -strength

        return sorted(self, key=key)

    def summary(self, longest_name: int = LONGEST_NAME) -> pandas.DataFrame:
        """Return verdict and main scores per measure, baselines first, with names shortened.

        Args:
            longest_name: Number of characters from which a name is shortened.
        """
        import pandas

        ordered = self._ordered()
        rows = [
            {
                "measure": name,
                "verdict": row.verdict,
                "partial r": row.partial.value,
                "p": row.partial.p,
                "tau": row.kendall.value,
                "granul.": row.granulated.value,
                "CMI": 100 * row.mutual_information.value,
                "PGDL": row.competition,
                "R2": row.r_squared.value,
            }
            for name, row in zip(
                shorten_names([row.measure for row in ordered], longest_name), ordered, strict=True
            )
        ]
        return pandas.DataFrame(rows).set_index("measure")

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per measure with each score's `value`, `_low`, `_high` and `_p`."""
        import pandas

        table = pandas.json_normalize([to_builtin(row) for row in self], sep="_")
        table = table.rename(columns=lambda name: name.removesuffix("_value"))
        return table.dropna(axis="columns", how="all").set_index("measure")

    def _content(self) -> dict[str, Any]:
        """Return rows, verdict and attributes as JSON-serializable values."""
        correction = "Westfall-Young single-step max-T over all rows"
        return {"verdict": list(self.verdict), "correction": correction, **super()._content()}

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Leaderboard:
        rows: list[LeaderboardRow] = []
        for row in content["rows"]:
            scores = {name: Score(**numbers_of(Score, row[name])) for name in SCORES}
            rows.append(LeaderboardRow(**numbers_of(LeaderboardRow, row | scores)))
        names = ("source", "networks", "recipes", "hyperparameters", "left_out", "dropped")
        attributes = {name: content[name] for name in names}
        attributes["hyperparameters"] = tuple(content["hyperparameters"])
        return cls(
            rows,
            **attributes,
            drawn_from=content.get("drawn_from", 0),
            target=content.get("target", "gap"),
        )

    @property
    def description(self) -> str:
        """Counts of networks, training configurations and hyperparameters."""
        text = pluralize(self.networks, "network")
        if self.drawn_from:
            text += f" sampled from {self.drawn_from:,}"
        if self.hyperparameters:
            text += f", {pluralize(self.recipes, 'training configuration')}"
            text += f", {pluralize(len(self.hyperparameters), 'hyperparameter')}"
        else:
            text += ", no hyperparameters that vary"
        if self.dropped:
            text += f", {self.dropped} skipped (without a {self.target}, a value or settings)"
        return text

    def table(self, rows: int | None = None, columns: int = 80) -> str:
        """Return the summary as text, with names cut to fit.

        Args:
            rows: Number of rows to show, baselines first; None shows all.
            columns: Width in characters; below 80 the last scores are omitted.
        """
        summary = self.summary(LONGEST_NAME + max(0, columns - 80)).iloc[:rows]

        text = ""
        # verdict, partial correlation and its p-value stay in the narrowest table
        for n_scores in range(len(summary.columns), 2, -1):
            text = summary.iloc[:, :n_scores].to_string(
                float_format="{:.2f}".format,
                formatters={"p": "{:.3f}".format},
                index_names=False,
                na_rep="-",
            )
            if max(map(len, text.splitlines())) <= columns:
                break
        return text

    def __repr__(self) -> str:
        lines = [*self.verdict[:2], *self._skipped_measures(), self.table(MAX_ROWS)]
        if len(self) > MAX_ROWS:
            lines.append(f"... and {len(self) - MAX_ROWS} more rows: .table(), .to_pandas()")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return to_html(self, (*self.verdict, self.description), self.summary())

    def plot(self, axes: Any = None) -> Any:
        """Plot each measure's partial correlation with its interval, filled if there is evidence.

        Args:
            axes: Axes of matplotlib to draw on; None makes a figure.
        """
        rows = [row for row in self._ordered() if math.isfinite(row.partial.value)][::-1]
        axes = axes_or_new(axes, height=1 + 0.28 * len(rows))
        axes.axvline(0.0, color="0.6", linewidth=0.8)
        for position, row in enumerate(rows):
            score = row.partial
            colour = "tab:blue" if row.role == "measure" else "0.4"
            ends = [[max(0.0, score.value - score.low)], [max(0.0, score.high - score.value)]]
            face = colour if row.verdict == EVIDENCE else "white"
            axes.errorbar(
                score.value, position, xerr=ends, fmt="o", color=colour, markerfacecolor=face
            )
        axes.set_yticks(range(len(rows)), shorten_names([row.measure for row in rows]), fontsize=8)
        axes.set_xlabel(
            f"correlation with {self.subject} given the hyperparameters (filled: evidence)"
        )
        return axes
