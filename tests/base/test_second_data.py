"""Second data sets whose inputs are a mapping: matched by name with those of the first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second, join_samples


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
    with pytest.raises(InvalidInput, match="it lacks right and has other"):
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
