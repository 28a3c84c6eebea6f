"""What a missing extra says."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any

import pytest

from gapscope.base.errors import MissingExtra


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("lightning", "lightning", "lightning"),
        ("transformers", "transformers", "hf"),
        ("tensorboard", "tensorboard", "tracking"),
        ("wandb", "wandb", "tracking"),
        ("mlflow", "mlflow", "tracking"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == package else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.delitem(importlib.import_module("sys").modules, f"gapscope.integrations.{module}", raising=False)
    command = re.escape(f"pip install -c constraints.txt 'gapscope[{extra}]'")
    with pytest.raises(MissingExtra, match=f"'{package}', which is not installed; run: {command}"):
        importlib.import_module(f"gapscope.integrations.{module}")
