"""The table of all measures in the docs is the one that the registry makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gapscope.measures import registry
from gapscope.measures.registry import get_measure, list_measures

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("measures_table", DOCS / "measures_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "measures.md").read_text()
    assert text == module.page(), "run: python docs/measures_table.py"
    assert all(f"`{name}`" in text for name in list_measures())


def test_every_measure_says_all_of_itself() -> None:
    known = list_measures()
    assert len(known) >= 30
    for name, item in known.items():
        assert item.title and item.oracle and item.cost_class, f"{name} needs a title, an oracle and a cost_class"
        rooted = item.family or item.default or item.cost_class == "superlinear"
        assert rooted, f"{name} needs a folder of its family, for it is not measured by default"


def test_the_measure_of_the_docs_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MEASURES", dict(list_measures()))
    page = (DOCS / "add-a-measure.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {"__name__": "confidence"})  # as a user's own file would
    logits = torch.tensor([[1.0, 1.0], [0.0, 1000.0]])
    assert float(get_measure("mean_confidence").function(torch.nn.Identity(), logits)) == pytest.approx(0.75)
