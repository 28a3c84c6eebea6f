"""Common parameters of a package, appended to docstrings at registration."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any


def add_common_parameters(registered: Any, package: str) -> None:
    """Add the common parameters of a package, and of its own file, to a docstring.

    They are the entries under "Common parameters:" in the docstrings of both modules that are in the signature of the
    function or class and that it does not document itself.
    """
    common: dict[str, str] = {}
    for module in (package, registered.__module__):
        table = (sys.modules[module].__doc__ or "" if module in sys.modules else "").partition("ommon parameters:\n")[2]
        common |= dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", table, flags=re.M))
    document = inspect.getdoc(registered) or ""
    missing = [
        f"    {name}: {common[name]}\n"
        for name in inspect.signature(registered).parameters
        if name in common and f"\n    {name}: " not in document
    ]
    if not missing or "Args:\n" in document:
        registered.__doc__ = document.replace("Args:\n", "Args:\n" + "".join(missing))
        return
    # before the first section or example, else at the end
    end = re.search(r"^(Returns:|Raises:|Attributes:|>>> )", document, flags=re.M)
    at = end.start() if end else len(document)
    text = document[:at].rstrip() + "\n\nArgs:\n" + "".join(missing) + "\n" + document[at:]
    registered.__doc__ = text.rstrip() + "\n"
