"""Names of data sets and measures are completed in the shell."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gapscope.cli import app
from gapscope.cli.options import complete_datasets, complete_measures


def test_names_that_start_so() -> None:
    assert complete_datasets("mn") == ["mnist"]
    assert complete_datasets("no such") == []
    assert complete_measures("ntk_") == ["ntk_logdet", "ntk_trace"]


@pytest.mark.parametrize(
    ("words", "name"),
    [("gapscope data fetch fash", "fashion_mnist"), ("gapscope measure x --measure ntk_t", "ntk_trace")],
)
def test_the_shell_is_answered(words: str, name: str) -> None:
    position = str(len(words.split()) - 1)
    environment = {"_GAPSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
    done = CliRunner().invoke(app, [], env=environment, prog_name="gapscope")
    assert name in done.stdout
