"""Kernels of label issues: what of a network is computed within a budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.labels import kernel_views, label_issues


def data(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 30, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] * x[:, 1] > 0).long()


class Products(nn.Module):
    """A network whose features hold the label, with a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x[:, :1] * x[:, 1:2]).sign())


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was not to be computed")


def test_features_of_a_large_network_that_suffice_need_no_ntk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gapscope.measures.fitted_labels.MANY_PARAMETERS", 3)
    monkeypatch.setattr(kernel_views, "affordable_kernel", refuse)
    issues = gs.find_label_issues(Products(), data(), time_budget=20)
    assert any("NTK was not used" in note for note in issues.notes)
    assert issues.method == "last hidden features"


def test_near_copies_are_searched_before_a_network_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    for name in ("duplicate_pairs", "_ranked"):
        function = getattr(label_issues, name)

        def watch(*args: Any, function: Any = function, name: str = name, **options: Any) -> Any:
            order.append(name)
            return function(*args, **options)

        monkeypatch.setattr(label_issues, name, watch)
    gs.find_label_issues(None, data(), time_budget=20)
    assert order == ["duplicate_pairs", "_ranked"]
