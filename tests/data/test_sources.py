from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import DataNotFound, InvalidInput
from gapscope.data import catalogue
from gapscope.data.catalogue import (
    SOURCES,
    check_dataset_options,
    dataset_names,
    fetch,
    find_dataset,
    load_dataset,
)
from support.loopback import serving, stated_as_official

# some are shorter here, an image folder has any size, and facial keypoints need an account
INCOMPLETE = ("fashion_mnist", "cifar10", "cifar100", "image_folder", "facial_keypoints")


def test_every_data_set_has_its_name() -> None:
    names = "digits two_circles mnist fashion_mnist cifar10 cifar100 boston_housing california_housing concrete"
    assert dataset_names() == (*names.split(), "facial_keypoints", "image_folder")
    assert all(
        source.layout is None or source.layout.source == name for name, source in SOURCES.items()
    )


@pytest.mark.parametrize("name", dataset_names())
def test_every_problem_agrees_with_its_source(data_root: Path, name: str) -> None:
    if not find_dataset(name, root=data_root):
        with pytest.raises(
            DataNotFound, match=f"gapscope data fetch {name}|an absolute path as folder="
        ):
            load_dataset(name, root=data_root)
        return
    problem = load_dataset(name, root=data_root)
    assert (problem.name, problem.task) == (name, SOURCES[name].task)
    assert (
        name in INCOMPLETE
        or SOURCES[name].sizes == f"{len(problem.train):,} + {len(problem.test):,}"
    )
    for samples in (problem.train, problem.test):
        assert samples.inputs.dtype == torch.float32
        if samples.inputs.ndim == 4:
            assert float(samples.inputs.min()) >= 0 and float(samples.inputs.max()) <= 1
        assert samples.y.dtype == (
            torch.int64 if problem.task == "classification" else torch.float32
        )


def test_options_reach_the_data_set(data_root: Path) -> None:
    assert len(load_dataset("two_circles", n=10).train) == 10
    assert len(load_dataset("concrete", root=data_root, test_fraction=0.5).test) == 515
    assert load_dataset("two_circles", factor=0).n_outputs == 2  # an integer is valid for a float


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "minst",
            {},
            "Name of a data set must be one of 'digits'.* got 'minst'. Did you mean 'mnist'",
        ),
        (
            "two_circles",
            {"nose": 0.1},
            "'nose'; options: n, factor, noise, test_size, seed. Did you mean 'noise'",
        ),
        ("digits", {"seed": 1}, "'digits' has no option 'seed'; options: none"),
        (
            "two_circles",
            {"n": "10"},
            r"Option 'n' of data set 'two_circles' must be of type int; got '10' \(str\)",
        ),
        ("two_circles", {"n": 1.5}, "must be of type int; got 1.5"),
    ],
)
def test_wrong_names_and_options_are_rejected(name: str, options: dict, message: str) -> None:
    for function in (
        lambda: load_dataset(name, **options),
        lambda: check_dataset_options(name, options),
    ):
        with pytest.raises(InvalidInput, match=message):
            function()


def test_find_dataset_returns_the_folder(data_root: Path, tmp_path: Path) -> None:
    assert find_dataset("digits") == "built in"
    assert find_dataset("mnist", root=data_root) == str(data_root / "mnist")
    assert find_dataset("mnist", root=tmp_path) == ""
    with pytest.raises(InvalidInput, match="Did you mean 'mnist'"):
        find_dataset("mnits")


def test_fetched_files_can_be_loaded(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated_as_official(monkeypatch, "boston_housing", data_root / "boston_housing")
    with serving(data_root / "boston_housing") as server:
        paths = fetch("boston_housing", root=tmp_path, base_url=server.url)
    assert paths == [tmp_path / "boston_housing" / "housing.data"]
    assert len(load_dataset("boston_housing", root=tmp_path).train) == 354


def test_instructions_for_files_that_cannot_be_fetched(tmp_path: Path) -> None:
    assert fetch("digits", root=tmp_path) == []
    with pytest.raises(
        DataNotFound, match=rf"cannot be fetched.*{tmp_path}/facial_keypoints/training\.csv"
    ):
        fetch("facial_keypoints", root=tmp_path)
    with pytest.raises(DataNotFound, match=r"concrete/concrete\.csv, a CSV file"):
        fetch("concrete", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_study_does_not_hide_the_data_sets_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = (
        EntryPoint("broken", "no_such_module:study", "gapscope.studies"),
        *entry_points(group="gapscope.studies"),
    )
    monkeypatch.setattr(catalogue, "entry_points", lambda group: points)
    catalogue._sources_of_studies.cache_clear()
    try:
        assert load_dataset("drawn_faces", n=4, test_size=4).task == "regression"
    finally:
        catalogue._sources_of_studies.cache_clear()
