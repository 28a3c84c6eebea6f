"""The study of label errors: confident learning by hand, noise, planted targets, scores, summaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gapscope_studies.kit.data import shift_labels
from gapscope_studies.labels import cells, confident_learning
from gapscope_studies.labels.summary import coverage, differences, rankings, reliability, scores
from gapscope_studies.labels.targets import plant

# two classes, ten samples each; the last two labelled 0 look like class 1
LABELS = np.repeat([0, 1], 10)
P_OF_1 = np.array([0.1] * 8 + [0.95, 0.9] + [0.9] * 10)
PROBABILITIES = np.stack([1 - P_OF_1, P_OF_1], 1)


def test_confident_learning_by_hand() -> None:
    # mean of 8 x 0.9, 0.05 and 0.1 is 0.735, the first threshold; the second one is 0.9
    assert confident_learning.confident_joint(LABELS, PROBABILITIES).tolist() == [[8, 2], [0, 10]]
    assert np.flatnonzero(
        confident_learning.prune_by_noise_rate(LABELS, PROBABILITIES)
    ).tolist() == [8, 9]
    assert confident_learning.self_confidence(LABELS, PROBABILITIES)[[0, 8]] == pytest.approx(
        [0.9, 0.05]
    )
    assert confident_learning.normalized_margin(LABELS, PROBABILITIES)[[0, 8]] == pytest.approx(
        [0.9, 0.05]
    )


def test_the_joint_is_scaled_to_the_label_counts() -> None:
    p = PROBABILITIES.copy()
    p[0] = [0.6, 0.4]  # reaches no threshold: 9 confident samples of 10 labelled 0
    joint = confident_learning.confident_joint(LABELS, p)
    assert joint.sum(1).tolist() == [10, 10] and joint[0, 1] == pytest.approx(2 * 10 / 9)


def test_each_kind_of_noise_has_its_rate() -> None:
    for kind in cells.KINDS:
        samples, wrong, n_classes = cells.make_cell("digits", kind, 0.1, 7)
        assert (
            n_classes == 10
            and len(samples) == 600
            and float(wrong.double().mean()) == pytest.approx(0.1, abs=0.05)
        )
    labels = torch.arange(50) % 5
    noisy = shift_labels(labels, 0.2, 5, torch.Generator().manual_seed(0))
    assert int((noisy != labels).sum()) == 10 and set(((noisy - labels) % 5).tolist()) == {0, 1}


def test_class_similar_noise_goes_to_confused_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    x = (
        torch.randn(300, 2, generator=generator)
        + torch.tensor([[0.0, 0.0], [0.5, 0.0], [50.0, 0.0]])[labels]
    )
    noisy = cells.class_similar(x, labels, 0.3, 3, generator)
    assert int((noisy != labels).sum()) == 90
    changed = noisy[(noisy != labels) & (labels == 0)]
    assert float((changed == 1).double().mean()) > 0.9  # class 2 is never confused


def test_scores_leave_out_what_is_not_ranked() -> None:
    suspicion, wrong = (
        np.array([3.0, 2.0, np.nan, 1.0, 0.0]),
        np.array([True, False, True, True, False]),
    )
    assert scores(suspicion, wrong) == pytest.approx(
        {"auroc": 0.75, "average_precision": (1 + 2 / 3) / 2, "precision_at_errors": 0.5}
    )


def test_summaries_by_hand() -> None:
    def cell(data: str, own: float, other: float, rate: float | None) -> dict:
        answer = {
            "rate": rate,
            "low": rate,
            "high": rate,
            "bound": False,
            "cuts": [[10, 0.6, 8]] * 5,
        }
        base = {"average_precision": 0.0, "precision_at_errors": 0.0, "seconds": 1.0}
        first = base | {"auroc": own, "cut": [10, 0.7, 5]} | (answer if rate is not None else {})
        methods = {"no network": first, "cleanlab, RBF": base | {"auroc": other}}
        return {"data": data, "kind": "symmetric", "wrong": 0.1, "methods": methods}

    rows = [cell("a", 0.9, 0.8, 0.1), cell("b", 0.7, 0.8, 0.3), cell("b", 0.9, 0.6, None)]
    assert rankings(rows)[0]["auroc"][0] == pytest.approx(0.85)  # mean of 0.9 and 0.8
    (difference,) = differences(rows)
    assert difference["auroc"][0] == pytest.approx(0.1) and difference["auroc, ahead"] == "2 of 3"
    assert [row["covered"] for row in coverage(rows, "no network")] == [1, 0, 1]
    assert reliability(rows, "no network", bound=True) == []
    default, half = reliability(rows, "no network", bound=False)[:2]
    assert (
        default["observed"][0] == 0.5
        and half["flagged"] == 20
        and half["expected"] == pytest.approx(0.6)
    )


@pytest.mark.parametrize("kind", ["gross", "swapped", "unit"])
def test_planted_targets(kind: str) -> None:
    targets = torch.arange(1.0, 101.0).double()
    noisy, wrong = plant(targets, kind, 0.1, torch.Generator().manual_seed(0))
    assert int(wrong.sum()) == 10 and torch.equal(noisy[~wrong], targets[~wrong])
    moved = (noisy - targets)[wrong].abs()
    if kind == "gross":
        assert bool((moved >= 2 * targets.std() - 1e-9).all()) and bool(
            (moved <= 5 * targets.std() + 1e-9).all()
        )
    elif kind == "swapped":
        assert sorted(noisy.tolist()) == targets.tolist()
    else:
        ratio = (noisy / targets)[wrong].log10().abs()
        assert torch.allclose(ratio, torch.ones(10).double())
