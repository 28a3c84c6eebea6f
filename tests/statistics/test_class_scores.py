"""Scores of unequal classes against those of scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from gapscope.statistics.kernel_ridge import are_unequal, class_scores


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_those_of_scikit_learn(n_classes: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(n_classes)
    labels = torch.multinomial(torch.arange(1.0, n_classes + 1), 200, replacement=True, generator=generator)
    logits = torch.randn(200, n_classes, generator=generator) + torch.nn.functional.one_hot(labels, n_classes)
    scores = (logits.round() if ties else logits).softmax(1)
    found = class_scores(scores, labels)
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, scores.argmax(1)))
    expected = roc_auc_score(labels, scores[:, 1] if n_classes == 2 else scores, multi_class="ovr", average="macro")
    assert found.auc == pytest.approx(expected)
    assert found.largest == float(labels.bincount().max()) / 200


def test_classes_are_unequal_from_twice_the_samples_on() -> None:
    assert are_unequal(torch.tensor([0, 0, 1])) and not are_unequal(torch.tensor([0, 0, 0, 1, 1]))
    assert not are_unequal(torch.tensor([2, 2, 4])[:2]) and are_unequal(torch.tensor([2, 2, 4]))  # empty classes
