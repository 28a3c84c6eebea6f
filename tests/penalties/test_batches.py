"""Penalties of mini-batches as mappings, several inputs and Hugging Face outputs."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.input_layout import pack_inputs
from gapscope.gradients import verification
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.penalties.automatic_strength import AutomaticStrength
from gapscope.penalties.base import Penalty
from support.door_networks import TokensAlone, bert, bert_classifier

PENALTIES: dict[str, Callable[[], Penalty]] = {
    "trace": lambda: gs.GradientSimilarityPenalty(0.1, method="exact"),
    "probe": lambda: gs.GradientSimilarityPenalty(0.1),
    "log determinant": lambda: gs.GradientSimilarityPenalty(0.1, kind="logdet"),
    "weights": lambda: gs.penalties.L2Penalty(0.1),
    "loss gradient": lambda: gs.penalties.LossGradientPenalty(0.1),
}


def gradients(network: nn.Module, value: Tensor) -> Tensor:
    parameters = list(network.parameters())
    result = torch.autograd.grad(
        value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten() for gradient in result])


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_a_bert_on_a_mapping_is_the_one_on_tokens(kind: str, wrap: Any) -> None:
    network, data = bert()
    network.double().eval()
    outputs, value = PENALTIES[kind]().forward_with_penalty(network, wrap(data))
    labels = data["labels"]
    expected = PENALTIES[kind]()(TokensAlone(network), data["input_ids"], labels)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9) and value.item() > 0
    torch.testing.assert_close(
        gradients(network, value), gradients(network, expected), rtol=1e-7, atol=1e-9
    )
    # the model's own object, with the loss of the labels that were in the batch
    assert type(outputs).__name__ == "SequenceClassifierOutput"
    assert outputs.loss.item() == pytest.approx(
        F.cross_entropy(outputs.logits, labels).item(), rel=1e-9
    )
    (outputs.loss + value).backward()


def test_gradients_are_verified_once_per_network_and_not_at_every_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, data = bert()
    replays = []
    original = verification._perturbed_replay
    monkeypatch.setattr(
        verification,
        "_perturbed_replay",
        lambda *given, **named: replays.append(1) or original(*given, **named),
    )
    penalty = gs.GradientSimilarityPenalty(0.1)
    counts = []
    for start in (0, 8, 16, 0):
        penalty.forward_with_penalty(
            network, {name: part[start : start + 8] for name, part in data.items()}
        )
        counts.append(len(replays))
    assert counts[0] > 0 and counts[1:] == counts[:1] * 3


class ByKeyword(nn.Module):
    """Adds two inputs that are passed by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(left + right)


class ByPosition(ByKeyword):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        return self.layer(left + right)


@pytest.mark.filterwarnings("ignore:The value of GradientSimilarityPenalty")  # one linear layer
@pytest.mark.parametrize("kind", [*PENALTIES, "inputs"])
def test_modules_of_several_inputs_equal_a_linear_layer_of_their_sum(kind: str) -> None:
    torch.manual_seed(0)
    left, right, y = torch.randn(8, 3).double(), torch.randn(8, 3).double(), torch.arange(8) % 2
    network, tuple_network = ByKeyword().double(), ByPosition().double()
    tuple_network.load_state_dict(network.state_dict())
    make = PENALTIES.get(kind, lambda: gs.penalties.InputJacobianPenalty(0.1, method="exact"))
    outputs, value = make().forward_with_penalty(
        network, {"left": left, "right": right, "labels": y}
    )
    expected = make()(network.layer, left + right, y)
    # the sum moves with either input: the derivative by both has twice the squares
    factor = 2 if kind == "inputs" else 1
    assert value.item() == pytest.approx(factor * expected.item(), rel=1e-9)
    assert torch.equal(outputs, network.layer(left + right))
    again = make().forward_with_penalty(tuple_network, (left, right), y)[1]
    assert again.item() == pytest.approx(value.item(), rel=1e-12)


def tiny_gpt2() -> Any:
    transformers: Any = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        settings = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).double().eval()


def sentences() -> dict[str, Tensor]:
    ids = torch.randint(1, 11, (6, 5), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:2, 3:] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def test_a_causal_language_model_has_its_own_loss_everywhere() -> None:
    model, data = tiny_gpt2(), sentences()
    own = model(**data).loss.item()
    result = gs.measure(model, data, ["loss", "accuracy"]).values()
    assert result["loss"] == pytest.approx(own, rel=1e-6)
    logits, labels = model(**data).logits[:, :-1], data["labels"][:, 1:]
    counted = labels != -100
    assert result["accuracy"] == pytest.approx(
        (logits.argmax(2) == labels)[counted].double().mean().item()
    )
    monitor = gs.Monitor(data, ["loss"])
    assert monitor.observe(model, 1)["loss"] == pytest.approx(own, rel=1e-6)


def test_the_loss_gradient_of_a_causal_language_model() -> None:
    model, data = tiny_gpt2(), sentences()
    outputs, value = gs.penalties.LossGradientPenalty(0.5).forward_with_penalty(model, data)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result = torch.autograd.grad(model(**data).loss, parameters, allow_unused=True)
    expected = 0.5 * sum(
        float(gradient.square().sum()) for gradient in result if gradient is not None
    )
    assert value.item() == pytest.approx(expected, rel=1e-6) and outputs.loss is not None


class _Passing(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Any = None) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def test_a_wrapped_causal_language_model_and_an_adapted_one_have_its_loss_gradient() -> None:
    model, data = tiny_gpt2(), sentences()
    penalty = gs.penalties.LossGradientPenalty(0.5)
    expected = penalty(model, data).item()
    assert penalty(_Passing(model), data).item() == pytest.approx(expected, rel=1e-6)
    inputs = {name: data[name] for name in ("input_ids", "attention_mask")}
    x, form = pack_inputs(inputs)
    adapted = penalty(NetworkAdapter(model, form), x, data["labels"])
    assert adapted.item() == pytest.approx(expected, rel=1e-6)
    # labels that are the next tokens already
    ids = data["input_ids"]
    mask = torch.ones_like(ids)[:, 1:]
    shifted = {"input_ids": ids[:, :-1], "attention_mask": mask, "labels": ids[:, 1:]}
    logits = model(ids[:, :-1]).logits
    gradients = torch.autograd.grad(
        nn.functional.cross_entropy(logits.mT, ids[:, 1:]), [*model.parameters()]
    )
    squares = sum(gradient.square().sum().item() for gradient in gradients)
    assert penalty(model, shifted).item() == pytest.approx(0.5 * squares, rel=1e-6)


def test_an_automatic_strength_watches_tokens_and_masks() -> None:
    network = bert_classifier()
    ids = torch.randint(1, 20, (120, 7), generator=torch.Generator().manual_seed(0))
    data = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": (ids[:, 0] > 9).long(),
    }
    rule = AutomaticStrength(every=1)
    penalty = gs.penalties.L2Penalty(rule)
    batches = [
        {name: part[start : start + 40] for name, part in data.items()} for start in (0, 40, 80)
    ]
    for batch in [*batches, *batches]:
        penalty.forward_with_penalty(network, batch)
    assert len(rule.history) > 0 and len(rule._labels) == 120
    resumed = AutomaticStrength(every=1)
    resumed.load_state_dict(rule.state_dict())
    for each in (rule, resumed):
        each._calls = 10
        each.before_pass(network)
    assert resumed.history[-1] == rule.history[-1]


def test_messages_say_why_a_network_has_no_automatic_strength() -> None:
    network, data = bert()
    with pytest.raises(InvalidInput, match=r"normali[sz]ation layers.*got LayerNorm"):
        gs.GradientSimilarityPenalty("auto").forward_with_penalty(network, data)
    with pytest.raises(InvalidInput, match="labels of positions"):
        gs.penalties.L2Penalty("auto").forward_with_penalty(tiny_gpt2(), sentences())


@pytest.mark.filterwarnings("ignore:The value of GradientSimilarityPenalty")  # one linear layer
@pytest.mark.parametrize("kind", [*PENALTIES, "inputs"])
def test_empty_batches_and_data_of_inference_mode(kind: str) -> None:
    make = PENALTIES.get(kind, lambda: gs.penalties.InputJacobianPenalty(0.1))
    network, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.arange(4) % 2
    with pytest.raises(InvalidInput, match="sample; got"):
        make()(network, x[:0], y[:0])
    with torch.inference_mode():
        data = x.clone(), y.clone()
    assert make()(network, *data).item() == pytest.approx(make()(network, x, y).item())
