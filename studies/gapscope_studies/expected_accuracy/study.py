"""What accuracy to expect from training data alone: how near the untrained network's left-out accuracy comes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas

from gapscope_studies.expected_accuracy.architectures import architectures
from gapscope_studies.expected_accuracy.cell_ranking import cell_ranking
from gapscope_studies.expected_accuracy.curves import curves
from gapscope_studies.expected_accuracy.evaluation import evaluate
from gapscope_studies.expected_accuracy.pools import FITTED, in_random_order
from gapscope_studies.expected_accuracy.pretrained import pretrained
from gapscope_studies.expected_accuracy.rows import behind, error_claim, plain, rms_error, root_mean_square, shown
from gapscope_studies.expected_accuracy.runs import probed, stored_or_read
from gapscope_studies.expected_accuracy.short_training import short_training
from gapscope_studies.expected_accuracy.text import text
from gapscope_studies.expected_accuracy.trivial import trivial
from gapscope_studies.kit import plots
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study, Table

EARLY = "epochs="  # training configurations that stop long before they have learned what the data allow
TRUTH = "test_score_like_training"


def _hold_out(table: Table) -> float:
    """Expected error of a 10 % hold-out of the same data: the binomial one, although it trains on fewer samples."""
    p = table[TRUTH]
    return float(np.sqrt((p * (1 - p) / (0.1 * table["samples"])).mean()))


def _figure(table: Table) -> Any:
    figure, axes = plots.panels(1)
    groups = {str(data): part for data, part in table.groupby("data")}
    result = {data: (part["initial.accuracy"].tolist(), part[TRUTH].tolist()) for data, part in groups.items()}
    plots.scatter(axes[0], result, hollow={data: part["early"].tolist() for data, part in groups.items()})
    axes[0].plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    plots.named(axes[0], xlabel="left-out accuracy, initial weights", ylabel="accuracy after training")
    plots.legend(figure)
    return figure


def first_pool(setting: RunSettings) -> Outcome:
    """Left-out accuracy at the initial weights beside the accuracy that training reached."""
    configurations = in_random_order(FITTED)
    if setting.scale == "smoke":
        configurations = [item for item in configurations if item.data == "digits" and item.samples == 100]
    # small: what two busy cores trained in an evening
    configurations = configurations[: setting.choose(smoke=6, small=48, paper=None)]
    read = partial(probed, device=setting.device)
    table: Table = pandas.DataFrame(stored_or_read(setting, configurations, "networks", read))
    gap = table["train_score"] - table[TRUTH]
    # the plain guess of one who has other networks: training accuracy less the mean gap of the *other* data sets
    gaps = {name: gap[table["data"] != name] for name in set(table["data"])}
    other = table["data"].map({name: (each if len(each) else gap).mean() for name, each in gaps.items()})
    table = table.assign(
        early=table["recipe"].str.contains(EARLY),
        error=table["initial.accuracy"] - table[TRUTH],
        error_of_mean_gap=table["train_score"] - other - table[TRUTH],
    )
    learned = table[~table["early"]]
    groups = {"all": table, "all but stopped early": learned, **{str(d): part for d, part in table.groupby("data")}}
    rows = [
        {
            "networks": name,
            "n": len(part),
            "left-out accuracy, RMSE": rms_error(part["error"], part["data"].tolist()),
            "bias": float(part["error"].mean()),
            "mean gap of the other data sets, RMSE": root_mean_square(part["error_of_mean_gap"]),
            "10 % hold-out, expected RMSE": _hold_out(part),
        }
        for name, part in groups.items()
    ]
    errors = learned["error"].to_numpy(dtype=float)
    against_hold_out = bootstrap(
        lambda rows: root_mean_square(errors[rows]) - _hold_out(learned.iloc[rows]),
        len(learned),
        learned["data"].tolist(),
    )
    return Outcome(
        numbers={"errors": {row["networks"]: plain(row) for row in rows}},
        claims=[
            error_claim("before training, left-out accuracy errs less than a hold-out of a tenth of the data",
                        "root mean squared error minus that of the hold-out", against_hold_out, below=0.0)
        ],
        tables={"Errors": pandas.DataFrame(map(shown, rows))},
        figures={"scatter": _figure(table)},
        verdict=(
            "Nothing is fitted to these networks, and the method was committed before they were trained; its settings "
            "(ridges, kernel, intercept) had been chosen on earlier networks of the same data sets. Hollow points "
            "stopped after 5 or 8 epochs, before they had learned what the data allow."
        ),
        **behind(setting, [item.facts() for item in configurations]),
    )  # fmt: skip


STUDY = Study(
    "expected_accuracy",
    "What accuracy to expect, from training data alone",
    "gapscope's own; leave-one-out in gradient space after Bachmann, Hofmann and Lucchi 2022 (arXiv:2203.03443).",
    (
        Part("first_pool", "Left-out accuracy before training, beside what training reached", first_pool),
        Part("judged", "The shipped estimate beside its baselines, on networks that nothing was chosen on", evaluate),
        Part("baselines", "Baselines that never see the network, on the same networks", trivial),
        Part("architectures", "Which of many untrained architectures, before training", architectures),
        Part("cells", "Cells of NAS-Bench-201 ranked before training, beside their published accuracy", cell_ranking),
        Part("pretrained", "Forecasts before a fine-tune of pretrained networks, beside what it reached", pretrained),
        Part("text", "Forecasts before a tiny BERT is fine-tuned, with adapters and whole", text),
        Part("curves", "Continued subset runs, validation and estimates on fresh networks", curves),
        Part("short_training", "Short training forecast by the gradient flow of the NTK", short_training),
    ),
)
