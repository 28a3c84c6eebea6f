"""Commands are given the label errors that few boosted trees find."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _few_trees(few_trees: None) -> None:
    """What a command says of label errors does not depend on how many trees looked for them."""
