"""Links between pages: the file exists, and so does the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
PAGES = [
    *(ROOT / name for name in TOP),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^()\s#]*)(?:#([^()\s]+))?\)")


def slugs(page: Path) -> set[str]:
    """Anchors of the headings of a page, as the site and code hosts make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = [
        re.sub(r"<!--.*?-->|[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
        for heading in headings
    ]
    return {re.sub(r"[^\w\s-]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in slugs(target)
        ):
            broken.append(f"{path}#{anchor}")
    assert not broken


def test_the_test_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` heading, 2\n\n[here](#a-b-heading-2) [gone](#gone) [no file](absent.md)\n"
    )
    assert slugs(page) == {"a-b-heading-2"}
    assert [path or anchor for path, anchor in LINK.findall(page.read_text())] == [
        "a-b-heading-2",
        "gone",
        "absent.md",
    ]
