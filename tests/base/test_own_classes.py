"""Classes that a data set names are the same classes in a second data set, whatever their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas
import pytest
import torch
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.own_classes import own_class_names
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


class Folder(Dataset):
    """Numbered classes with names, as torchvision's data sets have them."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, classes: list[str]) -> None:
        self.x = x
        self.y = y
        self.classes = classes

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], int(self.y[index])


def hugging_face(y: torch.Tensor, names: list[str]) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "x": datasets.List(datasets.Value("float32"), length=4),
            "label": datasets.ClassLabel(names=names),
        }
    )
    return datasets.Dataset.from_dict({"x": X.tolist(), "label": y.tolist()}, features=features)


FIRST = Folder(X, Y, ["a", "b", "c"])


@pytest.mark.parametrize(
    "data", [FIRST, Subset(FIRST, range(30)), DataLoader(FIRST, batch_size=8, shuffle=True)]
)
def test_names_are_found_behind_loaders_and_subsets(data: Any) -> None:
    samples = as_samples(data)
    assert samples.class_names == ("a", "b", "c")
    assert torch.equal(samples.y, Y[: len(samples)])


def test_a_second_folder_without_a_class_is_numbered_as_the_first() -> None:
    kept = Y > 0
    second = as_second(Folder(X[kept], Y[kept] - 1, ["b", "c"]), as_samples(FIRST))
    assert torch.equal(second.y, Y[kept])


def test_class_labels_of_hugging_face_are_compared_by_name() -> None:
    first = as_samples(hugging_face(Y % 2, ["no", "yes"]))
    second = as_second(hugging_face(1 - Y % 2, ["yes", "no"]), first)
    assert torch.equal(second.y, first.y) and second.class_names == ("no", "yes")


def test_a_class_that_the_first_has_not_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'z'"):
        as_second(Folder(X, Y, ["a", "b", "z"]), as_samples(FIRST))


def test_numbers_are_compared_where_only_one_data_set_has_names() -> None:
    second = as_second((X, Y), as_samples(FIRST))
    assert torch.equal(second.y, Y) and second.class_names == ("a", "b", "c")
    assert any("numbers are compared" in note for note in second.notes)
    assert torch.equal(as_second(FIRST, as_samples((X, Y))).y, Y)


def test_names_that_do_not_fit_the_labels_are_left_out() -> None:
    assert as_samples(Folder(X, Y + 1, ["a", "b", "c"])).class_names == ()
    assert own_class_names(Folder(X, Y, ["a", "a", "b"]), ()) == ()


def test_a_class_without_samples_has_a_column_of_predictions() -> None:
    held = gs.out_of_sample(None, Folder(X, Y, ["a", "b", "c", "d"]))
    assert held.predictions.shape == (60, 4)
    assert list(held.to_pandas().columns[:4]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "values",
    [
        torch.eye(3)[Y],
        torch.cat([torch.eye(3)[Y][:, :2], torch.ones(60, 1)], dim=1),
        X[:, :3],
    ],
    ids=["one-hot", "several labels", "regression"],
)
def test_columns_of_targets_are_compared_by_name(values: torch.Tensor) -> None:
    frame = pandas.DataFrame(values.numpy(), columns=["u", "v", "w"])
    first = as_samples((X, frame))
    second = as_second((X, frame[["w", "u", "v"]]), first)
    assert torch.equal(second.y, first.y)
    with pytest.raises(InvalidInput, match="u, v, w"):
        as_second((X, frame.rename(columns={"u": "other"})), first)


def test_an_unnamed_matrix_of_targets_is_compared_by_position() -> None:
    frame = pandas.DataFrame(X[:, :2].numpy(), columns=["u", "v"])
    second = as_second((X, X[:, :2]), as_samples((X, frame)))
    assert torch.equal(second.y, X[:, :2])


def test_columns_may_be_named_like_attributes() -> None:
    names = ["cat", "dataset", "classes"]
    tags = pandas.DataFrame((X[:, :3] > 0).long().numpy(), columns=names)
    samples = as_samples((X, tags))
    assert samples.kind == "multi-label" and samples.target_names("label") == tuple(names)
    held = gs.out_of_sample(None, (X, tags))
    assert list(held.to_pandas().columns[:3]) == names
    frame = pandas.DataFrame(X[:, :3].numpy(), columns=names)
    assert as_samples((frame, Y)).class_names == ()


def test_findings_name_the_labels_of_a_frame() -> None:
    tags = pandas.DataFrame({"dog": (X[:, 0] > 0).long().numpy(), "yak": [1, 1] + 58 * [0]})
    found = gs.check(None, (X, tags), only=["GS109"]).findings
    assert "yak" in found[0].evidence


OTHER = Folder(X + 1, Y, ["b", "c", "d"])
LONGER = Folder(X + 1, Y, ["a", "b", "c", "d"])


class Stream(IterableDataset):
    """A data set without numbers of samples."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.classes = folder.classes

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter(map(self.folder.__getitem__, range(len(self.folder))))


@pytest.mark.parametrize(
    "data",
    [
        FIRST + OTHER,
        DataLoader(ConcatDataset([FIRST, LONGER, OTHER]), batch_size=8, shuffle=True),
        Subset(FIRST + OTHER, range(50, 70)),
        Subset(Subset(FIRST + OTHER, range(50, 70)), range(5, 15)),
        ConcatDataset([FIRST, Subset(OTHER, range(30))]),
        ConcatDataset([FIRST + LONGER, FIRST + OTHER]),
        ChainDataset([Stream(FIRST), Stream(OTHER)]),
    ],
)
def test_joined_data_sets_that_number_their_classes_otherwise_are_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="class 0 is"):
        as_samples(data)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (FIRST + FIRST, "abc"),
        (FIRST + LONGER, "abcd"),
        (Subset(FIRST + OTHER, range(20, 50)), "abc"),
        (Subset(FIRST + OTHER, range(60, 90)), "bcd"),
        (Subset(FIRST + OTHER, [-1, -2, -3]), "bcd"),
        (ChainDataset([Stream(FIRST), Stream(LONGER)]), "abcd"),
        (FIRST + TensorDataset(X, Y), ""),
    ],
)
def test_joined_data_sets_with_the_same_classes_keep_their_names(data: Any, names: str) -> None:
    assert as_samples(data).class_names == tuple(names)
