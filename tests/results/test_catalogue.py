"""Registries and settings as text: short tables, not dictionaries of objects."""

from __future__ import annotations

import torch

import gapscope as gs
from gapscope.checks.registry import list_checks
from gapscope.penalties.base import penalties
from gapscope.training.alarms.canaries import Canaries


def test_registries_are_dictionaries_that_print_as_tables() -> None:
    for registry, key, column in (
        (gs.list_measures(), "ntk_trace", "cost"),
        (list_checks(), "GS102", "title"),
        (penalties(), "weight", "class"),
    ):
        assert isinstance(registry, dict) and registry[key] is not None
        lines = repr(registry).splitlines()
        assert len(lines) == 1 + len(registry) and column in lines[0] and "0x" not in repr(registry)
        assert registry._repr_html_().count("<tr") == 1 + len(registry)
        assert list(registry.to_pandas()["name"]) == list(registry)


def test_penalties_show_their_settings() -> None:
    assert repr(gs.GradientSimilarityPenalty(0.25)).startswith(
        "GradientSimilarityPenalty(strength=0.25"
    )
    assert "strength=0.003" in repr(gs.GradientSimilarityPenalty("auto"))
    with_data = gs.penalties.GammaDecayPenalty(batch_size=8, data=torch.randn(40, 3))
    assert "batch_size=8" in repr(with_data) and "tensor" not in repr(with_data)


def test_canaries_show_their_number_and_state() -> None:
    canaries = Canaries(torch.zeros(100, dtype=torch.int64), n_classes=2)
    assert repr(canaries) == "Canaries(24 of 100 labels (24.0 %) of 2 classes are replaced)"
    canaries.restore()
    assert repr(canaries).endswith("restored)")
