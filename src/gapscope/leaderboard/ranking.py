"""Ranking of measures on a table of networks by every protocol, with baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.leaderboard.association import PartialAssociations, cross_validated_line
from gapscope.leaderboard.leaderboard_result import (
    Leaderboard,
    LeaderboardRow,
    Score,
    Verdict,
    verdict_of,
)
from gapscope.leaderboard.network_tables import NetworkTable, network_table
from gapscope.leaderboard.paired_scores import PAIRED, PairedScores, competition_score, sign_errors
from gapscope.statistics.intervals import (
    bootstrap_weights,
    configuration_ids,
    members,
    permutations,
)

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool
    from gapscope.results.records import Record

Array = numpy.ndarray
RANDOM = "a random measure"
# maximum number of permutations and of resamples for sums over pairs of networks, which are expensive
MAX_PAIRED = 200
ONE_SIDED = ("mutual_information", "r_squared")
# a score without p-value, and its values under the permutations
Scored = tuple[Score, numpy.ndarray]


def explain_by_settings(
    table: pandas.DataFrame, measure: str, hyperparameters: Sequence[str]
) -> str:
    """Return why a measure is a mere function of hyperparameters ("" if it is not).

    Measures of networks trained with different seeds never agree exactly; numbers computed from the settings do.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 1, 2, 2], "rate": [1, 2, 1, 2], "count": [5, 5, 9, 9]})
    >>> explain_by_settings(table, "count", ["width", "rate"])
    'it is fixed by the hyperparameters: it never changes with rate alone'
    """
    values = table[measure].to_numpy(dtype=float)
    if numpy.ptp(values) == 0:
        return "it is the same in all networks"

    def varies(names: Sequence[str]) -> bool | None:
        """Return whether the measure varies at equal values of these (None if no two networks agree in them)."""
        groups = members(configuration_ids(table, names))
        if len(groups) == len(values):
            return None
        return any(numpy.ptp(values[rows]) > 0 for rows in groups)

    at_equal_settings = varies(hyperparameters)
    if at_equal_settings is not None:
        if at_equal_settings:
            return ""
        return "it is fixed by the hyperparameters: all seeds have the same"
    ignored = [
        name
        for name in hyperparameters
        if varies([other for other in hyperparameters if other != name]) is False
    ]
    if ignored:
        return f"it is fixed by the hyperparameters: it never changes with {' or '.join(ignored)} alone"
    return ""


def _add_p_values(scored: Sequence[Scored], *, two_sided: bool) -> list[Score]:
    """Add p-values from the largest score of all measures per permutation (single-step max-T)."""
    size_of = numpy.abs if two_sided else numpy.asarray
    # NaN if no measure has a score: not above any other
    largest = numpy.fmax.reduce([size_of(permuted) for _, permuted in scored])
    scores: list[Score] = []
    for score, _ in scored:
        size = size_of(score.value)
        # the observed order counts as one of the permutations
        p = float((1 + (largest >= size - 1e-12).sum()) / (1 + len(largest)))
        scores.append(replace(score, p=1.0 if numpy.isnan(size) else p))
    return scores


class _LeaderboardContext:
    """Training configurations, permutations and resamples shared by all measures of a table."""

    def __init__(
        self, table: NetworkTable, target: str, n_permutations: int, n_bootstrap: int, seed: int
    ) -> None:
        self.table = table
        self.target = target
        self.settings = list(table.hyperparameters)
        noise = numpy.random.default_rng(derive_seed(seed, RANDOM)).normal(size=len(table.rows))
        self.rows = table.rows.assign(**{RANDOM: noise})
        self.names = [*table.measures, RANDOM]
        self.clusters = configuration_ids(table.rows, self.settings)
        self.n_configurations = int(self.clusters.max()) + 1
        self.gaps = table.rows[target].to_numpy(dtype=float)
        self.orders = numpy.array(list(permutations(self.clusters, n_permutations, seed)))
        self.resamples = bootstrap_weights(self.n_configurations, n_bootstrap, seed)
        self.weights = self.resamples[:, self.clusters]
        self.paired_weights = self.weights[:MAX_PAIRED]
        self.pairs = PairedScores(table.rows, target, self.settings)
        self.associations = PartialAssociations(
            table.rows, target, self.settings, self.clusters, self.orders, self.weights
        )

    def values(self, name: str) -> Float[Array, " n"]:
        return self.rows[name].to_numpy(dtype=float)

    def paired(
        self, values: Float[Array, " n"], names: Sequence[str] = PAIRED
    ) -> dict[str, Scored]:
        """Return scores over pairs, by name."""
        observed = self.pairs.of(values[:, None], only=names)
        resampled = self.pairs.of(values[:, None], self.paired_weights, only=names)
        permuted = self.pairs.of(values[self.orders[:MAX_PAIRED]].T, only=names)
        scored: dict[str, Scored] = {}
        for name in names:
            value = observed[name][0]
            score = Score.of(value, resampled[name])
            if name == "mutual_information":
                # resamples are biased upwards: shift their mean to the value
                centred = resampled[name] - numpy.nanmean(resampled[name]) + value
                score = Score.of(value, centred)
                score = replace(score, low=max(score.low, 0.0))
            scored[name] = score, permuted[name]
        return scored

    def signs(self, name: str, tau: float, n_test: int | None) -> tuple[Score, Float[Array, " e"]]:
        """Return the mean sign error with its interval, and the errors by environment."""
        directed = self.rows
        if tau < 0:
            directed = directed.assign(**{name: -directed[name]})
        first, second, errors = sign_errors(directed, name, self.target, self.settings, n_test).T
        if not len(errors):
            return Score(value=numpy.nan), errors
        # a resample weighs a pair of configurations by the product of their counts
        weights = self.resamples[:, first.astype(int)] * self.resamples[:, second.astype(int)]
        with numpy.errstate(invalid="ignore", divide="ignore"):
            resampled = weights @ errors / weights.sum(1)
        return Score.of(errors.mean(), resampled), errors

    def verdict(self, name: str, partial: Score, kendall: Score) -> Verdict:
        """Return the verdict on one measure (without hyperparameters there is no partial correlation)."""
        if not self.settings:
            partial = Score(value=numpy.nan)
        verdict, why = verdict_of(
            partial=partial,
            kendall=kendall,
            fixed=explain_by_settings(self.rows, name, self.settings),
            hyperparameters=len(self.settings),
            recipes=self.n_configurations,
            target=self.target,
        )
        role = {RANDOM: "random", self.table.baseline: "size"}.get(name, "measure")
        return Verdict(role=role, verdict=verdict, why=why, partial=partial, kendall=kendall)


def _row(
    context: _LeaderboardContext, name: str, scores: Mapping[str, Any], n_test: int | None
) -> LeaderboardRow:
    groups, dropped = context.pairs.count_groups(context.values(name))
    sign_error, errors = context.signs(name, scores["kendall"].value, n_test)
    verdict = context.verdict(name, scores["partial"], scores["kendall"])
    return LeaderboardRow(
        measure=name,
        **{**scores, **vars(verdict)},
        granulated_groups=groups,
        granulated_dropped=dropped,
        competition=100 * competition_score(context.rows, name, context.target, context.settings),
        sign_error=sign_error,
        worst_sign_error=float(errors.max()) if len(errors) else numpy.nan,
        environments=len(errors),
    )


def verdicts(
    source: str | Path | pandas.DataFrame,
    *,
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] | None = None,
    n_permutations: int = 1000,
    n_bootstrap: int = 2000,
    seed: int = 0,
    most_networks: int | None = None,
) -> dict[str, Verdict]:
    """Return only the verdicts of `rank_measures`, by measure (the random one is `RANDOM`).

    This is many times as fast. Parameters are those of `rank_measures`.
    """
    table = network_table(source, measures=measures, hyperparameters=hyperparameters)
    context = _LeaderboardContext(
        table.sample(most_networks, seed), "gap", n_permutations, n_bootstrap, seed
    )
    columns = [context.values(name) for name in context.names]
    kendalls = _add_p_values(
        [context.paired(values, ("kendall",))["kendall"] for values in columns], two_sided=True
    )
    partials = _add_p_values(
        [context.associations.of(values)[0] for values in columns], two_sided=True
    )
    return {
        name: context.verdict(name, partial, kendall)
        for name, partial, kendall in zip(context.names, partials, kendalls, strict=True)
    }


@check_arguments
def rank_measures(
    source: str | Path | Pool | pandas.DataFrame | Sequence[Record] | None = None,
    *,
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] | None = None,
    target: str = "gap",
    baseline: str | None = None,
    n_test: int | None = 10_000,
    n_permutations: int = 1000,
    n_bootstrap: int = 2000,
    seed: int = 0,
    most_networks: int | None = None,
    data_root: str | Path | None = None,
    on_measure: Callable[[str, int, int], None] | None = None,
) -> Leaderboard:
    """Rank measures by their association with known gaps, beyond the hyperparameters.

    Networks of one training configuration (equal in all hyperparameters except seeds) stay together in every resample
    and permutation. P-values are corrected over all rows by the largest statistic per permutation (Westfall and Young
    1993, single-step max-T), separately per score. The verdict is "evidence" if the partial correlation given the
    hyperparameters is significant at 5 %, unless the hyperparameters determine the measure or it orders the networks
    like the gap itself. Baselines are the parameter count and a random measure. Do not pass measures that were fitted
    to these gaps; they cannot be detected.

    Args:
        source: A CSV file or data frame with a row per network and columns `gap`, `hp.NAME`, `m.NAME`; a pool, its
            folder or its table; a list of `gapscope.Record`; None uses the 96 networks of the 2020
            competition from the data root.
        measures: Columns of the measures, with or without `m.`; None uses all (`m.NAME`, or the readings of a pool).
        hyperparameters: Columns of the hyperparameters, with or without `hp.`; None for all that vary.
        target: Column of the gap, in units of its score (such as accuracy).
        baseline: Column of the size; None uses `parameter_count` or `m.vc_dim`, if there is one.
        n_test: Number of test samples per gap, for the sign errors; None gives all pairs the same weight.
        n_permutations: Permutations for p-values, at most 200 for scores over pairs.
        n_bootstrap: Resamples of training configurations for intervals, at most 200 for scores over pairs.
        seed: Seed of permutations, resamples and the random baseline.
        most_networks: Maximum number of networks; above it, whole training configurations are sampled. None uses all.
            Time and memory grow with its square.
        data_root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache.
        on_measure: Called after each measure with its name, the number of finished measures and their total. None for
            no call.

    Raises:
        InvalidInput: A column is missing, there are fewer than three networks, or all gaps are equal.
        UnreadableFile: The file cannot be read.
        DataNotFound: The competition's networks are not on this machine.

    >>> import pandas
    >>> rng = numpy.random.default_rng(0)
    >>> table = pandas.DataFrame({"hp.width": numpy.arange(60) % 20, "hp.depth": numpy.arange(60) // 20})
    >>> noise = rng.normal(size=60)
    >>> table = table.assign(gap=table["hp.width"] / 20 + noise, **{"m.norm": noise + rng.normal(size=60) / 2,
    ...                      "m.copy": table["hp.width"]})
    >>> board = rank_measures(table, n_permutations=200)
    >>> {row.measure: row.verdict for row in board if row.role == "measure"}
    {'m.norm': 'evidence', 'm.copy': 'no evidence'}
    """
    check_range("n_permutations", n_permutations, 20)
    check_range("n_bootstrap", n_bootstrap, 20)
    check_range("seed", seed, 0)
    if n_test is not None:
        check_range("n_test", n_test, 1)
    if most_networks is not None:
        check_range("most_networks", most_networks, 3)
    if source is None:
        from gapscope.data.location import pgdl_networks

        source = pgdl_networks(data_root)
    table = network_table(
        source, measures=measures, hyperparameters=hyperparameters, target=target, baseline=baseline
    )
    if len(table.rows) < 3:
        raise InvalidInput(
            f"A leaderboard needs at least three networks; {table.source} has {len(table.rows)}. Add networks."
        )
    if table.rows[target].nunique() == 1:
        raise InvalidInput(
            f"A leaderboard needs networks that differ in {target!r}; all of {table.source} have "
            f"{table.rows[target][0]:g}. Were they scored on their training data?"
        )
    context = _LeaderboardContext(
        table.sample(most_networks, seed), target, n_permutations, n_bootstrap, seed
    )
    scored: dict[str, list[Scored]] = {key: [] for key in (*PAIRED, "r_squared", "partial")}
    untested: list[dict[str, Any]] = []
    for number, name in enumerate(context.names, start=1):
        values = context.values(name)
        r_squared, mae, permuted = cross_validated_line(
            values, context.gaps, context.clusters, context.orders, context.weights
        )
        partial, determined = context.associations.of(values)
        pairs = context.paired(values)
        pairs |= {"r_squared": (r_squared, permuted), "partial": partial}
        for key, pair in pairs.items():
            scored[key].append(pair)
        untested.append({"mae": mae, "explained": determined})
        if on_measure is not None:
            on_measure(name, number, len(context.names))
    scores = {
        key: _add_p_values(pairs, two_sided=key not in ONE_SIDED) for key, pairs in scored.items()
    }
    rows = [
        _row(context, name, others | {key: each[i] for key, each in scores.items()}, n_test)
        for i, (name, others) in enumerate(zip(context.names, untested, strict=True))
    ]
    table = context.table
    return Leaderboard(
        rows,
        source=table.source,
        networks=len(table.rows),
        recipes=context.n_configurations,
        hyperparameters=table.hyperparameters,
        left_out=table.left_out,
        dropped=table.dropped,
        drawn_from=table.sampled_from,
        target=target,
    )
