"""`gapscope explain CODE`: the page of a check."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import typer

from gapscope.cli.options import JSON

CODE = typer.Argument(None, help="Code of a check, such as GS102. Default: list all codes.")


def read_page(code: str) -> str:
    """Return the page of a check as Markdown, without the sections whose numbers are filled in on the site.

    Args:
        code: Code of a registered check, in capitals.
    """
    installed = files("gapscope.checks") / "pages" / f"{code.lower()}.md"
    # in a clone, the pages are those of the site
    cloned = Path(__file__).parents[3] / "docs" / "checks" / f"{code.lower()}.md"
    page = installed if installed.is_file() else cloned
    if not page.is_file():
        return f"# {code}\n\nA check of your own has no page."
    sections = re.split(r"(?m)^(?=## )", page.read_text(encoding="utf-8"))
    return "".join(section for section in sections if "{{" not in section).strip()


def explain(code: str | None = CODE, json: bool = JSON) -> None:
    """Explain a check: what it computes, what to do about a finding, and when it is wrong."""
    from gapscope.base.errors import check_choice
    from gapscope.checks.registry import list_checks
    from gapscope.cli.output import make_console, print_json, print_lines, print_rows

    checks = list_checks()
    if code is None:
        rows = [{"code": name, "title": check.title} for name, check in sorted(checks.items())]
        if json:
            print_json(rows)
        else:
            print_rows(rows, "Checks; gapscope explain CODE shows one")
        return
    code = code.upper()
    check_choice("code", code, sorted(checks))
    if json:
        print_json({"code": code, "title": checks[code].title, "page": read_page(code)})
        return
    console = make_console()
    if not console.is_terminal:
        print_lines(read_page(code))
        return
    from rich.markdown import Markdown

    console.print(Markdown(read_page(code)))
