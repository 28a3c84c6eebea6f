"""Leaderboards of two pools: measures that predict more than the configuration.

Rules, fixed before a network was trained, for networks without label noise (with it, the leaderboard has one
hyperparameter more):

- A measure is trusted if its partial association with the gap, given the hyperparameters, has a corrected p-value of
  at most 5 % in both pools with the same sign. In one pool alone it is unsettled.
- The measure with the largest R2 on CIFAR-10 predicts unseen configurations on CIFAR-100.
- The measure that orders networks on CIFAR-10 best where one setting changes orders those on CIFAR-100.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch

from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.inspection.losses import evaluate
from gapscope.leaderboard.association import held_out_errors
from gapscope.leaderboard.leaderboard_result import EVIDENCE, Leaderboard, LeaderboardRow
from gapscope.leaderboard.ranking import rank_measures
from gapscope.pools.from_spec import prepare_data
from gapscope.results.records import Record
from gapscope.statistics.correlations import kendall_tau
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, estimate
from gapscope_studies.kit.pool import load_network, make_arm, outcome
from gapscope_studies.kit.statistics import Interval
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

POOLS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CLASSES = {"cifar10": 10, "cifar100": 20, "digits": 10}
SIZE_COLUMN = "m.parameter_count"
MIN_ACCURACY = 0.75
NOISE = "_noise"
NUMBERS: list[str] = tomllib.loads(
    Path(__file__).with_name("measures.toml").read_text(encoding="utf-8")
)["numbers"]
MEASURES = list(dict.fromkeys(name.partition(".")[0] for name in NUMBERS))
SCORES: dict[str, Callable[[LeaderboardRow], float]] = {
    "partial r": lambda row: row.partial.value,
    "p": lambda row: row.partial.p,
    "tau": lambda row: row.kendall.value,
    "R2": lambda row: row.r_squared.value,
}


def _varying(table: pandas.DataFrame) -> list[str]:
    return [
        str(name)
        for name in table.columns
        if str(name).startswith("hp.") and table[name].nunique() > 1
    ]


def _rank(table: pandas.DataFrame, setting: RunSettings) -> Leaderboard:
    draws = setting.choose(smoke=20, small=1000, paper=1000)
    return rank_measures(table, n_permutations=draws, n_bootstrap=2 * draws)


def _arm(records: Sequence[Record], pool: str) -> ComparisonArm:
    name = RunSpec.from_dict(records[0].spec).data.name
    return make_arm(
        f"networks on {POOLS[pool]} without wrong labels", records, CLASSES[name], stopped=True
    )


def _evidence_claim(
    statement: str, quantity: str, count: int, most: int, units: int, arms: Sequence[ComparisonArm]
) -> Claim:
    # the count is a lower bound: a test may be too weak for some measures
    interval = Interval(count, count, most, units)
    return estimate(
        "ours", statement, quantity, interval, above=0.5, ours=True, compared=arms, unit="networks"
    )


# --- networks as tables for `rank_measures`: gap, hyperparameters hp.*, measures m.*


def specs_of(setting: RunSettings, pool: str) -> list[RunSpec]:
    """Return the configurations of a grid, each with a seed and training subset of its own."""
    first = 1000 if pool.endswith(NOISE) else 0
    specs = [
        spec.replace({"seed": first + number, "data.seed": first + number})
        for number, spec in enumerate(setting.grid(__file__, pool))
    ]
    # a stopped run leaves a fair sample of the grid
    return random.Random(0).sample(specs, len(specs))


def networks(setting: RunSettings, pool: str) -> list[Record]:
    """Train and measure a pool, and return the networks that learned their training labels."""
    settings = setting.read(__file__)
    records = setting.train(
        pool,
        specs_of(setting, pool),
        measures=settings.get("measures", MEASURES),
        measure_samples=settings["measured_samples"],
        measure_options=settings.get("measure_options", {}),
    )
    return [record for record in records if record.scores.get("train_accuracy", 0.0) > MIN_ACCURACY]


def held_out_samples(train: Samples, problem: Any) -> Samples:
    """Return all images of both splits that a network was not trained on."""
    known = {image.numpy().tobytes() for image in train.inputs}
    unused = [
        row
        for row, image in enumerate(problem.train.inputs)
        if image.numpy().tobytes() not in known
    ]
    test, rest = problem.test, problem.train.subset(torch.tensor(unused))
    return Samples(torch.cat([test.inputs, rest.inputs]), torch.cat([test.targets, rest.targets]))


def _held_out_accuracy(setting: RunSettings, pool: str, spec: RunSpec) -> float:
    network, problem = load_network(setting, pool, spec.id)
    # the same for all networks of a data set, so that it is loaded once
    data = {"train_size": None, "test_size": None, "balanced": False, "label_noise": 0.0, "seed": 0}
    whole, _ = prepare_data(
        spec.replace({f"data.{name}": value for name, value in data.items()}), setting.data_root
    )
    return evaluate(network, held_out_samples(problem.train, whole))["accuracy"]


def table_of(setting: RunSettings, pool: str, records: list[Record]) -> pandas.DataFrame:
    """Return one row per network, with its gap to the accuracy on all held-out images."""
    specs = {record.id: RunSpec.from_dict(record.spec) for record in records}
    jobs = {key: partial(_held_out_accuracy, setting, pool, spec) for key, spec in specs.items()}
    accuracies = setting.cached(f"{pool}-held-out", jobs)
    rows = []
    for record in records:
        spec, values = (
            specs[record.id],
            {reading.name: reading.value for reading in record.readings},
        )
        options, penalties = spec.network.options, spec.training.penalties
        rows.append(
            {
                "id": record.id,
                "gap": record.scores["train_accuracy"] - accuracies[record.id],
                "hp.width": options.get("width_multiplier", options.get("width")),
                "hp.depth": options.get("depth"),
                "hp.samples": spec.data.train_size,
                "hp.augmentation": spec.training.augmentation,
                "hp.weight_penalty": penalties[0].options["strength"] if penalties else 0.0,
                "hp.wrong_labels": spec.data.label_noise,
                **{f"m.{name}": values[name] for name in NUMBERS if name in values},
            }
        )
    return pandas.DataFrame(rows).set_index("id")


def _pool(setting: RunSettings, pool: str) -> Outcome:
    """Rank the measures on networks trained on subsets of one data set."""
    clean, noisy = networks(setting, pool), networks(setting, pool + NOISE)
    table = table_of(setting, pool, clean)
    everything = pandas.concat([table, table_of(setting, pool + NOISE, noisy)])
    board, together = _rank(table, setting), _rank(everything, setting)
    return outcome(
        setting, [*specs_of(setting, pool), *specs_of(setting, pool + NOISE)],
        numbers={
            "clean": board.to_dict(), "with_noise": together.to_dict(),
            "runs": everything.reset_index().astype(object).to_dict("records"),
        },
        claims=[_evidence_claim(
            f"{POOLS[pool]}: some measure predicts more of the gap than the hyperparameters do",
            "measures with evidence at 5 %, corrected, of those that there may be",
            len(board.trusted), len(board.summary()), len(clean), (_arm(clean, pool),),
        )],
        tables={
            "Without wrong labels, the baselines first": board.summary().reset_index(),
            "With a fifth of the labels wrong in some networks": together.summary().reset_index(),
        },
        figures={"partial": board.plot().figure},
        verdict=" ".join(board.verdict) + " With wrong labels in some networks: " + " ".join(together.verdict),
    )  # fmt: skip


# --- both pools


def _in_both(first: Leaderboard, second: Leaderboard) -> list[dict[str, Any]]:
    """Return one row per measure: verdict and scores in both pools, trusted measures first."""
    rows, in_second = [], {row.measure: row for row in second}
    for row in first:
        if row.role != "measure" or row.measure not in in_second:
            continue
        other = in_second[row.measure]
        agree = (
            row.verdict == other.verdict == EVIDENCE and row.partial.value * other.partial.value > 0
        )
        either = EVIDENCE in (row.verdict, other.verdict)
        scores = {
            f"{name}, {pool}": score(result) for name, score in SCORES.items()
            for pool, result in zip(POOLS.values(), (row, other), strict=True)
        }  # fmt: skip
        verdict = "trust" if agree else "unsettled" if either else "no evidence"
        rows.append({"measure": row.measure.removeprefix("m."), "verdict": verdict, **scores})
    order = ("trust", "unsettled", "no evidence")
    return sorted(
        rows, key=lambda row: (order.index(row["verdict"]), -abs(row["partial r, CIFAR-10"]))
    )


def _prediction(
    board: Leaderboard, second: pandas.DataFrame, arms: Sequence[ComparisonArm]
) -> Claim:
    """Return the claim on absolute errors of the size minus those of the best measure."""
    rows = [row for row in board if row.role == "measure"]
    best = max(rows, key=lambda row: numpy.nan_to_num(row.r_squared.value, nan=-numpy.inf)).measure
    gaps, each_alone = second["gap"].to_numpy(dtype=float), numpy.arange(len(second))
    errors = {
        name: numpy.abs(held_out_errors(second[name].to_numpy(dtype=float), gaps, each_alone))
        for name in (best, SIZE_COLUMN)
    }
    return claim(
        "ours", f"{best.removeprefix('m.')}, which predicts best on CIFAR-10, predicts the gap of unseen training "
        "configurations on CIFAR-100 better than the size", "absolute error of the size minus that of the measure",
        errors[SIZE_COLUMN] - errors[best], above=0.0, unit="recipes", compared=arms, ours=True,
    )  # fmt: skip


def taus_within(table: pandas.DataFrame, measure: str, setting: str) -> list[float]:
    """Return tau-b with the gap per group of networks that differ in one setting alone."""
    others = [name for name in _varying(table) if name != setting]
    groups = [part for _, part in table.groupby(others, sort=False)] if others else [table]
    columns = [
        part[[measure, "gap"]].to_numpy(dtype=float).T
        for part in groups
        if part[setting].nunique() > 1
    ]
    return [tau for tau in (kendall_tau(*pair) for pair in columns) if not numpy.isnan(tau)]


def _mean(values: Sequence[float]) -> float:
    return float(numpy.mean(values)) if values else numpy.nan


def _one_setting(
    setting: str, first: pandas.DataFrame, second: pandas.DataFrame, arms: Sequence[ComparisonArm]
) -> tuple[Claim, dict[str, Any]]:
    """Return claim and row of the measure that orders best on CIFAR-10 if one setting changes."""
    names = [name for name in first.columns if name.startswith("m.") and name in second]
    means = {name: _mean(taus_within(first, name, setting)) for name in names}
    best = max(means, key=lambda name: numpy.nan_to_num(abs(means[name]), nan=-1.0))
    sign = 1.0 if means[best] > 0 else -1.0
    taus, taus_of_size = (taus_within(second, name, setting) for name in (best, SIZE_COLUMN))
    name, what = best.removeprefix("m."), setting.removeprefix("hp.").replace("_", " ")
    row = {
        "only this changes": what,
        "best on CIFAR-10": name,
        "tau, CIFAR-10": means[best],
        "tau, CIFAR-100": _mean(taus),
        "tau of the size, CIFAR-100": _mean(taus_of_size),
    }
    statement = (
        f"where only {what} changes, {name}, which orders best on CIFAR-10, orders on CIFAR-100 too"
    )
    return claim("ours", statement, "mean tau in the direction it has on CIFAR-10", [sign * tau for tau in taus],
                 above=0.0, unit="groups", compared=arms, ours=True), row  # fmt: skip


def both(setting: RunSettings) -> Outcome:
    """Evaluate measures in both pools, and those selected on CIFAR-10 on CIFAR-100."""
    records = {pool: networks(setting, pool) for pool in POOLS}
    first, second = (table_of(setting, pool, result) for pool, result in records.items())
    boards = _rank(first, setting), _rank(second, setting)
    arms = tuple(_arm(result, pool) for pool, result in records.items())
    rows = _in_both(*boards)
    settings = [name for name in _varying(first) if name in _varying(second)]
    single = [_one_setting(name, first, second, arms[1:]) for name in settings]
    trusted = [row["measure"] for row in rows if row["verdict"] == "trust"]
    return outcome(
        setting, [spec for pool in POOLS for spec in specs_of(setting, pool)],
        numbers={
            "measures": rows, "single_settings": [row for _, row in single],
            "found_on_cifar10": len(boards[0].trusted), "trusted": trusted,
        },
        claims=[
            _evidence_claim(
                "some measure predicts more of the gap than the hyperparameters do in both pools",
                "measures with evidence and the same sign in both, of those that there may be",
                len(trusted), len(rows), len(first), arms,
            ),
            _prediction(boards[0], second, arms[1:]),
            *(each for each, _ in single),
        ],
        tables={
            "Both pools without wrong labels": pandas.DataFrame(rows),
            "Only one setting changes: chosen on CIFAR-10, judged on CIFAR-100": pandas.DataFrame(
                [row for _, row in single]
            ),
        },
        verdict=(
            f"{len(trusted)} of {len(rows)} measures say more of the gap than the hyperparameters do in both pools"
            f"{': ' + ', '.join(trusted) if trusted else ''}; on CIFAR-10 alone {len(boards[0].trusted)} do."
        ),
    )  # fmt: skip


STUDY = Study(
    "which_measure",
    "Which measure to trust",
    "gapscope's own; protocols after Jiang et al. 2020 (arXiv:1912.02178), Dziugaite et al. 2020 (arXiv:2010.11924).",
    (
        Part("cifar10", "Measures judged on CIFAR-10", partial(_pool, pool="cifar10")),
        Part("cifar100", "Measures judged on CIFAR-100", partial(_pool, pool="cifar100")),
        Part("both", "Found on CIFAR-10, judged on CIFAR-100", both),
    ),
)
