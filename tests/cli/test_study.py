"""`gapscope study claims`: what holds, from stored results alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.base.errors import InvalidInput
from gapscope.cli.study import app, load_study


def test_claims_are_told_and_their_page_is_written(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--write"])
    assert found.exit_code == 0 and f"written: {tmp_path / 'README.md'}" in found.output
    assert "\n  not run  fig4: Once BN is gone" in found.output
    assert max(map(len, found.output.splitlines()[:-1])) <= 80
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# What holds, and what does not\n")
    assert "## Towards Understanding Regularization in Batch Normalization" in page
    assert "| Fig. 3: on down-sampled ImageNet itself |  |  | **cannot be run here**: the data are not" in page


def test_claims_of_one_study_alone() -> None:
    output = CliRunner().invoke(app, ["claims", "overfitting_alarm", "--results", "nowhere"]).output
    assert output.startswith("overfitting_alarm  An overfitting alarm") and "luo2019" not in output


def test_claims_speak_json() -> None:
    output = CliRunner().invoke(app, ["claims", "luo2019", "--results", "nowhere", "--json"]).output
    first = json.loads(output)["luo2019"][0]
    assert set(first) == {"outcome", "claim", "ours"} and first["outcome"] == "not run"


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"study must be one of .*; got 'luo219'.*Did you mean 'luo2019'"):
        load_study("luo219")
