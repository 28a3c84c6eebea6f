"""Model cards: what the hub's own reader finds in the block, and what stands there without an answer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

X = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
DATA = (X, (X[:, 0] > 0).long())
NAME = 'a "name": {with} all'


@pytest.mark.parametrize("verb", ["forecast", "held out", "check"])
def test_the_reader_of_the_hub_finds_the_score(verb: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    torch.manual_seed(0)
    network = nn.Linear(2, 2)
    gs.train(network, DATA, gs.TrainingSpec(epochs=5))
    result, score = {
        "forecast": lambda: (answer := gs.forecast_accuracy(None, DATA), answer.score),
        "held out": lambda: (answer := gs.out_of_sample(None, DATA), answer.score),
        "check": lambda: (
            gs.check(network, DATA, test=DATA, only=["GS402"]),
            float((network(X).argmax(1) == DATA[1]).float().mean()),
        ),
    }[verb]()
    card = hub.ModelCard(gs.integrations.model_card(result, name=NAME, dataset="points"))
    (found,) = card.data.eval_results
    assert found.metric_value == pytest.approx(score, abs=1e-4) and card.data.model_name == NAME
    assert (found.task_type, found.metric_type, found.dataset_name) == (
        "classification",
        "accuracy",
        "points",
    )
    assert ("test samples" if verb == "check" else "on new data") in found.metric_name
    assert ("## Expected accuracy" in card.text and " interval " in card.text) or verb == "check"


def test_without_an_answer_there_are_no_metadata() -> None:
    torch.manual_seed(0)
    network = nn.Linear(2, 2)
    gs.train(network, DATA, gs.TrainingSpec(epochs=5))
    answer = gs.estimate_accuracy(network, DATA, n_training=5000)
    card = gs.integrations.model_card(answer, name=NAME, dataset="points")
    assert "model-index" not in card and "No answer: " in card


@pytest.mark.parametrize("other", [3, None, nn.Linear(2, 2)])
def test_what_has_no_score_is_refused(other: object) -> None:
    with pytest.raises(InvalidInput, match="must be an answer"):
        gs.integrations.model_card(other, name="a", dataset="b")  # type: ignore[arg-type]


def test_checks_of_data_alone_have_no_account() -> None:
    with pytest.raises(InvalidInput, match="Pass a network"):
        gs.integrations.model_card(gs.check(None, DATA), name="a", dataset="b")
