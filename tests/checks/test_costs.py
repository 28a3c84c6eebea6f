"""Costs of findings: one per cause, and of networks that diverged; repeats that chance explains; scales and trees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.samples import Samples
from gapscope.checks.account import make_account, order_findings
from gapscope.labels.duplicates import repeats_by_chance
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.outcomes import Finding


def blobs(n: int = 200, columns: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    return torch.randn(3, columns, generator=g)[y] + 0.4 * torch.randn(n, columns, generator=g), y


def test_findings_of_one_cause_share_the_largest_cost_and_count_once() -> None:
    found = [
        Finding("low", "tune", code="GS401", cost=0.2),
        Finding("unscaled", "scale", code="GS105", cost=0.05, interval=(0.01, 0.09)),
        Finding("errors", "correct", code="GS102", cost=0.1, interval=(0.05, 0.15)),
        Finding("gap", "regularize", code="GS402"),
    ]
    ordered = order_findings(found, IntervalEstimate(0.2, 0.1, 0.3))
    assert [finding.code for finding in ordered] == ["GS105", "GS401", "GS102", "GS402"]
    assert [finding.cost for finding in ordered] == [0.2, 0.2, 0.1, None]
    assert ordered[0].interval == ordered[1].interval == (0.1, 0.3)
    account = make_account(0.7, None, ordered)
    assert [(entry.name, entry.cost) for entry in account.entries] == [
        ("training", 0.2),
        ("label errors", 0.1),
    ]


def test_a_diverged_network_costs_what_the_most_frequent_class_misses() -> None:
    x, y = blobs()
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    torch.nn.init.constant_(network.get_parameter("0.weight"), float("nan"))
    result = gs.check(network, (x * torch.tensor([1e3, 1, 1, 1, 1, 1]), y))
    cost = {finding.code: finding.cost for finding in result.findings}
    best = max(
        row.score
        for row in gs.forecast_accuracy(None, (x * torch.tensor([1e3, 1, 1, 1, 1, 1]), y)).rows
    )
    assert cost["GS302"] == cost["GS105"] == pytest.approx(best - 67 / 200, abs=1e-9)
    assert result.headline == "The training run limits this classifier most."
    assert result.account is not None and "diverged" in "\n".join(result.account.lines)


def test_repeats_of_few_values_are_no_finding_and_copies_are() -> None:
    g = torch.Generator().manual_seed(1)
    few = torch.randint(4, (200, 2), generator=g).float()
    labels = torch.randint(2, (200,), generator=g)
    assert repeats_by_chance(Samples(few, labels)) > 150
    result = gs.check(None, (few, labels), only=["GS101"])
    assert "GS101" not in result.codes and "independent" in result.fine[0].evidence
    x, y = blobs()
    assert repeats_by_chance(Samples(x, y)) == 0
    single = torch.linspace(-1, 1, 60)[:, None]
    assert repeats_by_chance(Samples(torch.cat([single, single[:6]]), torch.arange(66) % 2)) == 0
    copied = gs.check(None, (torch.cat([x, x[:20]]), torch.cat([y, y[:20]])), only=["GS101"])
    assert copied.codes == ("GS101",)


def test_scales_count_for_estimators_that_depend_on_them() -> None:
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    x, y = blobs()
    x = (x * torch.tensor([1e3, 1, 1, 1, 1, 1])).numpy()
    tree = DecisionTreeClassifier(random_state=0).fit(x, y.numpy())
    neighbors = KNeighborsClassifier().fit(x, y.numpy())
    assert "GS105" not in gs.check(tree, (x, y.numpy()), only=["GS105"]).codes
    assert "GS105" in gs.check(neighbors, (x, y.numpy()), only=["GS105"]).codes


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_scales_of_a_frame_keep_its_names() -> None:
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, y = blobs()
    x[:, 0] *= 1e3
    frame = pandas.DataFrame(x.numpy(), columns=list("abcdef")).assign(kind=[0, 1] * 100)
    labels = y.numpy()
    for scaler, found in ((StandardScaler(), False), ("passthrough", True)):
        columns = make_column_transformer((scaler, list("abcdef")), (OneHotEncoder(), ["kind"]))
        estimator = make_pipeline(columns, KNeighborsClassifier()).fit(frame, labels)
        assert ("GS105" in gs.check(estimator, (frame, labels), only=["GS105"]).codes) == found
