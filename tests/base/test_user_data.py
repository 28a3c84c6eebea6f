"""Data sets and loaders that change, end early, raise errors, or yield their samples several times."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput, UnreadableFile
from gapscope.base.samples import as_samples
from gapscope.base.user_data import RowNote, read_sample

N = 60
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
DATA = TensorDataset(X, Y)


class Stream(IterableDataset[Any]):
    """A stream, which its workers divide by themselves if told so."""

    def __init__(self, divides: bool = False) -> None:
        self.divides = divides

    def __iter__(self) -> Any:
        info = get_worker_info()
        step = info.num_workers if info is not None and self.divides else 1
        first = info.id if info is not None and self.divides else 0
        yield from list(zip(X, Y, strict=True))[first::step]


class Broken(Dataset[Any]):
    """A data set with a sample that cannot be read."""

    def __init__(self, error: BaseException | None = None, row: int = 17, n: int = N) -> None:
        self.error, self.row, self.n = error, row, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if index == self.row and self.error is not None:
            raise self.error
        return X[index], Y[index]


class Named(Broken):
    """A data set of dictionaries."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"a": float(x[0]), "label": int(y)}


class Unsized(Dataset[Any]):
    """A data set without a length."""

    def __getitem__(self, index: int) -> Any:
        return DATA[index]


class Dying(Dataset[Any]):
    """A data set that ends its worker."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == 17 and get_worker_info() is not None:
            os._exit(1)
        return DATA[index]


class Augmented(Dataset[Any]):
    """A data set with random augmentation, of several forms of samples."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        if self.form == "numpy":
            return x.numpy() + np.random.default_rng().random(3).astype("float32"), y
        x = x if torch.rand(()) < 0.5 else x.flip(0) + 1
        return {"x": x, "label": y} if self.form == "mapping" else (x, y)


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_stream_is_read_once_by_several_workers(divides: bool, workers: int) -> None:
    for stream in (Stream(divides), ChainDataset([Stream(divides)])):
        samples = as_samples(DataLoader(stream, batch_size=8, num_workers=workers))
        assert torch.equal(samples.inputs, X) and torch.equal(samples.y, Y)
        assert any(f"not {workers}" in note for note in samples.notes)
        assert torch.equal(samples.original([3]), torch.tensor([3]))
    assert as_samples(DataLoader(Stream(), batch_size=8, num_workers=1)).notes == ()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [OSError("no file"), KeyError("a"), RuntimeError("b")])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_that_cannot_be_read_is_named(
    workers: int, error: Exception, shuffle: bool
) -> None:
    loader = DataLoader(Broken(error), batch_size=8, num_workers=workers, shuffle=shuffle)
    with pytest.raises(InvalidInput, match=rf"sample 17 of Broken raised {type(error).__name__}"):
        as_samples(loader)


def test_the_number_of_a_broken_sample_is_that_of_the_data_set() -> None:
    odd = SubsetRandomSampler(range(1, N, 2))
    with pytest.raises(InvalidInput, match="60 samples; sample 17"):
        as_samples(DataLoader(Broken(OSError()), batch_size=4, sampler=odd))
    even = SubsetRandomSampler(range(0, N, 2))
    assert len(as_samples(DataLoader(Broken(OSError(), 1), batch_size=4, sampler=even))) == N // 2
    with pytest.raises(
        InvalidInput, match=r"80 samples; sample 60 of Broken raised IndexError.*len"
    ):
        as_samples(Broken(n=80))


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_gapscope_pass(workers: int) -> None:
    loader = DataLoader(Broken(UnreadableFile("x.png")), batch_size=8, num_workers=workers)
    with pytest.raises(UnreadableFile, match=r"^x\.png$"):
        as_samples(loader)


# torch's signal handler may raise while an object is deleted, which Python prints and ignores
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_fails_and_a_worker_that_dies(workers: int) -> None:
    def collate(items: Any) -> Any:
        if torch.equal(items[0][0], X[16]):
            raise ZeroDivisionError("no such batch")
        return default_collate(items)

    loader = DataLoader(DATA, batch_size=8, collate_fn=collate, num_workers=workers)
    with pytest.raises(InvalidInput, match="ZeroDivisionError: no such batch"):
        as_samples(loader)
    if workers:
        with pytest.raises(
            InvalidInput, match=r"batch \d raised (RuntimeError|Connection|EOFError).*num_workers=0"
        ):
            as_samples(DataLoader(Dying(), batch_size=8, num_workers=1))


def test_a_stream_that_fails_names_the_batch() -> None:
    def batches() -> Any:
        yield X, Y
        raise OSError("connection lost")

    class Loader:
        def __iter__(self) -> Any:
            return batches()

    with pytest.raises(InvalidInput, match="raised OSError: connection lost"):
        as_samples(Loader())


VERBS: dict[str, Callable[[Any], object]] = {
    "labels": lambda data: gs.find_label_issues(None, data),
    "noise": lambda data: gs.estimate_label_noise(None, data),
    "forecast": lambda data: gs.forecast_accuracy(None, data),
    "held out": lambda data: gs.out_of_sample(None, data),
    "check": lambda data: gs.check(None, data, time_budget=1),
    "measure": lambda data: gs.measure(nn.Linear(3, 2), data, ["accuracy"], progress=False),
    "embed": lambda data: gs.embed(nn.Linear(3, 2), data),
    "monitor": gs.Monitor,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "data",
    [ChainDataset([Stream()]), Unsized(), DataLoader(Unsized(), sampler=range(N)), Broken(n=80),
     Broken(OSError("no file")), Named(OSError("no file"))],
    ids=["chain", "no length", "loader without length", "length", "broken", "broken mapping"],
)  # fmt: skip
def test_odd_data_sets_are_read_or_refused_in_every_verb(verb: str, data: Any) -> None:
    if isinstance(data, ChainDataset):
        VERBS[verb](data)
        return
    with pytest.raises(GapscopeError, match=r"length|must return each"):
        VERBS[verb](data)


@pytest.mark.parametrize("form", ["tensor", "numpy", "mapping"])
def test_augmentation_is_noted(form: str) -> None:
    notes = as_samples(DataLoader(Augmented(form), batch_size=8, shuffle=True)).notes
    assert any("change each time" in note for note in notes)
    nan = TensorDataset(torch.full((N, 1), float("nan")), Y)
    assert as_samples(DATA).notes == () == as_samples(Named()).notes
    assert not any("change" in note for note in as_samples([*DATA]).notes)
    assert nan[0][0].isnan().all()


def test_what_the_number_of_a_sample_is_in_parts_of_data_sets() -> None:
    part = Subset(DATA, range(30, 0, -1))
    nested = Subset(part, range(0, 30, 3))
    for data, fact in (
        (part, "its row in data.dataset is data.indices[i]"),
        (nested, "its row in data.dataset.dataset is data.dataset.indices[data.indices[i]]"),
        (ConcatDataset([part, nested]), "cumulative_sizes"),
    ):
        for form in (data, DataLoader(data, batch_size=4)):
            samples = as_samples(form)
            assert any(fact in note for note in samples.notes)
    data = nested
    rows = [data.dataset.indices[data.indices[i]] for i in range(len(data))]  # pyright: ignore
    assert torch.equal(as_samples(nested).inputs, X[rows])
    notes = as_samples(DataLoader(DATA, sampler=SubsetRandomSampler(range(5)))).notes
    assert all(isinstance(note, RowNote) for note in notes)


class SizedStream(IterableDataset[Any]):
    """A stream with a length, of samples in several forms."""

    def __init__(self, form: Callable[[Any, Any], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Any:
        return (self.form(x, y) for x, y in zip(X, Y, strict=True))


@pytest.mark.parametrize("form", [lambda x, y: (x, y), lambda x, y: {"x": x, "label": y}])
@pytest.mark.parametrize(
    "verb",
    [
        lambda data: gs.out_of_sample(None, data).score,
        lambda data: str(gs.forecast_accuracy(None, data)).splitlines()[0],
        lambda data: len(gs.check(None, data, only=["GS101"]).findings),
        lambda data: len(gs.check(None, DATA, test=data, only=["GS101"]).findings),
        lambda data: gs.find_label_issues(None, data).to_dict()["rows"],
    ],
)
def test_a_stream_with_a_length_is_read_as_one_without(
    verb: Callable[[Any], Any], form: Callable[[Any, Any], Any]
) -> None:
    assert verb(SizedStream(form)) == verb([form(x, y) for x, y in zip(X, Y, strict=True)])


def test_a_stream_with_a_length_has_no_numbers() -> None:
    stream = SizedStream(lambda x, y: {"x": x, "label": y})
    for ask in (
        lambda: gs.check(None, stream, target="label"),
        lambda: read_sample(stream, 0),
    ):
        with pytest.raises(InvalidInput, match=r"SizedStream. Pass list\(data\)"):
            ask()


def test_data_without_labels_say_how_labels_are_named() -> None:
    stream = SizedStream(lambda x, y: {"__key__": "0", "x": x, "cls": y})
    with pytest.raises(InvalidInput, match="columns x, cls, none"):
        gs.forecast_accuracy(None, stream)


@pytest.mark.parametrize("n", [2, 3])
def test_a_list_of_batches_is_told_from_samples_with_a_label_per_position(n: int) -> None:
    batches = [(X[i::n], Y[i::n]) for i in range(n)]
    with pytest.raises(InvalidInput, match=rf"list of {n} pairs.*torch.cat.*-100"):
        as_samples(batches)
