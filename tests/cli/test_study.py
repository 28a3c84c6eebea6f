"""`gapscope study claims`: what holds, from stored results alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.base.errors import InvalidInput
from gapscope.cli.study import _findings, app, load_study


def test_claims_are_told_and_their_page_is_written(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--write"])
    assert found.exit_code == 0 and f"written: {tmp_path / 'README.md'}" in found.output
    assert "not run             fig4: Once BN is gone" in found.output
    page = (tmp_path / "README.md").read_text()
    assert (
        page.startswith("# What holds\n") and "## Towards Understanding Regularization in Batch Normalization" in page
    )
    assert "| App. B.3 | dropout before BN harms |  |  |  |  | **not run** | no part |  |" in page


def test_findings_come_first_and_leave_out_what_is_ours_or_open() -> None:
    class Toy:
        name = "toy"

        def claims(self, results: Path) -> list[tuple[str, str, bool]]:
            decided = [("held", f"held {number}", False) for number in range(12)]
            return [("open", "open", False), ("held", "ours", True), *decided, ("not held", "wrong", False)]

    lines = _findings([Toy()], Path())[2:-1]
    assert len(lines) == 10 and lines[:2] == ["- wrong (toy)", "- held 0 (toy)"]
    assert _findings([], Path())[2] == "None of the papers' claims is decided yet."


def test_claims_of_one_study_alone() -> None:
    output = CliRunner().invoke(app, ["claims", "overfitting_alarm", "--results", "nowhere"]).output
    assert output.startswith("overfitting_alarm  An overfitting alarm") and "luo2019" not in output


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"study must be one of .*; got 'luo219'.*Did you mean 'luo2019'"):
        load_study("luo219")
