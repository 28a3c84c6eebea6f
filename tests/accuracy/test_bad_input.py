"""Few samples, one class and duplicates (other faults: tests/test_every_verb.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pandas
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import gapscope as gs
from gapscope.base.errors import InvalidInput

N = 120


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def data(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    y = torch.randint(3, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator) + y[:, None], y


def halves(pair: Any) -> tuple[Any, Any]:
    x, y = pair
    middle = len(x) // 2
    return (x[:middle], y[:middle]), (x[middle:], y[middle:])


def curve(pair: Any) -> Any:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        trained = network()
        nn.functional.cross_entropy(trained(x), y).backward()
        return trained

    return gs.learning_curve(train_fn, pair)


CALLS: dict[str, Callable[..., Any]] = {
    "forecast": lambda pair: gs.forecast_accuracy(network(), pair),
    "estimate": lambda pair: gs.estimate_accuracy(network(), pair, label_noise=0.0),
    "curve": curve,
    "validated": lambda pair: gs.validated_accuracy(network(), *halves(pair)),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize("n", range(1, 12))
def test_few_samples(call: Callable[..., Any], n: int) -> None:
    with pytest.raises(InvalidInput):
        call(data(n))


@pytest.mark.parametrize("name", ["forecast", "estimate", "curve"])
def test_one_class(name: str) -> None:
    with pytest.raises(InvalidInput, match="one class"):
        CALLS[name]((data()[0], torch.zeros(N, dtype=torch.long)))


@every_call
def test_duplicates_are_named(call: Callable[..., Any]) -> None:
    x, y = data(N // 2)
    result = call((x.repeat(2, 1), y.repeat(2)))
    text = repr(result)
    assert f"{N // 2} of" in text.splitlines()[0] + " ".join(result.notes) and "repeat" in text


@pytest.mark.parametrize("kind", ["multi-label", "positions"])
def test_other_tasks_get_a_way_out(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    if kind == "multi-label":
        several, x = nn.Linear(4, 3), torch.randn(60, 4, generator=generator)
        y = torch.rand(60, 3, generator=generator) > 0.5
    else:
        several, x = (
            nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)),
            torch.randint(9, (60, 5), generator=generator),
        )
        y = x % 3
    with pytest.raises(InvalidInput, match=r"learning_curve\(train_fn, data, score="):
        gs.estimate_accuracy(several, (x, y))
    if kind == "positions":
        with pytest.raises(InvalidInput, match=r"gs\.check\(network, train, test=validation\)"):
            gs.validated_accuracy(several, (x[:30], y[:30]), (x[30:], y[30:]))
    with pytest.raises(InvalidInput, match=r"gs\.forecast_accuracy"):
        gs.rank_networks([several, several], (x, y))
    with pytest.raises(InvalidInput, match=r"score="):
        gs.learning_curve(lambda x, y: copy.deepcopy(several), (x, y))

    def correct(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        outputs = network(x).detach()
        return (
            ((outputs > 0) == y if kind == "multi-label" else outputs.argmax(-1) == y)
            .double()
            .mean(1)
        )

    curve = gs.learning_curve(lambda x, y: copy.deepcopy(several), (x, y), score=correct)
    assert 0 <= curve.low <= curve.high <= 1


class Diverged(nn.Sequential):
    """A network whose outputs are NaN, as after a training run that diverged."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * float("nan")


def test_the_kernel_of_a_network_that_diverged_is_no_row() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data, network = (x, (x[:, 0] > 0).long()), Diverged(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    forecast = gs.forecast_accuracy(network, data)
    assert "NTK" not in {row.method for row in forecast.rows}
    assert any("kernel must be finite" in note for note in forecast.notes)
    ranking = gs.rank_networks({"diverged": network, "other": nn.Sequential(nn.Linear(4, 2))}, data)
    assert not any("LinAlgError" in note for notes in ranking.notes.values() for note in notes)


class RandomStream(IterableDataset[Any]):
    """A stream in another order each time."""

    def __iter__(self) -> Any:
        x, y = data()
        rows = torch.randperm(N)
        yield from zip(x[rows], y[rows], strict=True)


@pytest.mark.parametrize("source", [None, DecisionTreeClassifier()], ids=["kernels", "estimator"])
def test_held_out_predictions_need_rows_in_a_fixed_order(source: Any) -> None:
    for stream in (RandomStream(), DataLoader(RandomStream(), batch_size=8)):
        with pytest.raises(InvalidInput, match="another order each time"):
            gs.out_of_sample(source, stream)


def test_a_learning_curve_of_an_estimator_reads_hugging_face_data() -> None:
    datasets = pytest.importorskip("datasets")
    x, y = data()
    columns = {f"x{i}": x[:, i].tolist() for i in range(4)}
    found = gs.learning_curve(
        DecisionTreeClassifier(random_state=0),
        datasets.Dataset.from_dict(columns | {"label": y.tolist()}),
    )
    expected = gs.learning_curve(
        DecisionTreeClassifier(random_state=0), (pandas.DataFrame(columns), y.numpy())
    )
    assert found.to_dict() == expected.to_dict()
    with pytest.raises(InvalidInput, match="none is named"):
        gs.learning_curve(DecisionTreeClassifier(), datasets.Dataset.from_dict(columns))
