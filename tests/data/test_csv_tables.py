from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import UnreadableFile
from gapscope.data.file_formats import read_table

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
def test_other_and_damaged_tables_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=message):
        read_table(path, COLUMNS)


def test_a_line_cut_off_in_the_middle_is_refused(tmp_path: Path, data_root: Path) -> None:
    whole = (data_root / "concrete" / "concrete.csv").read_bytes()
    path = tmp_path / "concrete.csv"
    path.write_bytes(whole[: whole.rindex(b",")])
    header = whole.split(b"\n", 1)[0].decode().strip().split(",")
    with pytest.raises(UnreadableFile, match="columns changed from 9 to 8 at row 1030"):
        read_table(path, header)
