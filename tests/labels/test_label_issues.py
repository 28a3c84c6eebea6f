"""`gs.estimate_label_noise` and `gs.find_label_issues` on real data with labels made wrong, and their refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from cases import CASES
from door_networks import bert_classifier
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.data import inject_label_noise as with_wrong_labels


def digits(rate: float, n: int = 400, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """An untrained network, images, labels of which a share is wrong, and which."""
    train = gs.load_dataset("digits").train.subset(torch.arange(n))
    assert train.targets is not None
    generator = torch.Generator().manual_seed(seed)
    labels = with_wrong_labels(train.targets, rate, 10, generator)
    network = gs.build_network(
        "fully_connected", input_shape=(1, 8, 8), n_outputs=10, generator=generator, n_hidden=2, width=64
    )
    return network, train.inputs, labels, labels != train.targets


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3])
def test_the_rate_of_digits(rate: float) -> None:
    network, x, y, _ = digits(rate)
    found = gs.estimate_label_noise(network, (x, y))
    assert abs(found.rate - rate) < 0.05 and found.low <= found.rate <= found.high
    assert found.clean_accuracy > 0.85 and found.samples == 400


def test_wrong_labels_stand_first() -> None:
    network, x, y, wrong = digits(0.2)
    found = gs.find_label_issues(network, (x, y))
    ranks = torch.empty(400).scatter_(0, found.indices, torch.arange(400.0))
    area = (ranks[~wrong].mean() - ranks[wrong].mean()) / 400 + 0.5  # area under the ROC curve, ties aside
    assert area > 0.98
    flagged = found.indices[: found.n_flagged]
    precision, recall = float(wrong[flagged].double().mean()), float(wrong[flagged].sum() / wrong.sum())
    assert recall > 0.85 and abs(precision - found.expected_precision) < 0.2
    truth = gs.load_dataset("digits").train.targets
    assert truth is not None
    assert float((found.suggested_labels[: found.n_flagged] == truth[flagged]).double().mean()) > 0.75


def test_nothing_is_drawn_from_the_global_stream_and_the_network_is_left_alone() -> None:
    network, x, y, _ = digits(0.1, n=120)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.manual_seed(3)
    first = gs.find_label_issues(network, (x, y))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert first.to_json() == gs.find_label_issues(network, (x, y)).to_json()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_labels_without_a_meaning_are_refused_and_still_ranked() -> None:
    network, x, y, _ = digits(0.0, n=120)
    shuffled = y[torch.randperm(120, generator=torch.Generator().manual_seed(0))]
    with pytest.raises(NotMeasurable, match="cannot be told: right ones must be predicted from the others at 60%"):
        gs.estimate_label_noise(network, (x, shuffled))
    found = gs.find_label_issues(network, (x, shuffled))
    assert found.noise is None and math.isnan(found.expected_precision) and len(found.indices) == 120
    assert "cannot be told" in repr(found)


def test_landmarks_stand_for_many_samples() -> None:
    network, x, y, wrong = digits(0.2)
    found = gs.find_label_issues(network, (x, y), max_exact=100, landmarks=200)
    assert found.noise is not None and abs(found.noise.rate - 0.2) < 0.08
    assert float(wrong[found.indices[:60]].double().mean()) > 0.8


@pytest.mark.parametrize("name", ["ResNet-18, narrow", "encoder"])
def test_networks_that_people_have(name: str) -> None:
    network, samples = CASES[name].make(108)
    found = gs.find_label_issues(network, samples)
    assert len(found.indices) == 108 and sorted(found.indices.tolist()) == list(range(108))


def test_a_mapping_of_inputs() -> None:
    ids = torch.randint(20, (104, 6), generator=torch.Generator().manual_seed(0))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 2}
    assert len(gs.find_label_issues(bert_classifier(), data).indices) == 104


def test_it_prints_a_table() -> None:
    network, x, y, _ = digits(0.2)
    lines = repr(gs.find_label_issues(network, (x, y))).splitlines()
    assert len(lines) <= 15 and "labels are wrong" in lines[0] and "are flagged" in lines[1]
    assert lines[3].split() == ["sample", "given", "likelier", "margin", "flagged"]


def test_messages() -> None:
    network, x, y, _ = digits(0.0, n=120)
    with pytest.raises(InvalidInput, match="100 samples or more; got 50"):
        gs.estimate_label_noise(network, (x[:50], y[:50]))
    with pytest.raises(InvalidInput, match="need class labels"):
        gs.find_label_issues(network, (x, torch.randn(120, 10)))
