"""The page kit: values are escaped, a missing one is an error, and a page replaces a regular file only."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from gapscope.base.errors import NotWritten
from gapscope.base.files import write_output
from gapscope.results.pages import render_fragment, render_page

NAME = '<script>alert("1")</script>'
CONTENT = {
    "headline": NAME,
    "notes": (),
    "account": None,
    "tried": (),
    "cards": [],
    "fine": [("GS101", NAME, NAME)],
    "not_checked": [],
}


def test_values_are_escaped_in_pages_and_fragments() -> None:
    page = render_page("check.html", title=NAME, **CONTENT)
    fragment = render_fragment("check_body.html", **CONTENT)
    assert page.startswith("<!doctype html>") and fragment in page
    # title, heading and three values
    assert "<script" not in page and page.count("&lt;script&gt;") == 5


def test_only_pages_with_a_script_allow_scripts() -> None:
    assert "script-src" not in render_page("check.html", title="", **CONTENT)


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="headline"):
        render_page("check.html", title="")


def test_a_page_is_written_as_it_is(tmp_path: Path) -> None:
    path = write_output(str(tmp_path / "page.html"), "<p>ü</p>")
    assert path.read_bytes() == "<p>ü</p>".encode() and list(tmp_path.iterdir()) == [path]


def test_a_page_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "page.html").symlink_to(tmp_path / "target")
    with pytest.raises(NotWritten, match="link"):
        write_output(tmp_path / "page.html", "other")
    assert (tmp_path / "target").read_text() == "mine" and (tmp_path / "page.html").is_symlink()
