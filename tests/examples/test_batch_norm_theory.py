"""The example runs, writes its figure and prints students that lie near the curves it draws."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from gapscope.theory import student_generalization

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "batch_norm_theory.py"


@pytest.mark.thorough
def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "figure.svg"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--output", str(figure)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert figure.read_text().lstrip().startswith("<?xml")
    printed = capsys.readouterr().out.splitlines()
    decayed = next(line for line in printed if line.startswith("linear gamma decay"))
    assert float(decayed.split()[-1]) == pytest.approx(float(student_generalization(3.0, zeta=1 / 64)), rel=0.15)
