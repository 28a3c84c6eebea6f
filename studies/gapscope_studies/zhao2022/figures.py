"""Parts that are a figure of the paper: Figs. 1 to 3 (VGG-16), 4 (ImageNet), 5 (MobileNet) and 6 (ResNet-34)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY, UnitSparsity
from gapscope.prediction.correlations import kendall_tau
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.results.records import Record
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, computed, downsample_curve, measured, relation
from gapscope_studies.kit.plots import legend, named, panels, scatter
from gapscope_studies.kit.pool import compared, outcome
from gapscope_studies.kit.statistics import bootstrap, pearson
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    ZETA,
    chance_of,
    errs_less,
    estimates,
    learnt,
    margin_model,
    mean_gap,
    of_sign,
    related,
    repeated_splits,
    scatters,
    sign_claims,
    sparsity_model,
    ssr_claim,
    ssr_per_draw,
    with_interval,
)
from gapscope_studies.zhao2022.networks import finished, networks, sparsity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sparsities = Mapping[Any, UnitSparsity]
SHOWN = ["corruption", "batch_norm", "train_accuracy", "test_accuracy", "gap", ZETA, KAPPA]
CLASSES_MOVE = "classes move from large kappa and small zeta to the opposite corner"
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
    """Networks that differ in corruption alone: corruption -> zeta and kappa with all curves, and their records."""
    records = finished(setting, pool, plain, **options)
    ids = {record.id for record in records}
    return {spec.data.label_noise: sparsity(setting, pool, spec) for spec in plain if spec.id in ids}, records


def repeated_sparsities(setting: RunSettings) -> tuple[list[RunSpec], list[Sparsities], list[Record]]:
    """The networks of Figs. 1 and 2 over several draws of weights and samples, the sparsities of each draw, records."""
    pool, specs = grids.first_pool(setting)
    first, *others = grids.repeats_of_plain(setting, specs)
    found = [plain_sparsities(setting, pool, first)]
    found += [plain_sparsities(setting, f"{pool}-again", plain, measures=()) for plain in others]
    records = [record for _, there in found for record in there]
    return [spec for plain in (first, *others) for spec in plain], [each for each, _ in found], records


def _quantities(item: UnitSparsity) -> dict[str, list[float]]:
    """Return what the paper reads off the curves, one number per class."""
    units = item.n_units
    return {
        "n0/M": (item.turning_points.double() / units).tolist(),
        "n0r/M": (item.reversed_turning_points.double() / units).tolist(),
        "zeta": item.class_zeta.tolist(),
        "kappa": item.class_kappa.tolist(),
    }


def _means(found: Sparsities) -> Table:
    """Means over classes of every network, by corruption."""
    import pandas

    rows = []
    for fraction, item in found.items():
        row: dict[str, Any] = {"corruption": fraction, "training accuracy": item.accuracy}
        for name, values in _quantities(item).items():
            mean = bootstrap(lambda rows, values=values: float(numpy.mean(numpy.take(values, rows))), len(values))
            row |= {name: mean.value, f"{name}, 95 % over classes": f"[{mean.low:.2f}, {mean.high:.2f}]"}
        rows.append(row | {"classes never at chance": item.n_never_at_chance})
    return pandas.DataFrame(rows)


def _curves(found: Mapping[Any, UnitSparsity]) -> Figure:
    """E and E_r of the first class in each network, their turning points and the area between them (Figs. 1, 2A)."""
    figure, axes = panels(len(found), height=2.4)
    for axis, (title, item) in zip(axes, found.items(), strict=True):
        n, first, last = numpy.arange(item.n_units + 1), item.curves[0].numpy(), item.reversed_curves[0].numpy()
        axis.fill_between(n, first, last, color="0.88")
        for curve, point, colour, label in (
            (first, int(item.turning_points[0]), "C0", "E, most active first"),
            (last, int(item.reversed_turning_points[0]), "C2", "E_r, reversed"),
        ):
            axis.plot(n, curve, color=colour, label=label)
            axis.scatter([point], [curve[point]], color=colour, edgecolors="black", zorder=3, s=28)
        title = f"{title:.0%} corrupted" if isinstance(title, float) else title
        named(axis, title=title, ylim=(-0.04, 1.04), xlabel="units removed", ylabel="accuracy on the class")
    legend(figure)
    return figure


def _clouds(found: Mapping[Any, UnitSparsity]) -> Figure:
    """(zeta, kappa) of every class, one colour a network (Fig. 2B)."""
    figure, (axis,) = panels(1, width=4.6, height=3.6)
    scatter(axis, {str(title): (item.class_zeta.numpy(), item.class_kappa.numpy()) for title, item in found.items()})
    named(axis, xlabel="zeta of a class", ylabel="kappa of a class")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _advantage(good: UnitSparsity, poor: UnitSparsity) -> dict[str, numpy.ndarray]:
    """Quantity -> by how much it is better with clean than with random labels, in the paper's sense, by class."""
    classes = sorted(set(good.classes) & set(poor.classes))
    here, there = (
        {name: numpy.array([values[item.classes.index(label)] for label in classes])
         for name, values in _quantities(item).items()}
        for item in (good, poor)
    )  # fmt: skip
    return {name: sign * (here[name] - there[name]) for name, sign in GENERALIZING.items()}


def _learnt(records: Sequence[Record], source: Sparsities) -> tuple[ComparisonArm, ...]:
    """Return how well the networks of each corruption in `source` fit their labels, over all draws."""
    by_level = {level: [r for r in records if r.spec["data"]["label_noise"] == level] for level in source}
    return tuple(
        compared(f"{level:.0%} corrupted", there, len(source[level].classes),
                 stopped=min(r.scores["train_accuracy"] for r in there) >= MIN_TRAIN_ACCURACY)
        for level, there in by_level.items()
    )  # fmt: skip


def figure_1(setting: RunSettings) -> Outcome:
    """Both curves, turning points and areas of a network that generalizes well and of one that cannot."""
    specs, repeats, records = repeated_sparsities(setting)
    first = repeats[0]
    low, high = min(first), max(first)
    found = [_advantage(each[low], each[high]) for each in repeats if low in each and high in each]
    both = _learnt(records, {level: first[level] for level in (low, high)})
    claims = [
        claim("Fig. 1", f"{name} is {'larger' if sign > 0 else 'smaller'} where a network generalizes",
              f"{name} with {'clean minus with random' if sign > 0 else 'random minus with clean'} labels",
              [float(each[name].mean()) for each in found], unit="pairs of networks", above=0.0, compared=both)
        for name, sign in GENERALIZING.items()
    ]  # fmt: skip
    numbers = {
        "shares": {name: float(numpy.mean(less > 0)) for name, less in found[0].items()},
        "clean": _quantities(first[low]),
        "random": _quantities(first[high]),
    }
    figures = {"curves": _curves({"clean labels": first[low], "random labels": first[high]})}
    return outcome(setting, specs, PAPER, numbers=numbers, claims=claims, figures=figures)


def _trend(found: Sparsities, name: str) -> float:
    """Pearson of corruption and the mean over classes of a quantity, in one draw."""
    means = [numpy.mean(_quantities(item)[name]) for item in found.values()]
    return pearson(numpy.array([*found]), numpy.array(means))


def _trend_claims(source: str, repeats: Sequence[Sparsities], records: Sequence[Record]) -> list[Claim]:
    return [
        claim(source, f"{name} {'rises' if sign > 0 else 'falls'} with corruption",
              f"Pearson of {name} and the fraction of corrupted labels", [_trend(found, name) for found in repeats],
              unit="draws of networks", compared=_learnt(records, repeats[0]), **of_sign(sign))
        for name, sign in TRENDS.items()
    ]  # fmt: skip


def _class_correlation(found: Sparsities) -> float:
    """Pearson of zeta and kappa over all classes of all networks of one draw."""
    pairs = [numpy.array([item.class_zeta.numpy(), item.class_kappa.numpy()]) for item in found.values()]
    return pearson(*numpy.concatenate(pairs, axis=1))


def figure_2(setting: RunSettings) -> Outcome:
    """Curves and (zeta, kappa) of all classes in networks that differ in corruption alone."""
    specs, repeats, records = repeated_sparsities(setting)
    means = [_means(found) for found in repeats]
    return outcome(
        setting, specs, PAPER,
        claims=[
            *_trend_claims("Fig. 2", repeats, records),
            claim("Fig. 2(B)", CLASSES_MOVE, "Pearson of zeta and kappa over classes of all networks",
                  [_class_correlation(found) for found in repeats], unit="draws of networks", below=0.0,
                  compared=_learnt(records, repeats[0])),
        ],
        numbers={"by_corruption": means[0].to_dict("records"), "draws": [each.to_dict("records") for each in means]},
        tables={"Means over classes, first draw": means[0]},
        figures={"curves": _curves(repeats[0]), "clouds": _clouds(repeats[0])},
    )  # fmt: skip


# --- pools: Figs. 3, 5, 6


def figure_3ab(setting: RunSettings) -> Outcome:
    """Zeta against kappa, and the gap against both, over all networks of the pool."""
    import pandas

    pool, specs = grids.first_pool(setting)
    table = networks(setting, pool, specs)
    found, chance = related(table, [ZETA, KAPPA]), chance_of(setting, specs)
    shown = pandas.DataFrame(
        [{"gap and": name, **{kind: with_interval(row, kind) for kind in ("pearson", "spearman", "kendall")}}
         for name, row in found.iterrows()]
    )  # fmt: skip
    claims = sign_claims("Fig. 3(B)", table, chance)
    claims.append(
        relation("Fig. 3(A)", "kappa falls with zeta", "Pearson of zeta and kappa", pearson, table[ZETA], table[KAPPA],
                 clusters=table["corruption"].to_list(), unit="noise levels", below=0.0, compared=learnt(table, chance))
    )  # fmt: skip
    return outcome(
        setting, specs, PAPER,
        numbers={"correlations": found.to_dict("index"), "networks": table[SHOWN].to_dict("records")},
        claims=claims, tables={"Correlations, 95 % bootstrap over networks": shown, "Networks": table[SHOWN]},
        figures={"pairs": scatters(table, [(ZETA, KAPPA)]), "gap": scatters(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip


def _one_split(estimator: GapEstimator, table: Table) -> dict[str, tuple[list[float], list[float]]]:
    """Gaps and estimates of the networks fitted on and of the held-out tenth, in the split of seed 0."""
    order = numpy.random.default_rng(0).permutation(len(table))
    held, kept = (table.iloc[numpy.sort(part)] for part in numpy.split(order, [max(1, round(0.1 * len(table)))]))
    fitted = estimator.fit(kept, kept["gap"])
    return {
        label: (part["gap"].tolist(), fitted.predict(part).tolist())
        for label, part in (("fitted on", kept), ("held out", held))
    }


def _histogram(sums: Mapping[str, Sequence[float]]) -> Figure:
    """Sums of squared residuals over repeated splits (Fig. 3D)."""
    figure, (axis,) = panels(1, width=4.2, height=3.0)
    largest = max(max(values) for values in sums.values())
    for label, values in sums.items():
        axis.hist(values, bins=numpy.linspace(0, largest, 26).tolist(), alpha=0.6, label=label)
    named(axis, xlabel="sum of squared residuals of the held-out networks", ylabel="splits")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _protocol_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a model: what repeated splits gave."""
    import pandas

    return pandas.DataFrame(
        [{"model": name, "fitted on": each["n"] - each["held_out"], "held out": each["held_out"],
          "Pearson, fitted": each["fit_pearson"], "SSR, median": each["median_ssr"],
          "SSR, largest": each["largest_ssr"], **{f"error, {key}": value for key, value in each["rmse"].items()}}
         for name, each in found.items()]
    )  # fmt: skip


def figure_3cd(setting: RunSettings) -> Outcome:
    """The linear model of zeta and kappa: fit, held-out networks, 100 repeated splits."""
    pool, specs = grids.first_pool(setting)
    table, chance = networks(setting, pool, specs), chance_of(setting, specs)
    found = repeated_splits(sparsity_model(), table, setting.read(__file__)["splits"])
    claims = [
        fit_claim("Fig. 3(C)", table, 0.979, chance),
        errs_less("Fig. 3(C)", "zeta and kappa tell the gap of a network that was left out", table, sparsity_model(),
                  mean_gap(), chance),
        ssr_claim("Fig. 3(C)", "eight left-out networks leave an SSR of 0.023", table, sparsity_model(), 0.023,
                  learnt(table, chance), count=HELD_OUT),
        computed("Fig. 3(D)", "in every split the sum of squared residuals of held-out networks is below 0.035",
                 "largest sum", found["largest_ssr"], below=0.035, compared=learnt(table, chance)),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=found, claims=claims,
        tables={"Repeated splits": _protocol_table({"zeta and kappa": found})},
        figures={"estimates": estimates(_one_split(sparsity_model(), table)),
                 "splits": _histogram({"zeta and kappa": found["ssr"]})},
    )  # fmt: skip


def _multiple(x: numpy.ndarray, gap: numpy.ndarray) -> float:
    """Pearson between the gap and its least-squares estimate from the columns of x."""
    return pearson(x @ numpy.linalg.lstsq(x, gap, rcond=None)[0], gap)


def fit_claim(
    source: str, table: Table, paper: float, chance: float, *, cluster: str = "corruption", unit: str = "noise levels"
) -> Claim:
    """That the linear model fits the gap as closely as in the paper."""
    x = numpy.column_stack([table[[ZETA, KAPPA]].to_numpy(dtype=float), numpy.ones(len(table))])
    gap = table["gap"].to_numpy(dtype=float)
    found = bootstrap(lambda rows: _multiple(x[rows], gap[rows]), len(table), table[cluster].to_list())
    return measured(source, f"zeta and kappa fit the gap with a Pearson of {paper:g}", "Pearson of the fit", found,
                    unit=unit, above=0.9, compared=learnt(table, chance))  # fmt: skip


def _margin_fit(table: Table, chance: float) -> Claim:
    """The correlation of the gap with the margin signature's fit to all networks (least squares)."""
    gap = table["gap"].to_numpy(dtype=float)
    estimate = margin_model().fit(table, gap).predict(table)
    return relation("Fig. 3(E)", "the margin signature fits the gap with a Pearson of 0.75", "Pearson of the fit",
                    pearson, estimate, gap, clusters=table["corruption"].to_list(), unit="noise levels", paper=0.75,
                    within=1.25, compared=learnt(table, chance))  # fmt: skip


def figure_3e(setting: RunSettings) -> Outcome:
    """The margin signature (least squares on 20 features, and its ridge) on the same splits as zeta and kappa."""
    pool, specs = grids.first_pool(setting)
    table, chance, n_splits = (
        networks(setting, pool, specs),
        chance_of(setting, specs),
        setting.read(__file__)["splits"],
    )
    models = {"least squares": margin_model(), "ridge": margin_model("ridge"), "zeta and kappa": sparsity_model()}
    found = {name: repeated_splits(model, table, n_splits) for name, model in models.items()}
    claims = [
        errs_less("Fig. 3(E)", f"zeta and kappa err less than the margin signature ({kind})", table, sparsity_model(),
                  models[kind], chance)
        for kind in ("least squares", "ridge")
    ]  # fmt: skip
    claims += [
        ssr_claim("Fig. 3(E)", "eight left-out networks leave the margin signature an SSR of 0.5", table,
                  margin_model(), 0.5, learnt(table, chance), count=HELD_OUT),
        _margin_fit(table, chance),
    ]  # fmt: skip
    return outcome(
        setting, specs, PAPER, numbers=found, claims=claims, tables={"Repeated splits": _protocol_table(found)},
        figures={"estimates": estimates(_one_split(models["ridge"], table)),
                 "splits": _histogram({name: found[name]["ssr"] for name in ("ridge", "zeta and kappa")})},
    )  # fmt: skip


def other_architecture(
    setting: RunSettings,
    *,
    pool: str,
    source: str,
    paper: Mapping[str, str],
    fit: float = math.nan,
    ssr: float = math.nan,
    **units: str,
) -> Outcome:
    """Curves, pairs and the fit on all networks of an architecture (Figs. 3, 5 and 6), and held-out errors.

    `fit` and `ssr` are the paper's Pearson and sum of squared residuals of the fit, where it gives them; `units` are
    the `cluster` of networks that count once and its `unit`, else draws of weights and images.
    """
    n_draws = setting.read(__file__)["grid"]["networks"][pool].get("draws", 1)
    draws = grids.draws_of(grids.paper_grid(setting, pool), n_draws)
    specs = [spec for draw in draws for spec in draw]
    table = networks(setting, pool, specs)
    plain = [plain_sparsities(setting, pool, grids.plain_networks(draw)) for draw in draws]
    curves, records = [found for found, _ in plain], [record for _, there in plain for record in there]
    means, chance = _means(curves[0]), chance_of(setting, specs)
    squares, spread = (ssr_per_draw(model, table, draws) for model in (sparsity_model(), mean_gap()))
    splits = repeated_splits(sparsity_model(), table, setting.read(__file__)["splits"])
    # networks of one draw share their images
    independent: Any = units or {"cluster": "data.seed", "unit": DRAWS}
    claims = [
        *sign_claims(source, table, chance, **independent),
        errs_less(source, "zeta and kappa tell the gap of a network that was left out", table, sparsity_model(),
                  mean_gap(), chance, **independent),
        *_trend_claims(source, curves, records),
    ]  # fmt: skip
    if not math.isnan(fit):
        claims.append(fit_claim(source, table, fit, chance, **independent))
    if not math.isnan(ssr):
        claims.append(claim(source, f"the linear fit leaves an SSR of {ssr:g}", SSR_OF_DRAW, squares, paper=ssr,
                            unit=DRAWS, compared=learnt(table, chance)))  # fmt: skip
    gaps = table["gap"].to_numpy(dtype=float)
    estimate = sparsity_model().fit(table, gaps).predict(table)
    return outcome(
        setting, specs, {**PAPER, **paper},
        numbers={"ssr": squares, "ssr_mean_gap": spread, "splits": splits, "by_corruption": means.to_dict("records"),
                 "networks": table[SHOWN].to_dict("records")},
        claims=claims,
        verdict=f"The fit to one draw leaves an SSR of {numpy.mean(squares):.3g} where the mean gap leaves "
                f"{numpy.mean(spread):.3g}.",
        tables={"Repeated splits": _protocol_table({"zeta and kappa": splits}), "Means over classes, first draw": means,
                "Networks": table[SHOWN]},
        figures={"curves": _curves(curves[0]), "pairs": scatters(table, [(ZETA, KAPPA)]),
                 "estimates": estimates({"all networks": (gaps.tolist(), estimate.tolist())})},
    )  # fmt: skip


# --- photographs: Table 1 and Fig. 4


def figure_4(setting: RunSettings) -> Outcome:
    """Accuracies, zeta and kappa of the five models, and the linear fit."""
    import pandas

    here, models = grids.photographs(setting), grids.models(setting)
    draws = [list(draw) for draw in zip(*models.values(), strict=True)]
    specs = [spec for draw in draws for spec in draw]
    table = networks(here, "photographs", specs)
    theirs: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), index_col="model")
    names = {spec.id: name for name, drawn in models.items() for spec in drawn}
    table = table.assign(model=[names[key] for key in table.index])
    table["paper's gap"] = [theirs.loc[name, "train_accuracy"] - theirs.loc[name, "test_accuracy"]
                            for name in table["model"]]  # fmt: skip
    of_draw = [table[table.index.isin([spec.id for spec in draw])] for draw in draws]
    chance = chance_of(here, specs)
    squares, spread = (ssr_per_draw(model, table, draws) for model in (sparsity_model(), mean_gap()))
    arms = tuple(
        ComparisonArm(name=f"model {name}", train_accuracy=float(drawn["train_accuracy"].mean()), chance=chance,
                      curve=downsample_curve(drawn["curve"].to_list()))
        for name, drawn in table.groupby("model")
    )  # fmt: skip
    found = {name: [pearson(drawn[column], drawn["gap"]) for drawn in of_draw]
             for name, column in (("zeta", ZETA), ("kappa", KAPPA))}  # fmt: skip
    order = [kendall_tau(drawn["model"].map(ord).to_numpy(), drawn["gap"].to_numpy()) for drawn in of_draw]
    per_draw: Any = {"unit": DRAWS, "compared": arms}
    claims = [
        claim("Fig. 4", f"the gap {way} with {name}", f"Pearson of the gap and {name}", found[name], paper=paper,
              within=1.25, **per_draw)
        for name, way, paper in (("zeta", "rises", 0.998), ("kappa", "falls", -0.967))
    ]  # fmt: skip
    claims += [
        claim("Fig. 4", "the linear fit leaves an SSR of 0.004", SSR_OF_DRAW, squares, paper=0.004, **per_draw),
        claim("Table 1", "the gap grows from model A to model E", "Kendall's tau of order and gap", order, above=0.0,
              **per_draw),
    ]  # fmt: skip
    curves = [
        {f"model {names[spec.id]}": sparsity(here, "photographs", spec) for spec in draw if spec.id in table.index}
        for draw in draws
    ]
    claims.append(claim("Fig. 4(B)", CLASSES_MOVE, "Pearson of zeta and kappa over classes of all models",
                        [_class_correlation(found) for found in curves], below=0.0, **per_draw))  # fmt: skip
    shown = ["model", "paper's gap", "gap", "train_accuracy", "test_accuracy", ZETA, KAPPA]
    means = table[shown].groupby("model", as_index=False).mean()
    return outcome(
        here, specs, IMAGENET,
        numbers={"correlations": found, "ssr": squares, "models": means.to_dict("records")},
        claims=claims,
        verdict=f"Three coefficients for five networks leave an SSR of {numpy.mean(squares):.3g} of "
                f"{numpy.mean(spread):.3g} about the mean.",
        tables={"Table 1, means over draws": means},
        figures={"curves": _curves(curves[0]), "clouds": _clouds(curves[0]),
                 "gap": scatters(table, [(ZETA, "gap"), (KAPPA, "gap")])},
    )  # fmt: skip
