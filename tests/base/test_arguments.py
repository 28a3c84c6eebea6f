"""Arguments of public functions are checked at the call."""

from __future__ import annotations

import ast
import inspect
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy
import pandas
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput

if TYPE_CHECKING:
    from decimal import Decimal


@check_arguments
def example(
    data: Any = None,
    *,
    count: int | None = None,
    share: float = 0.5,
    flag: bool = True,
    word: str = "a",
    kind: Literal["a", "b"] = "a",
    path: str | Path | None = None,
    names: Sequence[str] | None = None,
    sizes: Sequence[int] = (),
    pair: tuple[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    function: Callable[[int], int] | None = None,
    table: pandas.DataFrame | None = None,
    price: Decimal | None = None,
    network: torch.nn.Module | None = None,
) -> str:
    return "answered"


ACCEPTED: list[tuple[str, Any]] = [
    ("count", numpy.int64(3)),
    ("count", torch.tensor(3)),
    ("share", 1),
    ("share", numpy.float32(0.5)),
    ("share", torch.tensor(0.5)),
    ("share", float("nan")),  # a range is checked by the function
    ("flag", numpy.bool_(True)),
    ("kind", "c"),  # the function names the choices
    ("path", Path("a")),
    ("names", ("a", "b")),
    ("names", "a"),
    ("names", numpy.array(["a"])),
    ("names", pandas.Index(["a"])),
    ("sizes", [numpy.int64(3)]),
    ("pair", ("a", 3)),
    ("options", {"a": 1}),
    ("function", len),
    ("table", pandas.DataFrame()),
    ("network", "not checked here"),
    ("data", object()),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("count", 2.5, "count must be an integer or None; got 2.5 (float)."),
    ("count", True, "count must be an integer or None; got True (bool)."),
    ("count", torch.tensor(2.5), "count must be an integer or None"),
    ("share", "0.5", "share must be a number; got '0.5' (str)."),
    ("share", None, "share must be a number; got None (NoneType)."),
    ("share", torch.zeros(3), "share must be a number"),
    ("flag", 1, "flag must be True or False; got 1 (int)."),
    ("word", 3, "word must be a string; got 3 (int)."),
    ("path", 3, "path must be a string or a path or None; got 3 (int)."),
    ("names", 3, "names must be a list of strings or None; got 3 (int)."),
    ("names", ["a", 3], "names must be a list of strings or None"),
    ("names", torch.tensor(3), "names must be a list of strings or None"),
    ("sizes", [2.5], "sizes must be a list of integers; got [2.5] (list)."),
    ("options", [1], "options must be a mapping or None; got [1] (list)."),
    ("state", "a", "state must be a state dictionary or None; got 'a' (str)."),
    ("function", 3, "function must be a function or None; got 3 (int)."),
    ("table", [1], "table must be a DataFrame or None; got [1] (list)."),
    ("price", 3, "price must be a Decimal or None; got 3 (int)."),
    ("word", ["a" * 99], "word must be a string; got ['" + "a" * 58 + "... (list)."),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_what_an_annotation_accepts(name: str, value: Any) -> None:
    assert example(**{name: value}) == "answered"


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_what_it_refuses(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        example(**{name: value})
    assert str(error.value).startswith(message)


def test_a_class_that_is_not_imported_is_known_by_its_name() -> None:
    from decimal import Decimal

    assert example(price=Decimal(3)) == "answered"


def test_a_mapping_of_networks_is_shown() -> None:
    with pytest.raises(InvalidInput, match=r"such as \{'first': network.*got \[Linear"):
        gs.compare([nn.Linear(2, 2)], None)  # type: ignore[arg-type]


def test_unknown_arguments_have_the_usual_message() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'"):
        example(cuont=3)  # type: ignore[call-arg]


@check_arguments
def draws() -> tuple[float, float]:
    return random.random(), float(numpy.random.random())


def test_random_states_of_python_and_numpy_are_restored() -> None:
    """Packages draw when a first call imports them."""
    assert draws() == draws()


FUNCTIONS = [
    name
    for name in dir(gs)
    if inspect.isfunction(getattr(gs, name)) and inspect.signature(getattr(gs, name)).parameters
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_checks_its_arguments(name: str) -> None:
    function = getattr(gs, name)
    assert inspect.unwrap(function) is not function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_imported_for_type_checkers_are_classes(name: str) -> None:
    module = sys.modules[inspect.unwrap(getattr(gs, name)).__module__]
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("gapscope"):
                    scope: dict[str, Any] = {}
                    exec(ast.unparse(line), scope)
                    found = [scope[each.asname or each.name] for each in line.names]
                    assert all(map(inspect.isclass, found)), ast.unparse(line)


TRAINED = {
    "network": torch.nn.Linear(2, 2),
    "data": (torch.zeros(4, 2), torch.arange(4) % 2),
}
WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (gs.Monitor, {"data": torch.zeros(4, 2), "n_samples": "64"}, "n_samples must be an integer"),
    (gs.measure, {"network": torch.nn.Linear(2, 2), "data": torch.zeros(4, 2), "measures": 3}, "measures must be"),
    (gs.rank_measures, {"source": ["a"]}, "must be records"),
    (gs.rank_measures, {"source": 3}, "source must be a string or a path or a Pool"),
    (gs.write_training_report, {"monitor": None, "path": "a"}, "monitor must be a Monitor"),
    (gs.train, {**TRAINED, "settings": {}}, "settings must be a TrainingSpec"),
    (gs.train, {**TRAINED, "settings": gs.TrainingSpec(), "penalties": ["mgs"]}, "penalties must be"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "message"), WRONG)
def test_wrong_types_have_one_message(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        function(**arguments)


def test_methods_of_results_check_their_arguments() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    issues = gs.find_label_issues(None, (x, (x[:, 0] > 0).long()))
    for method in (issues.to_csv, issues.write_html):
        with pytest.raises(InvalidInput, match="path must be a"):
            method(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="precision must be a"):
        issues.with_precision("0.9")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="indent must be an"):
        issues.to_json(indent=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", ["1", 0.5, None])
def test_a_monitor_refuses_what_is_no_epoch(epoch: Any) -> None:
    monitor = gs.Monitor((torch.zeros(4, 2), torch.arange(4) % 2), ["loss"])
    with pytest.raises(InvalidInput, match="epoch must be an"):
        monitor.observe(torch.nn.Linear(2, 2), epoch)


def test_what_was_got_is_on_one_line() -> None:
    data = torch.randn(20, 3), torch.arange(20) % 2
    for value, shown in (
        (torch.zeros(3, 4), "got [3, 4] (Tensor)"),
        ([torch.nn.Sequential(torch.nn.Linear(3, 2))], "got [Sequential( (0): Linear("),
    ):
        with pytest.raises(InvalidInput) as caught:
            gs.compare(value, data)  # type: ignore[arg-type]
        assert shown in str(caught.value) and "\n" not in str(caught.value)


Seconds = float | Literal["auto"] | None


@check_arguments
def _with_alias(seconds: Seconds = None) -> Any:
    return seconds


def test_aliases_of_types_are_checked() -> None:
    assert [_with_alias(value) for value in (2, "auto", None)] == [2, "auto", None]
    for value in (True, [1.0]):
        with pytest.raises(InvalidInput, match="seconds must be a"):
            _with_alias(value)  # type: ignore[arg-type]


def test_token_ids_without_an_embedding_are_one_message() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x).mean(1))

    x = torch.arange(600).reshape(100, 6) % 20
    x[70, 2] = 25
    data = x, torch.arange(100) % 2
    for function in (gs.measure, gs.check, gs.find_label_issues, gs.out_of_sample):
        with pytest.raises(InvalidInput, match="below its num_embeddings"):
            function(Words(), data)


def test_variable_arguments_are_checked_one_by_one() -> None:
    @check_arguments
    def total(*numbers: float) -> float:
        return sum(numbers)

    assert total(1, 2.5) == 3.5 and total() == 0
    with pytest.raises(InvalidInput, match="numbers must be a"):
        total(1, "a")  # type: ignore[arg-type]
