"""Representations: scikit-learn's index, a dense Laplacian, a simplex and dense covariances."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import davies_bouldin_score
from torch import nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._noise import mixed_logits
from gapscope.measures.representations import (
    davies_bouldin,
    davies_bouldin_mixup,
    graph_label_variation,
    label_variation,
    neural_collapse,
)

DOUBLE = torch.float64


def test_scikit_learn_s_index() -> None:
    features, y = torch.randn(60, 5, dtype=DOUBLE), torch.arange(60) % 4
    features += y[:, None]
    assert davies_bouldin(features, y) == pytest.approx(davies_bouldin_score(features, y), rel=1e-10)


def test_index_of_pooled_features_times_the_error_on_mixtures() -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 3)).double()
    x, y = torch.randn(40, 1, 8, 8, dtype=DOUBLE), torch.arange(40) % 3
    found = davies_bouldin_mixup(network, x, y)
    features = F.max_pool2d(network[0](x), 4).flatten(1).detach()
    error = float((mixed_logits(network, x, y, None, None).argmax(1) != y).double().mean())
    assert found["davies_bouldin"] == pytest.approx(davies_bouldin_score(features, y), rel=1e-9)
    assert found["mixup_error"] == error and found["product"] == pytest.approx(found["davies_bouldin"] * error)
    batches = davies_bouldin_mixup(network, x, y, batch_size=12)
    assert batches.values["davies_bouldin"].standard_error is not None  # type: ignore[attr-defined]
    with pytest.raises(NotMeasurable, match="one class"):
        davies_bouldin_mixup(network, x, torch.zeros(40).long())


def test_label_variation_is_the_quadratic_form_of_a_dense_laplacian() -> None:
    features, y = torch.randn(30, 6, dtype=DOUBLE), torch.arange(30) % 3
    rows = F.normalize(features, dim=1)
    similarity = (rows @ rows.T).clamp(0, 1)
    adjacency = torch.zeros(30, 30, dtype=DOUBLE)
    for i in range(30):
        order = similarity[i].clone()
        order[i] = -1
        for j in order.argsort(descending=True)[:5]:
            adjacency[i, j] = adjacency[j, i] = similarity[i, j]
    laplacian = adjacency.sum(1).diag() - adjacency
    labels = F.one_hot(y, 3).double()
    expected = (labels.T @ laplacian @ labels).trace() / adjacency.sum()
    assert label_variation(features, y, 5) == pytest.approx(float(expected), rel=1e-9)


def test_groups_of_samples_give_a_standard_error() -> None:
    network, x, y = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(90, 4), torch.arange(90) % 3
    whole = graph_label_variation(network, x, y)
    assert whole.values["features"].standard_error is None  # type: ignore[attr-defined]
    assert whole["change"] == pytest.approx(abs(whole["outputs"] - whole["features"]))
    parts = graph_label_variation(network, x, y, group_size=30)
    assert parts.values["features"].standard_error > 0  # type: ignore[attr-defined]


def test_a_simplex_has_collapsed() -> None:
    simplex = torch.eye(4, dtype=DOUBLE) - 0.25
    network = nn.Linear(4, 4, bias=False).double()
    network.weight.data.copy_(3 * simplex)
    x, y = simplex.repeat(5, 1) * 2 + 7.0, torch.arange(20) % 4
    found = neural_collapse(network, x, y).scalars()
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)


def test_within_over_between_of_dense_covariances() -> None:
    network, x = nn.Linear(6, 3).double(), torch.randn(30, 6, dtype=DOUBLE)
    y = torch.arange(30) % 3
    centres = torch.stack([x[y == c].mean(0) for c in range(3)])
    spread, means = x - centres[y], centres - centres.mean(0)
    expected = (spread.T @ spread / 30 @ torch.linalg.pinv(means.T @ means / 3)).trace() / 3
    found = neural_collapse(network, x, y)
    assert found["within_over_between"] == pytest.approx(float(expected), rel=1e-9)
    distance = torch.cdist(x, centres).argmin(1)
    assert found["centre_disagreement"] == pytest.approx(float((distance != network(x).argmax(1)).double().mean()))
    two_outputs = neural_collapse(nn.Linear(6, 4).double(), x, y)
    assert list(two_outputs.missing()) == ["head_mismatch"]
