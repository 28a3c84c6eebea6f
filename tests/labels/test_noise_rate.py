"""Bound of the label noise rate in closed form, and margins of canaries."""

from __future__ import annotations

import pytest
import torch

from gapscope.base.random_streams import make_generator
from gapscope.labels.noise_rate import (
    MIN_CANARIES,
    ROUNDS,
    canary_margins,
    clean_accuracy,
    confusion_odds,
    noise_rate_bound,
)
from gapscope.labels.results import LabelNoiseEstimate
from gapscope.statistics.kernel_ridge import loo_predictions, spectrum


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("classes", [2, 10])
def test_it_is_tight_where_right_and_wrong_do_not_meet(rate: float, classes: int) -> None:
    """Canaries are label errors unless a wrong label was corrected by chance."""
    generator, n, m = torch.Generator().manual_seed(0), 20_000, 8_000
    wrong = torch.rand(n, generator=generator) < rate
    margins = torch.where(wrong, -1.0, 1.0) + 0.1 * torch.randn(n, generator=generator)
    put_right = torch.rand(m, generator=generator) < rate / (classes - 1)
    canaries = torch.where(put_right, 1.0, -1.0) + 0.1 * torch.randn(m, generator=generator)
    assert noise_rate_bound(margins, canaries, classes, quantile=0.3) == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_accuracy_on_right_labels_undoes_the_noise(rate: float) -> None:
    noisy = 0.85 * (1 - rate) + 0.15 * rate / 9
    assert clean_accuracy(noisy, rate, 10) == pytest.approx(0.85)


def test_margins_are_leave_one_out_with_corrupted_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(30, 4, generator=generator, dtype=torch.float64), torch.arange(30) % 3
    kernel = spectrum(features @ features.T)
    result = canary_margins(kernel, labels, labels, 0.1, 3, make_generator(0, "canaries"))
    assert result.canaries.shape == (ROUNDS, MIN_CANARIES) and result.ordinary.shape == (ROUNDS, 30 - MIN_CANARIES)
    # the first round again
    draws = make_generator(0, "canaries")
    chosen = torch.randperm(30, generator=draws)[:MIN_CANARIES]
    changed = labels.clone()
    changed[chosen] = torch.multinomial(confusion_odds(labels, labels, 3)[labels[chosen]], 1, generator=draws)[:, 0]
    targets = torch.nn.functional.one_hot(changed, 3).double()
    scores = loo_predictions(kernel, targets, 0.1 * kernel.mean).predictions[chosen]
    is_own = torch.nn.functional.one_hot(changed[chosen], 3).bool()
    margins = scores[is_own] - scores.masked_fill(is_own, -torch.inf).amax(1)
    assert torch.allclose(result.canaries[0], margins, atol=1e-12)


def test_a_canary_never_keeps_its_label() -> None:
    assert (confusion_odds(torch.arange(9) % 3, torch.arange(9) % 3, 3).diagonal() == 0).all()


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
    assert (why in noise.unreliable_because) and bool(noise.unreliable_because) == bool(why)
