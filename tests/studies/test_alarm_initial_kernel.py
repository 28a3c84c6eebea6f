"""Fraction of disagreeing labels against values computed by hand."""

from __future__ import annotations

import torch

from gapscope_studies.overfitting_alarm.initial_kernel import disagreement_fraction


def test_contradictions_by_hand() -> None:
    predictions = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]])
    labels = torch.zeros(4, dtype=torch.int64)  # others lead by -.8, .2, .6, 0
    assert [disagreement_fraction(predictions, labels, margin) for margin in (0.0, 0.3, 0.7)] == [0.5, 0.25, 0.0]
