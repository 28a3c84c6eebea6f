"""The command line in this process: what it prints, compared with its page for `--json`, and its exit code."""

from __future__ import annotations

import io
import signal
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from gapscope.cli import main
from support.json_output import check_json, documented

# two small networks on digits
GRID = """
measures = ["loss"]

[base.data]
name = "digits"
train_size = 120

[base.network]
options = { n_hidden = 1, width = 8 }

[base.training]
epochs = 2

[axes]
"data.label_noise" = [0.0, 0.5]
"""


@dataclass(frozen=True)
class Done:
    """What a command left: exit code, standard output and standard error."""

    returncode: int
    stdout: str
    stderr: str


def gapscope(*arguments: object) -> Done:
    """Run `gapscope ...` as the installed command does; an exception that it lets through is the test's."""
    out, err = io.StringIO(), io.StringIO()
    handler, argv = signal.getsignal(signal.SIGTERM), sys.argv
    try:
        sys.argv = ["gapscope", *map(str, arguments)]
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, handler)
    if "--json" in arguments and out.getvalue():
        words = " ".join(map(str, arguments))
        check_json(
            next(name for name in sorted(documented(), reverse=True) if words.startswith(name)),
            out.getvalue(),
        )
    return Done(code, out.getvalue(), err.getvalue())
