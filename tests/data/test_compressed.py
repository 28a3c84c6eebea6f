from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import DataNotFound, UnreadableFile
from gapscope.data.file_formats import check_capacity, read_bounded


def test_more_than_was_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(UnreadableFile, match=r"bomb\.gz must hold at most 1,000 bytes; it holds more"):
        read_bounded(path, 1000)


@given(cut=st.integers(2, 250))
def test_a_gzip_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = gzip.compress(bytes(range(256)))
    path = tmp_path_factory.mktemp("cut") / "cut.gz"
    path.write_bytes(whole[:cut])
    with pytest.raises(UnreadableFile, match="must be a whole gzip file; unpacking failed"):
        read_bounded(path, 1000)


@given(position=st.integers(10, 270), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_changes_nothing(
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
    assert unpacked == content  # padding bits of a stored block carry nothing


def test_missing_files_and_folders_have_their_own_words(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="must exist to be read; it does not"):
        read_bounded(tmp_path / "absent", 1)
    with pytest.raises(UnreadableFile, match="must be a readable file; reading failed: Is a directory"):
        read_bounded(tmp_path, 1)


def test_a_promise_that_no_file_of_this_size_can_keep_is_refused(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(b"12345678")
    packed.write_bytes(gzip.compress(bytes(10**6), 9))
    check_capacity(plain, 8)
    check_capacity(packed, 10**6)
    with pytest.raises(UnreadableFile, match="must hold the 9 bytes that its header states; it can hold 8 at most"):
        check_capacity(plain, 9)
    with pytest.raises(UnreadableFile, match="must hold the 1,000,000,000 bytes"):
        check_capacity(packed, 10**9)
