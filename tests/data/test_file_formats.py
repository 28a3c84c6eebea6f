from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import DataNotFound, UnreadableFile
from gapscope.data import file_formats
from gapscope.data.file_formats import read_bounded, read_cifar, read_idx, read_table


def test_no_more_is_unpacked_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(UnreadableFile, match=r"bomb\.gz must .*1,000 bytes"):
        read_bounded(path, 1000)
    monkeypatch.setattr(file_formats, "MAX_BYTES", 30_730)
    with pytest.raises(UnreadableFile, match="most 30,730 bytes"):
        read_cifar(path, labels_each=1)
    monkeypatch.setattr(file_formats, "MAX_BYTES", 2000)
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(3000, dtype=np.uint8))))
    with pytest.raises(UnreadableFile, match=r"\[3000\] these are 3,000"):
        read_idx(path, dimensions=1)


@given(size=st.integers(2, 250))
def test_truncated_gzip_files_are_rejected(
    tmp_path_factory: pytest.TempPathFactory, size: int
) -> None:
    path = tmp_path_factory.mktemp("truncated") / "truncated.gz"
    path.write_bytes(gzip.compress(bytes(range(256)))[:size])
    with pytest.raises(UnreadableFile, match="gzip file; unpacking failed"):
        read_bounded(path, 1000)


@given(position=st.integers(10, 270), change=st.integers(1, 255))
def test_a_changed_byte_is_detected_or_has_no_effect(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: int
) -> None:
    content = bytes(range(256))
    stored = bytearray(gzip.compress(content))
    stored[position] ^= change
    path = tmp_path_factory.mktemp("changed") / "changed.gz"
    path.write_bytes(stored)
    try:
        unpacked = read_bounded(path, 1000)
    except UnreadableFile:
        return
    assert unpacked == content  # padding bits of a stored block have no meaning


def test_messages_for_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="must exist"):
        read_bounded(tmp_path / "absent", 1)
    with pytest.raises(UnreadableFile, match="readable file; reading failed"):
        read_bounded(tmp_path, 1)


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], packed: bool, seed: int
) -> None:
    array = np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    read = read_idx(path, dimensions=len(shape))
    assert read.dtype == torch.uint8
    assert np.array_equal(read.numpy(), array)


VALID = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be an IDX file of unsigned bytes, which begins with 00 00 08"),
        (b"PK\x03\x04 and more", "it begins with 50 4b 03 04"),
        (b"\0\0\x0d\x03" + VALID[4:], "it begins with 00 00 0d 03"),
        (
            b"\0\0\x08\x01" + VALID[4:],
            "must have 3 dimensions .* its header states 1. Are images and labels swapped",
        ),
        (VALID[:10], "begins with 00 00 08 and a complete header"),
        (VALID[:-1], r"must hold 24 bytes after its header, for shape \[2, 3, 4\]; it holds 23"),
        (VALID + b"x", "it holds more"),
        (
            VALID[:4] + struct.pack(">3I", 0, 3, 4),
            r"must hold 1 to .* for shape \[0, 3, 4\] these are 0",
        ),
        (VALID[:4] + struct.pack(">3I", 2**31, 2**31, 9), "these are 41,505,174,165,846,491,136"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_other_and_corrupted_files_are_rejected(
    tmp_path: Path, content: bytes, message: str, packed: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UnreadableFile, match=message):
        read_idx(path, dimensions=3)


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
        (b"", 1, "must hold complete records of 3073 bytes; it holds 0 bytes"),
        (records(2, [1])[:-1], 1, "it holds 6,145 bytes, that is 2.00 records"),
        (records(1, [10]), 1, "must hold labels 0 to 9 in byte 0 of every record; it holds 10"),
        (records(1, [20, 5]), 2, "labels 0 to 19 in byte 0"),
        (records(1, [5, 100]), 2, "labels 0 to 99 in byte 1"),
        (records(2, [1]), 2, "complete records of 3074 bytes"),
    ],
)
def test_other_and_corrupted_cifar_files_are_rejected(
    tmp_path: Path, content: bytes, each: Literal[1, 2], message: str
) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=message):
        read_cifar(path, labels_each=each)


COLUMNS = ("size", "price")


@pytest.mark.parametrize(
    "text",
    [
        "size,price\n1,2.5\n-3,4e2\n",
        "Size,PRICE\r\n1,2.5\r\n-3,4e2\r\n",
        '\ufeff"size","price"\n1,2.5\n\n-3,4e2',
        "1,2.5\n-3,4e2\n",
        "  1   2.5\n -3 4e2 \n",
    ],
)
def test_the_same_numbers_from_every_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.csv"
    for content in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(content)
        table = read_table(path, COLUMNS)
        assert table.dtype == torch.float64
        assert table.tolist() == [[1.0, 2.5], [-3.0, 400.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at least one line of 2 finite numbers .size, price.; it holds none"),
        (b"size,price\n", "it holds none"),
        (b"price,size\n1,2\n", "could not convert string 'price'"),
        (b"1,2\n3\n", "columns changed from 2 to 1 at row 2"),
        (b"size,price\n1,2\n3,4,5\n", "columns changed from 2 to 3 at row 2"),
        (b"1,2,3\n", "it has 3 columns"),
        (b"1,2\n3,abc\n", "could not convert string 'abc' .* at row 1, column 2"),
        (b"1,2\n3,nan\n", "1 values that are not finite"),
        (b"1,2\n,4\n", "could not convert string ''"),
        (b"\x89PNG\r\n\x1a\n\0\0\xff\xfe", "could not convert"),
    ],
)
def test_other_and_corrupted_tables_are_rejected(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=message):
        read_table(path, COLUMNS)
