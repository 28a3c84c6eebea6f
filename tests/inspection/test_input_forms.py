"""Inputs reach a network in the form that its forward method takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import gapscope as gs
from gapscope.base.errors import InvalidInput, ReplaceLayer

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(40, 1)
Y = (X[:, 0] > 0).long()


class Reads(nn.Module):
    """Linear network with a given way to read its arguments."""

    def __init__(self, n_inputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(n_inputs, 2)
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, 0] = torch.tensor([-1.0, 1.0])


class Entry(Reads):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.linear(batch["image"])


class Get(Reads):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        image = batch.get("image")
        assert image is not None
        return self.linear(image)


class Contains(Reads):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if "image" not in batch:
            raise ValueError("no image")
        return self.linear(batch["image"])


class OtherName(Reads):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class PositionOnly(Reads):
    def forward(self, image: Tensor, /) -> Tensor:
        return self.linear(image)


class OtherNameAndKeywords(Reads):
    def forward(self, x: Tensor, **options: Any) -> Tensor:
        assert not options
        return self.linear(x)


class Keywords(Reads):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.linear(kwargs["image"])


class Pair(Reads):
    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, mask = batch
        return self.linear(x) * mask


class TwoArguments(Reads):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) * mask


@pytest.mark.parametrize(
    "kind",
    [Entry, Get, Contains, OtherName, PositionOnly, OtherNameAndKeywords, Keywords],
)
@pytest.mark.parametrize(
    "form",
    [
        lambda: ({"image": X}, Y),
        lambda: {"image": X, "labels": Y},
        lambda: [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)],
    ],
    ids=["pair", "mapping", "samples"],
)
def test_a_mapping_of_one_input(kind: type[nn.Module], form: Callable[[], Any]) -> None:
    assert gs.measure(kind(), form(), ["accuracy"]).values() == {"accuracy": 1.0}


@pytest.mark.parametrize("kind", [Pair, TwoArguments])
def test_a_tuple_of_inputs(kind: type[nn.Module]) -> None:
    assert gs.measure(kind(), ((X, MASK), Y), ["accuracy"]).values() == {"accuracy": 1.0}


def test_the_error_of_a_network_that_reads_a_mapping_is_its_own() -> None:
    with pytest.raises(InvalidInput, match="shapes cannot be multiplied"):
        gs.measure(Entry(7), ({"image": X}, Y), ["accuracy"])
    with pytest.raises(InvalidInput, match="'image'"):
        gs.measure(Entry(), ({"picture": X}, Y), ["accuracy"])


def test_the_error_of_a_network_that_takes_no_mapping_is_its_own() -> None:
    class Adds(Reads):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + "1"

    with pytest.raises(InvalidInput, match=r"unsupported operand|must be Tensor"):
        gs.measure(Adds(), ({"image": X}, Y), ["accuracy"])


def test_logarithms_of_a_sigmoid_are_recognized() -> None:
    class LogSigmoid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1, bias=False)
            nn.init.constant_(self.linear.weight, 0.0)
            with torch.no_grad():
                self.linear.weight[0, 0] = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.logsigmoid(self.linear(x))

    network = LogSigmoid()
    result = gs.measure(network, (X, Y), ["accuracy", "loss"])
    expected = gs.measure(network.linear, (X, Y), ["accuracy", "loss"]).values()
    assert result.values() == pytest.approx(expected, rel=1e-5)
    assert "log-sigmoid" in str(result)


@pytest.mark.parametrize(
    "form",
    [
        lambda outputs: {"price": outputs},
        lambda outputs: (outputs,),
        lambda outputs: [outputs],
        lambda outputs: {"hidden": outputs * 2, "logits": outputs},
    ],
    ids=["mapping", "tuple", "list", "named"],
)
def test_the_only_tensor_of_a_result_is_the_output(form: Callable[[Tensor], Any]) -> None:
    class Head(Reads):
        def forward(self, x: Tensor) -> Any:
            return form(self.linear(x))

    expected = gs.measure(Reads().linear, (X, Y), ["accuracy", "ntk_trace"]).values()
    assert gs.measure(Head(), (X, Y), ["accuracy", "ntk_trace"]).values() == pytest.approx(expected)


@pytest.mark.parametrize("form", [lambda a: (a, a), lambda a: {"one": a, "two": a}])
def test_several_results_are_refused(form: Callable[[Tensor], Any]) -> None:
    class Heads(Reads):
        def forward(self, x: Tensor) -> Any:
            return form(self.linear(x))

    with pytest.raises(InvalidInput, match=r"shape \[n, K\]"):
        gs.measure(Heads(), (X, Y), ["accuracy"])


def test_several_labels_with_missing_ones_are_refused() -> None:
    labels = torch.stack([Y, 1 - Y, Y], 1)
    labels[:4, 1] = -100
    with pytest.raises(InvalidInput, match="of 120 are missing"):
        gs.measure(nn.Linear(3, 3), (X, labels), ["loss"])
    with pytest.raises(InvalidInput, match="of 120 are missing"):
        gs.find_label_issues(nn.Linear(3, 3), (X, labels))


@pytest.mark.parametrize("labels", [[[0], [0, 1]] * 20, [{0}, {1}] * 20, [[]] * 40])
def test_lists_of_labels_need_one_length(labels: Any) -> None:
    with pytest.raises(InvalidInput, match="MultiLabelBinarizer"):
        gs.forecast_accuracy(None, (X, labels))


def test_lists_of_labels_of_one_length_are_a_matrix() -> None:
    labels = torch.stack([Y, 1 - Y, Y], 1)
    network = nn.Linear(3, 3)
    expected = gs.measure(network, (X, labels), ["loss"]).values()
    assert gs.measure(network, (X, labels.tolist()), ["loss"]).values() == expected


class TwoIds(nn.Module):
    """Rating from the ids of a user and an item, one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(20, 4), nn.Embedding(30, 4)
        self.head = nn.Linear(8, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.head(torch.cat([self.user(user), self.item(item)], -1)).squeeze(-1)


USER = torch.arange(120) % 20
ITEM = torch.arange(120) % 30
RATING = USER / 20 + ITEM / 30


@pytest.mark.parametrize(
    "inputs", [(USER, ITEM), {"user": USER, "item": ITEM}], ids=["tuple", "mapping"]
)
def test_one_id_per_sample_is_no_text(inputs: Any) -> None:
    result = gs.check(TwoIds(), (inputs, RATING), only=["GS101"])
    assert result.indices("GS101") == list(range(60, 120))


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(USER[:, None], ITEM[:, None], RATING),
        (torch.stack([USER, ITEM], 1), RATING),
        (torch.stack([USER, ITEM], 1).float(), RATING),
    ],
    ids=["three tensors", "ids", "numbers"],
)
def test_a_network_of_two_inputs_says_how_to_pass_them(data: Any) -> None:
    with pytest.raises(InvalidInput, match=r"takes user, item: pass data as \(\(x1, x2\), y\)"):
        gs.measure(TwoIds(), data, ["loss"])


def test_one_value_per_sample_and_pictures_as_targets_are_refused_with_what_works() -> None:
    with pytest.raises(InvalidInput, match=r"For one value per sample use x\[:, None\]"):
        gs.measure(nn.Linear(1, 2), (X[:, 0], Y), ["loss"])
    pictures = X.view(40, 1, 3, 1)
    network = nn.Conv2d(1, 1, 1)
    with pytest.raises(InvalidInput, match=r"y.flatten\(1\) and torch.nn.Sequential"):
        gs.measure(network, (pictures, pictures), ["loss"])
    flat = nn.Sequential(network, nn.Flatten())
    expected = nn.functional.mse_loss(network(pictures), pictures).item()
    found = gs.measure(flat, (pictures, pictures.flatten(1)), ["loss"]).values()["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning", "ignore:.*quantize:UserWarning")
def test_quantized_networks_have_no_estimate() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    small = torch.ao.quantization.quantize_dynamic(network, {nn.Linear})
    with pytest.raises(ReplaceLayer, match="before quantization"):
        gs.estimate_accuracy(small, (X, Y))
