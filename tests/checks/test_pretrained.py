"""Checks of labels use the features of a network that has not fitted them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.checks import context as context_module
from gapscope.checks.context import Context
from gapscope.checks.run import _make_context
from gapscope.measures.fitted_labels import FEATURES


def products(n: int = 240, rate: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs [n, 30], labels that are the sign of a product of two of them, and which are wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 30, generator=generator)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[torch.randperm(n, generator=generator)[: int(rate * n)]] = True
    return x, torch.where(wrong, 1 - labels, labels), wrong


def network(*, is_pretrained: bool) -> nn.Sequential:
    """Return a network with a new head, whose hidden layer holds the product or is random."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Linear(30, 4)
        layers = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 2))
    if is_pretrained:
        # |a + b| - |a - b| has the sign of a b
        weight = torch.zeros(4, 30)
        weight[:, :2] = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
        first.weight.data = weight
        first.bias.data.zero_()
    return layers


def context(network: Any, data: Any, initial_state: Any = None) -> Context:
    return _make_context(network, data, None, initial_state)


def test_label_errors_are_found_by_features_that_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y, wrong = products()
    calls: list[int] = []
    extract = context_module.extract_features

    def count(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return extract(*args, **options)

    monkeypatch.setattr(context_module, "extract_features", count)
    result = gs.check(
        network(is_pretrained=True), (x, y), only=["GS102", "GS103", "GS106"], time_budget=None
    )
    assert len(calls) == 1
    issues = result.label_issues
    assert issues is not None and issues.method == FEATURES
    assert issues.noise is not None and issues.noise.low < 0.1 < issues.noise.high
    assert issues.flagged is not None
    flagged = set(issues.flagged.tolist())
    right = flagged & set(torch.nonzero(wrong).flatten().tolist())
    assert len(right) >= 0.8 * len(flagged) >= 12
    evidence = {outcome.code: outcome.evidence for outcome in result.fine}
    assert f"by {FEATURES}: " in evidence["GS106"]
    # of the inputs alone nothing is known
    alone = gs.check(None, (x, y), only=["GS102"], time_budget=None)
    assert not alone.findings


def test_features_are_those_of_a_network_that_has_not_fitted_the_labels() -> None:
    x, y, _ = products()
    pretrained = network(is_pretrained=True)
    assert context(pretrained, (x, y)).features is not None
    assert context(network(is_pretrained=False), (x, y)).features is None
    assert context(None, (x, y)).features is None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fitted = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(fitted.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(fitted(x), y).backward()
        optimizer.step()
    assert context(fitted, (x, y)).features is None


def test_of_a_trained_network_the_initial_state_has_the_features() -> None:
    x, y, _ = products()
    state = network(is_pretrained=True).state_dict()
    found = context(network(is_pretrained=False), (x, y), initial_state=state)
    assert found.features is not None
    assert len(found.distinct_described.inputs[0]) == 4


def test_a_spent_budget_leaves_the_features_out() -> None:
    x, y, _ = products()
    result = gs.check(network(is_pretrained=True), (x, y), only=["GS102"], time_budget=1e-9)
    assert [outcome.code for outcome in result.not_checked] == ["GS102"]
