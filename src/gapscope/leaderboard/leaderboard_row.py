"""One row of a leaderboard: scores with intervals and p-values, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

EVIDENCE, NO_EVIDENCE = "evidence", "no evidence"
LEVEL = 0.05
# no measure of trained networks comes near this without the test labels; the best of 13 in the competition has .81
LEAKED = 0.95
FEWEST_RECIPES = 12


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number with its interval and p-value.

    Attributes:
        value: The number; NaN where it is not defined.
        low: Lower end of the 95 % bootstrap interval over training configurations.
        high: Upper end.
        p: Permutation p-value, corrected over all rows; NaN if there is none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def of(cls, value: float, interval: tuple[float, float]) -> Score:
        """Return a value with its interval, without a p-value."""
        return cls(value=value, low=interval[0], high=interval[1])

    @property
    def significant(self) -> bool:
        """True if p is at most 5 %."""
        return self.p <= LEVEL


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """Scores of one measure on a table of networks.

    Attributes:
        measure: Its column.
        role: "measure", "size" (the baseline) or "random" (random numbers, a baseline).
        verdict: "evidence" or "no evidence" that it predicts the gap beyond the hyperparameters.
        why: The reason, in words.
        partial: Correlation with the gap given the hyperparameters, cross-fitted; the verdict rests on its p-value.
        kendall: Kendall's tau-b over all networks.
        granulated: Mean tau-b where one hyperparameter varies.
        granulated_groups: Groups it is a mean of.
        granulated_dropped: Groups without a tau, because measure or gap is constant in them.
        mutual_information: Conditional mutual information, symmetric and with ties, 0 to 1.
        competition: 100 times the score of the 2020 competition, defects included; NaN with fewer than two
            hyperparameters.
        r_squared: R2 of the straight line on training configurations that it was not fitted on.
        mae: Its mean absolute error there, in units of the gap.
        sign_error: Mean sign error over environments, of the measure in the direction of its tau.
        worst_sign_error: That of the worst environment.
        environments: Environments with enough evidence.
        explained: Fraction of the measure's variance that the hyperparameters explain on held-out training
            configurations.
    """

    measure: str
    role: str
    verdict: str
    why: str
    partial: Score
    kendall: Score
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Scores of one measure that its verdict rests on.

    Attributes:
        role: "measure", "size" or "random", as on the leaderboard.
        verdict: "evidence" or "no evidence".
        why: The reason, in words.
        partial: Correlation with the gap given the hyperparameters.
        kendall: Tau over all networks.
    """

    role: str
    verdict: str
    why: str
    partial: Score
    kendall: Score


def verdict_of(*, partial: Score, kendall: Score, fixed: str, hyperparameters: int, recipes: int) -> tuple[str, str]:
    """Return "evidence" or "no evidence", and why.

    `fixed` is the reason why the measure is a mere function of hyperparameters ("" if it is not), `recipes` the number
    of training configurations.
    """
    if recipes < FEWEST_RECIPES:
        return NO_EVIDENCE, f"{recipes} training configurations are too few; {FEWEST_RECIPES} at least"
    if fixed:
        return NO_EVIDENCE, fixed
    if abs(kendall.value) >= LEAKED:
        return NO_EVIDENCE, f"it orders networks as the gap itself does (tau {kendall.value:.2f}): it knows test labels"
    if not hyperparameters:
        return NO_EVIDENCE, "the table names no hyperparameters, so that nothing is known beyond them"
    if partial.significant:
        way = "larger" if partial.value > 0 else "smaller"
        return EVIDENCE, f"larger goes with a {way} gap at equal hyperparameters (partial r {partial.value:.2f})"
    if kendall.significant:
        return NO_EVIDENCE, f"it goes with the gap (tau {kendall.value:.2f}) no more than hyperparameters tell already"
    return NO_EVIDENCE, "it does not go with the gap"
