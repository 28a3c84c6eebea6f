"""Texts for a network of token ids: the advice is to tokenize them, in every function and form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

TEXTS = ["good film", "bad film", "a very good one", "awful thing"] * 15
LABELS = torch.tensor([1, 0, 1, 0] * 15)
FRAME = pandas.DataFrame({"text": TEXTS, "label": LABELS})


class Tokens(nn.Module):
    """Network of token ids of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(5000, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.output(self.embedding(input_ids).mean(1))


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "measure": lambda network: gs.measure(network, (TEXTS, LABELS), ["loss"]),
    "check": lambda network: gs.check(network, (TEXTS, LABELS)),
    "find_label_issues": lambda network: gs.find_label_issues(network, (TEXTS, LABELS)),
    "embed": lambda network: gs.embed(network, (TEXTS, LABELS)),
    "embed texts": lambda network: gs.embed(network, TEXTS),
    "forecast": lambda network: gs.forecast_accuracy(network, (TEXTS, LABELS)),
    "mapping": lambda network: gs.measure(network, {"text": TEXTS, "labels": LABELS}, ["loss"]),
    "check of a frame": lambda network: gs.check(network, FRAME, target="label"),
    "issues of a frame": lambda network: gs.find_label_issues(network, FRAME, target="label"),
    "columns": lambda network: gs.measure(network, (FRAME[["text"]], LABELS), ["loss"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_texts_for_a_network_of_token_ids_are_to_be_tokenized(call: str) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(InvalidInput, match=r"(?i)tokenize them") as error:
        CALLS[call](Tokens())
    assert "4,096" not in str(error.value) and "4096" not in str(error.value)


def test_a_network_of_numbers_that_holds_an_embedding_reads_columns_of_categories() -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.output = nn.Embedding(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.output(x + self.positions(torch.arange(1)))

    assert gs.check(Numbers(), FRAME, target="label", only=["GS104"]).fine
