"""The changelog tells users how to upgrade: every renamed public name is in its table."""

from __future__ import annotations

import re
from pathlib import Path

import gapscope

ROOT = Path(__file__).parents[2]


def test_every_renamed_name_is_in_the_migration_table() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    table = text[text.index("### Upgrade from 0.3") : text.index("### New")]
    renamed = vars(gapscope)["_RENAMED"]
    assert not [name for name in renamed if not re.search(rf"\b{name}\b", table)]
    assert not [new for new in renamed.values() if new.split(".")[-1] not in table]


def test_the_version_has_a_section() -> None:
    assert f"## {gapscope.__version__}" in (ROOT / "CHANGELOG.md").read_text()
