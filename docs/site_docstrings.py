"""What docstrings write in reStructuredText, as Markdown: displayed formulas and doctests."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object

FORMULA = re.compile(r"^( *)\.\. math::[ \t]*(.*)\n((?:[ \t]*\n|\1[ \t]+.*\n?)*)", re.MULTILINE)
DOCTEST = re.compile(r"^( *)>>> (?:.*\n?)(?:\1\S.*\n?|\1 +\S.*\n?)*", re.MULTILINE)


def _formula(match: re.Match[str]) -> str:
    indent, first, rest = match.groups()
    body = " ".join(textwrap.dedent(f"{first}\n{rest}").split())
    return f"{indent}$$ {body} $$\n\n"


def _doctest(match: re.Match[str]) -> str:
    body = textwrap.dedent(match[0]).rstrip("\n")
    return textwrap.indent(f"\n```pycon\n{body}\n```\n", match[1])


def as_markdown(docstring: str) -> str:
    """Turn displayed formulas and doctests of a docstring into Markdown."""
    return DOCTEST.sub(_doctest, FORMULA.sub(_formula, f"{docstring}\n"))


class Docstrings(Extension):
    """Rewrite every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
