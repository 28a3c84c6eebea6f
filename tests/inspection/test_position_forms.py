"""Labels per position in the forms in which users pass them: masks, one-hot classes, tags, lists of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples

IDS = torch.randint(1, 12, (60, 7), generator=torch.Generator().manual_seed(0))
TAGS = IDS % 3
NAMES = np.array(["B", "I", "O"])[TAGS.numpy()]
PICTURES = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(1))
MASKS = (PICTURES.mean(1) > 0.5).long()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.embedding(input_ids))


class Masker(nn.Module):
    """One number per pixel, with and without an axis of classes, or its sigmoid."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2 if form == "two" else 1, 1)
        )
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.body(x)
        if self.form == "squeezed":
            return outputs[:, 0]
        return torch.sigmoid(outputs) if self.form == "sigmoid" else outputs


TOKENS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: ({"input_ids": IDS}, TAGS),
    "list of samples": lambda: [
        {"input_ids": ids, "labels": tags} for ids, tags in zip(IDS, TAGS, strict=True)
    ],
    "list of batches": lambda: [
        {"input_ids": IDS[rows : rows + 20], "labels": TAGS[rows : rows + 20]}
        for rows in (0, 20, 40)
    ],
    "lists of lists": lambda: {"input_ids": IDS.tolist(), "labels": TAGS.tolist()},
    "one-hot": lambda: ({"input_ids": IDS}, F.one_hot(TAGS, 3)),
    "one-hot in floating point": lambda: ({"input_ids": IDS}, F.one_hot(TAGS, 3).float()),
    "a column": lambda: ({"input_ids": IDS}, TAGS[:, :, None]),
    "strings": lambda: ({"input_ids": IDS}, NAMES),
    "lists of strings": lambda: {"input_ids": IDS, "labels": NAMES.tolist()},
}


@pytest.mark.parametrize("name", TOKENS)
def test_labels_of_tokens(name: str) -> None:
    network = Tagger()
    found = gs.measure(network, TOKENS[name](), ["accuracy", "loss"])
    logits = network(IDS).detach()
    assert found["accuracy"].value == pytest.approx(
        float((logits.argmax(-1) == TAGS).double().mean())
    )
    assert found["loss"].value == pytest.approx(
        float(F.cross_entropy(logits.movedim(-1, 1), TAGS)), rel=1e-5
    )
    assert gs.out_of_sample(network, TOKENS[name]()).score == 1.0


def test_names_of_tags_are_kept() -> None:
    assert as_samples(({"input_ids": IDS}, NAMES)).class_names == ("B", "I", "O")


def test_a_sample_with_several_labels_is_no_batch() -> None:
    x, y = torch.randn(30, 4), torch.rand(30, 5) > 0.5
    samples = as_samples([{"x": a, "labels": b} for a, b in zip(x, y, strict=True)])
    assert samples.kind == "multi-label"
    assert len(samples) == 30


@pytest.mark.parametrize(
    "data",
    [
        lambda: {"input_ids": [[1, 2], [1, 2, 3], [1, 2]], "labels": [0, 1, 0]},
        lambda: {"input_ids": IDS[:3], "labels": [["B"], ["B", "O"], ["I"]]},
    ],
)
def test_lists_of_several_lengths_are_refused(data: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match="one length"):
        as_samples(data())


def test_missing_tags_are_refused() -> None:
    tags = NAMES.astype(object)
    tags[0, 3:] = None
    with pytest.raises(InvalidInput, match="4 of 420"):
        as_samples(({"input_ids": IDS}, tags))


LABELS: dict[str, Callable[[], Tensor]] = {
    "integers": lambda: MASKS,
    "booleans": lambda: MASKS.bool(),
    "floats": lambda: MASKS.float(),
    "with an axis": lambda: MASKS[:, None].float(),
    "ignored": lambda: torch.where(PICTURES[:, 0] > 0.9, -100, MASKS),
}


@pytest.mark.parametrize("form", ["one", "squeezed", "sigmoid", "two"])
@pytest.mark.parametrize("name", LABELS)
def test_masks(form: str, name: str) -> None:
    network, labels = Masker(form), LABELS[name]()
    found = gs.measure(network, (PICTURES, labels), ["accuracy", "loss"])
    outputs = network.body(PICTURES).detach()
    logits = outputs[:, 1] - outputs[:, 0] if form == "two" else outputs[:, 0]
    counts = labels.reshape(MASKS.shape) >= 0 if labels.dtype != torch.bool else MASKS >= 0
    loss = F.binary_cross_entropy_with_logits(logits[counts], MASKS[counts].float())
    correct = ((logits > 0).long() == MASKS)[counts]
    assert found["accuracy"].value == pytest.approx(float(correct.double().mean()))
    assert found["loss"].value == pytest.approx(float(loss), rel=1e-4)


def test_one_hot_masks() -> None:
    network = Masker("two")
    one_hot = F.one_hot(MASKS, 2).movedim(-1, 1)
    found = gs.measure(network, (PICTURES, one_hot), ["loss"]).values()
    assert found == gs.measure(network, (PICTURES, MASKS), ["loss"]).values()


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["one", "squeezed", "sigmoid"])
def test_verbs_on_masks_of_one_channel(form: str) -> None:
    network, data = Masker(form), (PICTURES, MASKS[:, None].float())
    two = gs.out_of_sample(Masker("two"), (PICTURES, MASKS)).score
    assert gs.out_of_sample(network, data).score == pytest.approx(two, abs=0.02)
    test = (PICTURES[:20], MASKS[:20].float())
    record = gs.record_network(network, data, test=test, name="masks")
    expected = gs.measure(network, test, ["accuracy"]).values()["accuracy"]
    assert record.scores["test_accuracy"] == expected
    before = gs.measure(network, data, ["loss"]).values()["loss"]
    gs.train(network, data, gs.TrainingSpec(epochs=5, batch_size=20))
    assert gs.measure(network, data, ["loss"]).values()["loss"] < before


def test_real_numbers_per_pixel_are_refused() -> None:
    with pytest.raises(InvalidInput, match="whole numbers"):
        as_samples((PICTURES, PICTURES.mean(1)))
