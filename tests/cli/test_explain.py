"""`gapscope explain`: every check has a page that an installed package has as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapscope.checks.registry import list_checks
from gapscope.cli.explain import read_page
from support.commands import gapscope


@pytest.mark.parametrize("code", sorted(list_checks()))
def test_every_check_has_a_page_without_comments(code: str) -> None:
    page = read_page(code)
    assert page.startswith(f"# {code}") and "<!--" not in page
    assert "## What to do" in page and "## When it is wrong" in page


def test_a_page_fits_the_width_and_is_json_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = gapscope("explain", "gs102").stdout
    assert "What to do" in shown and max(map(len, shown.splitlines())) <= 60
    assert json.loads(gapscope("explain", "GS102", "--json").stdout)["page"] == read_page("GS102")


def test_codes_are_listed_and_a_wrong_one_gets_the_nearest() -> None:
    assert len(json.loads(gapscope("explain", "--json").stdout)["checks"]) == len(list_checks())
    assert "GS102" in gapscope("explain").stdout
    wrong = gapscope("explain", "GS1O2")
    assert wrong.returncode == 1 and "GS102" in wrong.stderr


def test_a_check_of_ones_own_has_no_page() -> None:
    assert "no page" in read_page("GS999")


def test_the_pages_are_part_of_the_package() -> None:
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"docs/checks" = "gapscope/checks/pages"' in settings
