"""Bound of the label noise rate in closed form, and margins of canaries."""

from __future__ import annotations

import pytest
import torch

from gapscope.labels.noise_rate import (
    clean_accuracy,
    noise_rate_bound,
)
from gapscope.labels.results import LabelNoiseEstimate


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("classes", [2, 10])
def test_it_is_tight_where_right_and_wrong_do_not_meet(rate: float, classes: int) -> None:
    """Canaries are label errors unless a wrong label was corrected by chance."""
    generator, n, m = torch.Generator().manual_seed(0), 20_000, 8_000
    wrong = torch.rand(n, generator=generator) < rate
    margins = torch.where(wrong, -1.0, 1.0) + 0.1 * torch.randn(n, generator=generator)
    put_right = torch.rand(m, generator=generator) < rate / (classes - 1)
    canaries = torch.where(put_right, 1.0, -1.0) + 0.1 * torch.randn(m, generator=generator)
    assert noise_rate_bound(margins, canaries, classes, quantile=0.3) == pytest.approx(
        rate, abs=0.02
    )


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_accuracy_on_right_labels_undoes_the_noise(rate: float) -> None:
    noisy = 0.85 * (1 - rate) + 0.15 * rate / 9
    assert clean_accuracy(noisy, rate, 10) == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        (LabelNoiseEstimate(0.2, 0.1, 0.3, 0.9, 500), ""),
        (LabelNoiseEstimate(0.2, 0.1, 0.3, 0.55, 500), "at 55 %, at least 60 %"),
        # what one training said of photographs a tenth of whose labels were wrong
        (LabelNoiseEstimate(0.43, 0.24, 0.63, 0.8, 760), "24 to 63 %, at most 30 % wide"),
        (LabelNoiseEstimate(0.2, 0.1, 0.3, float("nan"), 500), "at least 60 %"),
    ],
)
def test_a_rate_that_cannot_be_believed_names_why(noise: LabelNoiseEstimate, why: str) -> None:
    assert (why in noise.abstained_because) and bool(noise.abstained_because) == bool(why)
