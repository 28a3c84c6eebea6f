"""Zeta and kappa against the gap over pools of networks (Table 1, Figs. 3 to 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pandas
from matplotlib.figure import Figure

from gapscope.base.specs import RunSpec
from gapscope.gap.cross_validation import baselines, cross_val_predict
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.statistics.correlations import correlations, kendall_tau
from gapscope_studies.kit.claims import Claim, claim, estimate, identity, relation
from gapscope_studies.kit.plots import panels, scatter, set_labels
from gapscope_studies.kit.pool import outcome
from gapscope_studies.kit.statistics import bootstrap, pearson
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import curves
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    NAMES,
    PAPER,
    SIGNS,
    ZETA,
    arms_of,
    cluster_fields,
    error_claim,
    format_coefficient,
    margin_model,
    mean_gap,
    scatter_pairs,
    sign_claims,
    sparsity_model,
)

COLUMNS = ["corruption", "batch_norm", "train_accuracy", "test_accuracy", "gap", ZETA, KAPPA]
OF_HELD_OUT = "zeta and kappa tell the gap of a network that was left out"
N_HELD_OUT = 8  # the paper's test networks
DRAWS, SSR_OF_DRAW = (
    "draws of weights and images",
    "sum of squared residuals of the fit to one draw",
)
IMAGENET = {
    "data": "ImageNet, 1,000 classes, 224 x 224 pixels",
    "network": "VGG-16",
    "networks": "5",
    "epochs": "74",
}
BASELINES = {
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
    "fitted, clean labels, no batch norm": lambda t: (
        t["fitted"] & (t["corruption"] == 0) & ~t["batch_norm"]
    ),
    "not fitted": lambda t: ~t["fitted"],
}
CENTRED = {
    "fitted, from the mean of their family": "family",
    "fitted, from the mean of their training configuration": "recipe",
}
MIN_NETWORKS = 5  # of a subset
NARROW = """The sign with kappa is that of narrow networks: these LeNets have 11 or 22 units in the layer that is \
measured. Among MobileNets and ResNet-34 (Figs. 5, 6) the gap rises with kappa."""


def figure_3ab(setting: RunSettings) -> Outcome:
    """Compare zeta with kappa, and the gap with both, over all networks of the pool."""
    pool, specs = grids.first_pool(setting)
    table = grids.measure_networks(setting, pool, specs)
    result: Table = correlations(table, [ZETA, KAPPA], baseline=None)
    coefficients = pandas.DataFrame(
        {"gap and": name}
        | {kind: format_coefficient(row, kind) for kind in ("pearson", "spearman", "kendall")}
        for name, row in result.iterrows()
    )
    falls = relation("Fig. 3(A)", "kappa falls with zeta", "Pearson of zeta and kappa", pearson, table[ZETA],
                     table[KAPPA], below=0.0, **cluster_fields(table))  # fmt: skip
    return outcome(
        setting, specs, PAPER,
        numbers={"correlations": result.to_dict("index"), "networks": table[COLUMNS].to_dict("records")},
        claims=[*sign_claims("Fig. 3(B)", table), falls],
        verdict=setting.choose(smoke="", small=NARROW, paper=""),
        tables={"Correlations, 95 % bootstrap over networks": coefficients, "Networks": table[COLUMNS]},
        figures={"pairs": scatter_pairs(table, [(ZETA, KAPPA)]),
                 "gap": scatter_pairs(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip


def repeated_splits(estimator: GapEstimator, table: Table, n_splits: int = 100) -> dict[str, Any]:
    """Fit a model on random 90/10 splits (Fig. 3D), and score it next to baselines.

    `ssr` is the sum of squared residuals per split, `fit_pearson` the mean over splits of the fit's correlation.
    """
    models = {"estimator": estimator, **baselines(table)}
    result: dict[str, Table] = {
        name: cross_val_predict(model, table, scheme="splits", n_splits=n_splits)
        for name, model in models.items()
    }
    squares = {name: (rows["prediction"] - rows["target"]) ** 2 for name, rows in result.items()}
    of_model = result["estimator"]
    sums = squares["estimator"].groupby(of_model["split"], sort=False).sum()
    return {
        "n": len(table),
        "held_out": int(of_model["split"].value_counts().iloc[0]),
        "ssr": sums.tolist(),
        "median_ssr": float(sums.median()),
        "largest_ssr": float(sums.max()),
        "rmse": {name: float(numpy.sqrt(values.mean())) for name, values in squares.items()},
        "fit_pearson": float(of_model.groupby("split", sort=False)["fit_pearson"].first().mean()),
    }


def _split_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    return pandas.DataFrame(
        [{"model": name, "fitted on": each["n"] - each["held_out"], "held out": each["held_out"],
          "Pearson, fitted": each["fit_pearson"], "SSR, median": each["median_ssr"],
          "SSR, largest": each["largest_ssr"], **{f"error, {key}": value for key, value in each["rmse"].items()}}
         for name, each in results.items()]
    )  # fmt: skip


def _plot_one_split(estimator: GapEstimator, table: Table) -> Figure:
    """Plot estimated against true gaps of the first split (Fig. 3C, E)."""
    held_out: Table = cross_val_predict(estimator, table, scheme="splits", n_splits=1)
    rest = table.drop(held_out.index)
    fit = estimator.fit(rest, rest["gap"]).predict(rest)
    return _plot_estimates(
        {"fitted on": (rest["gap"], fit), "held out": (held_out["target"], held_out["prediction"])}
    )


def _plot_estimates(groups: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Plot estimated against true gaps, with the line of equality."""
    figure, (axis,) = panels(1, width=3.8, height=3.4)
    scatter(axis, groups)
    gaps = numpy.concatenate([gap for gap, _ in groups.values()])
    axis.plot([gaps.min(), gaps.max()], [gaps.min(), gaps.max()], "--", color="0.5", lw=1)
    set_labels(axis, xlabel="true generalization gap", ylabel="estimated gap")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _plot_sums(sums: Mapping[str, Sequence[float]]) -> Figure:
    figure, (axis,) = panels(1, width=4.2, height=3.0)
    largest = max(max(values) for values in sums.values())
    for label, values in sums.items():
        axis.hist(values, bins=numpy.linspace(0, largest, 26).tolist(), alpha=0.6, label=label)
    set_labels(axis, xlabel="sum of squared residuals of the held-out networks", ylabel="splits")
    axis.legend(fontsize=7, frameon=False)
    return figure


def fit_claim(
    source: str, table: Table, paper: float, units: Mapping[str, str] | None = None
) -> Claim:
    """Return the claim that the linear model fits the gap as closely as in the paper."""
    x = numpy.column_stack([table[[ZETA, KAPPA]].to_numpy(dtype=float), numpy.ones(len(table))])
    gap, fields = table["gap"].to_numpy(dtype=float), cluster_fields(table, **units or {})

    def correlate_fit(rows: numpy.ndarray) -> float:
        return pearson(x[rows] @ numpy.linalg.lstsq(x[rows], gap[rows], rcond=None)[0], gap[rows])

    result = bootstrap(correlate_fit, len(table), fields.pop("clusters"))
    return estimate(source, f"zeta and kappa fit the gap with a Pearson of {paper:g}", "Pearson of the fit", result,
                    above=0.9, **fields)  # fmt: skip


def ssr_claim(source: str, says: str, table: Table, model: GapEstimator, paper: float) -> Claim:
    """Return the claim that the squared held-out residuals sum to the paper's value."""
    residuals = model.fit(table, table["gap"]).residuals_
    return claim(source, says, f"sum of squared residuals of {N_HELD_OUT} left-out networks", N_HELD_OUT * residuals**2,
                 paper=paper, **cluster_fields(table))  # fmt: skip


def ssr_per_draw(model: GapEstimator, tables: Sequence[Table]) -> list[float]:
    """Return the sum of squared residuals of the model fitted to each draw of the networks."""
    return [
        float(
            (
                (model.fit(table, table["gap"]).predict(table) - table["gap"].to_numpy(dtype=float))
                ** 2
            ).sum()
        )
        for table in tables
    ]


def split_draws(table: Table, draws: Sequence[Sequence[RunSpec]]) -> list[Table]:
    """Return the finished networks of each draw."""
    return [table[table.index.isin([spec.id for spec in draw])] for draw in draws]


def figure_3cd(setting: RunSettings) -> Outcome:
    """Fit the linear model of zeta and kappa, and score it on 100 splits (Fig. 3C, D)."""
    pool, specs = grids.first_pool(setting)
    table = grids.measure_networks(setting, pool, specs)
    result = repeated_splits(sparsity_model(), table, setting.read(__file__)["splits"])
    claims = [
        fit_claim("Fig. 3(C)", table, 0.979),
        error_claim("Fig. 3(C)", OF_HELD_OUT, table, sparsity_model(), mean_gap()),
        ssr_claim("Fig. 3(C)", "eight left-out networks leave an SSR of 0.023", table, sparsity_model(), 0.023),
        identity("Fig. 3(D)", "in every split the sum of squared residuals of held-out networks is below 0.035",
                 "largest sum", result["largest_ssr"], below=0.035, compared=arms_of(table)),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=result, claims=claims,
        tables={"Repeated splits": _split_table({"zeta and kappa": result})},
        figures={"estimates": _plot_one_split(sparsity_model(), table),
                 "splits": _plot_sums({"zeta and kappa": result["ssr"]})},
    )  # fmt: skip


def figure_3e(setting: RunSettings) -> Outcome:
    """Compare the margin signature (20 features) with zeta and kappa."""
    pool, specs = grids.first_pool(setting)
    table, n_splits = grids.measure_networks(setting, pool, specs), setting.read(__file__)["splits"]
    margins = {"least squares": margin_model(), "ridge": margin_model(kind="ridge")}
    models = {**margins, "zeta and kappa": sparsity_model()}
    result = {name: repeated_splits(model, table, n_splits) for name, model in models.items()}
    estimate = margin_model().fit(table, table["gap"]).predict(table)
    claims = [
        *(error_claim("Fig. 3(E)", f"zeta and kappa err less than the margin signature ({kind})", table,
                             sparsity_model(), model) for kind, model in margins.items()),
        ssr_claim("Fig. 3(E)", "eight left-out networks leave the margin signature an SSR of 0.5", table,
                  margin_model(), 0.5),
        relation("Fig. 3(E)", "the margin signature fits the gap with a Pearson of 0.75", "Pearson of the fit",
                 pearson, estimate, table["gap"], paper=0.75, within=1.25, **cluster_fields(table)),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=result, claims=claims, tables={"Repeated splits": _split_table(result)},
        figures={"estimates": _plot_one_split(models["ridge"], table),
                 "splits": _plot_sums({name: result[name]["ssr"] for name in ("ridge", "zeta and kappa")})},
    )  # fmt: skip


def other_architecture(
    setting: RunSettings, *, pool: str, source: str, paper: Mapping[str, str], fit: float | None = None,
    ssr: float | None = None, **units: str,
) -> Outcome:  # fmt: skip
    """Plot curves and pairs of one architecture, and fit the gap (Figs. 3, 5 and 6).

    `fit` and `ssr` are Pearson's correlation and the sum of squared residuals of the fit in the paper. `units` are the
    `cluster` of networks that count once and its `unit`, by default draws of weights and images.
    """
    n_draws = setting.read(__file__)["grid"]["networks"][pool].get("draws", 1)
    draws = grids.draws_of(grids.paper_grid(setting, pool), n_draws)
    specs = [spec for draw in draws for spec in draw]
    table = grids.measure_networks(setting, pool, specs)
    plain = [curves.plain_sparsities(setting, pool, grids.plain_networks(draw)) for draw in draws]
    sparsities, records = (
        [result for result, _ in plain],
        [record for _, of_draw in plain for record in of_draw],
    )
    means, of_draw = curves.mean_table(sparsities[0]), split_draws(table, draws)
    squares, spread = ssr_per_draw(sparsity_model(), of_draw), ssr_per_draw(mean_gap(), of_draw)
    # networks of one draw share their images
    units = units or {"cluster": "data.seed", "unit": DRAWS}
    claims = [
        *sign_claims(source, table, units),
        error_claim(source, OF_HELD_OUT, table, sparsity_model(), mean_gap(), units),
        *curves.trend_claims(source, sparsities, records),
    ]
    if fit is not None:
        claims.append(fit_claim(source, table, fit, units))
    if ssr is not None:
        claims.append(claim(source, f"the linear fit leaves an SSR of {ssr:g}", SSR_OF_DRAW, squares, paper=ssr,
                            unit=DRAWS, compared=arms_of(table)))  # fmt: skip
    estimates = sparsity_model().fit(table, table["gap"]).predict(table)
    return outcome(
        setting, specs, {**PAPER, **paper},
        numbers={"ssr": squares, "ssr_mean_gap": spread, "by_corruption": means.to_dict("records"),
                 "networks": table[COLUMNS].to_dict("records")},
        claims=claims,
        verdict=f"The fit to one draw leaves an SSR of {numpy.mean(squares):.3g} where the mean gap leaves "
                f"{numpy.mean(spread):.3g}.",
        tables={"Means over classes, first draw": means, "Networks": table[COLUMNS]},
        figures={"curves": curves.plot_curves(sparsities[0]), "pairs": scatter_pairs(table, [(ZETA, KAPPA)]),
                 "estimates": _plot_estimates({"all networks": (table["gap"], estimates)})},
    )  # fmt: skip


def wide_lenets(setting: RunSettings) -> Outcome:
    """Correlate zeta and kappa with the gap over LeNets with 64 units in the layer that is measured."""
    draws = grids.draws_of(
        grids.paper_grid(setting, "wide"),
        setting.read(__file__)["grid"]["networks"]["wide"]["draws"],
    )
    specs = [spec for draw in draws for spec in draw]
    table = grids.measure_networks(setting, "wide", specs)
    units = {"cluster": "data.seed", "unit": DRAWS}
    return outcome(
        setting, specs, {"data": "not in the paper"},
        numbers={"networks": table[COLUMNS].to_dict("records")},
        claims=sign_claims("LeNets of 64 units", table, units, ours=True),
        tables={"Networks": table[COLUMNS]},
        figures={"gap": scatter_pairs(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip


def figure_4(setting: RunSettings) -> Outcome:
    """Compare scores, zeta and kappa of the five models, and fit the gap (Table 1, Fig. 4)."""
    setting, models = grids.use_photographs(setting), grids.models(setting)
    draws = [list(draw) for draw in zip(*models.values(), strict=True)]
    specs = [spec for draw in draws for spec in draw]
    names = {spec.id: name for name, of_model in models.items() for spec in of_model}
    printed: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), index_col="model")
    table = grids.measure_networks(setting, "photographs", specs)
    table["model"] = table.index.map(names)
    table["paper's gap"] = table["model"].map(printed["train_accuracy"] - printed["test_accuracy"])
    of_draw = split_draws(table, draws)
    squares, spread = ssr_per_draw(sparsity_model(), of_draw), ssr_per_draw(mean_gap(), of_draw)
    result = {
        name: [pearson(each[column], each["gap"]) for each in of_draw]
        for column, name in NAMES.items()
    }
    order = [
        kendall_tau(each["model"].map(ord).to_numpy(), each["gap"].to_numpy()) for each in of_draw
    ]
    sparsities = [
        {f"model {names[spec.id]}": grids.sparsity(setting, "photographs", spec)
         for spec in draw if spec.id in table.index}
        for draw in draws
    ]  # fmt: skip
    per_draw: Any = {"unit": DRAWS, "compared": arms_of(table, "model", "model {}")}
    claims = [
        claim("Fig. 4", "the gap rises with zeta", "Pearson of the gap and zeta", result["zeta"], paper=0.998,
              within=1.25, **per_draw),
        claim("Fig. 4", "the gap falls with kappa", "Pearson of the gap and kappa", result["kappa"], paper=-0.967,
              within=1.25, **per_draw),
        claim("Fig. 4", "the linear fit leaves an SSR of 0.004", SSR_OF_DRAW, squares, paper=0.004, **per_draw),
        claim("Table 1", "the gap grows from model A to model E", "Kendall's tau of order and gap", order, above=0.0,
              **per_draw),
        claim("Fig. 4(B)", curves.CLASSES_MOVE, "Pearson of zeta and kappa over classes of all models",
              [curves.class_correlation(each) for each in sparsities], below=0.0, **per_draw),
    ]  # fmt: skip
    columns = ["model", "paper's gap", "gap", "train_accuracy", "test_accuracy", ZETA, KAPPA]
    means = table[columns].groupby("model", as_index=False).mean()
    return outcome(
        setting, specs, IMAGENET,
        numbers={"correlations": result, "ssr": squares, "models": means.to_dict("records")},
        claims=claims,
        verdict=f"Three coefficients for five networks leave an SSR of {numpy.mean(squares):.3g} of "
                f"{numpy.mean(spread):.3g} about the mean.",
        tables={"Table 1, means over draws": means},
        figures={"curves": curves.plot_curves(sparsities[0]), "clouds": curves.plot_classes(sparsities[0]),
                 "gap": scatter_pairs(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip


# --- beyond the paper: when zeta and kappa correlate with the gap


def subsets(table: Table) -> dict[str, Table]:
    """Return subsets of five or more networks, some centred within family or configuration."""
    result = {name: table[choose(table)] for name, choose in SUBSETS.items()}
    fitted, columns = result["fitted"], [*SIGNS, *BASELINES, "gap"]
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
        settings = [
            column for column in table.columns if str(column).startswith(("network.", "training."))
        ]
        # the training configuration: all but data and seed
        table["recipe"] = [
            " ".join(map(str, row)) for row in table[settings].to_numpy(dtype=object)
        ]
        for reading in ("ntk_trace", "output_sensitivity"):
            table[f"log {reading}"] = numpy.log(table[reading])
        parts = subsets(table)
        for name, part in parts.items():
            gaps = f"{part['gap'].min():.2f} to {part['gap'].max():.2f}"
            row = {"pool": pool, "networks": name, "n": len(part), "gaps": gaps}
            result: Table = correlations(part, [*SIGNS, *BASELINES], baseline=None)
            numbers.append({**row, "found": result.to_dict("index")})
            rows.append(
                row
                | {
                    text: format_coefficient(result.loc[key])
                    for key, text in {**NAMES, **BASELINES}.items()
                }
            )
        for name in ("fitted", "not fitted"):
            if name in parts:
                claims += sign_claims(f"pool {pool}, {name}", parts[name], ours=True)
        figures[pool] = scatter_pairs(
            table, [(ZETA, "gap"), (KAPPA, "gap"), ("log ntk_trace", "gap")]
        )
    return outcome(
        setting, [spec for specs in pools.values() for spec in specs], {"data": "not in the paper"},
        numbers={"rows": numbers}, claims=claims, figures=figures,
        tables={"Pearson correlation with the gap, 95 % bootstrap intervals over networks": pandas.DataFrame(rows)},
    )  # fmt: skip
