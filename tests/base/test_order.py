"""Rows keep their numbers, whatever the loader does with them; odd columns have one meaning."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples

X = torch.arange(50.0)[:, None] + torch.zeros(1, 3)
Y = torch.arange(50) % 3
DATA = TensorDataset(X, Y)
EVEN = torch.arange(0, 50, 2)

LOADERS = {
    "shuffled": lambda: DataLoader(DATA, batch_size=7, shuffle=True),
    "dropping": lambda: DataLoader(DATA, batch_size=7, drop_last=True),
    "both": lambda: DataLoader(DATA, batch_size=7, shuffle=True, drop_last=True),
    "weighted": lambda: DataLoader(
        DATA, batch_size=7, sampler=WeightedRandomSampler((torch.rand(50) + 0.1).tolist(), 80)
    ),
    "repeating": lambda: DataLoader(
        DATA, batch_size=7, sampler=RandomSampler(DATA, replacement=True, num_samples=80)
    ),
    "own batches": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 7, drop_last=False)
    ),
    "own sampler": lambda: DataLoader(DATA, batch_size=7, sampler=list(range(49, -1, -1))),
    "in order": lambda: DataLoader(DATA, batch_size=7),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_are_read_in_the_order_of_their_data_set(name: str) -> None:
    loader = LOADERS[name]()
    state = torch.get_rng_state()
    samples = as_samples(loader)
    assert torch.equal(samples.inputs, X) and torch.equal(samples.y, Y)
    assert torch.equal(samples.original(torch.tensor([3, 40])), torch.tensor([3, 40]))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(EVEN.tolist()),
        WeightedRandomSampler((torch.arange(50) % 2 == 0).double().tolist(), 30),
        EVEN.tolist(),
    ],
    ids=["subset", "weights of 0", "list"],
)
def test_rows_that_the_sampler_never_yields_are_omitted(sampler: Any) -> None:
    samples = as_samples(DataLoader(DATA, batch_size=7, sampler=sampler))
    assert torch.equal(samples.inputs, X[::2]) and torch.equal(
        samples.original([1, 2]), torch.tensor([2, 4])
    )
    assert any("25 of 50" in note for note in samples.notes)


def test_a_part_of_a_shuffling_loader_is_a_random_part() -> None:
    samples = as_samples(DataLoader(DATA, batch_size=5, shuffle=True), at_most=10)
    rows = samples.original(range(10))
    assert torch.equal(samples.inputs, X[rows]) and int(rows.max()) > 15


def test_unlabelled_samples_keep_the_numbers_of_the_others() -> None:
    y = Y.clone()
    y[:20] = -100
    for data in ((X, y), DataLoader(TensorDataset(X, y), shuffle=True), (X.numpy(), y.numpy())):
        samples = as_samples(data)
        assert len(samples) == 30 and samples.original([0, 5]).tolist() == [20, 25]
        assert samples.first(4).original([3]).tolist() == [23]
        assert samples.subset(torch.tensor([4])).original([0]).tolist() == [0]
        assert samples.subset(torch.tensor([4]), keeps_rows=True).original([0]).tolist() == [24]


class Stream(IterableDataset[Any]):
    def __init__(self, n: int | None, shuffles: bool = False) -> None:
        self.n, self.shuffles, self.reads = n, shuffles, 0

    def __iter__(self) -> Any:
        self.reads += 1
        i = 0
        while self.n is None or i < self.n:
            yield X[(i + self.shuffles * self.reads) % 50], Y[i % 50]
            i += 1


def test_streams_with_another_order_each_time_have_no_indices() -> None:
    assert as_samples(Stream(20)).original([3]).tolist() == [3]
    with pytest.raises(InvalidInput, match="fixed order"):
        as_samples(Stream(20, shuffles=True)).original([3])


def test_endless_streams_are_refused_or_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.base.batches.MAX_STREAMED", 1000)
    assert len(as_samples(DataLoader(Stream(None), batch_size=10), at_most=30)) == 30
    with pytest.raises(InvalidInput, match="must end"):
        as_samples(Stream(None))


class Items(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize(
    "second",
    [
        (None, 1),
        (torch.zeros(4), 1),
        (object(), 1),
        (torch.zeros(3), None),
        ([torch.zeros(3)] * 2, 1),
    ],
    ids=["none", "size", "object", "no label", "ragged"],
)
def test_samples_that_cannot_be_stacked_get_one_message(second: Any) -> None:
    with pytest.raises(InvalidInput):
        as_samples(Items([(torch.zeros(3), 0), second]))


INTEGERS = np.arange(36) % 12


@pytest.mark.parametrize(
    "labels",
    [INTEGERS.astype(object), pd.Series(INTEGERS.astype(object)), pd.Series(INTEGERS, dtype="Int64"),
     pd.Series(pd.Categorical(INTEGERS)), pd.DataFrame({"y": INTEGERS.astype(object)}),
     INTEGERS.astype(float).astype(object)],
    ids=["objects", "series", "nullable", "categories", "frame", "float objects"],
)  # fmt: skip
def test_numbers_in_columns_of_objects_are_numbers(labels: Any) -> None:
    samples = as_samples((X[:36], labels))
    assert samples.y.flatten().tolist() == INTEGERS.tolist()


def test_categories_keep_their_order() -> None:
    order = ["low", "medium", "high"]
    labels = pd.Series(pd.Categorical(["high", "low", "low"], categories=order, ordered=True))
    samples = as_samples((X[:3], labels))
    assert (
        samples.y.tolist() == [2, 0, 0]
        and samples.class_names == tuple(order)
        and samples.task.n_outputs == 3
    )


@pytest.mark.parametrize("dtype", ["string", "boolean", "object", "category", "Float64"])
def test_missing_labels_are_counted(dtype: str) -> None:
    values = ["a", None, "b"] if dtype in ("string", "object", "category") else [1, None, 0]
    with pytest.raises(InvalidInput, match=r"1 of 3 are missing|finite"):
        as_samples((X[:3], pd.Series(values, dtype=dtype)))


def test_strides_and_types_of_arrays_do_not_matter() -> None:
    array = X.numpy().copy()
    for x in (
        array[::-1],
        array[:, ::-1],
        np.asfortranarray(array),
        array.astype(np.longdouble),
        array.astype(object),
    ):
        assert np.allclose(as_samples(x).inputs.numpy(), x.astype(float))
    for x in (
        torch.randn(1, 50).T,
        torch.randn(50, 1, 6).transpose(1, 2),
        pd.DataFrame({"a": array[:, 0]}),
    ):
        inputs = as_samples(x).inputs
        assert inputs.view(torch.uint8).shape[0] == 50


def _dropping(items: list[Any]) -> Any:
    return default_collate([item for item in items if float(item[0][0]) % 5 != 2])


def _sorting(items: list[Any]) -> Any:
    return default_collate(sorted(items, key=lambda item: float(item[0][0]) % 4))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("collate", [_dropping, _sorting])
def test_rows_of_a_collate_function_that_moves_samples_are_refused(
    collate: Any, shuffle: bool
) -> None:
    samples = as_samples(DataLoader(DATA, batch_size=20, collate_fn=collate, shuffle=shuffle))
    with pytest.raises(InvalidInput, match="drops or sorts"):
        samples.original([0])


def test_a_collate_function_that_keeps_the_order_keeps_the_rows() -> None:
    loader = DataLoader(DATA, batch_size=20, collate_fn=lambda items: default_collate(items))
    assert as_samples(loader).original([3]).tolist() == [3]


def test_inputs_tell_the_order_where_all_labels_are_equal() -> None:
    data = TensorDataset(X, torch.zeros(50, dtype=torch.int64))
    assert not as_samples(DataLoader(data, batch_size=20, collate_fn=_sorting)).has_order


class _Drawing(Dataset):
    """Samples that draw from the random states of NumPy and Python, as augmentations do."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index] + random.random() + float(np.random.rand()), index % 2


def test_reading_moves_no_random_state() -> None:
    generator = torch.Generator().manual_seed(1)
    numpy_state: Any = np.random.get_state()
    before = random.getstate(), numpy_state[1].copy(), generator.get_state()
    as_samples(DataLoader(_Drawing(), batch_size=5, generator=generator))
    as_samples(_Drawing())
    assert random.getstate() == before[0]
    numpy_state = np.random.get_state()
    assert np.array_equal(numpy_state[1], before[1])
    assert torch.equal(generator.get_state(), before[2])
