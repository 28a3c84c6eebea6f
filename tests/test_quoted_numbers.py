"""Every number that README.md and the docs quote is that of the results' JSON."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ENDS = {"low": 0, "high": 1}


@pytest.fixture(scope="module")
def quoted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quoted_numbers", ROOT / "docs" / "quoted_numbers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_results_hold(quoted: ModuleType) -> None:
    for page in quoted.pages():
        text = page.read_text(encoding="utf-8")
        assert quoted.rewritten(text) == text, f"{page.name} is stale: python docs/quoted_numbers.py"
        assert text.count("<!--t ") == len(quoted.TABLE.findall(text)) == text.count("<!--/t-->"), page.name
        assert text.count("<!--n ") == len(quoted.QUOTED.findall(text)) == text.count("<!--/n-->"), page.name


def test_no_line_begins_with_a_comment_which_would_end_its_paragraph(quoted: ModuleType) -> None:
    for page in quoted.pages():
        lines = page.read_text(encoding="utf-8").splitlines()
        assert not [line[:60] for line in lines if line.startswith("<!--n ")], page.name


@pytest.mark.parametrize("page", ["estimating-the-gap.md", "which-measure.md"])
def test_pages_that_tell_what_something_is_worth_quote(quoted: ModuleType, page: str) -> None:
    assert len(quoted.QUOTED.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))) >= 10


def test_a_stale_number_is_seen_and_mended(quoted: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "toy"
    folder.mkdir(parents=True)
    runs = [{"noise": 0.0, "kept": 0.9, "final": 0.95}, {"noise": 0.6, "kept": 0.8, "final": 0.5}]
    (folder / "a.json").write_text(json.dumps({"n": {"x/y": -0.12345, "runs": runs}}))
    lost = quoted.value_at("toy/a.json", "n > runs > [noise = 0] > kept - final > mean", tmp_path)
    assert lost == pytest.approx(-0.05)
    assert quoted.value_at("toy/a.json", "n > runs > [noise > 0.1] > len", tmp_path) == 1
    networks = [{"gap": 2.0 * i, "m.far": i, "of": "a" if i else "b"} for i in range(5)]
    (folder / "b.json").write_text(json.dumps({"numbers": {"networks": networks}, "claims": [{"value": 3.0}]}))
    assert quoted.value_at("toy/b.json", "networks > [of = a] > R2 of m.far", tmp_path) == pytest.approx(1)
    assert quoted.value_at("toy/b.json", "claims > 0 > value", tmp_path) == 3
    stale = "<!--n toy/a.json :: n > x/y :: .2f-->.99<!--/n-->"
    share = "<!--n toy/a.json :: n > runs > 1 > kept :: .0%-->0 %<!--/n-->"
    assert "-->80 %<!--" in quoted.rewritten(share, tmp_path)
    new = quoted.rewritten(stale, tmp_path)
    assert "-->-.12<!--" in new and quoted.rewritten(new, tmp_path) == new
    with pytest.raises(KeyError):
        quoted.rewritten("<!--n toy/a.json :: gone :: .2f-->1<!--/n-->", tmp_path)


def test_a_table_is_made_of_its_rows(quoted: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "toy"
    folder.mkdir(parents=True)
    rows = [{"set": "a", "rate": {"value": 0.5, "low": 0.25, "high": 1}}, {"set": "b", "rate": {"value": "NaN"} | ENDS}]
    (folder / "a.json").write_text(json.dumps({"rows": rows}))
    head = "<!--t toy/a.json :: rows\ndata = set\nerror = rate [.2f]\n-->"
    expected = f"{head}\n\n| data | error |\n|---|---|\n| a | .50 [.25, 1.00] |\n| b | - |\n\n<!--/t-->"
    assert quoted.rewritten(f"x {head} stale <!--/t--> y", tmp_path) == f"x {expected} y"
    assert quoted.rewritten(expected, tmp_path) == expected
