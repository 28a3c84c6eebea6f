"""Numbers of README.md and the pages equal the stored results that their keys name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.scripts import load_script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
numbers = load_script(DOCS / "page_numbers.py")
PAGES = sorted(path for path in DOCS.rglob("*.md") if "theory" not in path.parts)
# a result typed by hand: an interval, or a score with a decimal value
TYPED = re.compile(
    r"\d %? ?\(?95 % CI|(RMSE|AUROC|coverage|precision|recall|hit rate|accuracy of) (of |is )?0?\.\d\d"
)


def _prose(path: Path) -> str:
    """Text of a page without its code, its outputs, and its numbers and tables with a key."""
    text = numbers.TABLE.sub("", numbers.NUMBER.sub("", path.read_text()))
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_every_key_is_used() -> None:
    known = {f"numbers.{key}" for key in numbers.all_numbers()} | {
        f"tables.{key}" for key in numbers.all_tables()
    }
    used = {
        key for page in numbers.pages() for key in re.findall(r"<!--([\w.]+)-->", page.read_text())
    }
    assert used <= known
    unused = {key for key in known - used if not re.match(r"numbers\.gs\d", key)}
    assert not unused


@pytest.mark.parametrize(
    "page", numbers.pages(), ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_page_shows_the_stored_values(page: Path) -> None:
    text = page.read_text()
    assert numbers.fill(text) == text, "stale: python docs/page_numbers.py"
    assert len(numbers.COMMENT.findall(text)) == len(numbers.NUMBER.findall(text)) + len(
        numbers.TABLE.findall(text)
    )
    rest = numbers.without_keys(text)
    assert "<!--" not in rest and "{{" not in re.sub(
        r"```.*?```|`[^`\n]*`", "", rest, flags=re.DOTALL
    )


def test_a_stale_number_and_a_stale_table_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        numbers, "all_numbers", lambda: {"a": "0.93", "b": "-1.5 points (95 % CI -2.0 to -1.0)"}
    )
    monkeypatch.setattr(numbers, "all_tables", lambda: {"c": "| x |\n|---|\n| 2 |"})
    stale = "From 5 to 0.9<!--numbers.a-->, {{ numbers.b }}.\n\n<!--tables.c-->\n\n| x |\n|---|\n| 1 |\n| 1 |\n\nEnd"
    filled = numbers.fill(stale)
    assert filled.startswith(
        "From 5 to 0.93<!--numbers.a-->, -1.5 points (95 % CI -2.0 to -1.0)<!--numbers.b-->."
    )
    assert filled.endswith("<!--tables.c-->\n\n| x |\n|---|\n| 2 |\n\nEnd")
    assert numbers.fill(filled) == filled and "<!--" not in numbers.without_keys(filled)
    with pytest.raises(KeyError):
        numbers.fill("1<!--numbers.unknown-->")


def test_a_number_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "benchmarks/results/fine_tuning.json").read_text())["summary"][
        "language model"
    ]
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
    script, stored = (
        load_script(benchmarks / "table.py"),
        (benchmarks / "results" / "TABLE.md").read_text(),
    )
    assert script.table() == stored, "stale: python benchmarks/table.py"
    rows = {
        "plain": {"seconds": 0.002},
        "gapscope exact": {"seconds": 0.004},
        "rival": {"seconds": 0.5},
    }
    result = {
        "title": "trace",
        "reference": "plain",
        "rows": rows,
        "environment": {"date": "2026-01-02"},
    }
    (tmp_path / "a.json").write_text(json.dumps(result))
    expected = "| trace | plain, 2 ms | exact 2 x | rival 250 x | 2026-01-02 | a.json |"
    assert script.table(tmp_path).splitlines()[-1] == expected


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_readme_shows_the_code_and_output_of_the_landing_page() -> None:
    readme, landing = (ROOT / "README.md").read_text(), (DOCS / "index.md").read_text()
    code = re.search(r"```python\n.*?```\n\n```text\n.*?```", landing, re.DOTALL)
    assert code is not None and code[0] in readme
    assert (DOCS / "images" / "found.png").exists() and "docs/images/found.png" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_measured_number_is_typed(page: Path) -> None:
    assert not TYPED.findall(_prose(page))
