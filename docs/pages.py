"""Code of the guides: run as it stands, its output written back into the page.

Each page is one session: its Python blocks run in order in one namespace and an empty folder. A `text` block that
follows a Python block is what the code prints; a block with a title is written to the file of that name.

    python docs/pages.py docs/forecast.md    # run the page and rewrite its outputs

A test fails where the words of an output have changed. Its numbers may differ: they depend on the machine.
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
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```\n(?P<between>\n*)(?P<output>```text\n.*?```\n)?", re.DOTALL
)


def words(output: str) -> list[str]:
    """Return the different words of an output, sorted: the order of rows may depend on the machine."""
    return sorted(set(re.findall(r"[^\W\d_]{2,}", output)))


def run(path: Path, *, rewrite: bool = False, folder: str | None = None) -> list[str]:
    """Run all Python blocks of a page in a folder (default: a temporary one).

    Returns:
        The outputs whose words differ from the page's, as they are printed now.
    """
    namespace: dict[str, Any]
    text, namespace = path.read_text(), {"__name__": "page"}
    before, changed = Path.cwd(), list[str]()

    def one(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # line numbers of tracebacks are the page's
            lines_above = "\n" * (text.count("\n", 0, match.start()) + 1)
            exec(compile(lines_above + match["code"], str(path), "exec"), namespace)
        if match["output"] is None:
            return match[0]
        output = f"```text\n{printed.getvalue().rstrip()}\n```\n"
        if words(output) != words(match["output"]):
            changed.append(output)
        return f"```python\n{match['code']}```\n{match['between']}{output}"

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
    return changed


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name).resolve(), rewrite=True)
