"""Parts that are a figure of the paper on CIFAR-100: Figs. 1 to 3 (VGG-16), 5 (MobileNet) and 6 (ResNet-34)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy

from gapscope.base.specs import Spec
from gapscope.estimation import GapEstimator
from gapscope.measures.unit_sparsity import UnitSparsity
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.zhao2022 import drawing, grids, varied
from gapscope_studies.zhao2022.analysis import (
    KAPPA,
    MARGINS,
    ZETA,
    Table,
    bootstrap_mean,
    comparison,
    margin_model,
    related,
    repeated_splits,
    sparsity_model,
    sum_of_squares,
    with_interval,
)
from gapscope_studies.zhao2022.runs import finished, networks, sparsity

SHOWN = ("corruption", "batch_norm", "train_accuracy", "test_accuracy", "gap", ZETA, KAPPA)


def plain_sparsities(setting: Setting, pool: str, specs: Sequence[Spec]) -> dict[float, UnitSparsity]:
    """Zeta and kappa with all curves of the networks that differ in corruption alone; corruption -> sparsity."""
    plain = grids.plain_networks(specs)
    ids = {record.id for record in finished(setting, pool, plain)}
    return {spec.data.label_noise: sparsity(setting, pool, spec) for spec in plain if spec.id in ids}


def _titles(found: Mapping[float, UnitSparsity]) -> dict[str, UnitSparsity]:
    return {f"{fraction:.0%} corrupted": item for fraction, item in found.items()}


def _quantities(item: UnitSparsity) -> dict[str, list[float]]:
    """What the paper reads off the curves, one number a class."""
    units = item.n_units
    return {
        "n0/M": (item.turning_points.double() / units).tolist(),
        "n0r/M": (item.reversed_turning_points.double() / units).tolist(),
        "zeta": item.class_zeta.tolist(),
        "kappa": item.class_kappa.tolist(),
    }


def _by_corruption(found: Mapping[float, UnitSparsity]) -> Table:
    import pandas

    rows = []
    for fraction, item in found.items():
        row: dict[str, Any] = {"corruption": fraction, "training accuracy": item.accuracy}
        for name, values in _quantities(item).items():
            low, high = bootstrap_mean(values)
            row |= {name: float(numpy.mean(values)), f"{name}, 95 % over classes": f"[{low:.2f}, {high:.2f}]"}
        rows.append(row | {"classes never at chance": item.n_never_at_chance})
    return pandas.DataFrame(rows)


def _trend(table: Table, name: str) -> float:
    """Spearman correlation of a column with corruption."""
    return float(related(table, [name], target="corruption").loc[name, "spearman"])


PAPER_TRENDS = {"n0/M": "rises", "n0r/M": "falls", "zeta": "rises", "kappa": "falls"}


def _way(value: float) -> str:
    return "rises" if value > 0 else "falls" if value < 0 else "stays"


def _trend_rows(table: Table) -> list[tuple[str, Any, Any]]:
    return [
        (f"{name} with corruption (Spearman)", paper, f"{_way(value)} ({value:.2f})")
        for name, paper in PAPER_TRENDS.items()
        for value in [_trend(table, name)]
    ]


def figure_1(setting: Setting) -> Outcome:
    """Both curves, turning points and areas of a network that generalises well and of one that cannot.

    Args:
        setting: Where and how large.

    Returns:
        Means over classes of turning points and areas in both, and in how many classes they lie as the sketch says.
    """
    found = plain_sparsities(setting, *varied.first_pool(setting))
    good, poor = found[min(found)], found[max(found)]
    classes = sorted(set(good.classes) & set(poor.classes))
    here, there = (_of_classes(item, classes) for item in (good, poor))
    ways: dict[str, Callable[[float, float], bool]] = {
        "n0/M": lambda a, b: a < b,
        "n0r/M": lambda a, b: a > b,
        "kappa": lambda a, b: a > b,
    }
    shares = {
        name: float(numpy.mean([way(a, b) for a, b in zip(here[name], there[name], strict=True)]))
        for name, way in ways.items()
    }
    rows = [
        (f"{name}: clean labels, random labels", {"n0/M": "small, large", "n0r/M": "large, small", "kappa": "large, "
         "small"}[name], f"{numpy.mean(here[name]):.2f}, {numpy.mean(there[name]):.2f}") for name in shares
    ]  # fmt: skip
    verdict = (
        f"Of {len(classes)} classes the network with clean labels has the smaller n0 in {shares['n0/M']:.0%}, the "
        f"larger n0r in {shares['n0r/M']:.0%} and the larger area in {shares['kappa']:.0%}, against the one with "
        "random labels (the paper sketches all three for every class)."
    )
    return Outcome(
        numbers={"shares": shares, "clean": here, "random": there},
        tables={"Paper and ours": comparison(rows)},
        figures={"curves": drawing.curves({"clean labels": good, "random labels": poor})},
        verdict=verdict,
        seeds=[0],
    )


def _of_classes(item: UnitSparsity, classes: Sequence[int]) -> dict[str, list[float]]:
    places = [item.classes.index(label) for label in classes]
    return {name: [values[place] for place in places] for name, values in _quantities(item).items()}


def figure_2(setting: Setting) -> Outcome:
    """Curves and (zeta, kappa) of all classes in networks that differ in corruption alone."""
    found = plain_sparsities(setting, *varied.first_pool(setting))
    table = _by_corruption(found)
    rows = _trend_rows(table)
    agree = sum(str(ours).startswith(paper) for _, paper, ours in rows)
    verdict = (
        f"With corruption {', '.join(f'{name} {_way(_trend(table, name))}' for name in PAPER_TRENDS)}: {agree} of 4 as "
        f"in the paper. Mean zeta goes from {table['zeta'].iloc[0]:.2f} at clean to {table['zeta'].iloc[-1]:.2f} at "
        f"random labels, kappa from {table['kappa'].iloc[0]:.2f} to {table['kappa'].iloc[-1]:.2f}; one network at each "
        "of the fractions."
    )
    return Outcome(
        numbers={"by_corruption": table.to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Means over classes": table},
        figures={"curves": drawing.curves(_titles(found)), "clouds": drawing.clouds(_titles(found))},
        verdict=verdict,
        seeds=[0],
    )


def _first(setting: Setting) -> Table:
    return networks(setting, *varied.first_pool(setting))


def _described(table: Table) -> str:
    fitted = int(table["fitted"].sum())
    return (
        f"{len(table)} networks, {fitted} with a training accuracy of at least 0.97, gaps {table['gap'].min():.3f} to "
        f"{table['gap'].max():.3f}"
    )


def figure_3ab(setting: Setting) -> Outcome:
    """Zeta against kappa, and the gap against both, over all networks of the pool."""
    table = _first(setting)
    found = related(table, [ZETA, KAPPA])
    crossed = related(table, [ZETA], target=KAPPA)
    rows = [
        ("networks", 80, len(table)),
        ("test errors", "0.294 to 0.987",
         f"{1 - table['test_accuracy'].max():.3f} to {1 - table['test_accuracy'].min():.3f}"),
        ("gap and zeta: Pearson", "rises", with_interval(found.loc[ZETA], "pearson")),
        ("gap and kappa: Pearson", "falls", with_interval(found.loc[KAPPA], "pearson")),
        ("gap and zeta: Kendall", "rises", with_interval(found.loc[ZETA], "kendall")),
        ("gap and kappa: Kendall", "falls", with_interval(found.loc[KAPPA], "kendall")),
        ("zeta and kappa: Spearman", "negative", with_interval(crossed.loc[ZETA], "spearman")),
    ]  # fmt: skip
    verdict = (
        f"{_described(table)}. Pearson of the gap with zeta {rows[2][2]} (paper: positive), with kappa {rows[3][2]} "
        f"(paper: negative); zeta and kappa: Spearman {rows[6][2]} (paper: negative)."
    )
    return Outcome(
        numbers={"correlations": found.to_dict("index"), "networks": table[list(SHOWN)].to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Networks": table[list(SHOWN)]},
        figures={"pairs": drawing.pairs(table), "gap": drawing.against_gap(table, {ZETA: "ζ", KAPPA: "κ"})},
        verdict=verdict,
        seeds=sorted({int(seed) for seed in table["seed"]}),
    )


def _n_splits(setting: Setting) -> int:
    return setting.choose(smoke=10, small=100, paper=100)


def _one_split(estimator: GapEstimator, table: Table) -> dict[str, tuple[list[float], list[float]]]:
    """Gaps and estimates of the networks fitted on and of the held-out tenth, in the split of seed 0."""
    order = numpy.random.default_rng(0).permutation(len(table))
    held, kept = (table.iloc[numpy.sort(part)] for part in numpy.split(order, [max(1, round(0.1 * len(table)))]))
    fitted = estimator.fit(kept, kept["gap"])
    return {
        label: (part["gap"].tolist(), fitted.predict(part).tolist())
        for label, part in (("fitted on", kept), ("held out", held))
    }


def _protocol_rows(found: dict[str, Any], paper: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    held = found["held_out"]
    rows = [
        ("networks fitted on and held out", "72 and 8", f"{found['n'] - held} and {held}"),
        ("Pearson, networks fitted on", paper["pearson"], f"{found['fit_pearson']:.3f}"),
        ("SSR of the held-out networks: median of the splits", paper["ssr"], f"{found['median_ssr']:.4f}"),
        ("SSR of the held-out networks: largest of the splits", paper["largest"], f"{found['largest_ssr']:.4f}"),
        ("root mean squared error of a held-out network", f"{math.sqrt(paper['ssr'] / 8):.3f}",
         f"{found['rmse']['estimator']:.3f}"),
    ]  # fmt: skip
    return rows + [(f"the same, {name}", "–", f"{value:.3f}") for name, value in found["rmse"].items()
                   if name != "estimator"]  # fmt: skip


def _protocol_verdict(found: dict[str, Any], paper: dict[str, Any], what: str) -> str:
    others = {name: value for name, value in found["rmse"].items() if name != "estimator"}
    best = min(others, key=others.__getitem__)
    return (
        f"Over {len(found['ssr'])} splits of {found['n']} networks {what} fits with Pearson "
        f"{found['fit_pearson']:.3f} (paper {paper['pearson']}) and errs by {found['rmse']['estimator']:.3f} on a "
        f"held-out network (root mean square; paper about {math.sqrt(paper['ssr'] / 8):.3f}); the mean gap errs by "
        f"{others['mean gap']:.3f}, the best plain baseline ({best}) by {others[best]:.3f}."
    )


def figure_3cd(setting: Setting) -> Outcome:
    """The linear model of zeta and kappa: fit, held-out networks, 100 repeated splits."""
    table, paper = _first(setting), {"pearson": 0.979, "ssr": 0.023, "largest": "< 0.035"}
    found = repeated_splits(sparsity_model(), table, _n_splits(setting))
    return Outcome(
        numbers=found,
        tables={"Paper and ours": comparison(_protocol_rows(found, paper))},
        figures={
            "estimates": drawing.estimates(_one_split(sparsity_model(), table)),
            "splits": drawing.histogram({"zeta and kappa": found["ssr"]}),
        },
        verdict=_protocol_verdict(found, paper, "the linear model of zeta and kappa"),
        seeds=[0],
    )


def figure_3e(setting: Setting) -> Outcome:
    """The margin signature (least squares on 20 features, and its ridge) on the same splits as zeta and kappa."""
    table, paper = _first(setting), {"pearson": 0.75, "ssr": 0.5, "largest": "–"}
    found = repeated_splits(margin_model(), table, _n_splits(setting))
    ridge = repeated_splits(GapEstimator(features=list(MARGINS), kind="ridge"), table, _n_splits(setting))
    sparse = repeated_splits(sparsity_model(), table, _n_splits(setting))
    rows = _protocol_rows(found, paper)
    rows += [
        ("the same, ridge on the 20 features", "–", f"{ridge['rmse']['estimator']:.3f}"),
        ("the same, zeta and kappa", f"{math.sqrt(0.023 / 8):.3f}", f"{sparse['rmse']['estimator']:.3f}"),
    ]
    better = "errs less than" if ridge["rmse"]["estimator"] < sparse["rmse"]["estimator"] else "errs no less than"
    verdict = (
        f"{_protocol_verdict(found, paper, 'the margin signature by least squares')} With ridge the signature errs by "
        f"{ridge['rmse']['estimator']:.3f} and {better} zeta and kappa ({sparse['rmse']['estimator']:.3f}); the paper "
        "finds the margins much worse."
    )
    return Outcome(
        numbers={"least squares": found, "ridge": ridge, "zeta and kappa": sparse},
        tables={"Paper and ours": comparison(rows)},
        figures={
            "estimates": drawing.estimates(_one_split(GapEstimator(features=list(MARGINS), kind="ridge"), table)),
            "splits": drawing.histogram({"margins, ridge": ridge["ssr"], "zeta and kappa": sparse["ssr"]}),
        },
        verdict=verdict,
        seeds=[0],
    )


def other_architecture(setting: Setting, *, pool: str, grid: Callable[[Setting], list[Spec]], ssr: float) -> Outcome:
    """Curves, pairs and the fit on all networks of another architecture (Figs. 5 and 6).

    Args:
        setting: Where and how large.
        pool: Name of the pool.
        grid: Its networks.
        ssr: The paper's sum of squared residuals.

    Returns:
        The figure's three panels, and the errors of held-out networks, which the paper does not give.
    """
    specs = grid(setting)
    table = networks(setting, pool, specs)
    curves = plain_sparsities(setting, pool, specs)
    means = _by_corruption(curves)
    pearson, squares = sum_of_squares(sparsity_model(), table)
    _, spread = sum_of_squares(GapEstimator(features=[]), table)
    splits = repeated_splits(sparsity_model(), table, _n_splits(setting))
    found = related(table, [ZETA, KAPPA])
    rows = [
        ("SSR of the fit on all networks", ssr, f"{squares:.4f}"),
        ("SSR about the mean gap", "–", f"{spread:.4f}"),
        ("Pearson of the fit", "–", f"{pearson:.3f}"),
        ("gap and zeta: Pearson", "rises", with_interval(found.loc[ZETA], "pearson")),
        ("gap and kappa: Pearson", "falls", with_interval(found.loc[KAPPA], "pearson")),
        *_trend_rows(means),
        *((f"error of a held-out network, {name}", "–", f"{value:.3f}") for name, value in splits["rmse"].items()),
    ]
    verdict = (
        f"{_described(table)}. The fit has an SSR of {squares:.3f} (paper {ssr}), where the mean gap alone leaves "
        f"{spread:.3f}; Pearson {pearson:.2f}. A held-out network errs by {splits['rmse']['estimator']:.3f}, with the "
        f"mean gap by {splits['rmse']['mean gap']:.3f}. Gap with zeta {rows[3][2]}, with kappa {rows[4][2]}."
    )
    gaps = table["gap"].to_numpy(dtype=float)
    estimate = sparsity_model().fit(table, gaps).predict(table)
    return Outcome(
        numbers={"ssr": squares, "ssr_mean_gap": spread, "splits": splits, "by_corruption": means.to_dict("records"),
                 "networks": table[list(SHOWN)].to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Means over classes": means, "Networks": table[list(SHOWN)]},
        figures={
            "curves": drawing.curves(_titles(curves)),
            "pairs": drawing.pairs(table),
            "estimates": drawing.estimates({"all networks": (gaps.tolist(), estimate.tolist())}),
        },
        verdict=verdict,
        seeds=sorted({int(seed) for seed in table["seed"]}),
    )  # fmt: skip


figure_5 = partial(other_architecture, pool="mobilenet", grid=grids.mobilenet, ssr=0.074)
figure_6 = partial(other_architecture, pool="resnet34", grid=grids.resnet34, ssr=0.122)
