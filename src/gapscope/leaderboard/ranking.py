"""Ranking of measures on a table of networks by every protocol, with baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float, Int

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.leaderboard.conditional_mutual_information import conditional_mutual_information
from gapscope.leaderboard.granulated_kendall import granulated_kendall
from gapscope.leaderboard.leaderboard_result import Leaderboard
from gapscope.leaderboard.leaderboard_row import LeaderboardRow, Score, Verdict, judged
from gapscope.leaderboard.line_fit import HeldOutLine, cross_validated_line
from gapscope.leaderboard.network_tables import NetworkTable, network_table
from gapscope.leaderboard.paired_scores import PAIRED, PairedScores
from gapscope.leaderboard.partial_association import PartialAssociation, PartialAssociations
from gapscope.leaderboard.robust_sign_error import RobustSignError, robust_sign_error
from gapscope.statistics.bootstrap import cluster_weights, percentile_interval
from gapscope.statistics.clusters import configuration_ids, permutations

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool

Array = numpy.ndarray
RANDOM = "a random measure"
# pairs of networks are many: fewer draws for what is summed over them
PAIRED_DRAWS = 200
BOUNDED = {"mutual_information": 0.0}


def explain_by_settings(table: pandas.DataFrame, measure: str, hyperparameters: Sequence[str]) -> str:
    """Return why a measure is a mere function of hyperparameters, "" where it is not.

    What is measured of trained networks never comes out exactly equal where seed or setting is another; what does is
    computed from settings.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 1, 2, 2], "rate": [1, 2, 1, 2], "count": [5, 5, 9, 9]})
    >>> explain_by_settings(table, "count", ["width", "rate"])
    'it is fixed by the hyperparameters: it never changes with rate alone'
    """
    values, recipe = table[measure].to_numpy(dtype=float), configuration_ids(table, hyperparameters)
    if numpy.ptp(values) == 0:
        return "it is the same in all networks"
    if len(set(recipe)) < len(recipe):
        return "" if _varies(values, recipe) else "it is fixed by the hyperparameters: all seeds have the same"
    ignored = [
        name
        for name in hyperparameters
        if len(others := configuration_ids(table, [other for other in hyperparameters if other != name]))
        > len(set(others))
        and len(hyperparameters) > 1
        and not _varies(values, others)
    ]
    return f"it is fixed by the hyperparameters: it never changes with {' or '.join(ignored)} alone" if ignored else ""


def _varies(values: Float[Array, " n"], groups: Int[Array, " n"]) -> bool:
    return any(numpy.ptp(values[groups == number]) > 0 for number in set(groups.tolist()))


def _max_t_p_values(values: Sequence[float], drawn: Sequence[Float[Array, " d"]], *, two_sided: bool) -> list[float]:
    """P-values by the largest of all measures under each permutation: single-step max-T."""
    table = numpy.stack([numpy.nan_to_num(row, nan=-numpy.inf) for row in drawn])
    largest = (numpy.where(numpy.isfinite(table), numpy.abs(table), -numpy.inf) if two_sided else table).max(0)
    sizes = [abs(value) if two_sided else value for value in values]
    return [
        1.0 if numpy.isnan(size) else float((1 + (largest >= size - 1e-12).sum()) / (1 + len(largest)))
        for size in sizes
    ]  # fmt: skip


def _interval(name: str, value: float, drawn: Float[Array, " b"]) -> tuple[float, float]:
    """Return percentile intervals, shifted back for mutual information (biased upwards)."""
    if name not in BOUNDED:
        return percentile_interval(drawn, 0.95)
    low, high = percentile_interval(drawn - numpy.nanmean(drawn) + value, 0.95)
    return max(low, BOUNDED[name]), high


class _LeaderboardContext:
    """Common parts of the measures of one table: configurations, permutations, resamples."""

    def __init__(self, table: NetworkTable, target: str, n_permutations: int, n_bootstrap: int, seed: int) -> None:
        self.table, self.target, self.seed, self.n_bootstrap = table, target, seed, n_bootstrap
        self.settings = list(table.hyperparameters)
        self.clusters = configuration_ids(table.rows, self.settings)
        self.gaps = table.rows[target].to_numpy(dtype=float)
        self.orders = numpy.array(list(permutations(self.clusters, n_permutations, seed)))
        self.weights = cluster_weights(self.clusters, min(n_bootstrap, PAIRED_DRAWS), seed)
        self.pairs = PairedScores(table.rows, target, self.settings)
        self.associations = PartialAssociations(
            table.rows, target, self.settings, self.clusters, list(self.orders), n_bootstrap=n_bootstrap, seed=seed
        )

    def paired(self, values: Float[Array, " n"]) -> dict[str, tuple[Score, Float[Array, " d"]]]:
        """Scores over pairs without p, and what permutations give."""
        own = self.pairs.of(values[:, None])
        resampled = self.pairs.of(values[:, None], self.weights)
        permuted = self.pairs.of(values[self.orders[:PAIRED_DRAWS]].T)
        found: dict[str, tuple[Score, Float[Array, " d"]]] = {}
        for name in PAIRED:
            value = float(own[name][0])
            low, high = _interval(name, value, resampled[name])
            found[name] = (Score(value=value, low=low, high=high), permuted[name])
        return found

    def tau(self, values: Float[Array, " n"]) -> tuple[Score, Float[Array, " d"]]:
        """Tau-b over all networks without p, and what permutations give."""

        def taken(columns: Array, weights: Array | None = None) -> Array:
            return self.pairs.of(columns, weights, only=["kendall"])["kendall"]

        low, high = percentile_interval(taken(values[:, None], self.weights), 0.95)
        own = float(taken(values[:, None])[0])
        return Score(value=own, low=low, high=high), taken(values[self.orders[:PAIRED_DRAWS]].T)

    def line(self, values: Float[Array, " n"]) -> HeldOutLine:
        return cross_validated_line(
            values, self.gaps, self.clusters, self.orders, n_bootstrap=self.n_bootstrap, seed=self.seed
        )

    def signs(self, rows: pandas.DataFrame, name: str, tau: float, n_test: int | None) -> tuple[Score, RobustSignError]:
        """Mean sign error with its interval, and all of it."""
        directed = rows.assign(**{name: -rows[name]}) if tau < 0 else rows
        errors = robust_sign_error(
            directed, name, self.target, hyperparameters=self.settings, n_test=n_test, least_evidence=1.0
        )
        parts = errors.by_environment
        if not len(parts):
            return Score(value=errors.mean), errors
        of_recipe = cluster_weights(numpy.arange(int(self.clusters.max()) + 1), self.n_bootstrap, self.seed)
        weights = of_recipe[:, parts["first"].to_numpy()] * of_recipe[:, parts["second"].to_numpy()]
        with numpy.errstate(invalid="ignore", divide="ignore"):
            drawn = weights @ parts["error"].to_numpy(dtype=float) / weights.sum(1)
        low, high = percentile_interval(drawn, 0.95)
        return Score(value=errors.mean, low=low, high=high), errors


def _row(
    judging: _LeaderboardContext,
    rows: pandas.DataFrame,
    name: str,
    scores: dict[str, Score],
    association: PartialAssociation,
    line: HeldOutLine,
    n_test: int | None,
) -> LeaderboardRow:
    settings, target = judging.settings, judging.target
    groups = granulated_kendall(rows, name, target, hyperparameters=settings).by_hyperparameter if settings else None
    exact = numpy.nan
    if len(settings) > 1:
        exact = 100 * conditional_mutual_information(
            rows, name, target, hyperparameters=settings, version="pgdl_exact"
        ).value  # fmt: skip
    sign_error, errors = judging.signs(rows, name, scores["kendall"].value, n_test)
    verdict, why = _verdict(judging, rows, name, scores["partial"], scores["kendall"])
    return LeaderboardRow(
        measure=name,
        role=_role(name, judging.table),
        verdict=verdict,
        why=why,
        **scores,
        granulated_groups=0 if groups is None else sum(groups["groups"].tolist()),
        granulated_dropped=0 if groups is None else sum(groups["dropped"].tolist()),
        competition=exact,
        mae=Score(value=line.mae, low=line.mae_low, high=line.mae_high),
        sign_error=sign_error,
        worst_sign_error=errors.maximum,
        environments=errors.environments,
        explained=association.explained,
    )


def _verdict(
    judging: _LeaderboardContext, rows: pandas.DataFrame, name: str, partial: Score, kendall: Score
) -> tuple[str, str]:
    return judged(
        partial=partial,
        kendall=kendall,
        fixed=explain_by_settings(rows, name, judging.settings),
        hyperparameters=len(judging.settings),
        recipes=len(set(judging.clusters.tolist())),
    )


def verdicts(
    source: str | Path | pandas.DataFrame,
    *,
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] | None = None,
    target: str = "gap",
    n_permutations: int = 1000,
    n_bootstrap: int = 2000,
    seed: int = 0,
    most_networks: int | None = None,
) -> dict[str, Verdict]:
    """Return only the verdicts of `leaderboard` and their scores, many times as fast.

    Args:
        source: As for `leaderboard`.
        measures: As for `leaderboard`.
        n_permutations: Permutations behind the p-values.
        n_bootstrap: Resamples of training configurations behind the intervals, 200 at most of them for tau.
        most_networks: As for `leaderboard`.

    Returns:
        Measure -> its verdict; the random measure, called as in `RANDOM`, is among them.
    """
    table = network_table(source, measures=measures, hyperparameters=hyperparameters, target=target)
    table = table.drawn(most_networks, seed)
    judging = _LeaderboardContext(table, target, n_permutations, n_bootstrap, seed)
    rows = _with_random(table, seed)
    names = [*table.measures, RANDOM]
    columns = [rows[name].to_numpy(dtype=float) for name in names]
    taus = [judging.tau(column) for column in columns]
    associations = [judging.associations.of(column) for column in columns]
    of_tau = _max_t_p_values([tau.value for tau, _ in taus], [drawn for _, drawn in taus], two_sided=True)
    of_rest = _max_t_p_values([own.value for own in associations], [own.drawn for own in associations], two_sided=True)
    found: dict[str, Verdict] = {}
    for i, name in enumerate(names):
        own, kendall = associations[i], replace(taus[i][0], p=of_tau[i])
        partial = Score(value=own.value, low=own.low, high=own.high, p=of_rest[i])
        verdict, why = _verdict(judging, rows, name, partial, kendall)
        found[name] = Verdict(role=_role(name, table), verdict=verdict, why=why, partial=partial, kendall=kendall)
    return found


def _role(name: str, table: NetworkTable) -> str:
    return "random" if name == RANDOM else "size" if name == table.baseline else "measure"


def _with_random(table: NetworkTable, seed: int) -> pandas.DataFrame:
    return table.rows.assign(
        **{RANDOM: numpy.random.default_rng(derive_seed(seed, RANDOM)).normal(size=len(table.rows))}
    )


def rank_measures(
    source: str | Path | Pool | pandas.DataFrame | None = None,
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

    All protocols are reported side by side. Networks of one training configuration (equal
    in all hyperparameters, seeds aside) stay together in every resample and permutation. P-values are corrected over
    all rows by the largest statistic of each permutation (Westfall and Young 1993, single-step max-T), protocol by
    protocol. "evidence" rests on the partial association given the hyperparameters at 5 %; a measure that is fixed by
    hyperparameters, or that orders the networks as the gap itself does, gets none. Baselines are
    the parameter count and a random measure.

    Measures that were fitted to these gaps cannot be detected: pass measures that were not.

    Args:
        source: A CSV file or data frame with a row per network and columns `gap`, `hp.NAME`, `m.NAME`; a pool, its
            folder or its table; None takes the 96 networks of the 2020 competition from the data root.
        measures: Columns of the measures; None takes all.
        hyperparameters: Columns of the hyperparameters; None takes all that vary.
        baseline: Column of the size; None takes `parameter_count` or `m.vc_dim` where there is one.
        n_test: Test samples behind each gap, for the sign errors; None weighs all pairs alike.
        n_permutations: Permutations behind the p-values, 200 at most of them for scores over pairs.
        n_bootstrap: Resamples of training configurations behind the intervals, at most 200 for scores over pairs.
        most_networks: Maximum number of networks; of more, whole training configurations are sampled. None uses all.
            Time and memory grow with the square of the number of networks.
        data_root: Data root; None searches the usual places.
        on_measure: Called after each measure with its name, how many are done and of how many.

    Returns:
        One row per measure; printed, the verdicts come first.

    Raises:
        InvalidInput: A column is missing, or there are fewer than three networks.
        UnreadableFile: The file cannot be read.
        DataNotFound: The competition's networks are not on this machine.

    >>> import pandas
    >>> rng = numpy.random.default_rng(0)
    >>> table = pandas.DataFrame({"hp.width": numpy.arange(60) % 20, "hp.depth": numpy.arange(60) // 20})
    >>> noise = rng.normal(size=60)
    >>> table = table.assign(gap=table["hp.width"] / 20 + noise, **{"m.norm": noise + rng.normal(size=60) / 2,
    ...                      "m.copy": table["hp.width"]})
    >>> found = rank_measures(table, n_permutations=200)
    >>> {row.measure: row.verdict for row in found if row.role == "measure"}
    {'m.norm': 'evidence', 'm.copy': 'no evidence'}
    """
    check_range("n_permutations", n_permutations, 20)
    check_range("n_bootstrap", n_bootstrap, 20)
    if most_networks is not None:
        check_range("most_networks", most_networks, 3)
    if source is None:
        from gapscope.data.pgdl import pgdl_networks

        source = pgdl_networks(data_root)
    table = network_table(source, measures=measures, hyperparameters=hyperparameters, target=target, baseline=baseline)
    if len(table.rows) < 3:
        raise InvalidInput(f"A leaderboard needs three networks at least; {table.source} has {len(table.rows)}.")
    table = table.drawn(most_networks, seed)
    judging = _LeaderboardContext(table, target, n_permutations, n_bootstrap, seed)
    rows = _with_random(table, seed)
    names = [*table.measures, RANDOM]
    paired: list[dict[str, tuple[Score, Float[Array, " d"]]]] = []
    lines: list[HeldOutLine] = []
    associations: list[PartialAssociation] = []
    for number, name in enumerate(names, start=1):
        values = rows[name].to_numpy(dtype=float)
        paired.append(judging.paired(values))
        lines.append(judging.line(values))
        associations.append(judging.associations.of(values))
        if on_measure is not None:
            on_measure(name, number, len(names))
    p_values = {
        **{
            key: _max_t_p_values(
                [own[key][0].value for own in paired], [own[key][1] for own in paired],
                two_sided=key != "mutual_information",
            )
            for key in PAIRED
        },
        "r_squared": _max_t_p_values([own.r_squared for own in lines], [own.drawn for own in lines], two_sided=False),
        "partial": _max_t_p_values(
            [own.value for own in associations], [own.drawn for own in associations], two_sided=True
        ),
    }  # fmt: skip
    found: list[LeaderboardRow] = []
    for i, name in enumerate(names):
        line, association = lines[i], associations[i]
        scores = {
            key: Score(value=own.value, low=own.low, high=own.high, p=p_values[key][i])
            for key, (own, _) in paired[i].items()
        }
        scores["r_squared"] = Score(
            value=line.r_squared, low=line.r_squared_low, high=line.r_squared_high, p=p_values["r_squared"][i]
        )
        scores["partial"] = Score(
            value=association.value, low=association.low, high=association.high, p=p_values["partial"][i]
        )
        found.append(_row(judging, rows, name, scores, association, line, n_test))
    return Leaderboard(
        found,
        source=table.source,
        networks=len(table.rows),
        recipes=len(set(judging.clusters.tolist())),
        hyperparameters=table.hyperparameters,
        left_out=table.left_out,
        dropped=table.dropped,
        drawn_from=table.drawn_from,
    )
