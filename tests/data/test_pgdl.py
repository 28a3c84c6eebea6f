from __future__ import annotations

from pathlib import Path

import pytest

from gapscope.base.errors import DataNotFound
from gapscope.data.location import pgdl_networks


def test_the_table_is_found_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"must lie in .*pgdl/pgdl_task1_v4.csv; they do not"):
        pgdl_networks(tmp_path)
    (tmp_path / "pgdl").mkdir()
    (tmp_path / "pgdl" / "pgdl_task1_v4.csv").write_text("gap\n")
    assert pgdl_networks(tmp_path) == tmp_path / "pgdl" / "pgdl_task1_v4.csv"
