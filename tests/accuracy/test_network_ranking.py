from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.accuracy.network_ranking import rank_networks
from gapscope.accuracy.ranking_result import NetworkRanking
from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.specs import NetworkSpec
from gapscope.batch_norm import GhostBatchNorm1d
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameters import parameter_count
from gapscope.networks import build_network
from gapscope.statistics.baselines import target_matrix
from gapscope.statistics.kernel_ridge import log_evidence_per_sample
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers

X = torch.rand(100, 12, generator=torch.Generator().manual_seed(3))
Y = torch.arange(100) % 4


def ranked_by_s(*arguments: Any, **options: Any) -> NetworkRanking:
    return rank_networks(*arguments, by="output_sensitivity", **options)


def spec(**options: int) -> NetworkSpec:
    return NetworkSpec(name="fully_connected", options=options)


def test_agrees_with_the_closed_form_for_random_networks() -> None:
    ranking = ranked_by_s(
        {"a": spec(n_hidden=2, width=60)}, (X, Y), initializations=60, noise_std=1e-2
    )
    theory = expected_sensitivity(fully_connected_layers(12, [60, 60]), 4, noise_std=1e-2)
    assert ranking[0].sensitivity == pytest.approx(theory, rel=0.15)
    low, high = ranking[0].sensitivity_low, ranking[0].sensitivity_high
    assert low is not None and high is not None and low < theory < high


def test_is_the_mean_of_the_measure_over_initializations() -> None:
    (result,) = ranked_by_s({"a": spec(width=10)}, (X, Y), initializations=2, seed=5)
    values = []
    for i in range(2):
        generator = torch.Generator().manual_seed(derive_seed(5, f"initialization {i}"))
        network = build_network(
            "fully_connected", input_shape=(12,), n_outputs=4, initialization="standard_normal", generator=generator,
            width=10,
        )  # fmt: skip
        values.append(float(output_sensitivity(network, X)))
    assert result.sensitivity == sum(values) / 2
    assert result.parameters == parameter_count(network)


@pytest.mark.thorough
def test_the_interval_covers_the_mean_at_the_nominal_rate() -> None:
    theory = expected_sensitivity(fully_connected_layers(12, [30]), 4, noise_std=1e-2)
    inside = 0
    for seed in range(40):
        (result,) = ranked_by_s(
            {"a": spec(n_hidden=1, width=30)}, X[:40], n_outputs=4, seed=seed, noise_std=1e-2
        )
        assert result.sensitivity_low is not None and result.sensitivity_high is not None
        inside += result.sensitivity_low <= theory <= result.sensitivity_high
    assert 33 <= inside <= 40


def test_names_which_options_are_wrong() -> None:
    with pytest.raises(InvalidInput, match=r"at least 2; got 1"):
        ranked_by_s({"a": NetworkSpec()}, (X, Y), initializations=1)
    with pytest.raises(InvalidInput, match="data without targets"):
        ranked_by_s({"a": NetworkSpec()}, X)
    dropout = NetworkSpec(options={"width": 10, "dropout": 0.5})
    ghost = nn.Sequential(nn.Linear(12, 5), GhostBatchNorm1d(5), nn.Linear(5, 4))
    with pytest.warns(UserWarning, match="b, c have them"):
        ranked_by_s({"b": dropout, "c": lambda: copy.deepcopy(ghost)}, (X, Y), initializations=2)


def test_what_is_ranked_is_returned_after_an_interrupt() -> None:
    def stop() -> nn.Module:
        raise KeyboardInterrupt

    linear = {name: nn.Linear(12, 4) for name in "ab"}
    assert {item.name for item in ranked_by_s(linear | {"c": stop}, X, initializations=2)} == {
        "a",
        "b",
    }
    with pytest.raises(KeyboardInterrupt):
        ranked_by_s({"a": nn.Linear(12, 4), "c": stop}, X, initializations=2)


def test_by_expected_accuracy_the_order_is_that_of_the_loo_predictions() -> None:
    sees = nn.Linear(12, 4)
    constant = nn.Linear(12, 4, bias=False).requires_grad_(False)
    # what is trained sees the same of every sample
    blind = nn.Sequential(constant, nn.Softmax(1), nn.Linear(4, 4))
    nn.init.zeros_(constant.weight)
    y = X[:, :4].argmax(1)
    result = rank_networks(
        {"blind": blind, "sees": sees}, (X, y), by="loo_accuracy", initializations=2
    )
    assert [item.name for item in result] == ["sees", "blind"]
    assert result[0].ntk_accuracy == kernel_leave_one_out(sees, X, y).accuracy > 0.6
    assert result.rbf_accuracy is not None and result[0].ntk_accuracy is not None
    assert result[0].expected_accuracy == pytest.approx(
        (result[0].ntk_accuracy + result.rbf_accuracy) / 2
    )
    assert (result[0].tied_with_best, result[1].tied_with_best) == (True, False)
    assert result[1].rank_by_expected_accuracy == 2


def test_by_expected_accuracy_a_spec_keeps_its_own_initialization_and_copies_are_tied() -> None:
    candidates = {
        "torch": spec(width=10),
        "again": spec(width=10),
        "he": NetworkSpec(options={"width": 10}, initialization="he_normal"),
    }
    table = rank_networks(candidates, (X, Y), by="loo_accuracy", initializations=2).to_pandas()
    assert (
        table.expected_accuracy["torch"]
        == table.expected_accuracy["again"]
        != table.expected_accuracy["he"]
    )
    assert table.tied_with_best["again"] == table.tied_with_best["torch"]
    assert table.rank_by_expected_accuracy["torch"] == table.rank_by_expected_accuracy["again"]


def test_by_expected_accuracy_works_for_regression_and_asks_for_targets() -> None:
    target = X[:, :1] * 2
    result = rank_networks(
        {"a": nn.Linear(12, 1)}, (X, target), by="loo_accuracy", initializations=2
    )
    assert result[0].ntk_accuracy == pytest.approx(1, abs=1e-3)
    with pytest.raises(InvalidInput, match="got inputs alone"):
        rank_networks({"a": nn.Linear(12, 1)}, X, by="loo_accuracy")
    assert (
        "expected_accuracy"
        not in ranked_by_s({"a": nn.Linear(12, 4)}, X, initializations=2).to_pandas()
    )


def test_a_network_that_cannot_be_ranked_is_named_and_the_others_are_ranked() -> None:
    def fails() -> nn.Module:
        raise RuntimeError("no weights here")

    not_finite = nn.Linear(12, 4)
    nn.init.constant_(not_finite.weight, float("nan"))
    ranking = rank_networks(
        {
            "right": nn.Linear(12, 4),
            "inputs": nn.Linear(7, 4),
            "outputs": nn.Linear(12, 3),
            "frozen": nn.Linear(12, 4).requires_grad_(False),
            "nan": not_finite,
            "head": (
                nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4)),
                nn.Linear(19, 4),
            ),
            "fails": fails,
            "unknown": "resnet1",
        },
        (X, Y),
        initializations=2,
    )
    assert [row.name for row in ranking] == ["right"]
    facts = {
        "inputs": "7",
        "outputs": "3",
        "frozen": "trainable",
        "nan": "finite",
        "head": "20 features",
    }
    facts |= {"fails": "no weights here", "unknown": "resnet1"}
    assert ranking.not_ranked.keys() == facts.keys()
    assert all(fact in ranking.not_ranked[name] for name, fact in facts.items())
    assert all(name in repr(ranking) for name in facts)


def test_a_list_mixes_names_modules_and_pairs() -> None:
    backbone = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7))
    candidates = ["fully_connected", backbone, (backbone, "new"), (backbone, nn.Linear(20, 4))]
    before = copy.deepcopy(backbone.state_dict())
    ranking = rank_networks(candidates, (X, Y), initializations=2)
    rows = {row.name: row for row in ranking}
    assert rows.keys() == {"fully_connected", "Sequential", "Sequential 2", "Sequential 3"}
    assert (
        rows["Sequential 2"].parameters
        == rows["Sequential 3"].parameters
        == 12 * 20 + 20 + 20 * 4 + 4
    )
    assert rows["Sequential"].layers == 2
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())


def test_scores_of_other_authors_are_listed_with_the_forecast() -> None:
    network = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    (row,) = rank_networks([network], (X, Y), initializations=2)
    readings = gs.measure(
        network, (X, Y), ["synaptic_flow", "jacobian_covariance", "connection_sensitivity"]
    )
    values = {reading.measure: reading.value for reading in readings}
    assert row.synaptic_flow == pytest.approx(values["synaptic_flow"])
    assert row.connection_sensitivity == pytest.approx(values["connection_sensitivity"])
    assert row.jacobian_covariance is not None
    features = network[:2](X).detach()
    assert row.log_evidence == pytest.approx(log_evidence_per_sample(features, target_matrix(Y)))


def test_the_evidence_is_that_of_classes_that_occur() -> None:
    network = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 16))
    rows = [next(iter(rank_networks([network], (X, labels)))) for labels in (Y, 5 * Y)]
    assert rows[0].log_evidence == pytest.approx(rows[1].log_evidence)
    features = network[:2](X).detach()
    assert rows[1].log_evidence == pytest.approx(
        log_evidence_per_sample(features, target_matrix(Y)), rel=1e-4
    )


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1e30 * x


def test_a_network_whose_outputs_overflow_has_no_sensitivity() -> None:
    layers = nn.Linear(12, 4, bias=False), nn.Linear(4, 4, bias=False)
    network = nn.Sequential(layers[0], Scaled(), layers[1], Scaled())
    for layer in layers:
        nn.init.normal_(layer.weight, std=1e-30, generator=torch.Generator().manual_seed(0))
    (row,) = rank_networks([network], (X, Y), initializations=2)
    # the gradients overflow too, so that the NTK is not finite
    assert (
        row.sensitivity is None and row.ntk_accuracy is None and row.features_accuracy is not None
    )
    ranking = ranked_by_s({"large": network, "small": nn.Linear(12, 4)}, (X, Y), initializations=2)
    assert [row.name for row in ranking] == ["small"] and "finite" in ranking.not_ranked["large"]


def test_large_networks_are_ranked_by_features_without_the_ntk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    candidates = {
        name: nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 4))
        for name, width in (("small", 3), ("large", 30))
    }
    monkeypatch.setattr("gapscope.measures.fitted_labels.MANY_PARAMETERS", 300)
    ranking = rank_networks(candidates, (X, Y))
    assert {row.name: row.ntk_accuracy is not None for row in ranking} == {
        "small": True,
        "large": False,
    }
    assert list(ranking.notes) == ["large"] and "no NTK row" in str(ranking.notes["large"])


class Unfit(nn.Module):
    """Network whose outputs are random, or NaN for the first sample."""

    def __init__(self, noise: float, last: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
        self.noise = noise
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        y = y + self.noise * torch.randn_like(y)
        return torch.where((x == X[0]).all(1, keepdim=True), self.last * y, y)


def test_networks_that_are_random_nan_or_frozen_are_named_with_the_reason() -> None:
    candidates = {
        "sound": Unfit(0.0, 1.0),
        "random": Unfit(1.0, 1.0),
        "nan": Unfit(0.0, float("nan")),
        "frozen": Unfit(0.0, 1.0).requires_grad_(False),
    }
    ranking = rank_networks(candidates, (X, Y), initializations=2)
    print(ranking, ranking.not_ranked, ranking.notes)
    assert "two passes" in ranking.notes["random"] and "two passes" in repr(ranking)
    assert "sound" not in ranking.notes
    assert "finite" in ranking.not_ranked["nan"]
    assert "no trainable weights" in ranking.not_ranked["frozen"]
    assert "NTK" not in ranking.not_ranked["frozen"]


def test_groups_of_near_copies_are_noted_for_all_networks() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 12, generator=generator).repeat_interleave(6, 0)
    x += 0.003 * torch.randn(240, 12, generator=generator)
    y = torch.randint(0, 2, (40,), generator=generator).repeat_interleave(6)
    candidates = [torch.nn.Linear(12, 2)]
    ranking = gs.rank_networks(candidates, (x, y))
    assert "several near copies" in ranking.notes["all networks"]
    assert "all networks" not in gs.rank_networks(candidates, (torch.randn(240, 12), y)).notes
