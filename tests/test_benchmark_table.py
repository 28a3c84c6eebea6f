"""The table of all stored timings is that of the JSON files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_table_equals_the_timings(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("benchmark_table", BENCHMARKS / "table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored = (BENCHMARKS / "results" / "TABLE.md").read_text(encoding="utf-8")
    assert module.table() == stored, "stale: python benchmarks/table.py"
    rows = {"plain": {"seconds": 0.002}, "gapscope exact": {"seconds": 0.004}, "rival": {"seconds": 0.5}}
    result = {"title": "trace", "reference": "plain", "rows": rows, "environment": {"date": "2026-01-02"}}
    (tmp_path / "a.json").write_text(json.dumps(result))
    expected = "| trace | plain, 2 ms | exact 2 x | rival 250 x | 2026-01-02 | a.json |"
    assert module.table(tmp_path).splitlines()[-1] == expected
