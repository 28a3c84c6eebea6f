"""Beyond the paper: conditions and layers of the correlation with the gap, error of estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import pandas

from gapscope.base.specs import RunSpec
from gapscope.prediction.columns import FIT, SENSITIVITIES, default_readings, spans_a_decade
from gapscope.prediction.correlations import correlations
from gapscope.prediction.cross_validation import baselines, cross_val_predict
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope_studies.kit.claims import claim
from gapscope_studies.kit.plots import named, panels, points
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import analysis
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import KAPPA, MARGINS, NAMES, SIGNS, ZETA, arms_of, with_interval

MEDIAN_MARGINS = [name for name in MARGINS if name.endswith(".median")]
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
LEAST = 5
DEPTHS = ("first third", "second third", "last convolution", "fully connected")
NORMS = ("parameter_count", "parameter_norm", "distance_from_initialization")
ALL = (ZETA, KAPPA, *MARGINS, *SENSITIVITIES, *NORMS, *FIT)
PAPER_MODEL = "zeta and kappa (the paper)"
DEFAULT = "sensitivities, median margins, fit, ridge (the default)"
LEVEL = 0.9
OWN = {"data": "not in the paper"}


def measured_pools(
    setting: RunSettings, *, dense: bool = True, layer_samples: int = 0
) -> tuple[list[RunSpec], dict[str, Table]]:
    """All specs, and name -> networks of the pools in which much is varied, with the fully connected ones or without.

    The tables have logarithms of wide readings and `recipe`, the training configuration (all but data and seed).
    """
    specs = {name: grids.varied_pool(setting, name) for name in ("digits", "clothes")}
    specs.setdefault(*grids.first_pool(setting))
    specs |= {"dense": grids.varied_pool(setting, "dense")} if dense else {}
    tables = {}
    for name, result in specs.items():
        table = grids.networks(setting, name, result, layer_samples=layer_samples)
        settings = [column for column in table.columns if str(column).startswith(("network.", "training."))]
        table["recipe"] = [" ".join(map(str, row)) for row in table[settings].to_numpy(dtype=object)]
        for reading in ("ntk_trace", "output_sensitivity"):
            table[f"log {reading}"] = numpy.log(table[reading])
        tables[name] = table
    return [spec for result in specs.values() for spec in result], tables


# --- when zeta and kappa go with the gap


def centred(table: Table, columns: Sequence[str], group: str = "family") -> Table:
    """The table with these columns and the gap measured from the mean of their group."""
    names = [*columns, "gap"]
    return table.assign(**(table[names] - table.groupby(group)[names].transform("mean")))


def subsets(table: Table) -> dict[str, Table]:
    """Subsets of a pool with at least five networks, some of them centred within family or configuration."""
    result = {name: table[choose(table)] for name, choose in SUBSETS.items()}
    fitted = result["fitted"]
    for name, group in CENTRED.items():
        several = fitted[fitted.groupby(group)["gap"].transform("size") >= 3]
        result[name] = centred(several, [*SIGNS, *OTHERS], group) if len(several) else several
    return {name: part for name, part in result.items() if len(part) >= LEAST}


def conditions(setting: RunSettings) -> Outcome:
    """Correlation of zeta, kappa and their baselines with the gap in subsets of several pools."""
    specs, pools = measured_pools(setting)
    rows, shown, claims = [], [], []
    for pool, table in pools.items():
        parts = subsets(table)
        for name, part in parts.items():
            gaps = f"{part['gap'].min():.2f} to {part['gap'].max():.2f}"
            row = {"pool": pool, "networks": name, "n": len(part), "gaps": gaps}
            result: Table = correlations(part, [*SIGNS, *OTHERS], baseline=None)
            rows.append({**row, "found": result.to_dict("index")})
            texts = {label: with_interval(result.loc[key]) for key, label in {**NAMES, **OTHERS}.items()}
            shown.append(row | texts)
        for name in ("fitted", "not fitted"):
            if name in parts:
                claims += analysis.sign_claims(f"pool {pool}, {name}", parts[name], ours=True)
    return outcome(
        setting, specs, OWN, numbers={"rows": rows}, claims=claims,
        tables={"Pearson correlation with the gap, 95 % bootstrap intervals over networks": pandas.DataFrame(shown)},
        figures={name: analysis.scatters(table, [(ZETA, "gap"), (KAPPA, "gap"), ("log ntk_trace", "gap")])
                 for name, table in pools.items()},
    )  # fmt: skip


def _layer_rows(pool: str, table: Table) -> list[dict[str, Any]]:
    rows = []
    for name in ("fitted", "fitted, no batch norm", "fitted, batch norm"):
        part = table[SUBSETS[name](table)]
        for depth in DEPTHS:
            columns = [f"zeta, {depth}", f"kappa, {depth}"]
            if columns[0] in table and len(part) >= LEAST:
                zeta, kappa = correlations(part, columns, baseline=None).to_dict("records")
                row = {"pool": pool, "networks": name, "layer": depth, "n": len(part)}
                rows.append(row | {"zeta": zeta, "kappa": kappa})
    return rows


def depth(setting: RunSettings) -> Outcome:
    """Return which layer is ablated: correlation of zeta and kappa with the gap at several depths."""
    specs, pools = measured_pools(setting, dense=False, layer_samples=setting.read(__file__)["layer_samples"])
    rows = [row for name, table in pools.items() for row in _layer_rows(name, table)]
    shown = pandas.DataFrame([{**row, **{name: with_interval(row[name]) for name in NAMES.values()}} for row in rows])
    compared = [each for table in pools.values() for each in arms_of(table[table["fitted"]])]
    claims, means, layers = [], {}, [row["layer"] for row in rows]
    for column, name in NAMES.items():
        signed = [SIGNS[column] * row[name]["pearson"] for row in rows]
        of_layer = pandas.Series(signed, dtype=float).groupby(layers, sort=False).mean()
        means[name] = of_layer.fillna(0.0).to_dict()
        fitted = {(row["pool"], row["layer"]): value for row, value in zip(rows, signed, strict=True)
                  if row["networks"] == "fitted"}  # fmt: skip
        deeper = [fitted[pool, "last convolution"] - fitted[pool, "first third"] for pool in pools
                  if (pool, "first third") in fitted]  # fmt: skip
        claims.append(
            claim("Sec. 3", f"the deeper the layer, the more {name} tells",
                  "correlation in the paper's direction, last convolution minus first third", deeper, unit="pools",
                  above=0.0, compared=compared)
        )  # fmt: skip
    return outcome(
        setting, specs, OWN, numbers={"rows": rows, "means": means}, claims=claims,
        tables={"Pearson correlation with the gap by layer": shown},
    )  # fmt: skip


# --- what an estimate is worth


def _model(table: Table, features: Sequence[str], kind: str = "ridge") -> GapEstimator:
    """Like `suggested_estimator`: wide readings by their logarithm."""
    wide = [name for name in features if spans_a_decade(table[name].tolist())]
    return GapEstimator(kind=kind, features=list(features), log_features=wide)


def candidates(table: Table) -> dict[str, GapEstimator]:
    """Return what could be fitted on a pool, which says what is wide. The baselines first."""
    return {
        **baselines(table),
        "train loss and accuracy": _model(table, FIT, "linear"),
        PAPER_MODEL: analysis.sparsity_model(),
        "zeta, kappa, train loss and accuracy": _model(table, [ZETA, KAPPA, *FIT], "linear"),
        "margins, least squares (Jiang et al.)": analysis.margin_model(),
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


def _rms(errors: numpy.ndarray) -> float:
    return float(numpy.sqrt((errors**2).mean()))


def _coverage(pools: Mapping[str, Table]) -> Table:
    """Fraction of held-out networks whose gap lies in their interval."""
    rows = []
    for pool, table in pools.items():
        for scheme in ("jackknife+", "cv+"):
            model = candidates(table)[DEFAULT].set_params(interval=scheme)
            result: Table = cross_val_predict(model, table, scheme="leave_one_out", level=LEVEL)
            covered = (result["low"] <= result["target"]) & (result["target"] <= result["high"])
            drawn = covered.to_numpy(dtype=float)
            share = bootstrap(lambda picks, each=drawn: float(each[picks].mean()), len(drawn))
            inside = result["verdict"] == "inside"
            rows.append(
                {
                    "pool": pool,
                    "interval": scheme,
                    "networks": len(table),
                    "coverage": float(covered.mean()),
                    "coverage, 95 %": f"[{share.low:.2f}, {share.high:.2f}]",
                    "coverage of those not refused": float(covered[inside].mean()),
                    "mean width": float((result["high"] - result["low"]).mean()),
                    "refused": float(1 - inside.mean()),
                }
            )
    return pandas.DataFrame(rows)


def estimation_error(setting: RunSettings) -> Outcome:
    """Error at a network that was not fitted on, in each pool. Intervals. A choice made on the other pools."""
    specs, pools = measured_pools(setting)
    errors = {
        pool: {name: model.fit(table, table["gap"]).residuals_ for name, model in candidates(table).items()}
        for pool, table in pools.items()
    }
    rmse = {pool: {name: _rms(each) for name, each in result.items()} for pool, result in errors.items()}
    ratios: Table = pandas.DataFrame(
        {pool: {name: value / result["mean gap"] for name, value in result.items()} for pool, result in rmse.items()}
    )
    chosen = {pool: ratios.drop(columns=pool).sum(axis=1).idxmin() for pool in pools}
    intervals = {
        pool: [str(bootstrap(lambda rows, each=each: _rms(each[rows]), len(each))) for each in result.values()]
        for pool, result in errors.items()
    }
    mean = ratios.mean(axis=1)
    shown = pandas.DataFrame({"estimator": ratios.index, **intervals, "of the mean gap's error": mean.to_numpy()})
    covered = _coverage(pools)
    figure, (axis,) = panels(1, width=6.4, height=0.7 + 0.24 * len(ratios))
    points(axis, {name: Interval(mean[name], row.min(), row.max(), 0) for name, row in ratios.iterrows()})
    named(axis, xlabel="error on a left-out network over the mean gap's (line: smallest to largest pool)")
    claims = [
        analysis.errs_less(f"pool {pool}", f"the default errs less than {other} on a network that was left out", table,
                           candidates(table)[DEFAULT], candidates(table)[other], ours=True)
        for pool, table in pools.items() for other in ("mean gap", PAPER_MODEL)
    ]  # fmt: skip
    return outcome(
        setting, specs, OWN,
        numbers={"rmse": rmse, "chosen on the other pools": chosen, "coverage": covered.to_dict("records")},
        claims=claims,
        tables={"Error on a left-out network, 95 % bootstrap over networks": shown, "Intervals": covered},
        figures={"error": figure},
    )  # fmt: skip


def _transferred(pools: Mapping[str, Table], pool: str) -> list[dict[str, Any]]:
    """Every candidate fitted on the other pools and judged on this one."""
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
    specs, pools = measured_pools(setting)
    table: Table = pandas.DataFrame([row for pool in pools for row in _transferred(pools, pool)])
    errors: Any = table.pivot(index="pool", columns="estimator", values="rmse")
    best = {pool: result.set_index("estimator")["rmse"].idxmin() for pool, result in table.groupby("pool", sort=False)}
    compared = [each for result in pools.values() for each in arms_of(result)]
    claims = [
        claim("transfer", f"fitted on the other pools, {name} errs less than their mean gap",
              "log of its error over the mean gap's", numpy.log(errors[name] / errors["mean gap"]), unit="pools",
              below=0.0, ours=name == DEFAULT, compared=compared)
        for name in (PAPER_MODEL, DEFAULT)
    ]  # fmt: skip
    return outcome(setting, specs, OWN, numbers={"rows": table.to_dict("records"), "best": best},
                   claims=claims, tables={"Fitted on the other pools": table})  # fmt: skip
