"""Classes of few samples: clean labels are not flagged, and errors are found where they can be told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.labels.error_model import error_probabilities
from gapscope.labels.kernel_views import kernel_class_view
from gapscope.statistics.kernel_ridge import spectrum


def clusters(n_classes: int, n_each: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(n_classes, 32, generator=generator)
    y = torch.arange(n_classes).repeat_interleave(n_each)
    return centres[y] + torch.randn(len(y), 32, generator=generator), y


@pytest.mark.parametrize(("n_classes", "n_each"), [(200, 3), (100, 2)])
@pytest.mark.parametrize("spread", [2.0, 1.3, 1.1])
def test_clean_labels_are_not_flagged(n_classes: int, n_each: int, spread: float) -> None:
    flagged = [
        gs.find_label_issues(None, clusters(n_classes, n_each, spread, seed)).n_flagged
        for seed in (21, 22)
    ]
    assert sum(flagged) <= 0.005 * 2 * n_classes * n_each


@pytest.mark.thorough
def test_errors_in_classes_of_three_are_flagged() -> None:
    x, y = clusters(200, 3, 1.6, 0)
    noisy, generator = y.clone(), torch.Generator().manual_seed(1)
    rows = torch.randperm(600, generator=generator)[:60]
    noisy[rows] = (noisy[rows] + torch.randint(1, 200, (60,), generator=generator)) % 200
    issues = gs.find_label_issues(None, (x, noisy))
    wrong = (noisy != y)[issues.indices[: issues.n_flagged]]
    assert issues.n_flagged >= 40 and float(wrong.double().mean()) > 0.9
    # flagged ones come first, whatever the order of the others
    assert float(issues.error_probability[: issues.n_flagged].min()) >= 0.9


def test_of_two_samples_none_can_be_told() -> None:
    x, y = clusters(60, 2, 4.0, 0)
    noisy = y.clone()
    noisy[0], noisy[2] = y[2], y[0]  # both classes have one sample of the other
    issues = gs.find_label_issues(None, (x, noisy))
    assert issues.n_flagged == 0
    assert set(issues.indices[:4].tolist()) == {0, 1, 2, 3}
    scores = torch.tensor([[0.0, 5.0, 0.0]] * 60).double()
    error = error_probabilities(scores, torch.tensor([0, 0] + [1] * 56 + [2, 2])).error
    assert float(error[:2].max()) <= 0.5 and float(error[2]) < 0.01


def test_the_given_label_has_the_weight_of_its_class() -> None:
    """With a kernel of blocks, a sample's own class has the mean of its other samples, shrunk by the ridge."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    same = (labels[:, None] == labels).double()
    view = kernel_class_view("blocks", spectrum(same + 1e-6 * torch.eye(8)), labels, 2)
    own = view.scores.gather(1, labels[:, None]).squeeze(1)
    # with a vanishing ridge the others predict 1
    assert own.tolist() == pytest.approx([3 / 2] * 3 + [5 / 4] * 5, abs=0.01)
