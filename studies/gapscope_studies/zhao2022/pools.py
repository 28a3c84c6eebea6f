"""Beyond the paper: conditions and layers of the correlation with the gap, error of estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope.prediction.columns import FIT, SENSITIVITIES, default_readings, wide_columns
from gapscope.prediction.cross_validation import baselines, cross_val_predict
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim
from gapscope_studies.kit.plots import named, panels, points
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    MARGINS,
    MEDIAN_MARGINS,
    NAMES,
    SIGNS,
    ZETA,
    centred,
    chance_of,
    errs_less,
    learnt,
    related,
    scatters,
    sign_claims,
    with_interval,
)
from gapscope_studies.zhao2022.networks import networks

RIVALS = {
    "train_loss": "train loss",
    "log ntk_trace": "log NTK trace",
    "log output_sensitivity": "log sensitivity",
    MEDIAN_MARGINS[2]: "median margin, h2",
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
LEAST = 5
DEPTHS = ("first third", "second third", "last convolution", "fully connected")
NORMS = ("parameter_count", "parameter_norm", "distance_from_initialization")
ALL = (ZETA, KAPPA, *MARGINS, *SENSITIVITIES, *NORMS, *FIT)
PAPER_MODEL = "zeta and kappa (the paper)"
DEFAULT = "sensitivities, median margins, fit, ridge (the default)"
LEVEL = 0.9
OWN = {"data": "not in the paper"}


# --- pools


def _prepared(table: Table) -> Table:
    """With logarithms of wide readings and `training configuration` (everything but data and seed)."""
    logs = {f"log {name}": numpy.log(table[name]) for name in ("ntk_trace", "output_sensitivity")}
    settings = [name for name in table.columns if str(name).startswith(("network.", "training."))]
    recipe = [" ".join(map(str, row)) for row in table[settings].to_numpy(dtype=object)]
    return table.assign(**logs, recipe=recipe)


def pool_specs(setting: RunSettings, *, dense: bool) -> dict[str, list[RunSpec]]:
    """Name -> networks of the pools in which much is varied, with the fully connected ones or without."""
    pools = {name: grids.varied_pool(setting, name) for name in ("digits", "clothes")}
    pools.setdefault(*grids.first_pool(setting))
    return pools | ({"dense": grids.varied_pool(setting, "dense")} if dense else {})


def measured_pools(
    setting: RunSettings, specs: Mapping[str, Sequence[RunSpec]], layer_samples: int = 0
) -> dict[str, Table]:
    """Name -> measured networks. Further layers on so many samples, 0 measures none."""
    return {name: _prepared(networks(setting, name, found, layer_samples=layer_samples))
            for name, found in specs.items()}  # fmt: skip


def _joined(specs: Mapping[str, Sequence[RunSpec]]) -> list[RunSpec]:
    return [spec for found in specs.values() for spec in found]


def subsets(table: Table) -> dict[str, Table]:
    """Subsets of a pool with at least five networks, some of them centred within family or configuration."""
    found = {name: table[choose(table)] for name, choose in SUBSETS.items()}
    fitted = table[table["fitted"]]
    for name, group in CENTRED.items():
        several = fitted[fitted.groupby(group)["gap"].transform("size") >= 3]
        found[name] = centred(several, [*SIGNS, *RIVALS], group) if len(several) else several
    return {name: part for name, part in found.items() if len(part) >= LEAST}


# --- when zeta and kappa go with the gap


def _rows(pool: str, table: Table) -> list[dict[str, Any]]:
    return [
        {"pool": pool, "networks": name, "n": len(part), "gaps": f"{part['gap'].min():.2f} to {part['gap'].max():.2f}",
         "found": related(part, [*SIGNS, *RIVALS])}
        for name, part in subsets(table).items()
    ]  # fmt: skip


def conditions(setting: RunSettings) -> Outcome:
    """Correlation of zeta, kappa and their baselines with the gap in subsets of several pools."""
    import pandas

    specs = pool_specs(setting, dense=True)
    pools = measured_pools(setting, specs)
    rows = [row for name, table in pools.items() for row in _rows(name, table)]
    shown = pandas.DataFrame(
        [{key: row[key] for key in ("pool", "networks", "n", "gaps")}
         | {label: with_interval(row["found"].loc[name]) for name, label in {**NAMES, **RIVALS}.items()}
         for row in rows]
    )  # fmt: skip
    claims = [
        each
        for pool, table in pools.items()
        for name in ("fitted", "not fitted")
        if len(part := table[SUBSETS[name](table)]) >= LEAST
        for each in sign_claims(f"pool {pool}, {name}", part, chance_of(setting, specs[pool]), ours=True)
    ]
    return outcome(
        setting, _joined(specs), OWN,
        numbers={"rows": [{**row, "found": row["found"].to_dict("index")} for row in rows]}, claims=claims,
        tables={"Pearson correlation with the gap, 95 % bootstrap intervals over networks": shown},
        figures={name: scatters(table, [(ZETA, "gap"), (KAPPA, "gap"), ("log ntk_trace", "gap")])
                 for name, table in pools.items()},
    )  # fmt: skip


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


def _mean_of_finite(values: Sequence[float]) -> float:
    finite = [value for value in values if numpy.isfinite(value)]
    return float(numpy.mean(finite)) if finite else 0.0


def _deeper_is_better(
    rows: Sequence[dict[str, Any]], number: str, sign: int, compared: Sequence[ComparisonArm]
) -> Claim:
    """That the last convolution tells more than one at a third of the depth. The pools are independent."""
    signed = {(row["pool"], row["networks"], row["layer"]): sign * row[number]["pearson"] for row in rows}
    pairs = {key[0]: value - signed[key[0], "fitted", "first third"] for key, value in signed.items()
             if key[1:] == ("fitted", "last convolution") and (key[0], "fitted", "first third") in signed}  # fmt: skip
    return claim("Sec. 3", f"the deeper the layer, the more {number} tells",
                 "correlation in the paper's direction, last convolution minus first third", list(pairs.values()),
                 unit="pools", above=0.0, compared=compared)  # fmt: skip


def depth(setting: RunSettings) -> Outcome:
    """Return which layer is ablated: correlation of zeta and kappa with the gap at several depths."""
    import pandas

    specs = pool_specs(setting, dense=False)
    pools = measured_pools(setting, specs, setting.read(__file__)["layer_samples"])
    rows = [row for name, table in pools.items() for row in _layer_rows(name, table)]
    shown = pandas.DataFrame([{**row, **{name: with_interval(row[name]) for name in NAMES.values()}} for row in rows])
    layers = dict.fromkeys(row["layer"] for row in rows)
    fitted = {name: table[table["fitted"]] for name, table in pools.items()}
    compared = [each for name, table in fitted.items() for each in learnt(table, chance_of(setting, specs[name]))]
    means = {
        NAMES[name]: {
            layer: _mean_of_finite([sign * row[NAMES[name]]["pearson"] for row in rows if row["layer"] == layer])
            for layer in layers
        }
        for name, sign in SIGNS.items()
    }
    return outcome(
        setting, _joined(specs), OWN, numbers={"rows": rows, "means": means},
        claims=[_deeper_is_better(rows, NAMES[name], sign, compared) for name, sign in SIGNS.items()],
        tables={"Pearson correlation with the gap by layer": shown},
    )  # fmt: skip


# --- what an estimate is worth


def _model(table: Table, features: Sequence[str], kind: str = "ridge") -> GapEstimator:
    """Like `suggested_estimator`: wide readings by their logarithm."""
    return GapEstimator(kind=kind, features=list(features), log_features=wide_columns(table, features))


def candidates(table: Table) -> dict[str, GapEstimator]:
    """Return what could be fitted on a pool, which says what is wide. The baselines first."""
    return {
        **baselines(table),
        "train loss and accuracy": _model(table, FIT, "linear"),
        PAPER_MODEL: GapEstimator(features=[ZETA, KAPPA]),
        "zeta, kappa, train loss and accuracy": _model(table, [ZETA, KAPPA, *FIT], "linear"),
        "margins, least squares (Jiang et al.)": GapEstimator(features=list(MARGINS)),
        "margins, ridge": _model(table, MARGINS),
        "median margins": _model(table, MEDIAN_MARGINS, "linear"),
        DEFAULT: _model(table, default_readings(ALL)),
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


def select_on_other_pools(errors: Mapping[str, Mapping[str, numpy.ndarray]], pool: str) -> str:
    """The candidate with the smallest error, in units of the mean gap's, averaged over all pools but this one."""
    others = [found for name, found in errors.items() if name != pool]
    names = next(iter(others))
    return min(names, key=lambda name: sum(_rms(found[name]) / _rms(found["mean gap"]) for found in others))


def _coverage(pools: Mapping[str, Table]) -> Table:
    """Fraction of left-out networks whose gap lies in their interval."""
    import pandas

    rows = []
    for pool, table in pools.items():
        for scheme in ("jackknife+", "cv+"):
            model = candidates(table)[DEFAULT].set_params(interval=scheme)
            found: Table = cross_val_predict(model, table, scheme="leave_one_out", level=LEVEL)
            covered = (found["low"] <= found["target"]) & (found["target"] <= found["high"])
            drawn = covered.to_numpy(dtype=float)
            share = bootstrap(lambda picks, each=drawn: float(each[picks].mean()), len(drawn))
            inside = found["verdict"] == "inside"
            rows.append(
                {
                    "pool": pool,
                    "interval": scheme,
                    "networks": len(table),
                    "coverage": float(covered.mean()),
                    "coverage, 95 %": f"[{share.low:.2f}, {share.high:.2f}]",
                    "coverage of those not refused": float(covered[inside].mean()) if inside.any() else float("nan"),
                    "mean width": float((found["high"] - found["low"]).mean()),
                    "refused": float(1 - inside.mean()),
                }
            )
    return pandas.DataFrame(rows)


def estimation_error(setting: RunSettings) -> Outcome:
    """Error at a network that was left out of the fit, in each pool. Intervals. A choice made on the other pools."""
    import pandas

    specs = pool_specs(setting, dense=True)
    pools = measured_pools(setting, specs)
    errors = {pool: left_out_errors(table) for pool, table in pools.items()}
    names, covered = list(next(iter(errors.values()))), _coverage(pools)
    intervals = {
        pool: {name: bootstrap(lambda rows, each=each: _rms(each[rows]), len(each)) for name, each in found.items()}
        for pool, found in errors.items()
    }
    ratios = {name: [_rms(found[name]) / _rms(found["mean gap"]) for found in errors.values()] for name in names}
    shown = pandas.DataFrame(
        [{"estimator": name, **{pool: str(found[name]) for pool, found in intervals.items()},
          "of the mean gap's error": float(numpy.mean(ratios[name]))} for name in names]
    )  # fmt: skip
    figure, (axis,) = panels(1, width=6.4, height=0.7 + 0.24 * len(names))
    points(axis, {name: Interval(float(numpy.mean(each)), min(each), max(each), 0) for name, each in ratios.items()})
    named(axis, xlabel="error on a left-out network over the mean gap's (line: smallest to largest pool)")
    claims = [
        errs_less(f"pool {pool}", f"the default errs less than {rival} on a network that was left out", table,
                  candidates(table)[DEFAULT], candidates(table)[rival], chance_of(setting, specs[pool]), ours=True)
        for pool, table in pools.items() for rival in ("mean gap", PAPER_MODEL)
    ]  # fmt: skip
    return outcome(
        setting, _joined(specs), OWN,
        numbers={
            "rmse": {pool: {name: _rms(values) for name, values in found.items()} for pool, found in errors.items()},
            "chosen on the other pools": {pool: select_on_other_pools(errors, pool) for pool in pools},
            "coverage": covered.to_dict("records"),
        },
        claims=claims,
        tables={"Error on a left-out network, 95 % bootstrap over networks": shown, "Intervals": covered},
        figures={"error": figure},
    )  # fmt: skip


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


def transfer(setting: RunSettings) -> Outcome:
    """Coefficients carried to a pool of other data and another architecture: every pool held out in turn."""
    import pandas

    specs = pool_specs(setting, dense=True)
    pools = measured_pools(setting, specs)
    table: Table = pandas.DataFrame([row for pool in pools for row in _transferred(pools, pool)])
    errors: Any = table.pivot(index="pool", columns="estimator", values="rmse")
    best = {pool: table[table["pool"] == pool].set_index("estimator")["rmse"].idxmin() for pool in pools}
    compared = [each for pool, found in pools.items() for each in learnt(found, chance_of(setting, specs[pool]))]
    claims = [
        claim("transfer", f"fitted on the other pools, {name} errs less than their mean gap",
              "log of its error over the mean gap's", numpy.log(errors[name] / errors["mean gap"]), unit="pools",
              below=0.0, ours=name == DEFAULT, compared=compared)
        for name in (PAPER_MODEL, DEFAULT)
    ]  # fmt: skip
    return outcome(setting, _joined(specs), OWN, numbers={"rows": table.to_dict("records"), "best": best},
                   claims=claims, tables={"Fitted on the other pools": table})  # fmt: skip
