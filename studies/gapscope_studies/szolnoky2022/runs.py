"""Networks of tables: trained once by the frozen methods, and what their test curves say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from gapscope.base.records import Record
from gapscope.base.specs import Spec
from gapscope_studies.kit.statistics import t_interval
from gapscope_studies.kit.study import Setting
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.setups import Setup

Scenario = Mapping[str, Any]


def metric_curve(record: Record, setup: Setup) -> list[float]:
    """Test metric after every epoch, accuracies in per cent; a diverged network is at chance from then on."""
    factor = 100.0 if setup.metric == "accuracy" else 1.0
    curve = [factor * float(row[f"test_{setup.metric}"]) for row in record.history]
    return curve + [setup.chance] * (record.status != "finished")


def _row(setup: Setup, method: str, spec: Spec, record: Record) -> dict[str, Any]:
    curve = metric_curve(record, setup)
    best = min if setup.lower_is_better else max
    return {
        "noise": spec.data.target_noise if setup.lower_is_better else spec.data.label_noise,
        "size": spec.data.train_size,
        "batch size": spec.training.batch_size,
        "learning rate": spec.training.learning_rate,
        "epochs": spec.training.epochs,
        "method": method,
        "seed": spec.seed,
        "final": curve[-1],
        "best": best(value for value in curve if not math.isnan(value)) if len(curve) > 1 else curve[-1],
        "diverged": record.status != "finished",
        "curve": curve,
    }


def scenario_runs(
    setting: Setting,
    setup: Setup,
    strengths: Mapping[str, float],
    scenarios: Sequence[Scenario],
    *,
    runs: int | None = None,
) -> Table:
    """Train what is missing of every method in every scenario, with the strengths as they were frozen.

    Args:
        setting: Scale, work folder, workers.
        setup: Network, data and methods.
        strengths: Method -> strength.
        scenarios: Settings (path -> value) that differ from the middle scenario.
        runs: Networks a method and scenario; None takes the setup's.

    Returns:
        One row a network: scenario, method, seed, final and best test metric, the whole curve.
    """
    import pandas

    wanted = [
        (method.name, method.applied(setup.with_seed(seed).replace(scenario), strengths[method.name]))
        for seed in range(runs or setup.runs)
        for scenario in scenarios
        for method in setup.methods
    ]
    specs = list(dict.fromkeys(spec for _, spec in wanted))
    pool = f"{setup.base.network.name}-{setup.base.data.name}"
    records = dict(zip(specs, setting.train(pool, specs, measures=()), strict=True))
    return pandas.DataFrame(_row(setup, method, spec, records[spec]) for method, spec in wanted)


def means(table: Table, *by: str) -> Table:
    """Mean and standard deviation of the final metric and mean of the best one, over the runs of each method.

    Args:
        table: From `scenario_runs`.
        *by: Columns that tell the scenarios apart; the noise alone if there are none.

    Returns:
        One row a scenario and method, from the lowest noise to the highest.
    """
    groups = table.groupby([*(by or ("noise",)), "method"], sort=False)
    found = groups.agg(
        final=("final", "mean"), sd=("final", "std"), best=("best", "mean"), diverged=("diverged", "sum")
    )
    return found.reset_index().sort_values("noise", kind="stable", ignore_index=True)


def winners(found: Table, *, lower_is_better: bool = False) -> dict[float, str]:
    """Noise level -> the method with the best mean final metric."""
    order = found.sort_values("final", ascending=lower_is_better, kind="stable")
    return {float(noise): str(group["method"].iloc[0]) for noise, group in order.groupby("noise")}


def beyond_early_stopping(found: Table, method: str = "MGS", *, lower_is_better: bool = False) -> dict[float, float]:
    """Noise level -> final metric of the method less the best epoch of the best other method.

    Args:
        found: From `means`.
        method: The method.
        lower_is_better: Whether the metric is a loss.

    Returns:
        The differences; positive where no other method, stopped at its best epoch, is better.
    """
    sign = -1 if lower_is_better else 1
    differences = {}
    for noise, group in found.groupby("noise"):
        ours = group[group["method"] == method]["final"].iloc[0]
        others = (sign * group[group["method"] != method]["best"]).max()
        differences[float(noise)] = float(sign * ours - others)
    return differences


def with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent values, and the ends of its 95 % t-interval."""
    return float(numpy.mean(values)), *t_interval(values)


def paired_difference(table: Table, method: str, other: str, column: str = "final") -> tuple[float, float, float]:
    """Mean over runs, with its interval, of the method's metric less another's on the same data and seed."""
    keys = ["noise", "size", "seed"]
    pair = [table[table["method"] == name].set_index(keys)[column] for name in (method, other)]
    return with_interval((pair[0] - pair[1]).to_list())


def written(mean: float, low: float, high: float) -> str:
    """A difference in words, with its interval where there is one."""
    return f"{mean:+.1f}" if math.isinf(low) else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def cell(row: Any) -> str:
    """Final metric, standard deviation (of several runs) and best epoch as the paper writes them, and what diverged."""
    spread = "" if math.isnan(row.sd) else f" ± {row.sd:.1f}"
    text = f"{row.final:.1f}{spread} ({row.best:.1f})"
    diverged = int(getattr(row, "diverged", 0))
    return f"{text}, {diverged} diverged" if diverged else text


def counted(number: int) -> str:
    """Number of runs in words."""
    return f"{number} run{'' if number == 1 else 's'}"


def beside_the_paper(ours: Table, paper: Table | None) -> Table:
    """One row a noise level and source, one column a method: final ± standard deviation (best)."""
    import pandas

    rows = []
    for noise in ours["noise"].unique():
        for source, found in (("ours", ours), ("paper", paper)):
            if found is not None and (found["noise"] == noise).any():
                there = found[found["noise"] == noise]
                cells = {row.method: cell(row) for row in there.itertuples()}
                rows.append({"noise": f"{noise:g}", "source": source, **cells})
    return pandas.DataFrame(rows)


def differences(table: Table, method: str = "MGS") -> Table:
    """One row a noise level: the method's final metric less each other's, paired over runs, with intervals."""
    import pandas

    rows = []
    for noise, group in table.groupby("noise"):
        others = [name for name in group["method"].unique() if name != method]
        rows.append(
            {"noise": f"{noise:g}"} | {name: written(*paired_difference(group, method, name)) for name in others}
        )
    return pandas.DataFrame(rows)
