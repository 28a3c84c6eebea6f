"""Probabilities that are hard or overconfident promise no label errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.labels.given_view import certain_fraction, log_probabilities

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(600) % 4
IS_MISTAKEN = torch.rand(600, generator=GENERATOR) < 0.08
PREDICTED = torch.where(IS_MISTAKEN, (LABELS + 1) % 4, LABELS)


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_hard_predictions_promise_nothing(clip: float) -> None:
    """Clean labels, of which a model with 0 and 1 contradicts some."""
    hard = nn.functional.one_hot(PREDICTED, 4).double().clamp(clip, 1 - clip)
    hard = hard / hard.sum(1, keepdim=True)
    calls: list[dict[str, Any]] = [{"labels": LABELS}]
    inputs = LABELS[:, None] + 0.1 * torch.randn(600, 3, generator=GENERATOR)
    calls.append({"data": (inputs, LABELS)})
    for options in calls:
        issues = gs.find_label_issues(pred_probs=hard, **options)
        assert issues.n_flagged == 0 and not len(issues.precision_curve)
        assert issues.noise is not None and issues.noise.is_upper_bound and issues.noise.low == 0
        assert issues.noise.high >= float(IS_MISTAKEN.double().mean())
        assert any("equally certain" in note for note in issues.notes)
        # contradicted labels still come first
        first = issues.indices[: int(IS_MISTAKEN.sum())]
        assert bool(IS_MISTAKEN[first].all())
        noise = gs.estimate_label_noise(pred_probs=hard, **options)
        assert any("equally certain" in note for note in noise.notes)


def test_hard_predictions_of_several_labels_and_of_positions_promise_nothing() -> None:
    given, predicted = (torch.stack([y % 2 == 0, y > 1], 1) for y in (LABELS, PREDICTED))
    several = gs.find_label_issues(labels=given, pred_probs=predicted.double())
    tokens = gs.Samples(
        torch.zeros(60, 10, dtype=torch.int64), LABELS.reshape(60, 10), task="positions"
    )
    one_hot = nn.functional.one_hot(PREDICTED, 4).double().reshape(60, 10, 4)
    for issues in (several, gs.find_label_issues(None, tokens, pred_probs=one_hot)):
        assert issues.n_flagged == 0 and issues.noise is not None
        assert issues.noise.is_upper_bound and issues.noise.low == 0
        assert any("equally certain" in note for note in issues.notes)


def test_overconfident_probabilities_promise_nothing() -> None:
    """Log odds 20 times too large: near the border of two classes mistakes look as certain as all else."""
    x = torch.randn(800, generator=GENERATOR, dtype=torch.float64)
    labels = (torch.rand(800, generator=GENERATOR) < (8 * x).sigmoid()).long()
    odds = 160 * x
    probabilities = torch.stack([(-odds).sigmoid(), odds.sigmoid()], 1)
    issues = gs.find_label_issues(labels=labels, pred_probs=probabilities)
    assert issues.noise is not None and issues.noise.low == 0 and issues.noise.is_upper_bound
    assert not len(issues.precision_curve)
    # the same errors are reported, if they are contradicted as often by the most certain predictions
    wrong = torch.rand(800, generator=GENERATOR) < 0.1
    noisy = torch.where(wrong, 1 - (x > 0).long(), (x > 0).long())
    issues = gs.find_label_issues(labels=noisy, pred_probs=probabilities)
    assert issues.noise is not None and issues.noise.low <= float(wrong.double().mean())
    assert issues.noise.low > 0.05 and bool(wrong[issues.indices[: issues.n_flagged]].all())


def test_certain_predictions_are_counted() -> None:
    probabilities = torch.tensor(np.array([[0, 1], [1, 0], [0.005, 0.995], [0.4, 0.6]]))
    assert certain_fraction(log_probabilities(probabilities)) == 0.5
    assert certain_fraction(torch.tensor([[0.9, 0.1]]).log()) == 0
