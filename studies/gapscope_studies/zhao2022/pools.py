"""Beyond the paper: when zeta and kappa correlate with the gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pandas

from gapscope.prediction.correlations import correlations
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    NAMES,
    SIGNS,
    ZETA,
    format_coefficient,
    scatter_pairs,
    sign_claims,
)

OTHERS = {
    "train_loss": "train loss",
    "log ntk_trace": "log NTK trace",
    "log output_sensitivity": "log sensitivity",
    "margin_signature.h2.median": "median margin, h2",
    "parameter_count": "parameters",
}
SUBSETS: dict[str, Callable[[Table], Any]] = {
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
    "fitted, from the mean of their training configuration": "recipe",
}
MIN_NETWORKS = 5


def subsets(table: Table) -> dict[str, Table]:
    """Return subsets of five or more networks, some centred within family or configuration."""
    result = {name: table[choose(table)] for name, choose in SUBSETS.items()}
    fitted, columns = result["fitted"], [*SIGNS, *OTHERS, "gap"]
    for name, group in CENTRED.items():
        several = fitted[fitted.groupby(group)["gap"].transform("size") >= 3]
        means = several.groupby(group)[columns].transform("mean")
        result[name] = several.assign(**(several[columns] - means)) if len(several) else several
    return {name: part for name, part in result.items() if len(part) >= MIN_NETWORKS}


def conditions(setting: RunSettings) -> Outcome:
    """Correlate zeta, kappa and their baselines with the gap in subsets of several pools."""
    pools = {name: grids.varied_pool(setting, name) for name in ("digits", "clothes")}
    pools.setdefault(*grids.first_pool(setting))
    pools["dense"] = grids.varied_pool(setting, "dense")
    numbers, rows, claims, figures = [], [], [], {}
    for pool, specs in pools.items():
        table = grids.measure_networks(setting, pool, specs)
        settings = [column for column in table.columns if str(column).startswith(("network.", "training."))]
        # the training configuration: all but data and seed
        table["recipe"] = [" ".join(map(str, row)) for row in table[settings].to_numpy(dtype=object)]
        for reading in ("ntk_trace", "output_sensitivity"):
            table[f"log {reading}"] = numpy.log(table[reading])
        parts = subsets(table)
        for name, part in parts.items():
            gaps = f"{part['gap'].min():.2f} to {part['gap'].max():.2f}"
            row = {"pool": pool, "networks": name, "n": len(part), "gaps": gaps}
            result: Table = correlations(part, [*SIGNS, *OTHERS], baseline=None)
            numbers.append({**row, "found": result.to_dict("index")})
            rows.append(row | {text: format_coefficient(result.loc[key]) for key, text in {**NAMES, **OTHERS}.items()})
        for name in ("fitted", "not fitted"):
            if name in parts:
                claims += sign_claims(f"pool {pool}, {name}", parts[name], ours=True)
        figures[pool] = scatter_pairs(table, [(ZETA, "gap"), (KAPPA, "gap"), ("log ntk_trace", "gap")])
    return outcome(
        setting, [spec for specs in pools.values() for spec in specs], {"data": "not in the paper"},
        numbers={"rows": numbers}, claims=claims, figures=figures,
        tables={"Pearson correlation with the gap, 95 % bootstrap intervals over networks": pandas.DataFrame(rows)},
    )  # fmt: skip
