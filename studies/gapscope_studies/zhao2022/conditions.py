"""When zeta and kappa go with the gap: batch norm, clean labels, networks that do not fit, the layer's depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.zhao2022 import drawing, varied
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    MEDIAN_MARGINS,
    ZETA,
    Table,
    centred,
    related,
    with_interval,
)
from gapscope_studies.zhao2022.runs import networks

# the paper's sign of the correlation with the gap
SIGNS = {ZETA: 1, KAPPA: -1}
RIVALS = {
    "train_loss": "train loss",
    "log ntk_trace": "log NTK trace",
    "log output_sensitivity": "log sensitivity",
    MEDIAN_MARGINS[2]: "median margin, h2",
    "parameter_count": "parameters",
}
Choice = Callable[[Table], Any]
SUBSETS: dict[str, Choice] = {
    "all": lambda t: t["gap"].notna(),
    "fitted": lambda t: t["fitted"],
    "fitted, no batch norm": lambda t: t["fitted"] & ~t["batch_norm"],
    "fitted, batch norm": lambda t: t["fitted"] & t["batch_norm"],
    "fitted, clean labels": lambda t: t["fitted"] & (t["corruption"] == 0),
    "fitted, clean labels, no batch norm": lambda t: t["fitted"] & (t["corruption"] == 0) & ~t["batch_norm"],
    "not fitted": lambda t: ~t["fitted"],
}
CENTRED = {
    "fitted, from the mean of their family": "family",
    "fitted, from the mean of their recipe": "recipe",
}
LEAST = 5


def convolutional_pools(setting: Setting, *, layer_samples: int = 0) -> dict[str, Table]:
    """The pools of convolutional networks in which much is varied.

    Args:
        setting: Where and how large.
        layer_samples: Number of samples on which further layers are measured; 0 measures none.

    Returns:
        Name -> networks, with logarithms of wide readings and `recipe` (everything but data and seed).
    """
    first, specs = varied.first_pool(setting)
    pools = {"digits": varied.digits(setting), "clothes": varied.clothes(setting)}
    pools.setdefault(first, specs)
    return {
        name: _prepared(networks(setting, name, found, layer_samples=layer_samples)) for name, found in pools.items()
    }


def all_pools(setting: Setting) -> dict[str, Table]:
    """The same, and fully connected networks."""
    return convolutional_pools(setting) | {"dense": _prepared(networks(setting, "dense", varied.dense(setting)))}


def _prepared(table: Table) -> Table:
    logs = {f"log {name}": numpy.log(table[name]) for name in ("ntk_trace", "output_sensitivity")}
    settings = [name for name in table.columns if str(name).startswith(("network.", "training."))]
    recipe = [" ".join(map(str, row)) for row in table[settings].to_numpy(dtype=object)]
    return table.assign(**logs, recipe=recipe)


def subsets(table: Table) -> dict[str, Table]:
    """Subsets of a pool with at least five networks, among them those centred within family or recipe."""
    found = {name: table[choose(table)] for name, choose in SUBSETS.items()}
    fitted = table[table["fitted"]]
    for name, group in CENTRED.items():
        several = fitted[fitted.groupby(group)["gap"].transform("size") >= 3]
        found[name] = centred(several, [*SIGNS, *RIVALS], group) if len(several) else several
    return {name: part for name, part in found.items() if len(part) >= LEAST}


def _rows(pool: str, table: Table) -> list[dict[str, Any]]:
    rows = []
    for name, part in subsets(table).items():
        found = related(part, [*SIGNS, *RIVALS])
        gaps = f"{part['gap'].min():.2f} to {part['gap'].max():.2f}"
        rows.append({"pool": pool, "networks": name, "n": len(part), "gaps": gaps, "found": found})
    return rows


def _shown(rows: Sequence[dict[str, Any]]) -> Table:
    import pandas

    labels = {ZETA: "zeta", KAPPA: "kappa", **RIVALS}
    return pandas.DataFrame(
        [
            {key: row[key] for key in ("pool", "networks", "n", "gaps")}
            | {label: with_interval(row["found"].loc[name], "pearson") for name, label in labels.items()}
            for row in rows
        ]
    )


def verdict_of(row: Any, sign: int) -> str:
    """What an interval says of a sign: "as in the paper", "the other way round" or "undecided"."""
    low, high = sorted((sign * row["pearson_low"], sign * row["pearson_high"]))
    return "as in the paper" if low > 0 else "the other way round" if high < 0 else "undecided"


def _counted(rows: Sequence[dict[str, Any]], name: str) -> str:
    verdicts = [verdict_of(row["found"].loc[name], SIGNS[name]) for row in rows]
    ways = ("as in the paper", "the other way round", "undecided")
    return ", ".join(f"{verdicts.count(way)} {way}" for way in ways)


def _phrase(rows: Sequence[dict[str, Any]], subset: str) -> str:
    found = [
        f"{row['pool']} {row['found'].loc[ZETA, 'pearson']:.2f} and {row['found'].loc[KAPPA, 'pearson']:.2f}"
        for row in rows
        if row["networks"] == subset
    ]
    return f"{subset}: {', '.join(found) or 'too few'}"


def _plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "found": row["found"].to_dict("index")} for row in rows]


def conditions(setting: Setting) -> Outcome:
    """Correlation of zeta, kappa and their rivals with the gap in subsets of several pools."""
    pools = all_pools(setting)
    rows = [row for name, table in pools.items() for row in _rows(name, table)]
    parts = ("fitted", "fitted, no batch norm", "fitted, batch norm", "fitted, clean labels", "not fitted")
    verdict = (
        f"{sum(len(table) for table in pools.values())} networks in {len(pools)} pools. Pearson of the gap with zeta "
        f"and kappa (paper: near +1 and -1): {'; '.join(_phrase(rows, part) for part in parts)}. Of {len(rows)} "
        f"pairs of pool and subset the 95 % interval of zeta is {_counted(rows, ZETA)}; of kappa "
        f"{_counted(rows, KAPPA)}."
    )
    return Outcome(
        numbers={"rows": _plain(rows)},
        tables={"Pearson correlation with the gap, 95 % bootstrap intervals": _shown(rows)},
        figures={
            name: drawing.against_gap(table, {ZETA: "ζ", KAPPA: "κ", "log ntk_trace": "log NTK trace"})
            for name, table in pools.items()
        },
        verdict=verdict,
        seeds=sorted({int(seed) for table in pools.values() for seed in table["seed"]}),
    )


DEPTHS = ("first third", "second third", "last convolution", "fully connected")


def _layer_rows(pool: str, table: Table) -> list[dict[str, Any]]:
    rows = []
    for name in ("fitted", "fitted, no batch norm", "fitted, batch norm"):
        part = table[SUBSETS[name](table)]
        for depth in DEPTHS:
            columns = [f"zeta, {depth}", f"kappa, {depth}"]
            if columns[0] not in table or len(part) < LEAST:
                continue
            found = related(part, columns)
            rows.append(
                {"pool": pool, "networks": name, "layer": depth, "n": len(part)}
                | {column.split(",")[0]: found.loc[column].to_dict() for column in columns}
            )
    return rows


def _best_layer(rows: Sequence[dict[str, Any]], number: str, sign: int) -> dict[str, int]:
    """How often each layer has the largest correlation in the paper's direction."""
    best: dict[str, int] = {}
    for key in dict.fromkeys((row["pool"], row["networks"]) for row in rows):
        here = [row for row in rows if (row["pool"], row["networks"]) == key]
        layer = max(here, key=lambda row: sign * row[number]["pearson"])["layer"]
        best[layer] = best.get(layer, 0) + 1
    return best


def _in_words(best: dict[str, int]) -> str:
    return ", ".join(f"{layer} {times}" for layer, times in sorted(best.items(), key=lambda item: -item[1]))


def _mean_of_finite(values: Sequence[float]) -> float:
    finite = [value for value in values if numpy.isfinite(value)]
    return float(numpy.mean(finite)) if finite else 0.0


def depth(setting: Setting) -> Outcome:
    """Which layer is ablated: correlation of zeta and kappa with the gap at several depths."""
    import pandas

    n = setting.choose(smoke=50, small=200, paper=10_000)
    pools = convolutional_pools(setting, layer_samples=n)
    rows = [row for name, table in pools.items() for row in _layer_rows(name, table)]
    shown = pandas.DataFrame(
        [{**row, "zeta": with_interval(row["zeta"], "pearson"), "kappa": with_interval(row["kappa"], "pearson")}
         for row in rows]
    )  # fmt: skip
    means = {
        number: {
            layer: _mean_of_finite([sign * row[number]["pearson"] for row in rows if row["layer"] == layer])
            for layer in dict.fromkeys(row["layer"] for row in rows)
        }
        for number, sign in (("zeta", 1), ("kappa", -1))
    }
    phrases = [f"{layer} {means['zeta'][layer]:.2f} and {means['kappa'][layer]:.2f}" for layer in means["zeta"]]
    verdict = (
        f"Pearson with the gap in the paper's direction, mean over pools and families ({len(rows)} correlations of "
        f"each), zeta and kappa: {', '.join(phrases)}. "
        f"Most telling layer for zeta: {_in_words(_best_layer(rows, 'zeta', 1))} times; for "
        f"kappa: {_in_words(_best_layer(rows, 'kappa', -1))} times (the paper: the deeper the better)."
    )
    return Outcome(
        numbers={"rows": rows, "means": means},
        tables={"Pearson correlation with the gap by layer": shown},
        verdict=verdict,
        seeds=[0],
    )
