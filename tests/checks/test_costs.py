"""Costs of findings: one per cause, and of networks that diverged; repeats that chance explains; scales and trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.samples import Samples
from gapscope.checks.account import Account, cause_of, limit_of, make_account, order_findings
from gapscope.checks.costs import cost_of_scales
from gapscope.checks.expected import Expected
from gapscope.checks.registry import list_checks
from gapscope.checks.trials import Trial, TriedAdvice
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
    assert "GS101" not in result.codes and "by design" in result.fine[0].evidence
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


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("column", ["small", "noise", "shared"])
def test_unscaled_columns_cost_what_a_kernel_machine_loses(task: str, column: str) -> None:
    x, y = blobs()
    targets = y if task == "classes" else x[:, 0] - x[:, 1] + 0.1 * torch.randn(len(x))
    g = torch.Generator().manual_seed(1)
    if column == "small":
        # rare ink: more than two values, no part of what the labels are
        x = torch.cat([x, 1e-3 * torch.rand(len(x), 1, generator=g)], 1)
    elif column == "noise":
        x = torch.cat([x, 1e4 * torch.rand(len(x), 1, generator=g)], 1)
    else:
        x = 300 * x
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(x.shape[1], 8), nn.ReLU(), nn.Linear(8, 3 if task == "classes" else 1)
    )
    if task == "numbers":
        targets = targets[:, None]
    result = gs.check(network, (x, targets), test=(x[:60], targets[:60]), only=["GS105", "GS401"])
    finding = next(finding for finding in result.findings if finding.code == "GS105")
    if column == "small":
        assert finding.cost is not None and finding.cost < 0.02
        assert result.account is not None
        assert all(entry.cost < 0.02 for entry in result.account.entries if "GS105" in entry.codes)
        assert result.codes[0] != "GS105"
        return
    # large columns disturb a network more: one cause with what it misses, and alone what a kernel machine loses
    (other,) = (finding for finding in result.findings if finding.code == "GS401")
    assert finding.cost == other.cost and result.codes[0] == "GS105"
    (alone,) = gs.check(network, (x, targets), test=(x[:60], targets[:60]), only=["GS105"]).findings
    if column == "shared":
        assert alone.cost is None
    else:
        expected = cost_of_scales(Samples(x, targets), 3).value
        assert alone.cost == pytest.approx(min(max(expected, 0.0), 1.0))


@pytest.mark.thorough
def test_a_finding_whose_fixes_gained_nothing_is_no_main_limit() -> None:
    x, y = blobs(80)
    g = torch.Generator().manual_seed(1)
    x = torch.cat([x, 1e-3 * torch.rand(len(x), 1, generator=g)], 1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))
    spec = gs.TrainingSpec(epochs=8, learning_rate=0.1, momentum=0.9)
    gs.train(network, (x, y), spec)
    alone = gs.check(network, (x, y), only=["GS105"])
    assert alone.codes == ("GS105",)
    result = gs.check(network, (x, y), only=["GS105"], train_fn=spec, max_trainings=4.0)
    assert result.best_fix is None and result.codes == ("GS105",)
    assert result.findings[0].action == "tried: no gain from standardize inputs"
    assert "No limit of this classifier is named" in result.headline
    assert not alone.is_refuted(alone.findings[0])


def test_fixes_that_were_not_tried_or_did_not_end_refute_nothing() -> None:
    fixes = ("learning rate / 10", "wider", "less weight decay")
    trials = (Trial("learning rate / 10", -0.1), Trial("wider", 0.0))
    # what does not apply here is omitted
    assert TriedAdvice(trials, 0.5, 6.0).without_gain(fixes) == fixes[:2]
    assert TriedAdvice(trials, 0.5, 6.0).without_gain(("unfreeze",)) == ()
    assert TriedAdvice(trials, 0.5, 6.0, interrupted=True).without_gain(fixes) == ()
    assert TriedAdvice(trials, 0.5, 6.0, not_tried=fixes[2:]).without_gain(fixes) == ()
    helps = (Trial("wider", 0.1, helps=True), *trials[:1])
    assert TriedAdvice(helps, 0.5, 6.0).without_gain(fixes) == ()
    assert TriedAdvice(helps, 0.5, 6.0).without_gain(fixes[:1]) == fixes[:1]


def test_the_headline_and_the_account_name_one_cause() -> None:
    for code in list_checks():
        finding = Finding("", "", code=code)
        if cause_of(finding) == "training" and code != "GS401":
            assert limit_of(finding) == "training"
        if code.startswith("GS1") and code != "GS110" and cause_of(finding) != "training":
            assert limit_of(finding) == "data"
    assert limit_of(Finding("", "", code="GS203")) == "training"
    assert limit_of(Finding("", "", code="GS105", cause="small columns")) == "training"
    assert limit_of(Finding("", "", code="GS204")) == "network"


def test_a_cost_is_at_most_what_removing_its_cause_gained() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    network = nn.Linear(4, 2)
    y = network(x).argmax(1)
    result = gs.check(network, (x, y), test=(x + 1, network(x + 1).argmax(1)), only=["GS402"])
    fixes = ("drop flagged labels", "correct flagged labels")
    errors = Finding(
        "errors", "correct", code="GS102", cost=0.08, interval=(0.01, 0.1), fixes=fixes
    )
    more = Finding("gain", "collect", code="GS103", cost=0.04)
    account = Account(1.0, Expected(0.9, 0.85, 0.95, "on test samples"), (), 0.0)
    result = replace(result, findings=(errors, more), account=account)
    trials = (Trial("drop flagged labels", 0.005), Trial("correct flagged labels", -0.01))
    tried = result.with_tried(TriedAdvice(trials, 0.8, 6.0), gs.TrainingSpec())
    assert tried.codes == ("GS103", "GS102")
    assert tried.findings[1].cost == 0.005 and tried.findings[1].interval == (0.005, 0.1)
    assert tried.account is not None
    assert [entry.cost for entry in tried.account.entries] == [0.04, 0.005]
    helps = (Trial("learning rate x 3", 0.1, helps=True), *trials)
    other = result.with_tried(TriedAdvice(helps, 0.8, 6.0), gs.TrainingSpec())
    assert other.headline.endswith("a fix that was tried helps: learning rate x 3.")


def test_overfitting_is_not_called_less_accurate_than_the_data_allow() -> None:
    assert limit_of(Finding("", "", code="GS402")) == "overfitting"
    assert limit_of(Finding("", "", code="GS404")) == "noise"


class Scaled(nn.Module):
    """Network that standardizes its inputs by stored statistics."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("spread", x.std(0))
        self.layer = nn.Linear(x.shape[1], 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x - self.get_buffer("mean")) / self.get_buffer("spread"))


@pytest.mark.parametrize(
    "kind", ["batch norm", "untrained batch norm", "stored", "layer norm", "none"]
)
def test_networks_that_scale_their_inputs_have_no_cost_of_scales(kind: str) -> None:
    x, y = blobs()
    x = x * torch.tensor([1e3, 1, 1, 1, 1, 1])
    torch.manual_seed(0)
    # layer norm scales rows, not columns
    first = {"layer norm": nn.LayerNorm(6), "none": nn.Identity()}.get(kind, nn.BatchNorm1d(6))
    network = Scaled(x) if kind == "stored" else nn.Sequential(first, nn.Linear(6, 3))
    if kind != "untrained batch norm":
        gs.train(network, (x, y), gs.TrainingSpec(epochs=3, learning_rate=1e-3))
    result = gs.check(network, (x, y), only=["GS105"])
    assert bool(result.findings) == (kind in ("layer norm", "none"))


@pytest.mark.thorough
def test_scales_cost_a_network_at_most_what_it_lacks_to_the_best_method() -> None:
    x, y = blobs()
    x[:, 0] = torch.randn(len(x), generator=torch.Generator().manual_seed(1))  # noise
    factor = torch.tensor([1e3, 1, 1, 1, 1, 1])
    torch.manual_seed(0)
    network = nn.Linear(6, 3)
    gs.train(network, (x, y), gs.TrainingSpec(epochs=60, learning_rate=0.1))
    with torch.no_grad():
        network.weight /= factor  # as accurate on raw columns
    alone = gs.check(network, (x * factor, y), only=["GS105"])
    assert alone.findings[0].interval is not None and alone.findings[0].interval[0] == 0
    result = gs.check(network, (x * factor, y))
    (finding,) = [finding for finding in result.findings if finding.code == "GS105"]
    assert finding.cost is not None and finding.cost < 0.05 < (alone.findings[0].cost or 0.0)
    assert "training run limits" not in result.headline or result.headline.startswith("Not certain")


def test_more_data_gain_nothing_where_a_method_predicts_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 20
    x = torch.eye(20)[labels] + 0.3 * torch.randn(200, 20, generator=g)
    assert gs.check(None, (x, labels), only=["GS103"]).codes == ("GS103",)
    perfect = ("nearest neighbours (1)", IntervalEstimate(1.0, 0.97, 1.0))
    monkeypatch.setattr("gapscope.checks.context.best_method", lambda _: perfect)
    assert gs.check(None, (x, labels), only=["GS103"]).fine
