"""Location of the PGDL 2020 table of 96 networks."""

from __future__ import annotations

from pathlib import Path

from gapscope.base.errors import DataNotFound
from gapscope.data.location import FileLayout, data_root, locate

PGDL = FileLayout("pgdl", ("pgdl",), {"networks": ("pgdl_task1_v4.csv",)})


def pgdl_networks(root: str | Path | None = None) -> Path:
    """Return the CSV file of VGG-like networks on CIFAR-10 with gaps and 13 measures.

    Raises:
        DataNotFound: It is not there (there is no download).
    """
    try:
        return locate(PGDL, root)["networks"]
    except DataNotFound:
        raise DataNotFound(
            f"The networks of the 2020 competition must lie in {data_root(root) / 'pgdl' / 'pgdl_task1_v4.csv'}; they "
            "do not. Name another data root with --data-root or GAPSCOPE_DATA, or pass a table of your own."
        ) from None
