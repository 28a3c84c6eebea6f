"""Figure parts: Figs. 1 to 3 (VGG-16), 4 (ImageNet), 5 (MobileNet) and 6 (ResNet-34)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas

from gapscope.base.specs import RunSpec
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY, UnitSparsity
from gapscope.prediction.correlations import correlations, kendall_tau
from gapscope.prediction.cross_validation import baselines, cross_val_predict
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.results.records import Record
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve, estimate, identity, relation
from gapscope_studies.kit.plots import legend, panels, scatter, set_labels
from gapscope_studies.kit.pool import make_arm, outcome
from gapscope_studies.kit.statistics import bootstrap, pearson
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import analysis
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    ZETA,
    arms_of,
    cluster_fields,
    margin_model,
    mean_gap,
    sparsity_model,
)
from gapscope_studies.zhao2022.networks import sparsity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sparsities = Mapping[Any, UnitSparsity]
SHOWN = ["corruption", "batch_norm", "train_accuracy", "test_accuracy", "gap", ZETA, KAPPA]
CLASSES_MOVE = "classes move from large kappa and small zeta to the opposite corner"
OF_HELD_OUT = "zeta and kappa tell the gap of a network that was left out"
HELD_OUT = 8  # the paper's test networks
# quantity -> the paper's way with corruption
TRENDS = {"n0/M": 1, "n0r/M": -1, "zeta": 1, "kappa": -1}
# ... and where a network generalizes
GENERALIZING = {"n0/M": -1, "n0r/M": 1, "kappa": 1}
PAPER = {
    "data": "CIFAR-100, 50,000 training and 10,000 test images",
    "network": "VGG-16, 512 units in its last convolution",
    "networks": "80",
    "batch size": "128 to 512",
    "epochs": "until the training accuracy is .97",
}
DRAWS, SSR_OF_DRAW = "draws of weights and images", "sum of squared residuals of the fit to one draw"
IMAGENET = {"data": "ImageNet, 1,000 classes, 224 x 224 pixels", "network": "VGG-16", "networks": "5", "epochs": "74"}


# --- curves of single networks


def plain_sparsities(
    setting: RunSettings, pool: str, plain: Sequence[RunSpec], **options: Any
) -> tuple[Sparsities, list[Record]]:
    """Return sparsities of networks by corruption, which alone differs, and their records.

    Sparsities are zeta and kappa with all curves.
    """
    records = grids.finished(setting, pool, plain, **options)
    ids = {record.id for record in records}
    return {spec.data.label_noise: sparsity(setting, pool, spec) for spec in plain if spec.id in ids}, records


def repeated_sparsities(setting: RunSettings) -> tuple[list[RunSpec], list[Sparsities], list[Record]]:
    """Return networks, sparsities and records of Figs. 1 and 2 over several draws.

    Draws are of weights and samples. Sparsities are per draw.
    """
    pool, specs = grids.first_pool(setting)
    first, *others = grids.repeats_of_plain(setting, specs)
    result = [plain_sparsities(setting, pool, first)]
    result += [plain_sparsities(setting, f"{pool}-again", plain, measures=()) for plain in others]
    records = [record for _, there in result for record in there]
    return [spec for plain in (first, *others) for spec in plain], [each for each, _ in result], records


def _quantities(item: UnitSparsity) -> dict[str, list[float]]:
    """Return what the paper reads off the curves, one number per class."""
    return {
        "n0/M": (item.turning_points.double() / item.n_units).tolist(),
        "n0r/M": (item.reversed_turning_points.double() / item.n_units).tolist(),
        "zeta": item.class_zeta.tolist(),
        "kappa": item.class_kappa.tolist(),
    }


def _means(draw: Sparsities) -> Table:
    """Means over classes of every network, by corruption."""
    rows = []
    for fraction, item in draw.items():
        row: dict[str, Any] = {"corruption": fraction, "training accuracy": item.accuracy}
        for name, values in _quantities(item).items():
            mean = bootstrap(lambda rows, values=values: float(numpy.mean(numpy.take(values, rows))), len(values))
            row |= {name: mean.value, f"{name}, 95 % over classes": f"[{mean.low:.2f}, {mean.high:.2f}]"}
        rows.append(row | {"classes never at chance": item.n_never_at_chance})
    return pandas.DataFrame(rows)


def _curves(draw: Sparsities) -> Figure:
    """Plot E and E_r of each network's first class, turning points and area (Figs. 1, 2A).

    The area is that between the curves.
    """
    figure, axes = panels(len(draw), height=2.4)
    for axis, (title, item) in zip(axes, draw.items(), strict=True):
        n, first, last = numpy.arange(item.n_units + 1), item.curves[0].numpy(), item.reversed_curves[0].numpy()
        axis.fill_between(n, first, last, color="0.88")
        for curve, point, colour, label in (
            (first, int(item.turning_points[0]), "C0", "E, most active first"),
            (last, int(item.reversed_turning_points[0]), "C2", "E_r, reversed"),
        ):
            axis.plot(n, curve, color=colour, label=label)
            axis.scatter([point], [curve[point]], color=colour, edgecolors="black", zorder=3, s=28)
        title = f"{title:.0%} corrupted" if isinstance(title, float) else title
        set_labels(axis, title=title, ylim=(-0.04, 1.04), xlabel="units removed", ylabel="accuracy on the class")
    legend(figure)
    return figure


def _clouds(draw: Sparsities) -> Figure:
    """(zeta, kappa) of every class, one colour a network (Fig. 2B)."""
    figure, (axis,) = panels(1, width=4.6, height=3.6)
    scatter(axis, {str(title): (item.class_zeta.numpy(), item.class_kappa.numpy()) for title, item in draw.items()})
    set_labels(axis, xlabel="zeta of a class", ylabel="kappa of a class")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _advantage(good: UnitSparsity, poor: UnitSparsity) -> dict[str, numpy.ndarray]:
    """Return the advantage of clean over random labels, by quantity and class.

    Better is meant in the paper's sense.
    """
    classes = sorted(set(good.classes) & set(poor.classes))
    here, there = (
        {name: numpy.array([values[item.classes.index(label)] for label in classes])
         for name, values in _quantities(item).items()}
        for item in (good, poor)
    )  # fmt: skip
    return {name: sign * (here[name] - there[name]) for name, sign in GENERALIZING.items()}


def _arms(records: Sequence[Record], source: Sparsities) -> tuple[ComparisonArm, ...]:
    """Return the label fit of the networks of each corruption in `source`, over all draws."""
    by_level = {level: [r for r in records if r.spec["data"]["label_noise"] == level] for level in source}
    return tuple(
        make_arm(f"{level:.0%} corrupted", there, len(source[level].classes),
                 stopped=min(r.scores["train_accuracy"] for r in there) >= MIN_TRAIN_ACCURACY)
        for level, there in by_level.items()
    )  # fmt: skip


def figure_1(setting: RunSettings) -> Outcome:
    """Compare curves, turning points and areas with good and with no generalization (Fig. 1)."""
    specs, repeats, records = repeated_sparsities(setting)
    first = repeats[0]
    low, high = min(first), max(first)
    result = [_advantage(each[low], each[high]) for each in repeats if low in each and high in each]
    both = _arms(records, {level: first[level] for level in (low, high)})
    claims = [
        claim("Fig. 1", f"{name} is {'larger' if sign > 0 else 'smaller'} where a network generalizes",
              f"{name} with {'clean minus with random' if sign > 0 else 'random minus with clean'} labels",
              [float(each[name].mean()) for each in result], unit="pairs of networks", above=0.0, compared=both)
        for name, sign in GENERALIZING.items()
    ]  # fmt: skip
    numbers = {
        "shares": {name: float(numpy.mean(less > 0)) for name, less in result[0].items()},
        "clean": _quantities(first[low]),
        "random": _quantities(first[high]),
    }
    figures = {"curves": _curves({"clean labels": first[low], "random labels": first[high]})}
    return outcome(setting, specs, PAPER, numbers=numbers, claims=claims, figures=figures)


def _trend_claims(source: str, repeats: Sequence[Sparsities], records: Sequence[Record]) -> list[Claim]:
    claims = []
    for name, sign in TRENDS.items():
        trends = []  # Pearson of corruption and the mean over classes, by draw
        for draw in repeats:
            means = [numpy.mean(_quantities(item)[name]) for item in draw.values()]
            trends.append(pearson(numpy.array([*draw]), numpy.array(means)))
        claims.append(
            claim(source, f"{name} {'rises' if sign > 0 else 'falls'} with corruption",
                  f"Pearson of {name} and the fraction of corrupted labels", trends, unit="draws of networks",
                  compared=_arms(records, repeats[0]), **analysis.of_sign(sign))
        )  # fmt: skip
    return claims


def _class_correlation(draw: Sparsities) -> float:
    """Pearson of zeta and kappa over all classes of all networks of one draw."""
    pairs = [numpy.array([item.class_zeta.numpy(), item.class_kappa.numpy()]) for item in draw.values()]
    return pearson(*numpy.concatenate(pairs, axis=1))


def figure_2(setting: RunSettings) -> Outcome:
    """Curves and (zeta, kappa) of all classes in networks that differ in corruption alone."""
    specs, repeats, records = repeated_sparsities(setting)
    means = [_means(result) for result in repeats]
    return outcome(
        setting, specs, PAPER,
        claims=[
            *_trend_claims("Fig. 2", repeats, records),
            claim("Fig. 2(B)", CLASSES_MOVE, "Pearson of zeta and kappa over classes of all networks",
                  [_class_correlation(result) for result in repeats], unit="draws of networks", below=0.0,
                  compared=_arms(records, repeats[0])),
        ],
        numbers={"by_corruption": means[0].to_dict("records"), "draws": [each.to_dict("records") for each in means]},
        tables={"Means over classes, first draw": means[0]},
        figures={"curves": _curves(repeats[0]), "clouds": _clouds(repeats[0])},
    )  # fmt: skip


# --- pools: Figs. 3, 5, 6


def figure_3ab(setting: RunSettings) -> Outcome:
    """Zeta against kappa, and the gap against both, over all networks of the pool."""
    pool, specs = grids.first_pool(setting)
    table = grids.networks(setting, pool, specs)
    result: Table = correlations(table, [ZETA, KAPPA], baseline=None)
    kinds = ("pearson", "spearman", "kendall")
    shown = pandas.DataFrame(
        [{"gap and": name, **{kind: analysis.with_interval(row, kind) for kind in kinds}}
         for name, row in result.iterrows()]
    )  # fmt: skip
    falls = relation("Fig. 3(A)", "kappa falls with zeta", "Pearson of zeta and kappa", pearson, table[ZETA],
                     table[KAPPA], below=0.0, **cluster_fields(table))  # fmt: skip
    return outcome(
        setting, specs, PAPER,
        numbers={"correlations": result.to_dict("index"), "networks": table[SHOWN].to_dict("records")},
        claims=[*analysis.sign_claims("Fig. 3(B)", table), falls],
        tables={"Correlations, 95 % bootstrap over networks": shown, "Networks": table[SHOWN]},
        figures={"pairs": analysis.scatters(table, [(ZETA, KAPPA)]),
                 "gap": analysis.scatters(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip


def repeated_splits(estimator: GapEstimator, table: Table, n_splits: int = 100) -> dict[str, Any]:
    """Random 90/10 splits, as in Fig. 3D, with the plain baselines on the same splits.

    `ssr` of each split's held-out networks, its median and maximum, `rmse` of the model ("estimator") and of the
    baselines over all held-out networks, `fit_pearson` (mean over splits), `n` and `held_out` networks.
    """
    models = {"estimator": estimator, **baselines(table)}
    result: dict[str, Table] = {
        name: cross_val_predict(model, table, scheme="splits", n_splits=n_splits) for name, model in models.items()
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


def _protocol_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a model: what repeated splits gave."""
    return pandas.DataFrame(
        [{"model": name, "fitted on": each["n"] - each["held_out"], "held out": each["held_out"],
          "Pearson, fitted": each["fit_pearson"], "SSR, median": each["median_ssr"],
          "SSR, largest": each["largest_ssr"], **{f"error, {key}": value for key, value in each["rmse"].items()}}
         for name, each in results.items()]
    )  # fmt: skip


def _one_split(estimator: GapEstimator, table: Table) -> dict[str, tuple[list[float], list[float]]]:
    """Return gaps and estimates of fitted and of held-out networks in the first split.

    A tenth is held out.
    """
    held: Table = cross_val_predict(estimator, table, scheme="splits", n_splits=1)
    rest = table.drop(held.index)
    estimate = estimator.fit(rest, rest["gap"]).predict(rest)
    return {
        "fitted on": (rest["gap"].tolist(), estimate.tolist()),
        "held out": (held["target"].tolist(), held["prediction"].tolist()),
    }


def _estimates(groups: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Estimated against true gaps, with the line of equality (Fig. 3C, E)."""
    figure, (axis,) = panels(1, width=3.8, height=3.4)
    scatter(axis, groups)
    every = [gap for true, _ in groups.values() for gap in true]
    axis.plot([min(every), max(every)], [min(every), max(every)], "--", color="0.5", lw=1)
    set_labels(axis, xlabel="true generalization gap", ylabel="estimated gap")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _histogram(sums: Mapping[str, Sequence[float]]) -> Figure:
    """Sums of squared residuals over repeated splits (Fig. 3D)."""
    figure, (axis,) = panels(1, width=4.2, height=3.0)
    largest = max(max(values) for values in sums.values())
    for label, values in sums.items():
        axis.hist(values, bins=numpy.linspace(0, largest, 26).tolist(), alpha=0.6, label=label)
    set_labels(axis, xlabel="sum of squared residuals of the held-out networks", ylabel="splits")
    axis.legend(fontsize=7, frameon=False)
    return figure


def fit_claim(source: str, table: Table, paper: float, units: Mapping[str, str] | None = None) -> Claim:
    """That the linear model fits the gap as closely as in the paper."""
    x = numpy.column_stack([table[[ZETA, KAPPA]].to_numpy(dtype=float), numpy.ones(len(table))])
    gap, fields = table["gap"].to_numpy(dtype=float), cluster_fields(table, **units or {})

    def of_fit(rows: numpy.ndarray) -> float:
        return pearson(x[rows] @ numpy.linalg.lstsq(x[rows], gap[rows], rcond=None)[0], gap[rows])

    result = bootstrap(of_fit, len(table), fields.pop("clusters"))
    return estimate(source, f"zeta and kappa fit the gap with a Pearson of {paper:g}", "Pearson of the fit", result,
                    above=0.9, **fields)  # fmt: skip


def ssr_claim(source: str, says: str, table: Table, model: GapEstimator, paper: float) -> Claim:
    """Return the claim that the sum of squared held-out residuals is the paper's.

    It is over as many networks as the paper's.
    """
    residuals = model.fit(table, table["gap"]).residuals_
    return claim(source, says, f"sum of squared residuals of {HELD_OUT} left-out networks", HELD_OUT * residuals**2,
                 paper=paper, **cluster_fields(table))  # fmt: skip


def ssr_per_draw(model: GapEstimator, table: Table, draws: Sequence[Sequence[RunSpec]]) -> list[float]:
    """Return the sum of squared residuals of the model fitted to each draw of the networks."""
    result = []
    for draw in draws:
        drawn = table[table.index.isin([spec.id for spec in draw])]
        gap = drawn["gap"].to_numpy(dtype=float)
        result.append(float(((model.fit(drawn, gap).predict(drawn) - gap) ** 2).sum()))
    return result


def figure_3cd(setting: RunSettings) -> Outcome:
    """The linear model of zeta and kappa: fit, held-out networks, 100 repeated splits."""
    pool, specs = grids.first_pool(setting)
    table = grids.networks(setting, pool, specs)
    result = repeated_splits(sparsity_model(), table, setting.read(__file__)["splits"])
    claims = [
        fit_claim("Fig. 3(C)", table, 0.979),
        analysis.errs_less("Fig. 3(C)", OF_HELD_OUT, table, sparsity_model(), mean_gap()),
        ssr_claim("Fig. 3(C)", "eight left-out networks leave an SSR of 0.023", table, sparsity_model(), 0.023),
        identity("Fig. 3(D)", "in every split the sum of squared residuals of held-out networks is below 0.035",
                 "largest sum", result["largest_ssr"], below=0.035, compared=arms_of(table)),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=result, claims=claims,
        tables={"Repeated splits": _protocol_table({"zeta and kappa": result})},
        figures={"estimates": _estimates(_one_split(sparsity_model(), table)),
                 "splits": _histogram({"zeta and kappa": result["ssr"]})},
    )  # fmt: skip


def figure_3e(setting: RunSettings) -> Outcome:
    """Compare the margin signature with zeta and kappa on the same splits.

    The signature is least squares on 20 features, and its ridge.
    """
    pool, specs = grids.first_pool(setting)
    table, n_splits = grids.networks(setting, pool, specs), setting.read(__file__)["splits"]
    margins = {"least squares": margin_model(), "ridge": margin_model(kind="ridge")}
    models = {**margins, "zeta and kappa": sparsity_model()}
    result = {name: repeated_splits(model, table, n_splits) for name, model in models.items()}
    estimate = margin_model().fit(table, table["gap"]).predict(table)
    claims = [
        *(analysis.errs_less("Fig. 3(E)", f"zeta and kappa err less than the margin signature ({kind})", table,
                             sparsity_model(), model) for kind, model in margins.items()),
        ssr_claim("Fig. 3(E)", "eight left-out networks leave the margin signature an SSR of 0.5", table,
                  margin_model(), 0.5),
        relation("Fig. 3(E)", "the margin signature fits the gap with a Pearson of 0.75", "Pearson of the fit",
                 pearson, estimate, table["gap"], paper=0.75, within=1.25, **cluster_fields(table)),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=result, claims=claims, tables={"Repeated splits": _protocol_table(result)},
        figures={"estimates": _estimates(_one_split(models["ridge"], table)),
                 "splits": _histogram({name: result[name]["ssr"] for name in ("ridge", "zeta and kappa")})},
    )  # fmt: skip


def other_architecture(
    setting: RunSettings, *, pool: str, source: str, paper: Mapping[str, str], fit: float | None = None,
    ssr: float | None = None, **units: str,
) -> Outcome:  # fmt: skip
    """Curves, pairs and the fit on all networks of an architecture (Figs. 3, 5 and 6).

    `fit` and `ssr` are the paper's Pearson and sum of squared residuals of the fit, where it gives them; `units` are
    the `cluster` of networks that count once and its `unit`, else draws of weights and images.
    """
    n_draws = setting.read(__file__)["grid"]["networks"][pool].get("draws", 1)
    draws = grids.draws_of(grids.paper_grid(setting, pool), n_draws)
    specs = [spec for draw in draws for spec in draw]
    table = grids.networks(setting, pool, specs)
    plain = [plain_sparsities(setting, pool, grids.plain_networks(draw)) for draw in draws]
    curves, records = [result for result, _ in plain], [record for _, there in plain for record in there]
    means, gaps = _means(curves[0]), table["gap"].to_numpy(dtype=float)
    squares, spread = (ssr_per_draw(model, table, draws) for model in (sparsity_model(), mean_gap()))
    # networks of one draw share their images
    units = units or {"cluster": "data.seed", "unit": DRAWS}
    claims = [
        *analysis.sign_claims(source, table, units),
        analysis.errs_less(source, OF_HELD_OUT, table, sparsity_model(), mean_gap(), units),
        *_trend_claims(source, curves, records),
    ]
    if fit is not None:
        claims.append(fit_claim(source, table, fit, units))
    if ssr is not None:
        claims.append(claim(source, f"the linear fit leaves an SSR of {ssr:g}", SSR_OF_DRAW, squares, paper=ssr,
                            unit=DRAWS, compared=arms_of(table)))  # fmt: skip
    estimate = sparsity_model().fit(table, gaps).predict(table)
    return outcome(
        setting, specs, {**PAPER, **paper},
        numbers={"ssr": squares, "ssr_mean_gap": spread, "by_corruption": means.to_dict("records"),
                 "networks": table[SHOWN].to_dict("records")},
        claims=claims,
        verdict=f"The fit to one draw leaves an SSR of {numpy.mean(squares):.3g} where the mean gap leaves "
                f"{numpy.mean(spread):.3g}.",
        tables={"Means over classes, first draw": means, "Networks": table[SHOWN]},
        figures={"curves": _curves(curves[0]), "pairs": analysis.scatters(table, [(ZETA, KAPPA)]),
                 "estimates": _estimates({"all networks": (gaps.tolist(), estimate.tolist())})},
    )  # fmt: skip


# --- photographs: Table 1 and Fig. 4


def figure_4(setting: RunSettings) -> Outcome:
    """Accuracies, zeta and kappa of the five models, and the linear fit."""
    here, models = grids.photographs(setting), grids.models(setting)
    draws = [list(draw) for draw in zip(*models.values(), strict=True)]
    specs = [spec for draw in draws for spec in draw]
    names = {spec.id: name for name, drawn in models.items() for spec in drawn}
    theirs: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), index_col="model")
    theirs["gap"] = theirs["train_accuracy"] - theirs["test_accuracy"]
    table = grids.networks(here, "photographs", specs)
    table["model"] = [names[key] for key in table.index]
    table["paper's gap"] = table["model"].map(theirs["gap"])
    of_draw = [table[table.index.isin([spec.id for spec in draw])] for draw in draws]
    squares, spread = (ssr_per_draw(model, table, draws) for model in (sparsity_model(), mean_gap()))
    arms = tuple(
        ComparisonArm(name=f"model {name}", train_accuracy=float(drawn["train_accuracy"].mean()),
                      chance=float(drawn["chance"].iloc[0]), curve=downsample_curve(drawn["curve"].to_list()))
        for name, drawn in table.groupby("model")
    )  # fmt: skip
    result = {name: [pearson(drawn[column], drawn["gap"]) for drawn in of_draw]
             for column, name in analysis.NAMES.items()}  # fmt: skip
    order = [kendall_tau(drawn["model"].map(ord).to_numpy(), drawn["gap"].to_numpy()) for drawn in of_draw]
    curves = [
        {f"model {names[spec.id]}": sparsity(here, "photographs", spec) for spec in draw if spec.id in table.index}
        for draw in draws
    ]
    per_draw: Any = {"unit": DRAWS, "compared": arms}
    claims = [
        claim("Fig. 4", "the gap rises with zeta", "Pearson of the gap and zeta", result["zeta"], paper=0.998,
              within=1.25, **per_draw),
        claim("Fig. 4", "the gap falls with kappa", "Pearson of the gap and kappa", result["kappa"], paper=-0.967,
              within=1.25, **per_draw),
        claim("Fig. 4", "the linear fit leaves an SSR of 0.004", SSR_OF_DRAW, squares, paper=0.004, **per_draw),
        claim("Table 1", "the gap grows from model A to model E", "Kendall's tau of order and gap", order, above=0.0,
              **per_draw),
        claim("Fig. 4(B)", CLASSES_MOVE, "Pearson of zeta and kappa over classes of all models",
              [_class_correlation(each) for each in curves], below=0.0, **per_draw),
    ]  # fmt: skip
    shown = ["model", "paper's gap", "gap", "train_accuracy", "test_accuracy", ZETA, KAPPA]
    means = table[shown].groupby("model", as_index=False).mean()
    return outcome(
        here, specs, IMAGENET,
        numbers={"correlations": result, "ssr": squares, "models": means.to_dict("records")},
        claims=claims,
        verdict=f"Three coefficients for five networks leave an SSR of {numpy.mean(squares):.3g} of "
                f"{numpy.mean(spread):.3g} about the mean.",
        tables={"Table 1, means over draws": means},
        figures={"curves": _curves(curves[0]), "clouds": _clouds(curves[0]),
                 "gap": analysis.scatters(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip
