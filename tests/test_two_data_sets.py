"""Every verb on every order of rows and every second data set: the numbers of plain tensors, or one message."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import gapscope as gs
from gapscope.base.errors import InvalidInput

# trees give the same numbers for every form of the same data, few as well as many
pytestmark = pytest.mark.usefixtures("few_trees")

N = 120
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).long()
PAIRS = TensorDataset(X, Y)
NAMES = np.array(["cat", "dog"])
FRAME = pd.DataFrame(X.numpy(), columns=list("abcd"))


def linear() -> nn.Linear:
    """A classifier that misses some samples: it does not see the second column."""
    network = nn.Linear(4, 2, bias=False)
    network.weight.data = torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    return network


ORDERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(PAIRS, batch_size=16),
    "shuffled": lambda: DataLoader(PAIRS, batch_size=16, shuffle=True),
    "last batch dropped": lambda: DataLoader(PAIRS, batch_size=16, drop_last=True),
    "weighted": lambda: DataLoader(
        PAIRS, batch_size=16, sampler=WeightedRandomSampler([1.0] * N, N)
    ),
    "subset": lambda: DataLoader(PAIRS, batch_size=16, sampler=SubsetRandomSampler(range(N))),
}
VERBS: dict[str, Callable[[Any], Any]] = {
    "measure": lambda data: gs.measure(linear(), data, ["loss", "ntk_trace"]).values(),
    "forecast_accuracy": lambda data: gs.forecast_accuracy(None, data).score,
    "find_label_issues": lambda data: gs.find_label_issues(None, data).indices.tolist(),
    "estimate_label_noise": lambda data: gs.estimate_label_noise(None, data).rate,
    "out_of_sample": lambda data: gs.out_of_sample(None, data).predictions.tolist(),
    "check": lambda data: [
        (f.code, [int(i) for i in f.indices]) for f in gs.check(linear(), data).findings
    ],
    "record_network": lambda data: (
        gs.record_network(linear(), data, name="n", measures=["loss"]).scores
    ),
    "compare": lambda data: (
        gs.compare({"a": linear(), "b": nn.Identity()}, data, ["loss"]).to_pandas().value.tolist()
    ),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("verb", VERBS)
def test_the_order_of_a_loader_does_not_matter(verb: str, order: str) -> None:
    assert str(VERBS[verb](ORDERS[order]())) == str(VERBS[verb]((X, Y)))


def _accuracy_of_check(train: Any, test: Any) -> float:
    account = gs.check(linear(), train, test=test, only=["GS402"]).account
    return -1.0 if account is None or account.expected is None else account.expected.value


def _test_accuracy_of_training(train: Any, test: Any) -> float:
    settings = gs.TrainingSpec(epochs=1, learning_rate=1e-9)
    return gs.train(copy.deepcopy(linear()), train, settings, test=test).history[-1][
        "test_accuracy"
    ]


SCORES: dict[str, Callable[[Any, Any], float]] = {
    "check": _accuracy_of_check,
    "validated_accuracy": lambda train, test: (
        gs.validated_accuracy(linear(), test, train).plain.value
    ),
    "record_network": lambda train, test: gs.record_network(
        linear(), train, test=test, name="n", measures=["loss"]
    ).scores["test_accuracy"],
    "train": _test_accuracy_of_training,
}
SECOND: dict[str, Callable[[Tensor], Any]] = {
    "tensors": lambda rows: (X[rows], Y[rows]),
    "double": lambda rows: (X[rows].double(), Y[rows]),
    "numpy": lambda rows: (X[rows].numpy(), Y[rows].numpy()),
    "data set": lambda rows: TensorDataset(X[rows], Y[rows]),
    "shuffling loader": lambda rows: DataLoader(TensorDataset(X[rows], Y[rows]), batch_size=7, shuffle=True),
    "one-hot": lambda rows: (X[rows], nn.functional.one_hot(Y[rows], 2)),
    "unlabelled rows": lambda rows: (
        torch.cat([torch.zeros(3, 4), X[rows]]), torch.cat([torch.full((3,), -100), Y[rows]]),
    ),
    "names": lambda rows: (FRAME.iloc[rows.tolist()], NAMES[Y[rows].numpy()]),
    "categories": lambda rows: (FRAME.iloc[rows.tolist()], pd.Series(pd.Categorical(NAMES[Y[rows].numpy()]))),
    "other order of columns": lambda rows: (FRAME.iloc[rows.tolist()][list("dcab")], NAMES[Y[rows].numpy()]),
}  # fmt: skip
NAMED = ("names", "categories", "other order of columns")


@pytest.mark.parametrize(
    "rows", [torch.arange(40), torch.nonzero(Y[:60] == 1).flatten()], ids=["all", "one class"]
)
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("verb", SCORES)
def test_a_second_data_set_is_scored_as_plain_tensors_are(
    verb: str, second: str, rows: Tensor
) -> None:
    if second == "one-hot" and len(Y[rows].unique()) == 1:
        pytest.skip("one class is no one-hot matrix of two")
    train = (FRAME, NAMES[Y.numpy()]) if second in NAMED else (X, Y)
    expected = (linear()(X[rows]).argmax(1) == Y[rows]).double().mean().item()
    assert SCORES[verb](train, SECOND[second](rows)) == pytest.approx(expected)


@pytest.mark.parametrize("verb", SCORES)
def test_a_second_data_set_that_does_not_fit_gets_one_message(verb: str) -> None:
    for train, test in (
        ((X, Y), (X[:, :3], Y)),
        ((X, Y), (X, X[:, :1])),
        ((X, Y), (X, NAMES[Y.numpy()])),
        ((FRAME, NAMES[Y.numpy()]), (X, Y)),
        ((FRAME, NAMES[Y.numpy()]), (FRAME, np.where(Y.numpy() == 0, "bird", "dog"))),
        ((FRAME, NAMES[Y.numpy()]), (FRAME.rename(columns={"a": "z"}), NAMES[Y.numpy()])),
    ):
        with pytest.raises(InvalidInput):
            SCORES[verb](train, test)
