"""The parts: every figure and table of the paper that survives, from one pool of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
from scipy import stats

from gapscope.estimation.correlations import correlations, kendall_tau
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers, predicted_loss
from gapscope_studies.forouzesh2021.analysis import (
    DRAWS,
    LABELS,
    Answer,
    Columns,
    Measured,
    Rows,
    by_family,
    compared_relations,
    fitted,
    learnt,
    log_pearson,
    over_predicted,
    ratio_claim,
    related,
    relation,
)
from gapscope_studies.forouzesh2021.networks import Configuration, by_draw, measured_samples, trained_network
from gapscope_studies.kit.claims import NO_NETWORKS, Claim, claim, computed
from gapscope_studies.kit.claims import measured as claims_of
from gapscope_studies.kit.statistics import Interval, pearson
from gapscope_studies.kit.study import Setting, Table

SAME = 1.2  # factor within which two numbers are "the same"
NEAR = {"above": -math.log10(SAME), "below": math.log10(SAME)}  # of log10 of a ratio
REACH = 0.1  # largest difference of training accuracy at which two networks are compared
AUTHORS_RUNS = 10
JUDGED = "error_judged"
TABLE_1 = {
    "j_softmax": "J after softmax",
    "j": "J before softmax",
    "s_softmax": "S after softmax",
    "s_few": "S before softmax",
}
# what the paper had, where its text or the authors' code says it
PAPER = {"batch size": "128", "seeds": "10", "epochs": "until the training loss is 1e-5 in 10 epochs"}
IMAGES = {"data": "CIFAR-10, 1,000 training and 10,000 test images", **PAPER}
WIDTHS = {**IMAGES, "network": "widths 100 to 500"}
POPULAR = {**IMAGES, "data": "CIFAR-10, 12,800 training images", "network": "widths of 1/4 to 5/4"}
HOUSING = {**PAPER, "data": "Boston housing", "network": "3 to 8 hidden layers, widths 100 to 500"}
TABLE_1_PAPER = {**POPULAR, "data": "CIFAR-10, 50,000 training images"}


# --- test loss against sensitivity: Figs. 1 to 5, appendix F


def _both(source: str, says: str, first: Table, second: Table, what: str, **more: Any) -> list[Claim]:
    """Two claims about the first's S, and about its loss, over the second's; below it unless `more` says otherwise."""
    more = {"reach": REACH, **(more or {"below": 0.0})}
    return [
        ratio_claim(source, says.format(name), first, second, column, f"{name} of {what}", **more)
        for name, column in (("S", "s_after"), ("L", "test_loss"))
    ]


def equal_parameters(table: Table) -> list[Claim]:
    """Fig. 2(a): the CNN against the fully connected network nearest to it in parameters."""
    cnns = table[table["family"].str.startswith("CNN")]
    others = table[table["family"] == "FC, 2 hidden layers"]
    pairs = [(cnn, (others["parameters"] - table.loc[cnn, "parameters"]).abs().idxmin()) for cnn in cnns.index]
    pair = min(pairs, key=lambda pair: abs(table.loc[pair[0], "parameters"] / table.loc[pair[1], "parameters"] - 1))
    says = "at equal parameters a convolution instead of a layer lowers {}"
    cnn, other = (table.loc[[place]] for place in pair)
    return _both("Fig. 2(a)", says, cnn, other, "CNN over FC")


def equal_products(table: Table) -> list[Claim]:
    """Fig. 2(b): two networks of the largest depths with nearly the same (H/2)^M; the paper finds the same S and L."""
    product = (table["width"] / 2) ** table["n_hidden"]
    deep, deeper = sorted(table["n_hidden"].unique())[-2:]
    pairs = [(i, j) for i in table.index[table["n_hidden"] == deep] for j in table.index[table["n_hidden"] == deeper]]
    i, j = min(pairs, key=lambda pair: abs(product[pair[0]] / product[pair[1]] - 1))
    shapes = [f"{table.loc[k, 'n_hidden']:.0f} layers of {table.loc[k, 'width']:.0f}" for k in (j, i)]
    says = "equal (H/2)^M give the same {}"
    return _both("Fig. 2(b)", says, table.loc[[j]], table.loc[[i]], " over ".join(shapes), **NEAR)


def deeper_cnns(table: Table) -> list[Claim]:
    """Fig. 2(c): a deep CNN over one of as many parameters, and the narrowest over the widest of one layer less."""
    at = {depth: group for depth, group in table.groupby("n_conv")}
    pairs = [(i, j) for i in table.index for j in table.index if table.loc[i, "n_conv"] > table.loc[j, "n_conv"]]
    size = table["parameters"]
    i, j = min(pairs, key=lambda pair: abs(size[pair[0]] / size[pair[1]] - 1))
    first, second = sorted(at)[:2]
    narrow, wide = at[second]["channels"].idxmin(), at[first]["channels"].idxmax()
    found = []
    for says, deep, shallow in (
        ("at equal parameters the deeper CNN has the lower {}", i, j),
        ("a narrow CNN has a lower {} than a wide one of one convolution less", narrow, wide),
    ):
        shapes = [
            f"{table.loc[k, 'n_conv']:.0f} convolutions of {table.loc[k, 'channels']:.0f}" for k in (deep, shallow)
        ]
        found += _both("Fig. 2(c)", says, table.loc[[deep]], table.loc[[shallow]], " over ".join(shapes))
    return found


def shifts(table: Table, source: str) -> list[Claim]:
    """Fig. 2(d, e): S and L of each regularisation over those of the same networks without it."""
    groups = dict(list(table.groupby("family", sort=False)))
    return [
        each
        for family in groups
        if family != "none"
        for each in _both(source, f"{family} lowers {{}}", groups[family], groups["none"], f"{family} over none")
    ]


def xavier_alone(table: Table) -> list[Claim]:
    """Fig. 1 without its standard normal networks, whose outputs are larger by orders of magnitude."""
    alone = fitted(table[table["initialization"] != "standard_normal"])
    says = "L rises with S among the networks from Xavier uniform weights, one of two clusters nine decades apart"
    return [related("Fig. 1", says, alone, "s_after", paper=0.9707)]


def initializations(table: Table) -> list[Claim]:
    """Fig. 3: S and L from He normal weights over those from the best others; the paper finds both lowest."""
    groups = dict(list(table.groupby("family", sort=False)))
    claims = []
    for name, label in (("s_after", "S"), ("test_loss", "L")):
        logs = {kind: numpy.log(group[name]).mean() for kind, group in groups.items() if kind != "he_normal"}
        rival = min(logs, key=logs.__getitem__)
        claims.append(
            ratio_claim("Fig. 3", f"{label} is lowest from He normal weights", groups["he_normal"], groups[rival], name,
                        f"{label} of He normal over {rival}", below=0.0, reach=REACH)
        )  # fmt: skip
    others = table[table["family"] != "standard_normal"]
    return [*claims, related("Fig. 3", "L rises with S without the standard normal networks", others, "s_after")]


def loss_against_sensitivity(
    measured: Measured,
    *,
    source: str,
    x: str = "s_after",
    rho: float | None = None,
    clusters: str = "",
    check: Callable[[Table], list[Claim]] | None = None,
) -> Answer:
    """Test loss against S over one grid, with the relation, eq. (9), and what else the figure claims."""
    table = measured.points
    used = fitted(table)
    numbers: dict[str, Any] = {"relation": relation(used, x)}
    by_equation_9 = x == "s_after" and "train_accuracy" in table
    if by_equation_9:
        numbers["loss_over_eq_9"] = over_predicted(used)
    more = {"clusters": used[clusters].to_list(), "unit": "clusters"} if clusters else {}
    claims = [related(source, f"L rises with {LABELS[x]}", used, x, paper=rho, **more)]
    claims += [] if check is None else check(table)
    return Answer(numbers=numbers, claims=claims, plots={"loss": (x, "test_loss")}, predicted=by_equation_9)


# --- Figs. 10 to 13


def _parts_of_error(setting: Setting, configuration: Configuration) -> dict[str, float]:
    """Bias, variance and squared error (sums over outputs) of one configuration over its runs."""
    import torch

    from gapscope.inspection.outputs import network_outputs
    from gapscope.measures.bias_variance import bias_variance

    outputs, test = [], None
    for spec in configuration.specs():
        problem, test = measured_samples(setting, spec)
        outputs.append(network_outputs(trained_network(setting, spec, problem), test.inputs))
    assert test is not None and test.targets is not None
    found = bias_variance(torch.stack(outputs), test.targets)
    return {"bias": found.bias, "variance": found.variance, "squared_error": found.mse}


def figure_10(measured: Measured) -> Answer:
    """Boston housing: squared error against bias + variance (identical), and the variance against S (Fig. 10c, d)."""
    import pandas

    parts = [_parts_of_error(measured.setting, item) for item in measured.configurations]
    table = measured.points.join(pandas.DataFrame(parts))
    table["bias_and_variance"] = table["bias"] + table["variance"]
    table["predicted_variance"] = table["s_after"] * table["mean_square_input"] / 0.1**2 * table["outputs"] ** 2
    gap = float((table["bias_and_variance"] / table["squared_error"] - 1).abs().max())
    # with a few runs a variance is hardly known, and the bias takes its share: the runs are the units that count
    n_runs = int(table["runs"].min())
    close = related("Fig. 10(d)", "the variance over runs rises with S", table, "s_after", "variance",
                    clusters=table.index.to_list())  # fmt: skip
    claims = [
        computed("Fig. 10(c)", "the squared error is bias + variance", "largest relative difference", gap, below=1e-6),
        replace(close, units=min(close.units, n_runs), unit="runs behind a variance"),
    ]
    return Answer(
        numbers={"variance_and_s": relation(table, "s_after", "variance"),
                 "loss_and_variance": relation(table, "variance"),
                 "variance_over_squared_error": float((table["variance"] / table["squared_error"]).median()),
                 "variance_over_predicted": float((table["variance"] / table["predicted_variance"]).median())},
        claims=claims, points=table,
        plots={"variance": ("s_after", "variance"), "bias-and-variance": ("bias_and_variance", "squared_error")},
    )  # fmt: skip


def figure_11_amount(measured: Measured) -> Answer:
    """ResNet-18 and 34 on few and on many samples (Fig. 11a, b); the paper: a poor match, then a better one."""
    few, many = (group.reset_index(drop=True) for _, group in measured.points.groupby("family", sort=False))
    better = compared_relations(
        "Fig. 11(a, b)", "loss and S match better with many samples than with few",
        "Pearson of the logs with many minus with few",
        lambda columns: log_pearson(columns, "s_after") - log_pearson(columns, "few_s", "few_loss"),
        measured.points, "s_after", "test_loss", "few_s", "few_loss",
        values=numpy.concatenate([by_draw(group, "s_after", "test_loss") for group in (many, few)]),
    )  # fmt: skip
    return Answer(numbers={"relations": by_family(measured.points)}, claims=[better],
                  plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def _distances(stage: Table) -> numpy.ndarray:
    """|log10 of L over eq. (9)| of each draw, averaged over configurations."""
    s, loss = by_draw(stage, "s_after", "test_loss")
    first = stage.iloc[0]
    facts = {"n_outputs": int(first["outputs"]), "input_second_moment": first["mean_square_input"]}
    return numpy.abs(numpy.log10(loss / (predicted_loss(1.0, **facts) * numpy.sqrt(s)))).mean(0)


def figure_11_stages(measured: Measured) -> Answer:
    """The relation at stages of training (Fig. 11d); the paper: it comes closer to eq. (9) as training goes on."""
    table, claims = measured.points, []
    groups = table.groupby(["family", "initialization"], sort=False)
    ratios = {f"{family}, {kind}": over_predicted(group) for (family, kind), group in groups}
    for kind, group in table.groupby("initialization", sort=False):
        first, *_, last = (stage for _, stage in group.groupby("family", sort=False))
        before, after = (_distances(stage) for stage in (first, last))
        claims.append(
            claim("Fig. 11(d)", f"loss and S come closer to eq. (9) with training ({kind})",
                  f"|log10 of L over eq. (9)| after {last['family'].iloc[0]} minus after {first['family'].iloc[0]}",
                  after - before, unit=DRAWS, below=0.0,
                  # stages of training are what is compared: none of them is meant to be its end
                  compared=[replace(one, finished=True) for one in learnt(last)])
        )  # fmt: skip
    return Answer(numbers={"relations": by_family(table) | ratios}, claims=claims,
                  plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def figure_12(measured: Measured) -> Answer:
    """S of raw outputs and of probabilities, over all popular networks and initialisations (Fig. 12)."""
    used = fitted(measured.points)
    lost = compared_relations(
        "Fig. 12", "the relation is lost behind the softmax", "Pearson of the logs, raw minus probabilities",
        lambda columns: log_pearson(columns, "s_after") - log_pearson(columns, "s_softmax"), used,
        "s_after", "s_softmax", "test_loss",
    )  # fmt: skip
    return Answer(
        numbers={"raw": relation(used, "s_after"), "probabilities": relation(used, "s_softmax")},
        claims=[related("Fig. 12", "L rises with S of the raw outputs", used, "s_after"), lost],
        plots={"raw": ("s_after", "test_loss"), "probabilities": ("s_softmax", "test_loss")},
    )


def figure_13(measured: Measured) -> Answer:
    """S on training and on test inputs (Fig. 13); the paper: practically the same."""
    table = measured.points
    same = ratio_claim("Fig. 13", "S on training inputs is that on test inputs", table, table, "s_train",
                       "S on training over S on test inputs", over="s_after", **NEAR)  # fmt: skip
    return Answer(numbers={"relation": relation(table, "s_after", "s_train")}, claims=[same],
                  plots={"inputs": ("s_after", "s_train")})  # fmt: skip


# --- tables


def _printed(table: str) -> Table:
    import pandas

    rows: Table = pandas.read_csv(Path(__file__).with_name("paper.csv"), comment="#")
    return rows[rows["table"] == table]


def _lead(columns: Columns) -> float:
    """Correlation of the loss with S before the softmax, less the largest of the three others."""
    found = {name: pearson(columns[name], columns["test_loss"]) for name in TABLE_1}
    return found.pop("s_few") - max(found.values())


def table_1(measured: Measured) -> Answer:
    """Pearson correlation of J and S, before and after the softmax, with the test loss, and their computing time."""
    all_runs, used, theirs = measured.runs, fitted(measured.points), _printed("I").set_index("quantity")
    rows, numbers = [], {}
    for column, label in TABLE_1.items():
        found, seconds = relation(used, column), all_runs[f"{column}_seconds"]
        numbers[label] = {**found, "seconds": seconds.mean(), "seconds_std": seconds.std()}
        rows.append({"metric": label, "paper": theirs.loc[label, "mean"], **found,
                     "paper's seconds": theirs.loc[label, "seconds"], "seconds": seconds.mean()})  # fmt: skip
    numbers["S before softmax, per output, on all test inputs"] = relation(used, "s_per_output")
    times = all_runs["j_seconds"] / all_runs["s_few_seconds"]
    claims = [
        compared_relations("Table I", "of J and S, before and after the softmax, S before it goes best with the loss",
                           "its Pearson minus the largest of the others", _lead, used, *TABLE_1, "test_loss"),
        claim("Sec. V", "J takes more than ten times the time of S", "wall time of J over that of S", times,
              clusters=all_runs["configuration"].to_list(), unit="configurations", above=10.0,
              compared=NO_NETWORKS),
    ]  # fmt: skip
    return Answer(numbers={"metrics": numbers, "j_over_s_seconds": times.median()}, claims=claims, table=rows,
                  plots={"s": ("s_after", "test_loss"), "j": ("j_softmax", "test_loss")})  # fmt: skip


def table_2(measured: Measured) -> Answer:
    """Correlation of the error with loss and S before and after temperature scaling (the paper's table is lost)."""
    table = fitted(measured.points)
    table = table[table["temperature"].notna()]
    table = table.assign(s_calibrated=table["s_after"] / table["temperature"] ** 2)
    pairs = {"loss": ("loss_judged", "loss_calibrated"), "S": ("s_after", "s_calibrated")}
    claims = [
        compared_relations(
            "Table II", f"temperature scaling brings the {name} closer to the error",
            "Pearson of the logs after minus before",
            lambda columns, pair=pair: log_pearson(columns, pair[1], JUDGED) - log_pearson(columns, pair[0], JUDGED),
            table, *pair, JUDGED,
        )
        for name, pair in pairs.items()
    ]  # fmt: skip
    numbers = {name: {"before": relation(table, before, JUDGED), "after": relation(table, after, JUDGED)}
               for name, (before, after) in pairs.items()}  # fmt: skip
    plots = {"before": ("s_after", JUDGED), "after": ("s_calibrated", JUDGED)}
    return Answer(numbers=numbers, claims=claims, plots=plots, points=table)


def authors_row(width: int, name: str, ours: Any) -> dict[str, Any]:
    """One of the authors' stored results beside ours; the accuracy in per cent."""
    theirs = _printed("authors")
    found = theirs[(theirs["width"] == width) & (theirs["quantity"] == name)]
    mean, deviation = (float(found[key].iloc[0]) if len(found) else math.nan for key in ("mean", "deviation"))
    scale = 100 if name == "test_accuracy" else 1
    own, own_deviation = scale * ours.mean(), scale * ours.std(ddof=0)
    return {
        "width": width,
        "quantity": name,
        "authors": mean,
        "deviation": deviation,
        "ours": own,
        "our deviation": own_deviation,
        "runs": len(ours),
        "deviations apart": abs(own - mean) / math.hypot(deviation, own_deviation),
    }


def same_mean(found: Mapping[str, Any], comparisons: int) -> Claim:
    """Whether our mean is the authors' mean of ten runs, by the standard error of the difference.

    The bound is that which 5 % of as many comparisons of equal means would pass anywhere (Bonferroni).
    """
    error = math.hypot(found["deviation"] / math.sqrt(AUTHORS_RUNS), found["our deviation"] / math.sqrt(found["runs"]))
    apart = abs(found["ours"] - found["authors"]) / error
    says = f"{found['quantity']} at width {found['width']} is {found['authors']:.4g}"
    return claims_of("the authors' code", says, "standard errors between the means",
                     Interval(apart, apart, apart, found["runs"]), unit="runs",
                     below=float(stats.norm.isf(0.025 / comparisons)))  # fmt: skip


def authors(measured: Measured) -> Answer:
    """The authors' three stored results: 4 hidden layers, standard normal, 1,000 CIFAR-10 images, ten runs."""
    inputs = math.prod(measured_samples(measured.setting, measured.configurations[0].spec)[0].input_shape)
    widths = measured.points["width"].astype(int)
    theory = [expected_sensitivity(fully_connected_layers(inputs, [width] * 4), 10) for width in widths]
    table = measured.points.assign(s_over_eq_10=measured.points["s_before"] / theory)
    rows = [
        authors_row(int(width), name, group[name])
        for width, group in measured.runs.groupby("width")
        for name in ("test_loss", "s_after", "test_accuracy")
    ]
    known = [found for found in rows if math.isfinite(found["deviations apart"])]
    claims = [same_mean(found, len(known)) for found in known]
    ratios = by_draw(measured.points, "s_before")[0] / numpy.transpose([theory])
    claims.append(claim("eq. (10)", "S before training is eq. (10)", "S before training over eq. (10)", ratios.mean(0),
                        unit="draws of weights", above=1 / SAME, below=SAME, compared=NO_NETWORKS))  # fmt: skip
    return Answer(numbers={"comparison": rows, "relation": relation(table, "s_after")}, claims=claims, table=rows,
                  points=table, plots={"loss": ("s_after", "test_loss")}, predicted=True)  # fmt: skip


def _ranking_rows(used: Table, what: str) -> Rows:
    rows = []
    for target in ("test_loss", "error"):
        found: Table = correlations(used, ["s_before"], target=target, baseline="parameters")
        for measure, values in found.iterrows():
            rows.append(
                {
                    "networks": what,
                    "predictor": "S before training" if measure == "s_before" else "parameter count",
                    "of": "test loss" if target == "test_loss" else "test error",
                    "n": int(values["n"]),
                    "Kendall": values["kendall"],
                    "Kendall interval": f"[{values['kendall_low']:.2f}, {values['kendall_high']:.2f}]",
                    "Spearman": values["spearman"],
                    "Spearman interval": f"[{values['spearman_low']:.2f}, {values['spearman_high']:.2f}]",
                }
            )
    return rows


RANKED = ("s_before", "parameters", "test_loss")


def _tau_lead(columns: Columns) -> float:
    """Kendall's tau of the loss with S before training, less that with the number of parameters."""
    of_s, of_size = (kendall_tau(columns[name], columns["test_loss"]) for name in ("s_before", "parameters"))
    return of_s - of_size


def ranking(measured: Measured) -> Answer:
    """Does S before training rank networks by loss and error better than counting their parameters?"""
    table = measured.points
    is_standard = table["initialization"] == "standard_normal"
    used = fitted(table[is_standard])
    rows, claims = [], []
    for what, networks in (
        ("standard normal, all", used),
        ("standard normal, fully connected", used[used["n_hidden"].notna()]),
        ("other initialisations, fully connected", table[~is_standard]),
    ):
        rows += _ranking_rows(networks, what)
        says = f"S before training ranks the losses better than counting parameters ({what})"
        quantity = "Kendall's tau of S minus that of the parameters"
        claims.append(compared_relations("ranking", says, quantity, _tau_lead, networks, *RANKED, ours=True))
    return Answer(numbers={"rankings": rows}, claims=claims, table=rows, points=table,
                  plots={"s": ("s_before", "test_loss"), "size": ("parameters", "test_loss")})  # fmt: skip
