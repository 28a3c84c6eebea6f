from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import UnreadableFile
from gapscope.data.file_formats import read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), packed=st.booleans(), seed=st.integers(0, 99))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], packed: bool, seed: int
) -> None:
    array = np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    read = read_idx(path, dimensions=len(shape))
    assert read.dtype == torch.uint8
    assert np.array_equal(read.numpy(), array)


WHOLE = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be an IDX file of unsigned bytes, which begins with 00 00 08"),
        (b"PK\x03\x04 and more", "it begins with 50 4b 03 04"),
        (b"\0\0\x0d\x03" + WHOLE[4:], "it begins with 00 00 0d 03"),
        (b"\0\0\x08\x01" + WHOLE[4:], "must have 3 dimensions .* its header states 1. Are images and labels swapped"),
        (WHOLE[:10], "begins with 00 00 08 and a whole header"),
        (WHOLE[:-1], r"must hold the 24 bytes|must hold 24 bytes after its header"),
        (WHOLE + b"x", r"must hold 24 bytes after its header, for shape \[2, 3, 4\]; it holds more"),
        (WHOLE[:4] + struct.pack(">3I", 0, 3, 4), r"at least one record; its header states the shape \[0, 3, 4\]"),
        (WHOLE[:4] + struct.pack(">3I", 2**31, 2**31, 9), "must hold the 41,505,174,165,846,491,136 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_other_and_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str, packed: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UnreadableFile, match=message):
        read_idx(path, dimensions=3)
