"""Curves of networks that differ in corruption alone (Figs. 1 and 2), and their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pandas
from matplotlib.figure import Figure

from gapscope.base.specs import RunSpec
from gapscope.measures.unit_sparsity import MIN_TRAIN_ACCURACY, UnitSparsity
from gapscope.results.records import Record
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim
from gapscope_studies.kit.plots import legend, panels, scatter, set_labels
from gapscope_studies.kit.pool import make_arm, outcome
from gapscope_studies.kit.statistics import bootstrap, pearson
from gapscope_studies.kit.study import Outcome, RunSettings, Table
from gapscope_studies.zhao2022 import networks as grids
from gapscope_studies.zhao2022.analysis import PAPER, bound_of

Sparsities = Mapping[Any, UnitSparsity]
CLASSES_MOVE = "classes move from large kappa and small zeta to the opposite corner"
# quantity -> its sign with corruption in the paper ...
TRENDS = {"n0/M": 1, "n0r/M": -1, "zeta": 1, "kappa": -1}
# ... and where a network generalizes
GENERALIZING = {"n0/M": -1, "n0r/M": 1, "kappa": 1}


def plain_sparsities(
    setting: RunSettings, pool: str, plain: Sequence[RunSpec], **options: Any
) -> tuple[Sparsities, list[Record]]:
    """Return zeta and kappa with their curves by corruption, and the records of the networks."""
    records = grids.train_finished(setting, pool, plain, **options)
    ids = {record.id for record in records}
    return {
        spec.data.label_noise: grids.sparsity(setting, pool, spec)
        for spec in plain
        if spec.id in ids
    }, records


def repeated_sparsities(
    setting: RunSettings,
) -> tuple[list[RunSpec], list[Sparsities], list[Record]]:
    """Return networks, sparsities per draw of weights, and records of Figs. 1 and 2."""
    pool, specs = grids.first_pool(setting)
    first, *repeats = grids.repeats_of_plain(setting, specs)
    result = [plain_sparsities(setting, pool, first)]
    result += [plain_sparsities(setting, f"{pool}-again", plain, measures=()) for plain in repeats]
    records = [record for _, of_draw in result for record in of_draw]
    return (
        [spec for plain in (first, *repeats) for spec in plain],
        [each for each, _ in result],
        records,
    )


def class_table(item: UnitSparsity) -> Table:
    """Return what the paper reads off the curves of one network, one row per class."""
    columns = {
        "n0/M": item.turning_points.double() / item.n_units,
        "n0r/M": item.reversed_turning_points.double() / item.n_units,
        "zeta": item.class_zeta,
        "kappa": item.class_kappa,
    }
    return pandas.DataFrame(
        {name: values.tolist() for name, values in columns.items()}, index=list(item.classes)
    )


def mean_table(draw: Sparsities) -> Table:
    """Return means over classes of every network of one draw, by corruption."""
    rows = []
    for fraction, item in draw.items():
        row: dict[str, Any] = {"corruption": fraction, "training accuracy": item.accuracy}
        for name, values in class_table(item).items():
            array = values.to_numpy()
            mean = bootstrap(lambda rows, array=array: float(array[rows].mean()), len(array))
            row |= {
                str(name): mean.value,
                f"{name}, 95 % over classes": f"[{mean.low:.2f}, {mean.high:.2f}]",
            }
        rows.append(row | {"classes never at chance": item.n_never_at_chance})
    return pandas.DataFrame(rows)


def plot_curves(draw: Sparsities) -> Figure:
    """Plot E and E_r of each network's first class with turning points and area (Figs. 1, 2A)."""
    figure, axes = panels(len(draw), height=2.4)
    for axis, (title, item) in zip(axes, draw.items(), strict=True):
        n, first, last = (
            numpy.arange(item.n_units + 1),
            item.curves[0].numpy(),
            item.reversed_curves[0].numpy(),
        )
        axis.fill_between(n, first, last, color="0.88")
        for curve, point, colour, label in (
            (first, int(item.turning_points[0]), "C0", "E, most active first"),
            (last, int(item.reversed_turning_points[0]), "C2", "E_r, reversed"),
        ):
            axis.plot(n, curve, color=colour, label=label)
            axis.scatter([point], [curve[point]], color=colour, edgecolors="black", zorder=3, s=28)
        title = f"{title:.0%} corrupted" if isinstance(title, float) else title
        set_labels(
            axis,
            title=title,
            ylim=(-0.04, 1.04),
            xlabel="units removed",
            ylabel="accuracy on the class",
        )
    legend(figure)
    return figure


def plot_classes(draw: Sparsities) -> Figure:
    """Plot (zeta, kappa) of every class, one colour per network (Fig. 2B)."""
    figure, (axis,) = panels(1, width=4.6, height=3.6)
    scatter(
        axis,
        {
            str(title): (item.class_zeta.numpy(), item.class_kappa.numpy())
            for title, item in draw.items()
        },
    )
    set_labels(axis, xlabel="zeta of a class", ylabel="kappa of a class")
    axis.legend(fontsize=7, frameon=False)
    return figure


def _arms(records: Sequence[Record], draw: Sparsities) -> tuple[ComparisonArm, ...]:
    """Return the label fit of the networks of each corruption in `draw`, over all draws."""
    arms = []
    for level, item in draw.items():
        of_level = [record for record in records if record.spec["data"]["label_noise"] == level]
        fitted = min(record.scores["train_accuracy"] for record in of_level) >= MIN_TRAIN_ACCURACY
        arms.append(make_arm(f"{level:.0%} corrupted", of_level, len(item.classes), stopped=fitted))
    return tuple(arms)


def trend_claims(
    source: str, repeats: Sequence[Sparsities], records: Sequence[Record]
) -> list[Claim]:
    """Return claims that means over classes rise or fall with corruption, one value per draw."""
    claims = []
    for name, sign in TRENDS.items():
        trends = [
            pearson(
                numpy.array([*draw]),
                numpy.array([class_table(item)[name].mean() for item in draw.values()]),
            )
            for draw in repeats
        ]
        claims.append(
            claim(source, f"{name} {'rises' if sign > 0 else 'falls'} with corruption",
                  f"Pearson of {name} and the fraction of corrupted labels", trends, unit="draws of networks",
                  compared=_arms(records, repeats[0]), **bound_of(sign))
        )  # fmt: skip
    return claims


def class_correlation(draw: Sparsities) -> float:
    """Return Pearson's correlation of zeta and kappa over the classes of one draw."""
    classes = pandas.concat([class_table(item) for item in draw.values()])
    return pearson(classes["zeta"].to_numpy(), classes["kappa"].to_numpy())


def figure_1(setting: RunSettings) -> Outcome:
    """Compare curves, turning points and areas with good and with no generalization (Fig. 1)."""
    specs, repeats, records = repeated_sparsities(setting)
    first = repeats[0]
    low, high = min(first), max(first)
    # how much larger numbers are with clean than with random labels, one row per class
    differences = [
        class_table(draw[low]) - class_table(draw[high])
        for draw in repeats
        if low in draw and high in draw
    ]
    both = _arms(records, {level: first[level] for level in (low, high)})
    claims = [
        claim("Fig. 1", f"{name} is {'larger' if sign > 0 else 'smaller'} where a network generalizes",
              f"{name} with {'clean minus with random' if sign > 0 else 'random minus with clean'} labels",
              [sign * float(each[name].mean()) for each in differences], unit="pairs of networks", above=0.0,
              compared=both)
        for name, sign in GENERALIZING.items()
    ]  # fmt: skip
    common = differences[0].dropna()
    numbers = {
        "shares": {
            name: float((sign * common[name] > 0).mean()) for name, sign in GENERALIZING.items()
        },
        "clean": class_table(first[low]).to_dict("list"),
        "random": class_table(first[high]).to_dict("list"),
    }
    figures = {"curves": plot_curves({"clean labels": first[low], "random labels": first[high]})}
    return outcome(setting, specs, PAPER, numbers=numbers, claims=claims, figures=figures)


def figure_2(setting: RunSettings) -> Outcome:
    """Relate curves and (zeta, kappa) of all classes to corruption (Fig. 2)."""
    specs, repeats, records = repeated_sparsities(setting)
    means = [mean_table(draw) for draw in repeats]
    return outcome(
        setting, specs, PAPER,
        claims=[
            *trend_claims("Fig. 2", repeats, records),
            claim("Fig. 2(B)", CLASSES_MOVE, "Pearson of zeta and kappa over classes of all networks",
                  [class_correlation(draw) for draw in repeats], unit="draws of networks", below=0.0,
                  compared=_arms(records, repeats[0])),
        ],
        numbers={"by_corruption": means[0].to_dict("records"), "draws": [each.to_dict("records") for each in means]},
        tables={"Means over classes, first draw": means[0]},
        figures={"curves": plot_curves(repeats[0]), "clouds": plot_classes(repeats[0])},
    )  # fmt: skip
