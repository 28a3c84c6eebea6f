"""Leave-one-out accuracy of untrained networks as expected accuracy, and estimates on it."""

from __future__ import annotations

from gapscope_studies.expected_accuracy.architectures import architectures
from gapscope_studies.expected_accuracy.cells import cell_ranking
from gapscope_studies.expected_accuracy.curves import curves
from gapscope_studies.expected_accuracy.held_out import held_out
from gapscope_studies.expected_accuracy.intervals import intervals
from gapscope_studies.expected_accuracy.judged import evaluate_baselines, judge
from gapscope_studies.expected_accuracy.monitored_run import monitored_run
from gapscope_studies.expected_accuracy.pretrained import pretrained
from gapscope_studies.expected_accuracy.public_curves import public_curves
from gapscope_studies.expected_accuracy.short_training import short_training
from gapscope_studies.expected_accuracy.text import text
from gapscope_studies.kit.study import Part, Study

STUDY = Study(
    "expected_accuracy",
    "What accuracy to expect, from training data alone",
    "gapscope's own; leave-one-out in gradient space after Bachmann, Hofmann and Lucchi 2022 (arXiv:2203.03443).",
    (
        Part(
            "judged",
            "The shipped estimate beside its baselines, on networks that nothing was chosen on",
            judge,
        ),
        Part(
            "baselines",
            "Baselines that never see the network, on the same networks",
            evaluate_baselines,
        ),
        Part(
            "architectures", "Which of many untrained architectures, before training", architectures
        ),
        Part(
            "cells",
            "Cells of NAS-Bench-201 ranked before training, beside their published accuracy",
            cell_ranking,
        ),
        Part(
            "pretrained",
            "Forecasts before a fine-tune of pretrained networks, beside what it reached",
            pretrained,
        ),
        Part("text", "Forecasts before a tiny BERT is fine-tuned, with adapters and whole", text),
        Part("curves", "Continued subset runs, validation and estimates on fresh networks", curves),
        Part(
            "held_out",
            "Held-out probabilities without training, from half a run, and from five folds",
            held_out,
        ),
        Part("intervals", "The interval of the forecast, from 60 to 30,000 samples", intervals),
        Part(
            "monitored_run",
            "Predictions of one run for its own samples and for new ones",
            monitored_run,
        ),
        Part("public_curves", "Learning curves of single runs on public data sets", public_curves),
        Part(
            "short_training",
            "Short training forecast by the gradient flow of the NTK",
            short_training,
        ),
    ),
)
