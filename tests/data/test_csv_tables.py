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
        (b"", "must hold at least one line of numbers; it holds none"),
        (b"size,price\n", "must hold at least one line of numbers"),
        (
            b"price,size\n1,2\n",
            "must begin with the columns size, price, or with numbers; it begins with 'price, size'",
        ),
        (b"1,2\n3\n", "must have 2 numbers in every line; line 2 has 1"),
        (b"size,price\n1,2\n3,4,5\n", "line 3 has 3"),
        (b"1,2\n3,abc\n", "must hold finite numbers; line 2, column price, holds 'abc'"),
        (b"1,2\n3,nan\n", "column price, holds 'nan'"),
        (b"1,2\n,4\n", "column size, holds ''"),
        (b"\x89PNG\r\n\x1a\n\0\0\xff\xfe", "must begin with the columns"),
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
    with pytest.raises(UnreadableFile, match="must have 9 numbers in every line; line 1031 has 8"):
        read_table(path, header)
