"""Pools of networks that were never trained: gaps, and measures of which it is known what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pandas

Array = numpy.ndarray
FIXTURE = Path(__file__).parents[1] / "fixtures" / "pgdl_task1_v4.csv"
PLANTED = 0.3


def crossed(n: int, rng: numpy.random.Generator) -> pandas.DataFrame:
    """Two widths, three depths, two rates, four sizes: 48 training configurations, their seeds one after another."""
    rows = rng.permutation(n)
    return pandas.DataFrame(
        {
            "hp.width": rows % 2,
            "hp.depth": rows // 2 % 3,
            "hp.rate": rows // 6 % 2,
            "hp.size": rows // 12 % 4,
        }
    )


def competition(n: int, rng: numpy.random.Generator) -> pandas.DataFrame:
    """The hyperparameters of the competition's networks; beyond 96 some training configurations have a second seed."""
    table = pandas.read_csv(FIXTURE)
    table = table[[name for name in table if str(name).startswith("hp.")]]
    again = rng.permutation(len(table))[: max(0, n - len(table))]
    return pandas.concat([table, table.iloc[again]], ignore_index=True).iloc[:n]


GRIDS: dict[str, Callable[[int, numpy.random.Generator], pandas.DataFrame]] = {
    "crossed": crossed,
    "competition": competition,
}


def _effects(table: pandas.DataFrame, rng: numpy.random.Generator, chance: float = 1.0) -> Array:
    """A product of random positive factors, one a hyperparameter: interactions of every order."""
    total = numpy.zeros(len(table))
    for name in table:
        codes = numpy.unique(table[name].astype(str), return_inverse=True)[1]
        if rng.random() < chance:
            total += 0.5 * rng.normal(size=codes.max() + 1)[codes]
    product = numpy.exp(total)
    return product / (product.std() or 1.0)


def simulated(seed: int, n: int, grid: str) -> tuple[pandas.DataFrame, dict[str, list[str]]]:
    """A table as `leaderboard` reads it, and its measures by kind.

    Kinds: "random" (noise), "copy" (hyperparameters, growing functions, products, and all with noise), "leak" (the
    gap itself, the test accuracy, means of the gap over networks that share hyperparameters), "shadow" (what the
    hyperparameters make of the gap, with little noise: the hardest) and "planted" (partial correlation .3).
    """
    rng = numpy.random.default_rng(seed)
    settings = GRIDS[grid](n, rng)
    expected, noise = _effects(settings, rng), rng.normal(size=n)
    spread = rng.choice([0.2, 0.5, 1.0])
    gap = 0.4 + 0.05 * (expected + spread * noise)
    one = str(rng.choice([str(name) for name in settings]))
    codes = numpy.unique(settings[one].astype(str), return_inverse=True)[1].astype(float)
    count, by_recipe = _effects(settings, rng, 0.6), settings.astype(str).agg(" ".join, axis=1)
    of_gap = pandas.Series(gap)
    planted = PLANTED * noise + numpy.sqrt(1 - PLANTED**2) * rng.normal(size=n)
    kinds = {
        "random": {"m.noise": rng.normal(size=n), "m.heavy": rng.standard_cauchy(size=n)},
        "copy": {
            "m.copy": codes,
            "m.grown": numpy.exp(2 * codes),
            "m.count": count,
            "m.noisy_copy": codes + 0.3 * rng.normal(size=n),
            "m.noisy_count": count + 0.2 * rng.normal(size=n),
        },
        "leak": {
            "m.gap": gap,
            "m.test_accuracy": 0.99 + 0.001 * rng.normal(size=n) - gap,
            "m.mean_by_one": of_gap.groupby(codes).transform("mean"),
            "m.mean_by_recipe": of_gap.groupby(by_recipe.to_numpy()).transform("mean"),
        },
        "shadow": {"m.shadow": expected + 0.3 * rng.normal(size=n)},
        "planted": {"m.planted": planted + rng.choice([0.0, 1.0, 3.0]) * expected},
    }
    columns = {name: values for own in kinds.values() for name, values in own.items()}
    return settings.assign(gap=gap, **columns), {kind: list(own) for kind, own in kinds.items()}
