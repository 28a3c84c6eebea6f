"""Test bench of noise and training size, and one variable changed at a time (Fig. 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas

from gapscope_studies.kit.claims import REGULARIZED, Claim, claim
from gapscope_studies.kit.plots import heat_map, panels, points, set_labels
from gapscope_studies.kit.statistics import Interval
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.szolnoky2022 import protocol
from gapscope_studies.szolnoky2022.setups import Setup, make_setup, read_sizes
from gapscope_studies.szolnoky2022.tables import arms_of, mean_table, with_tuning

QUANTILES = (0.1, 0.5, 0.9)


def best_share(finals: Table) -> list[float]:
    """Return the fraction of scenarios (rows, by seed) in which MGS ends best, for each seed."""
    return (finals.idxmax(axis=1) == "MGS").groupby(level="seed").mean().to_list()


def quantile_table(tables: Mapping[str, Table]) -> Table:
    """Return 10, 50 and 90 % quantiles of final accuracy by variable and method."""
    return pandas.DataFrame(
        {"variable": variable, "method": method}
        | {f"{100 * q:.0f} %": float(group["final"].quantile(q)) for q in QUANTILES}
        for variable, table in tables.items()
        for method, group in table.groupby("method", sort=False)
    )


def bench_scenarios(setup: Setup) -> list[dict[str, Any]]:
    """Return every noise level with every training size (Table 1 shares networks)."""
    return [
        {"data.label_noise": noise, "data.train_size": size}
        for size in setup.bench_sizes
        for noise in setup.bench_noises
    ]


def bench(setting: RunSettings, *, name: str) -> Outcome:
    """Return final accuracies of every method over noise and training size."""
    setup, count = make_setup(setting, name), read_sizes(setting)["common"]["bench_runs"]
    tuning = protocol.tune(setting, setup)
    table, specs = protocol.run_scenarios(setting, setup, tuning, bench_scenarios(setup), count)
    result = mean_table(table, "noise", "size")
    wide: Any = result.pivot(index=["noise", "size"], columns="method", values="final")[
        list(setup.colours)
    ]
    figure, axes = panels(len(setup.methods), width=2.4, height=2.4)
    for axis, method in zip(axes, setup.methods, strict=True):
        grid = wide[method.name].unstack("size")
        noises = [f"{100 * noise:.0f} %" for noise in grid.index]
        heat_map(axis, grid, noises, [str(size) for size in grid.columns], digits=0)
        set_labels(axis, title=method.name, xlabel="training samples")
    # sizes are nested and all scenarios of a seed share its images: the seeds are what is independent
    rows: Any = table.pivot_table(
        index=["noise", "size", "seed"], columns="method", values="final", sort=False
    )
    seeds = rows.index.get_level_values("seed").to_list()
    # MGS is best in most scenarios: a method that failed can only add to it
    arms = [arm for arm in arms_of(setup, table) if arm.name == "MGS" or not arm.failed]
    claims = [
        claim("test bench", f"over all scenarios MGS is better than {other.name}", f"points of MGS over {other.name}",
              (rows["MGS"] - rows[other.name]).to_list(), clusters=seeds, above=0.0,
              compared=arms_of(setup, table, "MGS", other.name), **REGULARIZED)
        for other in setup.methods if other.name != "MGS"
    ]  # fmt: skip
    claims.append(claim("test bench", "MGS is the best of all methods in most scenarios", "fraction of scenarios",
                        best_share(rows), above=0.5, compared=arms, **REGULARIZED))  # fmt: skip
    return with_tuning(
        setting, setup, tuning, specs, {"data": "MNIST", "networks": "143 scenarios of noise and training size"},
        numbers={"means": result.to_dict("records")}, claims=claims,
        tables={"Final test accuracy in per cent": wide.reset_index()}, figures={"bench": figure},
    )  # fmt: skip


def variations(setting: RunSettings, setup: Setup) -> dict[str, list[dict[str, Any]]]:
    """Return scenarios by variable: it alone differs, to both sides, and the middle one."""
    base, common = setup.base, read_sizes(setting)["common"]

    def scaled(path: str, value: Any) -> list[dict[str, Any]]:
        return [{path: factor * value if isinstance(value, float) else max(1, round(factor * value))}
                for factor in common["factors"]]  # fmt: skip

    return {
        "training size": scaled("data.train_size", base.data.train_size),
        "label noise": [{"data.label_noise": noise} for noise in common["changed_noises"]],
        "batch size": scaled("training.batch_size", base.training.batch_size),
        "learning rate": scaled("training.learning_rate", base.training.learning_rate),
        "epochs": scaled("training.epochs", base.training.epochs),
    }


def robustness(setting: RunSettings) -> Outcome:
    """Compare final accuracies when one training variable is changed (Fig. 5)."""
    common = read_sizes(setting)["common"]
    setup, count = make_setup(setting, common["robustness"]), common["bench_runs"]
    tuning = protocol.tune(setting, setup)
    changes = variations(setting, setup)
    every = [scenario for scenarios in changes.values() for scenario in scenarios]
    # all at once, then by variable
    _, specs = protocol.run_scenarios(setting, setup, tuning, every, count)
    tables = {
        variable: protocol.run_scenarios(setting, setup, tuning, scenarios, count)[0]
        for variable, scenarios in changes.items()
    }
    result = quantile_table(tables)
    figure, axes = panels(len(tables), width=3.2, height=2.4)
    for axis, (variable, rows) in zip(axes, result.groupby("variable", sort=False), strict=True):
        points(
            axis,
            {
                row["method"]: Interval(row["50 %"], row["10 %"], row["90 %"], 0)
                for _, row in rows.iterrows()
            },
        )
        set_labels(
            axis,
            title=f"{variable} changed",
            xlabel="accuracy (%): median, 10 to 90 %",
            xlim=(0, 100),
        )
    columns = ["noise", "size", "batch size", "learning rate", "epochs", "method", "seed", "final"]
    runs = [row for table in tables.values() for row in table[columns].to_dict("records")]
    return with_tuning(
        setting, setup, tuning, specs, {"data": "MNIST, 3,000 training images", "network": "LeNet-5"},
        numbers={"quantiles": result.to_dict("records"), "runs": runs},
        claims=[each for variable, table in tables.items() for each in _robustness_claims(setup, variable, table)],
        tables={"Quantiles of final test accuracy in per cent": result}, figures={"quantiles": figure},
    )  # fmt: skip


def _robustness_claims(setup: Setup, variable: str, table: Table) -> list[Claim]:
    """Return claims on median and spread of MGS against the best other method, per seed."""
    guard: dict[str, Any] = {"compared": arms_of(setup, table), **REGULARIZED}
    by_seed: Any = table.groupby(["seed", "method"])["final"]
    medians, spread = (
        by_seed.median().unstack(),
        (by_seed.quantile(0.9) - by_seed.quantile(0.1)).unstack(),
    )
    others = medians.columns.drop("MGS")
    regularized = others.drop("Unregularised")  # which is steadily bad
    claims = [claim("Fig. 5", f"MGS has the highest median accuracy when the {variable} is changed",
                    "median of MGS minus the largest other", medians["MGS"] - medians[others].max(axis=1), above=0.0,
                    **guard)]  # fmt: skip
    if variable != "learning rate":
        claims.append(claim("Fig. 5", f"MGS is the steadiest when the {variable} is changed",
                            "its 10 to 90 % range minus the smallest of the other regularizers",
                            spread["MGS"] - spread[regularized].min(axis=1), below=0.0, **guard))  # fmt: skip
    return claims
