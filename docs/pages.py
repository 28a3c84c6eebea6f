"""Code of the guides: run as it stands, its output written back into the page.

Each page is one session: its Python blocks run in order in one namespace and an empty folder. A `text` block that
follows a Python block is what the code prints; a block with a title is written to the file of that name.

    python docs/pages.py docs/forecast.md    # run the page and rewrite its outputs
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = re.compile(r'```python title="(?P<name>\w+\.py)"\n(?P<code>.*?)```', re.DOTALL)
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?P<between>\n*)(?P<output>```text\n.*?```\n)?", re.DOTALL)


def run(path: Path, *, rewrite: bool = False, folder: str | None = None) -> dict[str, Any]:
    """Run all Python blocks of a page in a folder (default: a temporary one) and return their namespace."""
    namespace: dict[str, Any]
    text, namespace = path.read_text(), {"__name__": "page"}
    before = Path.cwd()

    def one(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            lines_above = "\n" * (text.count("\n", 0, match.start()) + 1)  # line numbers of tracebacks are the page's
            exec(compile(lines_above + match["code"], str(path), "exec"), namespace)
        if match["output"] is None:
            return match[0]
        return f"```python\n{match['code']}```\n{match['between']}```text\n{printed.getvalue().rstrip()}\n```\n"

    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(folder or temporary)
        sys.path.insert(0, str(Path.cwd()))
        try:
            for file in FILE.finditer(text):
                Path(file["name"]).write_text(file["code"])
            result = BLOCK.sub(one, text)
        finally:
            os.chdir(before)
            sys.path.pop(0)
            for file in FILE.finditer(text):
                sys.modules.pop(Path(file["name"]).stem, None)
    if rewrite and result != text:
        path.write_text(result)
    return namespace


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name).resolve(), rewrite=True)
