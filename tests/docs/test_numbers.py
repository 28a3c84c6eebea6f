"""Numbers of the pages come from the stored results, by key; those of README.md equal them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from scripts import load_script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
numbers = load_script(DOCS / "page_numbers.py")
PAGES = sorted(path for path in DOCS.rglob("*.md") if "theory" not in path.parts)
# a result typed by hand: an interval, or a score with a decimal value
TYPED = re.compile(r"\d %? ?\(?95 % CI|(RMSE|AUROC|coverage|precision|recall|hit rate|accuracy of) (of |is )?0?\.\d\d")


def _prose(path: Path) -> str:
    """Text of a page without its code and outputs."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)


def test_every_key_resolves_and_every_key_is_used() -> None:
    known = {f"numbers.{key}" for key in numbers.all_numbers()} | {f"tables.{key}" for key in numbers.all_tables()}
    used = {key for page in PAGES for key in re.findall(r"\{\{ ((?:numbers|tables)\.\w+) \}\}", page.read_text())}
    assert used <= known
    content = tomllib.loads((DOCS / "numbers.toml").read_text())
    in_readme = {f"numbers.{key}" for line in content["readme"]["sentences"] for key in re.findall(r"\{(\w+)\}", line)}
    unused = {key for key in known - used - in_readme if not re.match(r"numbers\.gs\d", key)}
    assert not unused


def test_a_number_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "benchmarks/results/fine_tuning.json").read_text())["summary"]["language model"]
    assert numbers.all_numbers()["memorization_flagged"] == str(stored["flagged in time"])
    rows = numbers.all_tables()["regression_alarms"].splitlines()
    stored = json.loads((ROOT / "benchmarks/results/regression_alarms.json").read_text())["summary"]
    assert len(rows) == 2 + len(stored)
    assert rows[2].split("|")[3].strip() == f"{stored[0]['errors']['gradient_disparity']:.2f}"


def test_a_missing_row_or_an_unknown_format_is_an_error() -> None:
    with pytest.raises(KeyError, match="wrong_labels"):
        numbers.find("benchmarks/results/wrong_labels.json", ["summary", {"set": "none"}])
    with pytest.raises(ValueError, match="furlong"):
        numbers.show(1.0, "furlong .2f")
    for missing in (None, float("nan"), "NaN"):
        assert numbers.show(missing, "percent .0f") == "–"


def test_the_table_of_timings_equals_the_stored_ones(tmp_path: Path) -> None:
    benchmarks = ROOT / "benchmarks"
    script, stored = load_script(benchmarks / "table.py"), (benchmarks / "results" / "TABLE.md").read_text()
    assert script.table() == stored, "stale: python benchmarks/table.py"
    rows = {"plain": {"seconds": 0.002}, "gapscope exact": {"seconds": 0.004}, "rival": {"seconds": 0.5}}
    result = {"title": "trace", "reference": "plain", "rows": rows, "environment": {"date": "2026-01-02"}}
    (tmp_path / "a.json").write_text(json.dumps(result))
    expected = "| trace | plain, 2 ms | exact 2 x | rival 250 x | 2026-01-02 | a.json |"
    assert script.table(tmp_path).splitlines()[-1] == expected


def test_readme_quotes_the_stored_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert not [sentence for sentence in numbers.readme_sentences() if sentence not in text]
    assert len(text.splitlines()) <= 100


def test_readme_shows_the_code_and_output_of_the_landing_page() -> None:
    readme, landing = (ROOT / "README.md").read_text(), (DOCS / "index.md").read_text()
    code = re.search(r"```python\n.*?```\n\n```text\n.*?```", landing, re.DOTALL)
    assert code is not None and code[0] in readme
    assert (DOCS / "images" / "found.png").exists() and "docs/images/found.png" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_measured_number_is_typed(page: Path) -> None:
    assert not TYPED.findall(_prose(page))
    assert "<!--" not in page.read_text()
