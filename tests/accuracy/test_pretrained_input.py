"""Features and large networks: unusable input gets one message with what is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

N = 80


def _images() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return x, (x.mean((1, 2, 3)) > 0).long()


def _features() -> Tensor:
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(1))


VERBS: dict[str, Callable[[Any], Any]] = {
    "forecast": lambda features: gs.forecast_accuracy(None, _images(), features=features),
    "out_of_sample": lambda features: gs.out_of_sample(features, _images()),
}


@pytest.mark.parametrize("verb", VERBS)
def test_features_that_cannot_be_used_are_named(verb: str) -> None:
    with pytest.raises(InvalidInput, match=r"must differ between samples"):
        VERBS[verb](torch.ones(N, 5))
    holes = _features()
    holes[3, 2] = float("nan")
    holes[7, 0] = float("inf")
    with pytest.raises(InvalidInput, match="2 of 80"):
        VERBS[verb](holes)
    for wrong, got in ((_features()[:70], r"\[70, 5\]"), (_features()[:, 0], r"\[80\]")):
        with pytest.raises(InvalidInput, match=rf"\[n, d\] for the 80 samples; got {got}\. Pass"):
            VERBS[verb](wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_arrays_of_features_give_the_result_of_tensors(verb: str) -> None:
    features = _features()
    assert VERBS[verb](features.numpy()).score == VERBS[verb](features).score


@pytest.mark.parametrize("verb", ["label issues", "noise"])
def test_labels_cannot_be_checked_by_constant_features(verb: str) -> None:
    search = gs.find_label_issues if verb == "label issues" else gs.estimate_label_noise
    with pytest.raises(InvalidInput, match=r"No input varies .* Pass"):
        search(features=torch.ones(N, 5), labels=_images()[1])


def test_images_of_several_sizes_are_named_in_every_form() -> None:
    y = _images()[1]
    images = [torch.randn(3, 8 + i % 3, 8) for i in range(N)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    for call in (
        lambda: gs.embed(network, images),
        lambda: gs.forecast_accuracy(None, (images, y)),
        lambda: gs.forecast_accuracy(None, ([image.numpy() for image in images], y.numpy())),
    ):
        with pytest.raises(
            InvalidInput,
            match=r"one shape; got a list of 80 with 3 shapes, such as \[3, 8, 8\] and",
        ):
            call()
    with pytest.raises(InvalidInput, match=r"tensors of one shape"):
        gs.find_label_issues(None, list(zip(images, y.tolist(), strict=True)))


class _Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.linear(a + b[:, :5] + c[:, :5])


def test_networks_of_several_inputs_are_given_them_and_name_those_that_lack() -> None:
    y = _images()[1]
    parts = (_features(), torch.randn(N, 6), torch.randn(N, 7))
    assert gs.forecast_accuracy(_Sum(), (parts, y)).samples == N
    with pytest.raises(InvalidInput, match=r"c: pass data as"):
        gs.embed(_Sum(), _features())


class _NoLastLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 2, generator=torch.Generator().manual_seed(0)))
        self.norm = nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(1)) @ self.weight


def test_a_network_without_a_last_layer_names_the_candidates() -> None:
    with pytest.raises(InvalidInput, match=r"example one of 'norm'"):
        gs.embed(_NoLastLayer(), _images()[0])
    assert gs.embed(_NoLastLayer(), _images()[0], layer="norm").shape == (N, 48)


class _NoModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 2, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.weight).tanh()


def test_a_network_without_modules_is_told_to_have_one() -> None:
    with pytest.raises(InvalidInput, match=r"module of the network"):
        gs.embed(_NoModule(), _images()[0])


class _Expensive(nn.Module):
    """A network whose forward pass takes about a hundredth of a second per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        square = torch.ones(300, 300)
        for _ in range(4 * len(x)):
            square = square @ square / 300
        return self.linear(x.flatten(1)) + 0 * square.mean()


@pytest.mark.thorough
def test_a_budget_below_one_forward_pass_states_what_is_needed() -> None:
    data = _images()
    for notes in (
        gs.forecast_accuracy(_Expensive(), data, time_budget=0.02).notes,
        gs.find_label_issues(_Expensive(), data, time_budget=0.02).notes,
    ):
        (note,) = [note for note in notes if "forward pass" in note]
        assert "CPU s" in note and "Pass time_budget=" in note
    with pytest.raises(InvalidInput, match=r"Pass time_budget="):
        gs.rank_networks({"a": _Expensive(), "b": _Expensive()}, data, time_budget=0.02)


def test_texts_that_a_tokenizer_cut_off_are_named_by_every_verb() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    network = transformers.BertForSequenceClassification(config).eval()
    generator = torch.Generator().manual_seed(0)
    # two thirds are cut off at 12
    lengths = torch.randint(3, 40, (N,), generator=generator).clamp(max=12)
    mask = (torch.arange(12) < lengths[:, None]).long()
    ids = torch.randint(1, 50, (N, 12), generator=generator) * mask
    labels = torch.randint(2, (N,), generator=generator)
    data = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    with pytest.warns(UserWarning, match="have cut them off"):
        gs.embed(network, {"input_ids": ids, "attention_mask": mask})
    assert any("have cut them off" in note for note in gs.forecast_accuracy(network, data).notes)
    assert any("have cut them off" in note for note in gs.find_label_issues(network, data).notes)
