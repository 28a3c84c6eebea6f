"""Data sets of the official layout and sizes for where the real ones are not: made up, but for concrete."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path

from gapscope.data.built_in import BOSTON_HOUSING, CALIFORNIA_HOUSING


def _idx(path: Path, shape: tuple[int, ...], content: bytes) -> None:
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(header + content, compresslevel=1))


def _mnist(folder: Path) -> None:
    """Sixty thousand and ten thousand images of a few patterns, so that their files stay small."""
    folder.mkdir()
    rng = random.Random(0)
    patterns = b"".join(rng.randbytes(28 * 28) for _ in range(10))
    for split, n in (("train", 60_000), ("t10k", 10_000)):
        _idx(folder / f"{split}-images-idx3-ubyte.gz", (n, 28, 28), patterns * (n // 10))
        _idx(folder / f"{split}-labels-idx1-ubyte.gz", (n,), bytes(range(10)) * (n // 10))


def _cifar(folder: Path, sizes: dict[str, int], labels: Callable[[int], bytes]) -> None:
    folder.mkdir()
    rng = random.Random(1)
    for name, n in sizes.items():
        content = b"".join(labels(k) + rng.randbytes(3072) for k in range(n))
        (folder / f"{name}.bin.gz").write_bytes(gzip.compress(content, compresslevel=1))


def _table(path: Path, header: str, n: int) -> None:
    path.parent.mkdir()
    rng = random.Random(path.name)
    rows = (",".join(f"{rng.uniform(1, 100):.4f}" for _ in header.split(",")) for _ in range(n))
    path.write_text("\n".join([header, *rows]) + "\n")


def write_standins(root: Path) -> Path:
    """Write the data sets below `root` and return it."""
    _mnist(root / "mnist")
    (root / "fashion-mnist").mkdir()
    for path in (root / "mnist").iterdir():
        (root / "fashion-mnist" / path.name).symlink_to(path)
    _cifar(root / "cifar10", {"data_batch_1": 60, "test_batch": 20}, lambda k: bytes([k % 10]))
    _cifar(root / "cifar100", {"train": 40, "test": 20}, lambda k: bytes([k % 20 // 5, k % 20]))
    (root / "cifar100" / "fine_label_names.txt").write_text(
        "\n".join(f"fine{k}" for k in range(100))
    )
    (root / "cifar100" / "coarse_label_names.txt").write_text(
        "\n".join(f"coarse{k}" for k in range(20))
    )
    _table(root / "boston_housing" / "boston_housing.csv", BOSTON_HOUSING.header, 506)
    rows = (root / "boston_housing" / "boston_housing.csv").read_text().splitlines()[1:]
    (root / "boston_housing" / "housing.data").write_text(
        "\n".join(row.replace(",", " ") for row in rows) + "\n"
    )
    _table(
        root / "california_housing" / "california_housing.csv", CALIFORNIA_HOUSING.header, 20_640
    )
    (root / "concrete").symlink_to(Path(__file__).parents[1] / "fixtures" / "concrete")
    return root
