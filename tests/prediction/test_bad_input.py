"""Input that a prediction cannot use: one message that names it, or the right answer with a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput

N = 120


def network(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


def data(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    y = torch.randint(3, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + y[:, None], y


def halves(pair: Any) -> tuple[Any, Any]:
    x, y = pair
    middle = len(x) // 2
    return (x[:middle], y[:middle]), (x[middle:], y[middle:])


def curve(pair: Any, outputs: int = 3) -> Any:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        trained = network(outputs)
        nn.functional.cross_entropy(trained(x), y).backward()
        return trained

    return gs.learning_curve(train_fn, pair)


CALLS: dict[str, Callable[..., Any]] = {
    "forecast": lambda pair, outputs=3: gs.forecast_accuracy(network(outputs), pair),
    "estimate": lambda pair, outputs=3: gs.estimate_accuracy(network(outputs), pair, label_noise=0.0),
    "curve": curve,
    "validated": lambda pair, outputs=3: gs.validated_accuracy(network(outputs), *halves(pair)),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize("n", range(1, 12))
def test_few_samples(call: Callable[..., Any], n: int) -> None:
    with pytest.raises(InvalidInput):
        call(data(n))


@every_call
def test_more_classes_than_outputs(call: Callable[..., Any]) -> None:
    with pytest.raises(GapscopeError, match="2"):
        call(data(), 2)


@pytest.mark.parametrize("name", ["forecast", "estimate", "curve"])
def test_one_class(name: str) -> None:
    with pytest.raises(InvalidInput, match="one class"):
        CALLS[name]((data()[0], torch.zeros(N, dtype=torch.long)))


@every_call
def test_nan(call: Callable[..., Any]) -> None:
    x, y = data()
    x[3, 1] = x[N - 1, 0] = float("nan")
    with pytest.raises(InvalidInput, match="NaN"):
        call((x, y))


@every_call
def test_string_labels_are_numbered(call: Callable[..., Any]) -> None:
    x, y = data()
    assert repr(call((x, np.array(["a", "b", "c"])[y.numpy()]))).startswith(repr(call((x, y))))


@every_call
def test_float_labels_are_regression_targets(call: Callable[..., Any]) -> None:
    x, y = data()
    with pytest.raises(GapscopeError):
        call((x, y.float()))


@every_call
def test_duplicates_are_named(call: Callable[..., Any]) -> None:
    x, y = data(N // 2)
    result = call((x.repeat(2, 1), y.repeat(2)))
    text = repr(result)
    assert f"{N // 2} of" in text.splitlines()[0] + getattr(result, "note", "") and "repeat" in text
