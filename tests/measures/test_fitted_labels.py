"""Networks that have fitted the labels are replaced; untrained and pretrained ones are used as they are."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.fitted_labels import network_before_training
from gapscope.networks.initialization import resampled_state
from gapscope.statistics.baselines import rbf_ridge, sample_features

N, WIDTH, NOISE = 300, 256, 0.15


@cache
def digits() -> tuple[Tensor, Tensor]:
    train = gs.load_dataset("digits").train.subset(torch.arange(N))
    return train.inputs.flatten(1), gs.data.inject_label_noise(train.y, NOISE, n_classes=10)


def untrained(n_outputs: int = 10, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, n_outputs))


@cache
def trained() -> nn.Sequential:
    """A network that has memorized 15 % of false labels."""
    (x, y), network = digits(), untrained()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert float((network(x).argmax(1) == y).float().mean()) > 0.99
    return network


def outcome(network: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[Ready, Any]:
    prepared = ready(network, data, needs=("outputs",))
    baseline = rbf_ridge(sample_features(prepared.samples), prepared.samples.y)
    return prepared, network_before_training(prepared, baseline.predictions)


def test_an_untrained_network_is_used_as_it_is() -> None:
    prepared, result = outcome(untrained(), digits())
    assert result.prepared is prepared
    assert result.note == ""


def test_a_pretrained_network_with_a_new_head_is_used_as_it_is() -> None:
    x, y = digits()
    network = nn.Sequential(*list(trained())[:2], untrained(seed=1)[2])
    prepared, result = outcome(network, (x, y))
    assert result.prepared is prepared


def test_a_network_that_fitted_the_labels_is_resampled() -> None:
    network = trained()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    prepared, result = outcome(network, digits())
    assert "may have been trained on them" in result.note and "gs.embed" in result.note
    assert result.prepared.network is not prepared.network
    fresh = resampled_state(network)
    assert all(
        torch.equal(value, fresh[name]) for name, value in result.prepared.bare.state_dict().items()
    )
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def other_labels(noise: float) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A network that is sure of the labels of a rule, and samples with false labels that it has not seen."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 20, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, head = nn.Linear(20, 64), nn.Linear(64, 5, bias=False)
    network = nn.Sequential(first, nn.ReLU(), head)
    with torch.no_grad():
        first.weight[:, 4:] = 0
        y = network(x).argmax(1)
        head.weight.mul_(100)
    return network, (x, gs.data.inject_label_noise(y, noise, n_classes=5))


def test_a_network_that_labels_contradict_was_not_trained_on_them() -> None:
    network, (x, y) = other_labels(NOISE)
    prepared, result = outcome(network, (x, y))
    assert result.prepared is prepared and not result.fit
    assert "not trained on them" in result.note
    held = gs.out_of_sample(network, (x, y))
    assert "features" in held.method and result.note in held.notes


@pytest.mark.thorough
def test_predictions_that_labels_contradict_rank_them() -> None:
    network, (x, y) = other_labels(NOISE)
    probabilities = network(x).softmax(1).detach()
    issues = gs.find_label_issues(None, (x, y), pred_probs=probabilities)
    assert issues.method == "pred_probs" and issues.n_flagged


def test_without_false_labels_it_is_not_known_whether_a_network_was_trained_on_them() -> None:
    _, result = outcome(*other_labels(0.0))
    assert result.fit and "may have been trained" in result.note and "gs.embed" in result.note


@pytest.mark.parametrize("steps", [20, 40, 80])
def test_a_network_that_is_being_trained_is_recognized(steps: int) -> None:
    _, (x, y) = other_labels(NOISE)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    prepared, result = outcome(network, (x, y))
    assert result.prepared is not prepared


class OwnWeights(nn.Module):
    """A layer of weights that cannot be sampled again."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.scale = network, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) * self.scale


def test_weights_that_cannot_be_resampled() -> None:
    _, result = outcome(OwnWeights(trained()), digits())
    assert result.prepared is None
    assert "cannot be resampled" in result.note


def test_regression_targets_that_were_memorized() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 5, generator=generator), torch.randn(100, 1, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 128), nn.Tanh(), nn.Linear(128, 1))
    prepared, result = outcome(network, (x, y))
    assert result.prepared is prepared
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
    prepared, result = outcome(network, (x, y))
    assert result.prepared is not prepared


@pytest.mark.thorough
def test_every_verb_before_training_answers_a_trained_network() -> None:
    """Oracles: 15 % of the labels are wrong, and every verb gives the answer of the resampled weights."""
    network, data = trained(), digits()
    fresh = untrained()
    fresh.load_state_dict(resampled_state(network))
    forecast, expected = (gs.forecast_accuracy(each, data) for each in (network, fresh))
    assert forecast.score == pytest.approx(expected.score, abs=1e-6)
    assert any("trained on them" in note for note in forecast.notes)
    ranking = gs.rank_networks({"a": network}, data)
    assert ranking[0].expected_accuracy == pytest.approx(
        gs.rank_networks({"a": fresh}, data)[0].expected_accuracy
    )
    assert "trained on them" in ranking.notes["a"]
    noise = gs.estimate_label_noise(network, data)
    assert noise.low < NOISE < noise.high
    issues = gs.find_label_issues(network, data)
    assert issues.indices.tolist() == gs.find_label_issues(fresh, data).indices.tolist()


@pytest.mark.thorough
def test_label_verbs_keep_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass beyond the budget leaves the network out; a kernel beyond it leaves its features."""
    expected = gs.find_label_issues(None, digits()).indices.tolist()
    for seconds, method in ((1e6, "RBF ridge"), (1.0, "")):
        monkeypatch.setattr(
            "gapscope.labels.kernel_views.forward_seconds", lambda _, seconds=seconds: seconds
        )
        issues = gs.find_label_issues(untrained(), digits(), time_budget=3.0)
        assert any("was not used" in note for note in issues.notes)
        assert not method or issues.indices.tolist() == expected
