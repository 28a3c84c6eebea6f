"""Parts beside the main figures: bias and variance, amounts of data, stages, behind the softmax, training inputs."""

from __future__ import annotations

from typing import Any

from gapscope_studies.forouzesh2021 import grids
from gapscope_studies.forouzesh2021.analysis import (
    Table,
    comparison,
    fitted,
    left_out,
    over_predicted,
    plain,
    point_table,
    relation,
    relation_rows,
    row,
    scatter,
)
from gapscope_studies.forouzesh2021.grids import Configuration
from gapscope_studies.forouzesh2021.runs import measured_samples, points, runs, trained_network
from gapscope_studies.kit.study import Outcome, Setting


def _outcome(
    table: Table,
    rows: list[dict[str, Any]],
    verdict: str,
    columns: tuple[str, ...],
    figures: dict[str, Any],
    **numbers: Any,
) -> Outcome:
    return Outcome(
        numbers={**numbers, "comparison": rows, "points": table.to_dict("records")},
        tables={"Paper and ours": comparison(rows), "Points (means over runs)": point_table(table, *columns)},
        figures=figures,
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )


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


def figure_10(setting: Setting) -> Outcome:
    """Boston housing: squared error against bias + variance (identical), and the variance against S (Fig. 10c, d)."""
    import pandas

    configurations = grids.housing(setting)
    table = points(runs(setting, configurations))
    table = table.join(pandas.DataFrame([_parts_of_error(setting, item) for item in configurations]))
    table["bias_and_variance"] = table["bias"] + table["variance"]
    table["predicted_variance"] = table["s_after"] * table["mean_square_input"] / 0.1**2 * table["outputs"] ** 2
    gap = float((table["bias_and_variance"] / table["squared_error"] - 1).abs().max())
    with_s, with_loss = relation(table, "s_after", "variance"), relation(table, "variance")
    share = float((table["variance"] / table["squared_error"]).median())
    ratio = float((table["variance"] / table["predicted_variance"]).median())
    rows = [
        row("largest |(bias + variance) / squared error - 1|", gap, paper=0.0),
        *relation_rows("variance and S", with_s, "positive", 1.0),
        *relation_rows("L and variance", with_loss, "", 1.0),
        row("median share of the variance in the squared error", share),
        row("median of variance over S E[x^2] / noise^2", ratio, paper=1.0),
    ]
    verdict = (
        f"Bias + variance is the squared error within {gap:.1g}. Log variance and log S: Pearson {with_s.text()}, "
        f"slope {with_s.slope:.2f} (theory: 1); the variance is {ratio:.2g} of what S predicts without the biases' "
        f"part, and {share:.0%} of the squared error (medians)."
    )
    figures = {
        "variance": scatter(table, "s_after", "variance"),
        "bias-and-variance": scatter(table, "bias_and_variance", "squared_error"),
    }
    columns = ("s_after", "bias", "variance", "squared_error")
    return _outcome(table, rows, verdict, columns, figures, variance_and_s=plain(with_s))


def _by_family(table: Table, what: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Relation of loss and S within each family, and a phrase for each."""
    rows, numbers, phrases = [], {}, []
    for family, group in table.groupby("family", sort=False):
        found = relation(group, "s_after")
        rows += relation_rows(f"{what} {family}", found, "", 0.5)
        numbers[str(family)] = plain(found)
        phrases.append(f"{family} {found.text()}, slope {found.slope:.2f}")
    return rows, numbers, "; ".join(phrases)


def figure_11_amount(setting: Setting) -> Outcome:
    """ResNet-18 and 34 on few and on many samples (Fig. 11a, b); the paper: a poor match, then a better one."""
    table = points(runs(setting, grids.few_and_many(setting)))
    rows, numbers, phrases = _by_family(table, "L and S,")
    verdict = f"Pearson of log L and log S: {phrases} (paper: the match is poor with few and better with many samples)."
    figures = {"loss": scatter(table, "s_after", predicted=True)}
    return _outcome(table, rows, verdict, ("s_after", "test_loss"), figures, relations=numbers)


def figure_11_stages(setting: Setting) -> Outcome:
    """The relation at stages of training (Fig. 11d); the paper: it comes closer to eq. (9) as training goes on."""
    table = points(runs(setting, grids.stages(setting)))
    rows, numbers, _ = _by_family(table, "L and S after")
    phrases = []
    for (family, kind), group in table.groupby(["family", "initialization"], sort=False):
        ratio, accuracy = over_predicted(group), group["train_accuracy"].mean()
        between = (ratio["smallest"], ratio["largest"])
        rows.append(
            row(f"L over eq. (9) after {family}, {kind}: median, smallest to largest", ratio["median"], between, 1)
        )
        numbers[f"{family}, {kind}"] = ratio
        phrases.append(f"{kind} after {family} {ratio['median']:.3g} (training accuracy {accuracy:.2f})")
    verdict = f"Test loss over eq. (9), medians: {'; '.join(phrases)} (paper: the match improves with training)."
    figures = {"loss": scatter(table, "s_after", predicted=True)}
    return _outcome(table, rows, verdict, ("s_after", "test_loss"), figures, relations=numbers)


def figure_12(setting: Setting) -> Outcome:
    """S of raw outputs and of probabilities, over all popular networks and initialisations (Fig. 12)."""
    table = points(runs(setting, [*grids.all_popular(setting), *grids.initialized(setting)]))
    used = fitted(table)
    before, behind = relation(used, "s_after"), relation(used, "s_softmax")
    rows = [
        *relation_rows("L and S of raw outputs", before, "", 0.5),
        *relation_rows("L and S behind the softmax", behind),
    ]
    verdict = (
        f"Log L with log S of the raw outputs: Pearson {before.text()}; with that of the probabilities, taken per "
        f"output because their sum is constant: {behind.text()} (paper: the relation is lost).{left_out(table)}"
    )
    figures = {"raw": scatter(table, "s_after"), "probabilities": scatter(table, "s_softmax")}
    columns = ("s_after", "s_softmax", "test_loss")
    return _outcome(table, rows, verdict, columns, figures, raw=plain(before), probabilities=plain(behind))


def figure_13(setting: Setting) -> Outcome:
    """S on training and on test inputs (Fig. 13); the paper: practically the same."""
    table = points(runs(setting, [*grids.all_popular(setting), *grids.initialized(setting)]))
    ratio = table["s_train"] / table["s_after"]
    low, middle, high = ratio.min(), ratio.median(), ratio.max()
    found = relation(table, "s_after", "s_train")
    rows = [row("S on training over S on test inputs: median, smallest to largest", middle, (low, high), 1.0),
            row("their Pearson, log-log", found.rho, (found.rho_low, found.rho_high))]  # fmt: skip
    verdict = (
        f"S on training inputs is {middle:.2f} (median; smallest {low:.2f}, largest {high:.2f}) of S on test inputs "
        f"over {len(table)} configurations, Pearson of the logs {found.rho:.4f} (paper: practically the same)."
    )
    figures = {"inputs": scatter(table, "s_after", "s_train")}
    return _outcome(table, rows, verdict, ("s_after", "s_train"), figures, relation=plain(found))
