from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from gapscope.base.errors import UnreadableFile
from gapscope.data import file_formats
from gapscope.data.file_formats import read_cifar


def records(n: int, labels: list[int]) -> bytes:
    pixels = np.random.RandomState(0).randint(0, 256, (n, 3072)).astype(np.uint8)
    return b"".join(bytes(labels) + row.tobytes() for row in pixels)


@pytest.mark.parametrize("labels", [[7], [3, 42]])
def test_labels_and_planes_are_in_their_places(tmp_path: Path, labels: list[int]) -> None:
    content = records(5, labels)
    path = tmp_path / "batch.bin.gz"
    path.write_bytes(gzip.compress(content))
    each: Literal[1, 2] = 1 if len(labels) == 1 else 2
    pixels, read_labels = read_cifar(path, labels_each=each)
    assert read_labels.tolist() == [labels] * 5
    assert pixels.shape == (5, 3, 32, 32)
    # Blue of row 2, column 3 of the last record.
    assert pixels[4, 2, 2, 3] == content[4 * (each + 3072) + each + 2 * 1024 + 2 * 32 + 3]


@pytest.mark.parametrize(
    ("content", "each", "message"),
    [
        (b"", 1, "must hold whole records of 3073 bytes; it holds 0 bytes"),
        (records(2, [1])[:-1], 1, "it holds 6,145 bytes, that is 2.00 records"),
        (records(1, [10]), 1, "must hold labels 0 to 9 in byte 0 of every record; it holds 10"),
        (records(1, [20, 5]), 2, "labels 0 to 19 in byte 0"),
        (records(1, [5, 100]), 2, "labels 0 to 99 in byte 1"),
        (records(2, [1]), 2, "whole records of 3074 bytes"),
    ],
)
def test_other_and_damaged_files_are_refused(tmp_path: Path, content: bytes, each: Literal[1, 2], message: str) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=message):
        read_cifar(path, labels_each=each)


def test_no_more_is_unpacked_than_the_whole_set_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_formats, "_MOST_CIFAR_RECORDS", 10)
    path = tmp_path / "bomb.bin.gz"
    path.write_bytes(gzip.compress(bytes(3073 * 11)))
    with pytest.raises(UnreadableFile, match="must hold at most 30,730 bytes; it holds more"):
        read_cifar(path, labels_each=1)
