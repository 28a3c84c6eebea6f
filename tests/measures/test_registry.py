"""The registry of measures: look-up, metadata, options, and its pages in the docs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gapscope import functional
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.measures import registry
from gapscope.measures.registry import ScalarInfo, get_measure, list_measures, register_measure
from gapscope.results.estimate import Estimate
from support.measures_small import TABLE

X, Y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])


own = partial(register_measure, numbers=ScalarInfo("1"), title="", reference="")


@pytest.fixture
def own_measure() -> Iterator[None]:
    @register_measure(title="", reference="", numbers={"a": ScalarInfo("m"), "b": ScalarInfo("s")})
    def two_numbers(network: nn.Module, x: torch.Tensor, *, scale: float = 1.0) -> object:
        class Result:
            def scalars(self) -> dict[str, float]:
                return {"a": scale * len(x), "b": Estimate(2.0, 0.5)}

        return Result()

    yield
    del registry._MEASURES["two_numbers"]


@pytest.mark.usefixtures("own_measure")
def test_a_custom_measure_returns_readings() -> None:
    readings = get_measure("two_numbers")(nn.Identity(), Samples(X), scale=2.0)
    assert readings["two_numbers.a"].value == 10 and readings["two_numbers.a"].units == "m"
    assert readings["two_numbers.b"].standard_error == 0.5
    with pytest.raises(InvalidInput, match=r"option 'scal'; options: scale."):
        get_measure("two_numbers")(nn.Identity(), Samples(X), scal=1)
    with pytest.raises(InvalidInput, match="registered already"):
        own("two_numbers")(lambda network: 0.0)


def test_names_and_needs_are_checked() -> None:
    with pytest.raises(InvalidInput, match=r"'parameter_cont'.*Did you mean 'parameter_count'"):
        get_measure("parameter_cont")
    with pytest.raises(InvalidInput, match="y, initial_state, history; other"):
        own("other")(lambda network, inputs: 0.0)
    with pytest.raises(InvalidInput, match="accuracy needs targets"):
        get_measure("accuracy")(nn.Identity(), Samples(X))
    with pytest.raises(InvalidInput, match="pass initial_state="):
        get_measure("distance_from_initialization")(nn.Identity(), Samples(X))


@pytest.mark.parametrize("name", sorted(list_measures()))
def test_every_measure_has_its_metadata(name: str) -> None:
    item = list_measures()[name]
    assert item.numbers and item.function.__doc__ and item.title and len(item.title) <= 85
    assert TABLE.VERIFIED[name].oracle
    for number in item.numbers.values():
        assert number.units and number.direction in ("lower", "higher", "none")
    for parameter in inspect.signature(item.function).parameters:
        assert f"\n    {parameter}: " in item.function.__doc__, f"help() must describe {parameter}"


def test_the_table_is_up_to_date() -> None:
    text = TABLE.PAGE.read_text()
    assert text == TABLE.page(), "run: python docs/measures_table.py"
    assert all(f"`{name}`" in text for name in list_measures())


def test_the_measure_of_the_docs_works_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MEASURES", dict(list_measures()))
    page = TABLE.PAGE.with_name("add-a-measure.md").read_text(encoding="utf-8")
    # as a user's own file would
    exec(page.split("```python\n")[1].split("```")[0], {"__name__": "confidence"})
    logits = torch.tensor([[1.0, 1.0], [0.0, 1000.0]])
    assert float(
        get_measure("mean_confidence").function(torch.nn.Identity(), logits)
    ) == pytest.approx(0.75)


NETWORK = nn.Linear(3, 2)


@pytest.mark.parametrize(
    "name", ["accuracy", "loss", "ntk_trace", "input_jacobian_norm", "kernel_leave_one_out"]
)
@pytest.mark.parametrize("x", [X[:0], X[0], "a", None, X * math.nan])
def test_functions_check_their_inputs(name: str, x: Any) -> None:
    arguments = [x, Y] if name in ("accuracy", "loss", "kernel_leave_one_out") else [x]
    with pytest.raises(InvalidInput):
        getattr(functional, name)(NETWORK, *arguments)
    with pytest.raises(InvalidInput, match="must be a torch"):
        getattr(functional, name)(None, X, *arguments[1:])


def test_functions_read_arrays_of_numbers_and_refuse_labels_of_text() -> None:
    assert functional.loss(NETWORK, X.numpy(), Y.tolist()) == functional.loss(NETWORK, X, Y)
    assert functional.ntk_trace(NETWORK, X.numpy()) == functional.ntk_trace(NETWORK, X)
    with pytest.raises(InvalidInput, match="a tensor of numbers"):
        functional.loss(NETWORK, X, ["a"] * 6)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="inputs must be a"):
        functional.empirical_ntk(NETWORK, X.numpy())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a torch"):
        functional.parameter_count("a")  # type: ignore[arg-type]
