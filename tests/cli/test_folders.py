"""Folders of pictures on the command line, one folder per class."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy
import pytest
from PIL import Image

from support.commands import gapscope

CLASSES = {"blue": (40, 60, 200), "red": (200, 60, 40)}


def write_pictures(folder: Path, per_class: int, seed: int) -> None:
    """Write pictures of one colour each, with noise."""
    rng = numpy.random.default_rng(seed)
    for name, colour in CLASSES.items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = (numpy.array(colour) + rng.normal(scale=25, size=(16, 16, 3))).clip(0, 255)
            Image.fromarray(pixels.astype(numpy.uint8)).save(folder / name / f"{number}.png")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "train", 40, seed=0)
    return tmp_path / "train"


def test_a_picture_in_the_wrong_folder_is_named_by_its_path(pictures: Path) -> None:
    wrong = pictures / "blue" / "moved.png"
    (pictures / "red" / "0.png").rename(wrong)
    done = gapscope("labels", pictures, "--side", "8", "--csv", pictures.parent / "list.csv")
    assert done.returncode == 0, done.stderr
    assert "80 pictures of 2 classes, as 8 x 8 pixels" in done.stderr
    with (pictures.parent / "list.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["name"], first["given"], first["suggested"]) == (str(wrong), "blue", "red")


def test_the_forecast_of_a_folder(pictures: Path) -> None:
    done = gapscope("forecast", pictures, "--side", "8")
    assert done.returncode == 0 and "RBF ridge" in done.stdout and "100.0 %" in done.stdout


def test_check_compares_two_folders(pictures: Path) -> None:
    write_pictures(pictures.parent / "test", 5, seed=1)
    picture = pictures / "red" / "3.png"
    (pictures.parent / "test" / "red" / "copy.png").write_bytes(picture.read_bytes())
    done = gapscope("check", pictures, "--side", "16", "--test", pictures.parent / "test")
    words = " ".join(done.stdout.split())
    assert "GS101" in words and "1 of 11 test samples" in words


@pytest.mark.parametrize("command", ["labels", "forecast", "check"])
def test_a_folder_without_pictures_says_what_is_needed(tmp_path: Path, command: str) -> None:
    done = gapscope(command, tmp_path)
    assert done.returncode == 1 and "pictures" in done.stderr and "per class" in done.stderr


def test_the_other_folder_must_have_the_same_classes(pictures: Path) -> None:
    write_pictures(pictures.parent / "test", 2, seed=1)
    (pictures.parent / "test" / "red").rename(pictures.parent / "test" / "green")
    done = gapscope("labels", pictures, "--test", pictures.parent / "test")
    assert done.returncode == 1 and "has the classes green" in done.stderr


@pytest.mark.parametrize("verb", ["labels", "forecast", "out-of-sample", "check"])
def test_a_missing_folder_is_named(verb: str, tmp_path: Path) -> None:
    done = gapscope(verb, f"{tmp_path}/absent/")
    assert done.returncode == 1
    assert "no such file or folder" in done.stderr
