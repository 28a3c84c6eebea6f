"""What an estimate of the gap is worth: candidates beside plain baselines, within a pool and on another pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from gapscope.estimation import GapEstimator, baselines, held_out_predictions
from gapscope.estimation.suggestion import FIT, SENSITIVITIES, preferred_readings, wide_columns
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.zhao2022 import drawing
from gapscope_studies.zhao2022.analysis import KAPPA, MARGINS, MEDIAN_MARGINS, ZETA, Table, bootstrap_mean
from gapscope_studies.zhao2022.conditions import all_pools

NORMS = ("parameter_count", "parameter_norm", "distance_from_initialization")
ALL = (ZETA, KAPPA, *MARGINS, *SENSITIVITIES, *NORMS, *FIT)
DEFAULT = "sensitivities, median margins, fit, ridge (the default)"
LEVEL = 0.9


def _model(table: Table, features: Sequence[str], kind: str = "ridge") -> GapEstimator:
    """Like `suggested_estimator`: wide readings by their logarithm."""
    return GapEstimator(kind=kind, features=list(features), logarithm=wide_columns(table, features))


def candidates(table: Table) -> dict[str, GapEstimator]:
    """What could be fitted on a pool; the baselines first.

    Args:
        table: The pool, which says what is wide.

    Returns:
        Name -> unfitted estimator.
    """
    return {
        **baselines(table),
        "train loss and accuracy": _model(table, FIT, "linear"),
        "zeta and kappa (the paper)": GapEstimator(features=[ZETA, KAPPA]),
        "zeta, kappa, train loss and accuracy": _model(table, [ZETA, KAPPA, *FIT], "linear"),
        "margins, least squares (Jiang et al.)": GapEstimator(features=list(MARGINS)),
        "margins, ridge": _model(table, MARGINS),
        "median margins": _model(table, MEDIAN_MARGINS, "linear"),
        DEFAULT: _model(table, preferred_readings(ALL)),
        "sensitivities, ridge": _model(table, SENSITIVITIES),
        "sensitivities, fit, ridge": _model(table, [*SENSITIVITIES, *FIT]),
        "zeta, kappa, sensitivities, fit, ridge": _model(table, [ZETA, KAPPA, *SENSITIVITIES, *FIT]),
        "zeta, kappa and median margins": _model(table, [ZETA, KAPPA, *MEDIAN_MARGINS], "linear"),
        "all readings but zeta and kappa, ridge": _model(table, [name for name in ALL if name not in (ZETA, KAPPA)]),
        "all readings, ridge": _model(table, ALL),
    }


def left_out_errors(table: Table) -> dict[str, numpy.ndarray]:
    """Absolute error at every network of a fit without it, for each candidate."""
    return {name: model.fit(table, table["gap"]).residuals_ for name, model in candidates(table).items()}


def _rms(errors: numpy.ndarray) -> float:
    return float(numpy.sqrt((errors**2).mean()))


def _interval(errors: numpy.ndarray, draws: int = 2000) -> tuple[float, float]:
    picks = numpy.random.default_rng(0).integers(0, len(errors), (draws, len(errors)))
    low, high = numpy.quantile(numpy.sqrt((errors[picks] ** 2).mean(1)), [0.025, 0.975])
    return float(low), float(high)


def chosen_elsewhere(errors: Mapping[str, Mapping[str, numpy.ndarray]], pool: str) -> str:
    """The candidate with the smallest error, in units of the mean gap's, averaged over all pools but this one."""
    others = [found for name, found in errors.items() if name != pool]
    names = next(iter(others))
    return min(names, key=lambda name: sum(_rms(found[name]) / _rms(found["mean gap"]) for found in others))


def _table(errors: Mapping[str, Mapping[str, numpy.ndarray]]) -> Table:
    import pandas

    rows = []
    for name in next(iter(errors.values())):
        row: dict[str, Any] = {"estimator": name}
        for pool, found in errors.items():
            low, high = _interval(found[name])
            row[pool] = f"{_rms(found[name]):.3f} [{low:.3f}, {high:.3f}]"
        ratio = numpy.mean([_rms(found[name]) / _rms(found["mean gap"]) for found in errors.values()])
        rows.append(row | {"of the mean gap's error": float(ratio)})
    return pandas.DataFrame(rows)


def _coverage(pools: Mapping[str, Table]) -> Table:
    """Share of left-out networks whose gap lies in their interval."""
    import pandas

    rows = []
    for pool, table in pools.items():
        for scheme in ("jackknife+", "split"):
            model = candidates(table)[DEFAULT].set_params(interval=scheme)
            found: Table = held_out_predictions(model, table, scheme="leave_one_out", level=LEVEL)
            covered = (found["low"] <= found["target"]) & (found["target"] <= found["high"])
            low, high = bootstrap_mean(covered.tolist())
            inside = found["verdict"] == "inside"
            rows.append(
                {
                    "pool": pool,
                    "interval": scheme,
                    "networks": len(table),
                    "coverage": float(covered.mean()),
                    "coverage, 95 %": f"[{low:.2f}, {high:.2f}]",
                    "coverage of those not refused": float(covered[inside].mean()) if inside.any() else float("nan"),
                    "mean width": float((found["high"] - found["low"]).mean()),
                    "refused": float(1 - inside.mean()),
                }
            )
    return pandas.DataFrame(rows)


def worth(setting: Setting) -> Outcome:
    """Error at a network that was left out of the fit, in each pool; intervals; a choice made on the other pools."""
    pools = all_pools(setting)
    errors = {pool: left_out_errors(table) for pool, table in pools.items()}
    shown, covered = _table(errors), _coverage(pools)
    choices = {pool: chosen_elsewhere(errors, pool) for pool in pools}
    ratios = shown.set_index("estimator")["of the mean gap's error"]
    phrases = [
        f"{pool}: {_rms(found[DEFAULT]):.3f} (mean gap {_rms(found['mean gap']):.3f}, train loss "
        f"{_rms(found['train_loss']):.3f}, parameter count {_rms(found['parameter_count']):.3f}, zeta and kappa "
        f"{_rms(found['zeta and kappa (the paper)']):.3f}, chosen on the other pools, '{choices[pool]}': "
        f"{_rms(found[choices[pool]]):.3f})"
        for pool, found in errors.items()
    ]
    plus = covered[covered["interval"] == "jackknife+"]
    shares = [f"{share:.0%} ({pool})" for pool, share in zip(plus["pool"], plus["coverage"], strict=True)]
    verdict = (
        f"Root mean squared error of the default on a left-out network, {'; '.join(phrases)}. Over the pools the "
        f"smallest error in units of the mean gap's has '{ratios.idxmin()}' ({ratios.min():.2f}; the default "
        f"{ratios[DEFAULT]:.2f}, zeta and kappa {ratios['zeta and kappa (the paper)']:.2f}). Its {LEVEL:.0%} intervals "
        f"cover {', '.join(shares)} of left-out networks."
    )
    return Outcome(
        numbers={
            "rmse": {pool: {name: _rms(values) for name, values in found.items()} for pool, found in errors.items()},
            "chosen on the other pools": choices,
            "coverage": covered.to_dict("records"),
        },
        tables={"Error on a left-out network, 95 % bootstrap over networks": shown, "Intervals": covered},
        figures={"error": _ratio_bars(errors)},
        verdict=verdict,
        seeds=sorted({int(seed) for table in pools.values() for seed in table["seed"]}),
    )


def _ratio_bars(errors: Mapping[str, Mapping[str, numpy.ndarray]]) -> Any:
    import pandas

    rows = []
    for name in next(iter(errors.values())):
        ratios = [_rms(found[name]) / _rms(found["mean gap"]) for found in errors.values()]
        mean = float(numpy.mean(ratios))
        rows.append({"estimator": name, "ratio": mean, "low": min(ratios), "high": max(ratios)})
    title = "error on a left-out network over the mean gap's (line: smallest to largest pool)"
    return drawing.bars(pandas.DataFrame(rows), "estimator", "ratio", low="low", high="high", title=title)


def _transferred(pools: Mapping[str, Table], pool: str) -> list[dict[str, Any]]:
    """Every candidate fitted on the other pools and judged on this one."""
    import pandas

    others: Table = pandas.concat([table for name, table in pools.items() if name != pool])
    here, rows = pools[pool], []
    gap: numpy.ndarray = here["gap"].to_numpy(dtype=float)
    for name, model in candidates(others).items():
        answers: Table = model.fit(others, others["gap"]).assess(here, level=LEVEL, refuse=False)
        estimate: Any = answers["prediction"].to_numpy()
        known = numpy.isfinite(estimate)
        varies = estimate[known].std() > 1e-9
        rows.append(
            {
                "pool": pool,
                "estimator": name,
                "rmse": _rms(estimate[known] - gap[known]),
                "pearson": float(numpy.corrcoef(estimate[known], gap[known])[0, 1]) if varies else float("nan"),
                "coverage": float(((answers["low"] <= gap) & (gap <= answers["high"])).mean()),
                "refused": float((answers["verdict"] == "outside").mean()),
            }
        )
    return rows


def transfer(setting: Setting) -> Outcome:
    """Coefficients carried to a pool of other data and another architecture: every pool held out in turn."""
    import pandas

    pools = all_pools(setting)
    table = pandas.DataFrame([row for pool in pools for row in _transferred(pools, pool)])
    keyed: Table = table.set_index(["pool", "estimator"])
    best = {pool: table[table["pool"] == pool].set_index("estimator")["rmse"].idxmin() for pool in pools}
    phrases = [
        f"{pool}: default {keyed.loc[(pool, DEFAULT), 'rmse']:.3f}, refusing "
        f"{keyed.loc[(pool, DEFAULT), 'refused']:.0%}; zeta and kappa "
        f"{keyed.loc[(pool, 'zeta and kappa (the paper)'), 'rmse']:.3f}; mean gap of the other pools "
        f"{keyed.loc[(pool, 'mean gap'), 'rmse']:.3f}; best '{best[pool]}' {keyed.loc[(pool, best[pool]), 'rmse']:.3f}"
        for pool in pools
    ]
    verdict = f"Fitted on the other pools, root mean squared error on the held-out one. {'. '.join(phrases)}."
    return Outcome(
        numbers={"rows": table.to_dict("records"), "best": best},
        tables={"Fitted on the other pools": table},
        verdict=verdict,
        seeds=[0],
    )
