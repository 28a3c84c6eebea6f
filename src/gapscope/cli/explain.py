"""`gapscope explain CODE`: the page of a check."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import typer

from gapscope.base.errors import check_choice
from gapscope.cli.options import JSON
from gapscope.cli.output import print_json, print_markdown, print_rows

CODE = typer.Argument(None, help="Code of a check, such as GS102. Default: list all codes.")


def read_page(code: str) -> str:
    """Return the page of a check as Markdown, without its comments.

    Args:
        code: Code of a registered check, in capitals.
    """
    installed = files("gapscope.checks") / "pages" / f"{code.lower()}.md"
    # in a clone, the pages are those of the site
    cloned = Path(__file__).parents[3] / "docs" / "checks" / f"{code.lower()}.md"
    page = installed if installed.is_file() else cloned
    if not page.is_file():
        return f"# {code}\n\nA check of your own has no page."
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).strip()


def explain(code: str | None = CODE, json: bool = JSON) -> None:
    """Explain a check: what it computes, what to do about a finding, and when it is wrong."""
    from gapscope.checks.registry import list_checks

    checks = list_checks()
    if code is None:
        rows = [{"code": name, "title": check.title} for name, check in sorted(checks.items())]
        if json:
            print_json({"checks": rows})
        else:
            print_rows(rows, "Checks; gapscope explain CODE shows one")
        return
    code = code.upper()
    check_choice("code", code, sorted(checks))
    if json:
        print_json({"code": code, "title": checks[code].title, "page": read_page(code)})
        return
    print_markdown(read_page(code))
