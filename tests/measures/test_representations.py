"""Representations and robustness: scikit-learn, dense matrices, closed forms and enumeration."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import davies_bouldin_score
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._noise import mixed_logits, same_class_partners
from gapscope.measures.representations import (
    davies_bouldin,
    davies_bouldin_mixup,
    graph_label_variation,
    label_variation,
    neural_collapse,
)
from gapscope.measures.robustness import (
    PENALTIES,
    augmentation_robustness,
    change_saturation,
    crop,
    detect_edges,
    erase,
    flip,
    in_unit_range,
    mixup_robustness,
)

DOUBLE = torch.float64


def test_davies_bouldin_index_of_scikit_learn() -> None:
    features, y = torch.randn(60, 5, dtype=DOUBLE), torch.arange(60) % 4
    features += y[:, None]
    assert davies_bouldin(features, y) == pytest.approx(
        davies_bouldin_score(features, y), rel=1e-10
    )


def test_index_of_pooled_features_times_the_error_on_mixtures() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 3)
    ).double()
    x, y = torch.randn(40, 1, 8, 8, dtype=DOUBLE), torch.arange(40) % 3
    result = davies_bouldin_mixup(network, x, y)
    features = F.max_pool2d(network[0](x), 4).flatten(1).detach()
    error = float((mixed_logits(network, x, y, None, None).argmax(1) != y).double().mean())
    assert result["davies_bouldin"] == pytest.approx(davies_bouldin_score(features, y), rel=1e-9)
    assert result["mixup_error"] == error and result["product"] == pytest.approx(
        result["davies_bouldin"] * error
    )
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


def test_label_variation_tells_features_of_similar_direction_apart() -> None:
    t = torch.rand(200, 1, generator=torch.Generator().manual_seed(0)).double().sort(0).values
    y = torch.arange(200) // 20
    wide, narrow = (
        label_variation(torch.cat([torch.ones_like(t), scale * t], 1), y, 3)
        for scale in (0.1, 1e-3)
    )
    assert narrow == pytest.approx(wide, abs=0.02)


def test_groups_of_samples_give_a_standard_error() -> None:
    network, x, y = (
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        torch.randn(90, 4),
        torch.arange(90) % 3,
    )
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
    result = neural_collapse(network, x, y).scalars()
    assert result == pytest.approx(dict.fromkeys(result, 0.0), abs=1e-12)


def test_angles_and_graphs_do_not_depend_on_the_scale_of_features() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(30, 4, dtype=DOUBLE), torch.arange(30) % 3
    network = nn.Linear(4, 3, bias=False).double()
    for measure, name in ((neural_collapse, "unequal_angles"), (graph_label_variation, "features")):
        expected = measure(network, x, y)[name]
        assert measure(network, 1e-14 * x, y)[name] == pytest.approx(expected, rel=1e-9)
    # three classes on a line: that of the centre has no direction, whatever rounding says
    line = torch.tensor([[0.1, 0.3], [0.2, 0.6], [0.3, 0.9]], dtype=DOUBLE)
    angles = neural_collapse(nn.Linear(2, 3).double(), line.repeat(5, 1), torch.arange(15) % 3)
    assert angles["unequal_angles"] == pytest.approx(0.5)


def test_within_over_between_of_dense_covariances() -> None:
    network, x = nn.Linear(6, 3).double(), torch.randn(30, 6, dtype=DOUBLE)
    y = torch.arange(30) % 3
    centres = torch.stack([x[y == c].mean(0) for c in range(3)])
    spread, means = x - centres[y], centres - centres.mean(0)
    expected = (spread.T @ spread / 30 @ torch.linalg.pinv(means.T @ means / 3)).trace() / 3
    result = neural_collapse(network, x, y)
    assert result["within_over_between"] == pytest.approx(float(expected), rel=1e-9)
    distance = torch.cdist(x, centres).argmin(1)
    assert result["centre_disagreement"] == pytest.approx(
        float((distance != network(x).argmax(1)).double().mean())
    )
    two_outputs = neural_collapse(nn.Linear(6, 4).double(), x, y)
    assert list(two_outputs.missing()) == ["head_mismatch"]


def test_partners_are_a_permutation_within_classes() -> None:
    y = torch.tensor([0, 1, 0, 2, 1, 0, 0])
    result = same_class_partners(y, None)
    assert result.sort().values.tolist() == list(range(7)) and bool((y[result] == y).all())
    assert result[3] == 3 and all(result[i] != i for i in (0, 1, 2, 4, 5, 6))


def test_mixtures_of_a_linear_network_are_mixtures_of_its_outputs() -> None:
    network, x = nn.Linear(3, 3).double(), torch.randn(30, 3, dtype=torch.float64)
    y = torch.arange(30) % 3
    outputs = network(x).detach()
    mixed = (outputs + outputs[same_class_partners(y, None)]) / 2
    result = mixup_robustness(network, x, y)
    assert result["accuracy"] == pytest.approx(float((mixed.argmax(1) == y).double().mean()))
    assert result["loss"] == pytest.approx(float(F.cross_entropy(mixed, y)), rel=1e-10)
    losses = F.cross_entropy(mixed, y, reduction="none")
    assert result.values["loss"].standard_error == pytest.approx(float(losses.std()) / 30**0.5)  # type: ignore[attr-defined]


class LeftIsBright(nn.Module):
    """Class 0 where the left half is brighter than the right one, sure of it."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = (
            x[..., : x.shape[3] // 2].mean((1, 2, 3)),
            x[..., x.shape[3] // 2 :].mean((1, 2, 3)),
        )
        return 1000 * torch.stack([left - right, right - left], 1)


def test_penalties_of_a_network_whose_predictions_flip() -> None:
    x = torch.zeros(6, 3, 8, 8)
    x[:, :, :, :4] = (
        1.0  # white and grey: saturation changes nothing; the crop and brightness keep the side
    )
    result = augmentation_robustness(LeftIsBright(), x)
    # flip 6, flip and saturation 12, always; edges lie in the middle, erasing takes some of the left half away
    draws = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    network, total = LeftIsBright(), 0.0
    before = network(x).softmax(1).max(1)
    for transform, penalty in PENALTIES.items():
        after = network(in_unit_range(x, transform)(x, draws)).softmax(1).max(1)
        same = after.indices == before.indices
        total += float(torch.where(same, (after.values - before.values).abs(), penalty).mean())
    again = augmentation_robustness(network, x, generator=torch.Generator().manual_seed(0))
    assert again["penalty"] == pytest.approx(total) and total >= 18
    assert result["agreement"] <= 5 / 7


def test_transformations() -> None:
    x = torch.rand(40, 3, 10, 10)
    draws = torch.rand(40, 6, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    assert torch.equal(flip(x, draws)[..., 0], x[..., 9])
    changed = change_saturation(x, draws)
    torch.testing.assert_close(changed.amax(1), x.amax(1))  # the value stays

    def saturation(images: Tensor) -> Tensor:
        return (images.amax(1) - images.amin(1)) / images.amax(1)

    factor = (0.6 + draws[:, 0, None, None].float()).expand(40, 10, 10)
    torch.testing.assert_close(
        saturation(changed), (saturation(x) * factor).clamp_max(1), rtol=1e-4, atol=1e-5
    )
    ramp = torch.arange(10.0).expand(2, 1, 10, 10)
    assert detect_edges(ramp, draws[:2])[0, 0, 4, 4] == 8 / 4 + 0.5
    torch.testing.assert_close(crop(torch.ones(2, 3, 32, 32), draws[:2]), torch.ones(2, 3, 32, 32))
    blanked = erase(x + 1, draws)
    zero = (blanked == 0).all(1)
    assert bool(((blanked == 0) | (blanked == x + 1)).all())
    for image in zero:  # one rectangle each
        rows, columns = image.any(1), image.any(0)
        assert int(image.sum()) == int(rows.sum()) * int(columns.sum()) > 0
