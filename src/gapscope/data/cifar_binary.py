"""The binary format of CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from gapscope.base.errors import UnreadableFile
from gapscope.data.compressed import read_bounded

_PIXELS = 3 * 32 * 32
_MOST_RECORDS = 60_000
_LARGEST_LABELS = {1: (9,), 2: (19, 99)}


def read_cifar(
    path: str | Path, *, labels_each: Literal[1, 2]
) -> tuple[UInt8[Tensor, "n 3 32 32"], UInt8[Tensor, "n labels"]]:
    """Return pixels and labels of one file in CIFAR's binary format, plain or gzipped.

    A record is 1 label byte (CIFAR-10) or 2 (CIFAR-100: coarse, then fine), then 1024 red, 1024 green and 1024 blue
    bytes, row by row. There is no header; at most 60,000 records, the size of the whole set, are unpacked.

    Args:
        labels_each: Label bytes per record, 1 or 2.

    Returns:
        Pixels 0 to 255 and labels, both uint8.

    Raises:
        UnreadableFile: It is no whole number of records, too long, or holds labels that do not exist.
    """
    path = Path(path)
    record = labels_each + _PIXELS
    content = read_bounded(path, record * _MOST_RECORDS)
    if not content or len(content) % record:
        raise UnreadableFile(
            f"{path} must hold whole records of {record} bytes; it holds {len(content):,} bytes, that is "
            f"{len(content) / record:.2f} records. Fetch it again."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = records[:, :labels_each]
    for column, largest in enumerate(_LARGEST_LABELS[labels_each]):
        found = int(labels[:, column].max())
        if found > largest:
            raise UnreadableFile(
                f"{path} must hold labels 0 to {largest} in byte {column} of every record; it holds {found}. "
                "Is it another file?"
            )
    return records[:, labels_each:].reshape(-1, 3, 32, 32), labels
