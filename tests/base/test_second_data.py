"""Second data sets: mappings, one-hot frames and masks in the form of the first."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second, join_samples
from gapscope.inspection.validation import ready


class OfCodes(nn.Module):
    """Embedding of codes next to numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(7, 2)

    def forward(self, code: Tensor, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.embedding(code), x], 1))


@pytest.fixture
def mapping() -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 60, 3, generator=generator)
    return {"left": left, "right": right}, (left[:, 0] > 0).long()


def _swapped(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(reversed(inputs.items()))


def test_keys_in_another_order_are_brought_into_that_of_the_first(
    mapping: tuple[dict[str, Tensor], Tensor],
) -> None:
    inputs, y = mapping
    first = as_samples((inputs, y))
    second = as_second((_swapped(inputs), y), first)
    assert torch.equal(second.inputs, first.inputs)
    assert "order of the first" in second.notes[-1]
    assert torch.equal(join_samples(first, second).inputs[60:], first.inputs)


def test_copies_of_training_samples_are_found_in_any_order_of_the_keys(
    mapping: tuple[dict[str, Tensor], Tensor],
) -> None:
    inputs, y = mapping
    test = ({"right": inputs["right"][:20], "left": inputs["left"][:20]}, y[:20])
    issues = gs.find_label_issues(None, (inputs, y), test=test)
    assert len(issues.test_duplicates) == 20
    found = gs.check(None, (inputs, y), test=test, only=["GS101"])
    assert [finding.code for finding in found.findings] == ["GS101"]


@pytest.mark.parametrize("as_floats", [False, True])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_codes_and_numbers_of_a_second_mapping_run_through_the_network(
    is_swapped: bool, as_floats: bool
) -> None:
    code, x = torch.arange(60) % 5, torch.randn(60, 3)
    first = {"code": code, "x": x}
    second = {"code": code.double() if as_floats else code, "x": x}
    if is_swapped:
        second = _swapped(second)
    y = (x[:, 0] > 0).long()
    found = gs.check(OfCodes(), (first, y), test=(second, y), only=["GS101"])
    assert [finding.code for finding in found.findings] == ["GS101"]


def test_missing_and_additional_keys_are_named(
    mapping: tuple[dict[str, Tensor], Tensor],
) -> None:
    inputs, y = mapping
    first = as_samples((inputs, y))
    with pytest.raises(InvalidInput, match="right and has other"):
        as_second(({"left": inputs["left"], "other": inputs["right"]}, y), first)


@pytest.mark.parametrize("second", [5, "validation.csv", nn.Linear(3, 2), [1], {"a": 1}])
def test_errors_of_the_second_data_name_it(second: object) -> None:
    first = as_samples((torch.randn(4, 3), torch.tensor([0, 1, 0, 1])))
    with pytest.raises(InvalidInput, match=r"^validation: "):
        as_second(second, first, "validation")


_X, _Y = torch.randn(6, 4), torch.arange(6) % 2
_FORMS = [(_X, _Y), ((_X,), _Y), ({"x": _X}, _Y), {"x": _X, "labels": _Y}]


@pytest.mark.parametrize("first", _FORMS)
@pytest.mark.parametrize("second", _FORMS)
def test_a_mapping_of_one_tensor_is_as_the_tensor(first: Any, second: Any) -> None:
    known = as_samples(first)
    read = as_second(second, known, "test")
    assert (read.form is None) == (known.form is None)
    assert getattr(read.form, "names", None) == getattr(known.form, "names", None)
    assert torch.equal(read.inputs, _X)


def test_a_one_hot_frame_may_lack_classes() -> None:
    first = as_samples((torch.randn(60, 3), pd.get_dummies(pd.Series(list("abc") * 20))))
    names = pd.Series(list("bc") * 20)
    second = as_second((torch.randn(40, 3), pd.get_dummies(names)), first)
    assert second.class_names == second.target_columns == ("a", "b", "c")
    assert torch.equal(second.y, torch.tensor([1, 2] * 20))
    assert second.targets_as_passed.shape == (40, 3)
    assert len(join_samples(first, second)) == 100
    several = pd.DataFrame(torch.ones(40, 2).tril().numpy(), columns=["b", "c"])
    with pytest.raises(InvalidInput, match="got b, c"):
        as_second((torch.randn(40, 3), several), first)
    with pytest.raises(InvalidInput, match="got b, d"):
        as_second((torch.randn(40, 3), pd.get_dummies(names.replace("c", "d"))), first)


X = torch.rand(30, 1, 4, 5, generator=torch.Generator().manual_seed(0))
MASK = (X > 0.5).long()
MASKS = {
    "plain": MASK[:, 0],
    "axis": MASK,
    "float": MASK.float(),
    "one-hot": torch.cat([1 - MASK, MASK], 1),
    "one-hot, last": torch.cat([1 - MASK, MASK], 1).movedim(1, -1).float(),
    "flat": MASK.flatten(1),
}


@pytest.mark.parametrize("second", MASKS)
@pytest.mark.parametrize("first", ["plain", "axis", "one-hot", "one-hot, last"])
def test_second_masks_get_the_form_of_the_first(first: str, second: str) -> None:
    network, data = nn.Conv2d(1, 2, 1), (X, MASKS[first])
    adapted = ready(network, data).adapt((X, MASKS[second]))
    assert not adapted.mismatch and torch.equal(adapted.samples.y, MASK[:, 0])
    settings = gs.TrainingSpec(epochs=1)
    result = gs.train(network, data, settings, test=(X, MASKS[second]), on_epoch=gs.Monitor(data))
    assert result.history[0]["test_accuracy"] > 0
    assert "one-hot" not in second or any("one-hot" in note for note in adapted.notes)


@pytest.mark.parametrize("masks", ["plain", "one-hot", "one-hot, last"])
@pytest.mark.parametrize("has_axis", [True, False])
def test_masks_beside_one_logit_per_pixel(masks: str, has_axis: bool) -> None:
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Identity() if has_axis else nn.Flatten(1, 2))
    samples = ready(network, (X, MASKS[masks]), needs=("outputs",)).samples
    assert samples.kind == "positions" and torch.equal(samples.y, MASK[:, 0])


@pytest.mark.parametrize("first", ["plain", "axis", "float"])
@pytest.mark.parametrize("second", ["plain", "axis", "flat"])
def test_both_masks_are_checked_together(first: str, second: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 1))
    findings = gs.check(network, (X[:20], MASKS[first][:20]), test=(X[20:], MASKS[second][20:]))
    assert not any("shape" in note for note in findings.notes)


def test_masks_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"test must have labels .* \[4, 5\] .* got \[1, 2, 2\]"):
        ready(nn.Conv2d(1, 2, 1), (X, MASK)).adapt((X, MASK[..., :2, :2]))


def test_labels_of_longer_sequences_are_padded() -> None:
    first = as_samples((torch.ones(4, 3).long(), torch.tensor([[0, 1, 2]] * 4)))
    second = as_second((torch.ones(2, 4).long(), torch.tensor([[0, 1, 2, 0]] * 2)), first)
    assert join_samples(first, second).y[0].tolist() == [0, 1, 2, -100]


@pytest.mark.parametrize("verb", [gs.check, gs.find_label_issues])
def test_class_numbers_that_the_first_lacks_are_refused_without_a_network(verb: Any) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    for wrong in (y + 1, torch.where(y == 2, 7, y)):
        with pytest.raises(InvalidInput, match="are 0, 1, 2"):
            verb(None, (x, y), test=(x + 0.1, wrong))
    first = as_samples((x, y))
    for right in (y % 2, torch.where(y == 2, -100, y)):
        as_second((x, right), first)
    as_second((x, y + 1), first, has_network=True)


def test_new_amounts_in_integers_are_told_how_to_be_regression_targets() -> None:
    x = torch.arange(60.0)[:, None]
    with pytest.raises(InvalidInput, match='task="regression"') as caught:
        gs.check(None, (x, x[:, 0].long() * 3), test=(x, x[:, 0].long() * 3 + 1))
    assert "floating-point" in str(caught.value)
