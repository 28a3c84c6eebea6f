"""Which networks predict the next token: subclasses, wrappers, masked models, shifted labels, plain networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.inspection.next_position import UNDECIDED, is_causal, predicts_next

transformers: Any = pytest.importorskip("transformers")

IDS = torch.randint(1, 20, (12, 7), generator=torch.Generator().manual_seed(0))
# the labels of padding count nowhere
LABELS = torch.where(torch.arange(7) < torch.randint(4, 8, (12, 1)), IDS, -100)


class OwnGPT(transformers.GPT2LMHeadModel):
    pass


class OverriddenGPT(transformers.GPT2LMHeadModel):
    def forward(self, input_ids: Tensor, labels: Any = None) -> Any:
        return super().forward(input_ids=input_ids, labels=labels)


class Passing(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Any = None) -> Any:
        return self.model(input_ids=input_ids, labels=labels)


class LogitsAlone(Passing):
    def forward(self, input_ids: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.model(input_ids).logits


class Tagger(Passing):
    """A head on the logits of a language model, for tags of the tokens themselves."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.head = nn.Linear(20, 20)

    def forward(self, input_ids: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.head(self.model(input_ids).logits)


def gpt(kind: Any = transformers.GPT2LMHeadModel) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        return kind(
            transformers.GPT2Config(vocab_size=20, bos_token_id=0, eos_token_id=0, **sizes)
        ).eval()


def shifted_loss(logits: Tensor, labels: Tensor) -> float:
    return float(F.cross_entropy(logits[:, :-1].mT, labels[:, 1:]))


NETWORKS = {
    "the class": gpt,
    "a subclass": lambda: gpt(OwnGPT),
    "a subclass with its own forward": lambda: gpt(OverriddenGPT),
    "a wrapper that passes labels": lambda: Passing(gpt()),
    "a wrapper of the logits": lambda: LogitsAlone(gpt()),
    "a wrapper of a subclass": lambda: LogitsAlone(gpt(OwnGPT)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_causal_models_in_any_form_have_the_loss_of_the_next_token(name: str) -> None:
    readings = gs.measure(NETWORKS[name](), {"input_ids": IDS, "labels": LABELS}, ["loss"])
    with torch.no_grad():
        expected = shifted_loss(gpt()(IDS).logits, LABELS)
    assert readings["loss"].value == pytest.approx(expected, rel=1e-5)
    assert UNDECIDED not in readings.notes


@pytest.mark.parametrize("name", NETWORKS)
def test_labels_that_are_shifted_already_are_not_shifted_again(name: str) -> None:
    data = {"input_ids": IDS[:, :-1], "labels": IDS[:, 1:]}
    readings = gs.measure(NETWORKS[name](), data, ["loss"])
    with torch.no_grad():
        expected = float(F.cross_entropy(gpt()(IDS[:, :-1]).logits.mT, IDS[:, 1:]))
    assert readings["loss"].value == pytest.approx(expected, rel=1e-5)


def test_masked_models_and_taggers_have_the_loss_of_the_token_itself() -> None:
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    masked = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=20, **sizes)).eval()
    # its name ends like that of a causal model, its loss is not shifted
    named = transformers.XLMWithLMHeadModel(
        transformers.XLMConfig(vocab_size=20, emb_dim=8, n_layers=1, n_heads=1)
    ).eval()
    for model in (masked, named):
        readings = gs.measure(model, {"input_ids": IDS, "labels": LABELS}, ["loss"])
        own = model(input_ids=IDS, labels=LABELS).loss.item()
        assert readings["loss"].value == pytest.approx(own, rel=1e-4)
    tagger = Tagger(gpt())
    tags = (IDS * 3) % 20
    value = gs.measure(tagger, {"input_ids": IDS, "labels": tags}, ["loss"])["loss"].value
    assert value == pytest.approx(F.cross_entropy(tagger(IDS).mT, tags).item(), rel=1e-5)


def test_a_network_of_which_nothing_is_known_gets_a_note() -> None:
    plain = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    assert UNDECIDED in gs.measure(plain, (IDS, LABELS), ["loss"]).notes
    assert UNDECIDED not in gs.measure(plain, (IDS, (IDS * 3) % 20), ["loss"]).notes
    assert UNDECIDED not in gs.measure(plain, (IDS[:, :-1], IDS[:, 1:]), ["loss"]).notes


def test_the_own_loss_comes_before_the_class_and_a_loss_of_neither_kind_decides_nothing() -> None:
    model = gpt()
    logits = model(IDS).logits.detach()
    same, shifted = F.cross_entropy(logits.mT, IDS), torch.tensor(shifted_loss(logits, IDS))
    assert is_causal(model) and is_causal(gpt(OwnGPT)) and not is_causal(Passing(model))
    assert predicts_next(model, logits, IDS, ids=IDS, loss=same) is False
    assert predicts_next(nn.Identity(), logits, IDS, ids=IDS, loss=shifted) is True
    assert predicts_next(nn.Identity(), logits, IDS, ids=IDS, loss=2 * shifted) is None
    assert predicts_next(nn.Identity(), logits, IDS) is False
