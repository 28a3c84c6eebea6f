"""Positions: each is predicted by the other samples alone, as explicit refits predict it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.inspection.validation import ready
from gapscope.measures.positions import (
    FREQUENCIES,
    NEIGHBOURHOOD,
    feature_scores,
    features_at,
    input_scores,
    labelled_positions,
    token_frequencies,
)

N, T, N_TOKENS, N_CLASSES = 60, 8, 20, 3


class Tagger(nn.Module):
    """A GRU with one output per token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.head = nn.Linear(12, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


@pytest.fixture
def tags() -> tuple[Tensor, Tensor]:
    """Token ids whose class is their remainder, a tenth at random, and two unlabelled positions in each sample."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, N_TOKENS, (N, T), generator=generator)
    y = x % N_CLASSES
    wrong = torch.rand(N, T, generator=generator) < 0.1
    y[wrong] = torch.randint(0, N_CLASSES, (int(wrong.sum()),), generator=generator)
    y[:, -2:] = -100
    return x, y


def test_positions_without_a_label_do_not_count(tags: tuple[Tensor, Tensor]) -> None:
    positions = labelled_positions(tags[1], seed=0)
    assert len(positions) == N * (T - 2) == positions.n_labelled and not positions.note
    assert torch.equal(positions.take(tags[1]), positions.labels)
    few = labelled_positions(tags[1], seed=0, most=2 * N + 5)
    assert torch.equal(few.samples.bincount(), torch.full((N,), 2)) and "120 of 360" in few.note
    assert torch.equal(few.take(tags[1]), few.labels) and not torch.equal(
        few.places[0::2], few.places[1::2]
    )


def test_token_frequencies_are_those_of_the_other_samples(tags: tuple[Tensor, Tensor]) -> None:
    x, y = tags
    positions = labelled_positions(y, seed=0)
    scores = token_frequencies(positions.take(x), positions)
    prior = positions.labels.bincount(minlength=N_CLASSES).double() / len(positions)
    for row in (0, 17, 200):
        sample, place = int(positions.samples[row]), int(positions.places[row, 0])
        others = (torch.arange(N) != sample)[:, None] & (x == x[sample, place]) & (y != -100)
        expected = y[others].bincount(minlength=N_CLASSES).double() + prior
        torch.testing.assert_close(scores[row], expected / expected.sum())


def test_scores_of_features_equal_refits_without_the_sample(tags: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    prepared = ready(Tagger(), as_samples(tags))
    positions = labelled_positions(tags[1], seed=0)
    features, _ = features_at(prepared, positions)
    scores = feature_scores(features, positions, "features")["linear ridge on features"]
    phi = features.double()
    phi = (phi - phi.mean(0)) / phi.std(0, correction=0).mean()
    targets = nn.functional.one_hot(positions.labels, N_CLASSES).double()
    unit = float(phi.square().sum() / len(phi))
    errors = []
    for ridge in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
        refit = torch.empty_like(targets)
        for sample in range(N):
            inside = positions.samples == sample
            x, y = phi[~inside], targets[~inside]
            gram = (x - x.mean(0)).T @ (x - x.mean(0)) + ridge * unit * torch.eye(
                x.shape[1], dtype=torch.float64
            )
            weights = torch.linalg.solve(gram, (x - x.mean(0)).T @ (y - y.mean(0)))
            refit[inside] = (phi[inside] - x.mean(0)) @ weights + y.mean(0)
        errors.append(float((scores - refit).abs().max()))
    assert min(errors) < 1e-8, errors


def test_pixels_are_predicted_from_their_neighbourhood() -> None:
    x = torch.rand(30, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long()
    scores = input_scores(as_samples((x, y)), labelled_positions(y, seed=0))
    assert float((scores[NEIGHBOURHOOD].argmax(1) == y.flatten()).double().mean()) > 0.95


def test_held_out_predictions_and_forecast_of_tokens(tags: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    network = Tagger()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    held = gs.out_of_sample(network, tags)
    assert held.task == "positions" and held.positions is not None and held.groups == N
    assert (
        len(held) == N * (T - 2)
        and FREQUENCIES in held.method
        and held.low < held.score < held.high
    )
    table = held.to_pandas()
    assert (
        list(table.columns[:2]) == ["sample", "position"]
        and table["given label"].tolist() == held.targets.tolist()
    )
    forecast = gs.forecast_accuracy(network, tags)
    assert (
        forecast.task == "positions"
        and forecast.interval is None
        and forecast.score == pytest.approx(held.score)
    )
    assert 0.85 < forecast.score < 0.97 and "per position" in repr(forecast)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_labels_without_signal_get_no_forecast(tags: tuple[Tensor, Tensor]) -> None:
    y = torch.randint(0, N_CLASSES, (N, T), generator=torch.Generator().manual_seed(1))
    assert gs.forecast_accuracy(None, (tags[0], y)).abstained_because


def test_a_network_that_has_fitted_the_labels_is_not_used(tags: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    network = Tagger()
    x, y = tags[0], torch.randint(0, N_CLASSES, (N, T), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    forecast = gs.forecast_accuracy(network, (x, y))
    assert "trained on them" in " ".join(forecast.notes) and not any(
        "features" in row.method for row in forecast.rows
    )


@pytest.mark.parametrize("grid", [(N, T - 1, 4), (N, 4)])
def test_features_of_other_positions_are_refused(
    tags: tuple[Tensor, Tensor], grid: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"\[60, 8, d\]"):
        gs.out_of_sample(torch.randn(*grid), tags)


def test_given_features_of_positions(tags: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    network = Tagger()
    features = gs.embed(network, tags[0], pooling="none")
    assert gs.out_of_sample(features, tags).score == pytest.approx(
        gs.out_of_sample(network, tags).score
    )


def test_several_labels_per_sample_have_a_forecast() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 5, generator=generator)
    y = x @ torch.randn(5, 4, generator=generator) > 0
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 4))
    forecast = gs.forecast_accuracy(network, (x, y))
    assert (
        forecast.task == "multi-label"
        and forecast.interval is None
        and "per label" in repr(forecast)
    )
    assert 0.85 < forecast.score <= 1 and {row.method for row in forecast.rows} >= {
        "NTK",
        "last hidden features",
    }
    ntk = forecast.row("NTK")
    assert ntk is not None
    expected = ((ntk.predictions > 0.5) == y).double().mean()
    assert ntk.score == pytest.approx(float(expected))


def test_the_next_token_of_a_causal_language_model_has_its_place_in_the_labels() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=N_TOKENS,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = transformers.GPT2LMHeadModel(config)
    start = torch.randint(0, N_TOKENS, (N, 1))
    ids = (start + torch.arange(T)) % N_TOKENS  # each token tells the next one
    wrong = ids.clone()
    wrong[7, 3] = (ids[7, 3] + 5) % N_TOKENS
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": wrong}
    issues = gs.find_label_issues(network, data)
    assert (int(issues.indices[0]), issues.places[0].tolist()) == (7, [3])
    assert issues.places.min() == 1 and len(issues.indices) == N * (T - 1)
    held = gs.out_of_sample(network, data)
    assert held.positions is not None and held.positions[:, 1].min() == 1 and held.score > 0.95
