"""Temperature, cross-entropy and calibration error, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from gapscope.statistics.calibration import (
    cross_entropy,
    fit_calibration,
    reliability_curve,
    tempered,
)

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_calibration_that_generated_the_labels_is_found(noise: float) -> None:
    scores = torch.randn(20_000, 4, generator=GENERATOR, dtype=torch.float64)
    labels = torch.multinomial((scores / 0.4).softmax(1), 1, generator=GENERATOR)[:, 0]
    is_noise = torch.rand(20_000, generator=GENERATOR) < noise
    labels = torch.where(is_noise, torch.randint(4, labels.shape, generator=GENERATOR), labels)
    result = fit_calibration(scores, labels)
    assert result.temperature == pytest.approx(0.4, rel=0.1)
    assert result.background == pytest.approx(noise, abs=0.04)
    assert reliability_curve(result.probabilities(scores), labels).error < 0.015
    assert reliability_curve(tempered(scores, 0.1), labels).error > 0.1


def test_several_labels_have_a_sigmoid_each() -> None:
    scores = torch.rand(20_000, 3, generator=GENERATOR, dtype=torch.float64)
    probabilities = ((2 * scores - 1) / 0.3).sigmoid()
    labels = torch.rand(scores.shape, generator=GENERATOR) < probabilities
    result = fit_calibration(scores, labels)
    assert result.temperature == pytest.approx(0.3, rel=0.1) and result.background < 0.05
    torch.testing.assert_close(tempered(scores, 0.3, several=True), probabilities)
    assert reliability_curve(probabilities, labels).error < 0.01
    expected = np.mean([log_loss(labels[:, k], probabilities[:, k]) for k in range(3)])
    assert cross_entropy(probabilities, labels) == pytest.approx(expected)


def test_cross_entropy_is_that_of_scikit_learn() -> None:
    probabilities = torch.rand(50, 3, generator=GENERATOR, dtype=torch.float64).softmax(1)
    labels = torch.arange(50) % 3
    assert cross_entropy(probabilities, labels) == pytest.approx(log_loss(labels, probabilities))


def test_the_calibration_error_by_hand() -> None:
    probabilities = torch.tensor([[0.6, 0.4]] * 30 + [[0.1, 0.9]] * 30)
    labels = torch.tensor([0] * 15 + [1] * 15 + [1] * 30)
    curve = reliability_curve(probabilities, labels)
    assert curve.counts.tolist() == [20, 20, 20]
    # the first 20 and 10 of the next 20 are those of 60 %, of which half are correct
    assert curve.stated == pytest.approx([0.6, 0.75, 0.9])
    assert curve.error == pytest.approx(np.mean(np.abs(curve.stated - curve.observed)))
    assert curve.observed[2] == 1 and curve.observed[:2].sum() == pytest.approx((15 + 10) / 20)
