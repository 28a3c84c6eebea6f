"""The table of all measures in the docs is the one that the registry makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gapscope.measures.registry import measures

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("measures_table", DOCS / "measures_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "measures.md").read_text()
    assert text == module.page(), "run: python docs/measures_table.py"
    assert all(f"`{name}`" in text for name in measures())


def test_every_measure_says_all_of_itself() -> None:
    known = measures()
    assert len(known) >= 30
    for name, item in known.items():
        assert item.title and item.oracle and item.cost_class, name
        assert item.family or item.by_default or item.cost_class == "superlinear", name
