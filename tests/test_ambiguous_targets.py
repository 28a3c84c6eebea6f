"""Targets whose task only the network's outputs decide: every function answers for the same task.

Zeros and ones [n, T] are several labels of a sample, or one class per token. Other integers [n, K] are regression
targets, or classes of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

N, TOKENS, WORDS = 120, 6, 30
ANSWERS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "forecast_accuracy": gs.forecast_accuracy,
    "out_of_sample": gs.out_of_sample,
    "find_label_issues": gs.find_label_issues,
    "check": gs.check,
}


class Tagger(nn.Module):
    """Returns the scores of two classes for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores [n, tokens, 2]."""
        return self.head(self.embedding(tokens))


def binary_tags() -> tuple[Tensor, Tensor]:
    """Return sentences, and whether each token is one of ten words."""
    tokens = torch.randint(0, WORDS, (N, TOKENS), generator=torch.Generator().manual_seed(0))
    return tokens, (tokens % 3 == 0).long()


def amounts(columns: int = 1) -> tuple[Tensor, Tensor]:
    """Return inputs, and whole numbers that grow with them."""
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
    y = (20 * x[:, :2].exp()).round().long()
    return x, y[:, :columns]


def task_in(answer: Any) -> str:
    """Return the kind of task that an answer is for, from whatever part of it tells."""
    if hasattr(answer, "task"):
        return str(answer.task)
    return str(answer.kind)


@pytest.mark.parametrize("function", ANSWERS)
def test_binary_tags_are_classes_of_positions_beside_a_tagger(function: str) -> None:
    answer = ANSWERS[function](Tagger(), binary_tags())
    assert "positions" in task_in(answer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_samples_of_zeros_and_ones_are_what_a_pair_of_them_is(dtype: torch.dtype) -> None:
    x, _ = amounts()
    several = x > 0
    several[0] = True
    one_hot = torch.eye(3)[torch.arange(N) % 3]
    assert gs.Samples(x, several.to(dtype)).kind == "multi-label"
    if dtype != torch.bool:
        assert gs.Samples(x, one_hot.to(dtype)).y.tolist() == [k % 3 for k in range(N)]
    stated = gs.Samples(x, several.to(dtype), task="regression")
    assert stated.kind == stated.subset(torch.arange(9)).kind == "regression"


def test_samples_of_binary_tags_are_settled_by_a_tagger() -> None:
    answer = gs.out_of_sample(Tagger(), gs.Samples(*binary_tags()))
    assert answer.task == "positions"


def test_measures_of_stated_regression_targets_have_their_loss() -> None:
    x, _ = amounts()
    network = nn.Linear(3, 3)
    stated = gs.Samples(x, (x > 0).float(), task="regression")
    squared = (network(x).detach() - stated.y).square().mean()
    assert gs.measure(network, stated, ["loss"])["loss"].value == pytest.approx(float(squared))


@pytest.mark.parametrize("form", [torch.tensor, numpy.array])
def test_labels_of_support_vector_machines_are_named_as_such(form: Any) -> None:
    x, _ = amounts()
    signs = form(((x[:, 0] > 0) * 2.0 - 1).tolist())
    for call in (gs.estimate_accuracy, gs.estimate_label_noise, gs.check):
        try:
            text = str(getattr(call(nn.Linear(3, 1), (x, signs)), "notes", ""))
        except InvalidInput as error:
            text = str(error)
        assert "y.long()" in text and 'task="classification"' in text
    named = gs.Samples(x, signs, task="classification")
    assert named.class_names == ("-1", "1")
    assert torch.equal(named.y, (x[:, 0] > 0).long())


def test_features_of_positions_decide_too() -> None:
    tokens, tags = binary_tags()
    features = torch.nn.functional.one_hot(tokens, WORDS).float()
    assert gs.out_of_sample(features, (tokens, tags)).task == "positions"


def test_probabilities_of_classes_of_several_labels_are_refused() -> None:
    tokens, tags = binary_tags()
    with pytest.raises(InvalidInput, match="are classes of positions"):
        gs.find_label_issues(None, (tokens, tags), pred_probs=torch.full((N, TOKENS, 2), 0.5))


@pytest.mark.parametrize("function", ["forecast_accuracy", "out_of_sample", "check"])
def test_amounts_are_regression_targets_beside_one_output_each(function: str) -> None:
    answer = ANSWERS[function](nn.Linear(3, 2), amounts(2))
    assert "regress" in task_in(answer)


def test_a_ranking_takes_amounts() -> None:
    ranking = gs.rank_networks(
        {"one": nn.Linear(3, 2), "two": nn.Sequential(nn.Linear(3, 2))}, amounts(2)
    )
    assert len(ranking) == 2


def test_rows_with_negative_integers_are_regression_targets() -> None:
    x, y = amounts(2)
    forecast = gs.forecast_accuracy(None, (x, y - 20))
    assert forecast.task == "regression"
    assert any("negative values" in note for note in forecast.notes)


def test_amounts_without_a_network_are_told_how_to_be_regression_targets() -> None:
    with pytest.raises(InvalidInput, match=r"task=\"regression\""):
        gs.forecast_accuracy(None, amounts(2))


def test_a_monitor_reads_the_accuracy_of_binary_tags() -> None:
    tokens, tags = binary_tags()
    network = Tagger()
    numbers = gs.Monitor((tokens, tags), measures=["loss", "accuracy"]).observe(network, 1)
    correct = network(tokens).argmax(2) == tags
    assert numbers["accuracy"] == pytest.approx(float(correct.double().mean()))


def test_a_training_function_of_binary_tags_gets_integers_and_is_refused_by_its_outputs() -> None:
    received = []

    def train(tokens: Tensor, tags: Tensor) -> nn.Module:
        received.append(tags.dtype)
        return Tagger()

    with pytest.raises(InvalidInput, match="make these targets positions"):
        gs.out_of_sample(train, binary_tags(), cost=5)
    assert received == [torch.int64]
