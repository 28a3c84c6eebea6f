"""Two networks that people come with, small: a ResNet-18 in training mode and a BERT classifier, with their data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.networks import build_network

N = 24


def resnet18() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A ResNet-18 an eighth as wide, for images of 8 x 8, with three classes; left in training mode."""
    generator = torch.Generator().manual_seed(0)
    network = build_network(
        "resnet18", input_shape=(3, 8, 8), n_outputs=3, generator=generator, width_multiplier=0.125
    )
    return network.train(), (torch.randn(N, 3, 8, 8, generator=generator), torch.arange(N) % 3)


def bert_classifier(**settings: int) -> Any:
    """A BERT classifier of one layer for 20 words, always with the same weights; `settings` change its size."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
             "num_labels": 2, "max_position_embeddings": 8}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(vocab_size=20, **sizes | settings)
        )


class TokensAlone(nn.Module):
    """A classifier of sentences on token ids alone, with token 0 as padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=(ids != 0).long()).logits


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    """A BERT classifier with dropout, in training mode, with sentences as a tokenizer gives them."""
    network = bert_classifier()
    ids = torch.randint(1, 20, (N, 7), generator=torch.Generator().manual_seed(0))
    ids[:10, 5:] = 0
    return network.train(), {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": ids.sum(1) % 2,
    }


def logits_of(network: Any, data: dict[str, Tensor]) -> Tensor:
    """What the BERT itself returns in evaluation mode."""
    training = network.training
    with torch.no_grad():
        outputs = network.eval()(
            input_ids=data["input_ids"], attention_mask=data["attention_mask"]
        ).logits
    network.train(training)
    return outputs
