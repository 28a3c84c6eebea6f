"""The report opens with what the checks of one network found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import gapscope as gs
from commands import gapscope
from gapscope.pools import Pool
from gapscope.report import write_report
from gapscope.results.records import Record

GRID = """
measures = ["loss"]

[base.data]
name = "digits"
train_size = 60

[base.network]
options = { n_hidden = 1, width = 8 }

[base.training]
epochs = 2
"""


def test_findings_come_before_the_figures_and_are_escaped(tmp_path: Path) -> None:
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    result = gs.check(nn.Linear(4, 2), (torch.cat([x, x[:10]]), torch.cat([y, y[:10]])), only=["GS101", "GS203"])
    record = Record(id="<i>a</i>", spec={}, status="failed", message="out of memory")
    page = write_report([record], tmp_path / "r.html", title="One", check=(record.id, result)).read_text()
    (finding,) = result.findings
    start = page.index("What to do next")
    assert start < page.index('class="facts"') and finding.evidence in page
    section = page[start : page.index("</section>", start)]
    assert "GS101" in section and re.search(re.escape(finding.action), section, re.IGNORECASE)
    assert "GS203" in section and "<i>a</i>" not in page


def test_without_a_check_there_is_no_such_section(tmp_path: Path) -> None:
    record = Record(id="a", spec={}, status="failed", message="out of memory")
    assert "What to do next" not in write_report([record], tmp_path / "r.html", title="One").read_text()


@pytest.mark.thorough
def test_the_command_checks_the_most_accurate_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)
    assert gapscope("pool", "run", "grid.toml", "pool").returncode == 0
    assert gapscope("report", "pool").returncode == 0
    assert "What to do next" in Path("pool/report.html").read_text()
    assert gapscope("report", "pool", "--no-checks").returncode == 0
    assert "What to do next" not in Path("pool/report.html").read_text()
    for path in Pool("pool").folder.glob("runs/*/weights.safetensors"):
        path.unlink()
    assert gapscope("report", "pool").returncode == 0
    assert "What to do next" not in Path("pool/report.html").read_text()
