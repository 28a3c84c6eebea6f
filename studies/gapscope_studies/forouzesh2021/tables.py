"""Parts of the study that are a table: I, II, the authors' stored results, and what S before training predicts."""

from __future__ import annotations

import math
from typing import Any

from gapscope.estimation.correlations import correlations
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers
from gapscope_studies.forouzesh2021 import grids
from gapscope_studies.forouzesh2021.analysis import (
    Table,
    comparison,
    fitted,
    left_out,
    plain,
    point_table,
    relation,
    row,
    scatter,
)
from gapscope_studies.forouzesh2021.runs import few_inputs, points, runs
from gapscope_studies.kit.study import Outcome, Setting

TABLE_1 = {
    "j_softmax": ("J after softmax", 0.116, 1.166),
    "j": ("J before softmax", 0.414, 1.165),
    "s_softmax": ("S after softmax", 0.381, 0.086),
    "s_few": ("S before softmax", 0.648, 0.085),
}
# width -> test loss, S after training, test accuracy in per cent: mean and standard deviation over ten runs
AUTHORS = {
    200: {"test_loss": (35511.0, 3551.0), "s_after": (1.271e8, 3.63e7), "test_accuracy": (25.34, math.nan)},
    300: {"test_loss": (92611.0, 4439.0), "s_after": (6.083e8, 1.40e8), "test_accuracy": (27.54, math.nan)},
    500: {"test_loss": (317055.0, 14020.0), "s_after": (5.484e9, 9.70e8), "test_accuracy": (29.10, math.nan)},
}


def table_1(setting: Setting) -> Outcome:
    """Pearson correlation of J and S, before and after the softmax, with the test loss, and their computing time."""
    import pandas

    all_runs = runs(setting, grids.table_1(setting))
    table = points(all_runs)
    used = fitted(table)
    rows, numbers = [], {}
    for column, (label, paper, paper_seconds) in TABLE_1.items():
        found, seconds = relation(used, column), all_runs[f"{column}_seconds"]
        numbers[label] = {**plain(found), "seconds": seconds.mean(), "seconds_std": seconds.std()}
        rows.append(
            {
                "metric": label,
                "paper": paper,
                "Pearson": found.rho_raw,
                "95 % interval": f"[{found.rho_raw_low:.2f}, {found.rho_raw_high:.2f}]",
                "Pearson, log-log": found.rho,
                "log-log interval": f"[{found.rho_low:.2f}, {found.rho_high:.2f}]",
                "paper's seconds": paper_seconds,
                "seconds": seconds.mean(),
                "deviation": seconds.std(),
            }
        )
    per_output = relation(used, "s_per_output")
    numbers["S before softmax, per output, on all test inputs"] = plain(per_output)
    ratio = (all_runs["j_seconds"] / all_runs["s_few_seconds"]).median()
    best = max(rows, key=lambda item: item["Pearson"])
    verdict = (
        f"Pearson with the test loss over {len(used)} configurations, on {few_inputs(setting)} test inputs: "
        + ", ".join(f"{item['metric']} {item['Pearson']:.2f} {item['95 % interval']}" for item in rows)
        + f"; the largest is {best['metric']} (paper: S before softmax, 0.648). S of "
        f"every output, averaged, on all test inputs: {per_output.rho_raw:.2f} [{per_output.rho_raw_low:.2f}, "
        f"{per_output.rho_raw_high:.2f}]. J costs {ratio:.1f} times S (median; "
        f"paper: 13.7; wall times).{left_out(table)}"
    )
    return Outcome(
        numbers={"metrics": numbers, "j_over_s_seconds": ratio, "points": table.to_dict("records")},
        tables={
            "Table I": pandas.DataFrame(rows),
            "Points (means over runs)": point_table(table, *TABLE_1, "test_loss"),
        },
        figures={"s": scatter(table, "s_after"), "j": scatter(table, "j_softmax")},
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )


def table_2(setting: Setting) -> Outcome:
    """Correlation of the error with loss and S before and after temperature scaling (the paper's table is lost)."""
    table = fitted(points(runs(setting, [*grids.all_popular(setting), *grids.initialized(setting)])))
    table = table[table["temperature"].notna()]
    table = table.assign(error=table["error_judged"], s_calibrated=table["s_after"] / table["temperature"] ** 2)
    pairs = {"loss": ("loss_judged", "loss_calibrated"), "S": ("s_after", "s_calibrated")}
    rows, numbers, phrases = [], {}, []
    for name, (before, after) in pairs.items():
        plain_relation, scaled = relation(table, before, "error"), relation(table, after, "error")
        numbers[name] = {"before": plain(plain_relation), "after": plain(scaled)}
        for when, found in (("before", plain_relation), ("after", scaled)):
            ends = (found.rho_low, found.rho_high)
            rows.append(row(f"error and {name}, {when} scaling: Pearson, log-log", found.rho, ends))
            rows.append(
                row(
                    f"error and {name}, {when} scaling: Pearson", found.rho_raw, (found.rho_raw_low, found.rho_raw_high)
                )
            )
        phrases.append(f"with the {name} {plain_relation.rho:.2f} before and {scaled.rho:.2f} after")
    verdict = (
        f"Log-log Pearson of the test error over {len(table)} configurations, temperatures from one half of the test "
        f"samples, error and loss from the other: {', '.join(phrases)} (paper: both increase)."
    )
    figures = {"before": scatter(table, "s_after", "error"), "after": scatter(table, "s_calibrated", "error")}
    return Outcome(
        numbers=numbers | {"points": table.to_dict("records")},
        tables={
            "Paper and ours": comparison(rows),
            "Points (means over runs)": point_table(table, "temperature", "error", "loss_judged", "loss_calibrated"),
        },
        figures=figures,
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )


def _authors_row(width: int, name: str, ours: Any) -> dict[str, Any]:
    mean, deviation = AUTHORS.get(width, {}).get(name, (math.nan, math.nan))
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


def authors(setting: Setting) -> Outcome:
    """The authors' three stored results: 4 hidden layers, standard normal, 1,000 CIFAR-10 images, ten runs."""
    import pandas

    configurations = grids.authors(setting)
    all_runs = runs(setting, configurations)
    table = points(all_runs)
    inputs = math.prod((3, 32, 32)) if setting.scale != "smoke" else 64
    theory = [expected_sensitivity(fully_connected_layers(inputs, [int(w)] * 4), 10) for w in table["width"]]
    table["s_over_eq_10"] = table["s_before"] / theory
    rows = [
        _authors_row(int(width), name, group[name])
        for width, group in all_runs.groupby("width")
        for name in ("test_loss", "s_after", "test_accuracy")
    ]
    compared = [item for item in rows if math.isfinite(item["deviations apart"])]
    inside = [item for item in compared if abs(item["ours"] - item["authors"]) <= 2 * item["deviation"]]
    found = relation(table, "s_after")
    phrases = [
        f"{item['quantity']} at {item['width']}: {item['ours']:.4g} ± {item['our deviation']:.2g} (authors "
        f"{item['authors']:.4g} ± {item['deviation']:.2g})"
        for item in compared
    ]
    slope = "" if found.n < 3 else f" Log-log slope of L on S {found.slope:.2f} (authors 0.58, eq. 9 0.5)."
    verdict = (
        f"{len(inside)} of {len(compared)} means lie within two of the authors' standard deviations: "
        f"{'; '.join(phrases)}.{slope} S before training is {table['s_over_eq_10'].mean():.2f} of eq. (10)."
    )
    return Outcome(
        numbers={"comparison": rows, "relation": plain(found), "points": table.to_dict("records")},
        tables={"Authors and ours": pandas.DataFrame(rows), "Points (means over runs)":
                point_table(table, "s_before", "s_over_eq_10", "s_after", "test_loss")},
        figures={"loss": scatter(table, "s_after", predicted=True)},
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )  # fmt: skip


def _ranking_rows(used: Table, what: str) -> list[dict[str, Any]]:
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


def ranking(setting: Setting) -> Outcome:
    """Does S before training rank networks by loss and error better than counting their parameters?"""
    import pandas

    standard, he = grids.untrained(setting), [c for c in grids.initialized(setting) if c.family != "standard_normal"]
    table = points(runs(setting, [*standard, *he]))
    table["error"] = 1 - table["test_accuracy"]
    is_standard = table["initialization"] == "standard_normal"
    used = fitted(table[is_standard])
    fully = used[used["n_hidden"].notna()]
    rows = [
        *_ranking_rows(used, "standard normal, all"),
        *_ranking_rows(fully, "standard normal, fully connected"),
        *_ranking_rows(table[~is_standard], "other initialisations, fully connected"),
    ]
    taus = [f"{item['Kendall']:.2f} {item['Kendall interval']}" for item in rows]
    verdict = (
        f"Over {rows[0]['n']} standard normal networks Kendall's tau with the test loss is {taus[0]} for S before "
        f"training and {taus[1]} for the parameter count; with the test error {taus[2]} and {taus[3]}. Over fully "
        f"connected ones alone: loss {taus[4]} and {taus[5]}, error {taus[6]} and {taus[7]}. From other "
        f"initialisations it is {taus[8]} and {taus[9]} with the loss.{left_out(table[is_standard])}"
    )
    return Outcome(
        numbers={"rankings": rows, "points": table.to_dict("records")},
        tables={
            "Rank correlations": pandas.DataFrame(rows),
            "Points (means over runs)": point_table(table, "s_before", "test_loss"),
        },
        figures={"s": scatter(table[is_standard], "s_before"), "size": scatter(table[is_standard], "parameters")},
        verdict=verdict,
        seeds=range(int(table["runs"].max())),
    )
