from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.specs import NetworkSpec
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameter_count import parameter_count
from gapscope.networks import build_network
from gapscope.prediction.network_ranking import rank_networks
from gapscope.theory.sensitivity import expected_sensitivity, fully_connected_layers

X = torch.rand(100, 12, generator=torch.Generator().manual_seed(3))
Y = torch.arange(100) % 4


def spec(**options: int) -> NetworkSpec:
    return NetworkSpec(name="fully_connected", options=options)


def test_agrees_with_the_closed_form_for_random_networks() -> None:
    ranking = rank_networks({"a": spec(n_hidden=2, width=60)}, (X, Y), initializations=60, noise_std=1e-2)
    theory = expected_sensitivity(fully_connected_layers(12, [60, 60]), 4, noise_std=1e-2)
    assert ranking[0].sensitivity == pytest.approx(theory, rel=0.15)
    assert ranking[0].low < theory < ranking[0].high


def test_is_the_mean_of_the_measure_over_initialisations() -> None:
    (found,) = rank_networks({"a": spec(width=10)}, (X, Y), initializations=2, seed=5)
    values = []
    for i in range(2):
        generator = torch.Generator().manual_seed(derive_seed(5, f"initialisation {i}"))
        network = build_network(
            "fully_connected", input_shape=(12,), n_outputs=4, initialization="standard_normal", generator=generator,
            width=10,
        )  # fmt: skip
        values.append(float(output_sensitivity(network, X)))
    assert found.sensitivity == sum(values) / 2
    assert found.parameters == parameter_count(network)


def test_depth_beats_width_at_equal_products_and_size_disagrees() -> None:
    # (H / 2)^M: 2 layers of 128 -> 4096, 4 of 12 -> 1296, though S and size order the last two differently
    candidates = {
        "wide": spec(n_hidden=2, width=128),
        "deep": spec(n_hidden=4, width=12),
        "one": spec(n_hidden=1, width=300),
    }
    ranking = rank_networks(candidates, (X, Y), initializations=30)
    assert [item.name for item in ranking] == ["one", "deep", "wide"]
    table = ranking.to_pandas()
    assert table.rank_by_sensitivity.to_dict() == {"one": 1, "deep": 2, "wide": 3}
    assert table.rank_by_size.to_dict() == {"deep": 1, "one": 2, "wide": 3}
    assert bool(table.tied_with_best["one"]) and not bool(table.tied_with_best["wide"])
    assert "wide" in repr(ranking) and "<table" in ranking._repr_html_()


@pytest.mark.thorough
def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    theory = expected_sensitivity(fully_connected_layers(12, [30]), 4, noise_std=1e-2)
    inside = 0
    for seed in range(40):
        (found,) = rank_networks({"a": spec(n_hidden=1, width=30)}, X[:40], n_outputs=4, seed=seed, noise_std=1e-2)
        inside += found.low <= theory <= found.high
    assert 33 <= inside <= 40


def test_modules_are_initialised_anew_and_left_alone() -> None:
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    before = copy.deepcopy(module.state_dict())
    first, second = (rank_networks({"m": module}, X, initializations=3)[0] for _ in range(2))
    assert first == second
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    nn.init.zeros_(module[2].weight)  # type: ignore[arg-type]
    assert rank_networks({"m": module}, X, initializations=3)[0] == first


def test_warns_of_other_initialisations() -> None:
    with pytest.warns(UserWarning, match="standard normal networks only.*got 'he_normal'"):
        ranking = rank_networks(
            {"a": spec(n_hidden=2, width=64), "b": spec(n_hidden=2, width=256)},
            (X, Y),
            initialization="he_normal",
            initializations=10,
        )
    assert ranking[1].sensitivity / ranking[0].sensitivity < 1.5  # width, fourfold, hardly matters there


def test_warns_of_layers_that_act_in_training_alone() -> None:
    with pytest.warns(UserWarning, match="cannot see batch normalisation and dropout.*; b have them"):
        ranking = rank_networks(
            {"a": spec(width=10), "b": NetworkSpec(options={"width": 10, "dropout": 0.5})}, (X, Y), initializations=2
        )
    assert ranking[0].sensitivity == ranking[1].sensitivity


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, X), "candidates must hold one architecture or more; got none"),
        (({"a": NetworkSpec()}, X), "n_outputs must be given where the data have no targets"),
    ],
)
def test_says_what_is_wrong(arguments: tuple, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        rank_networks(*arguments)


def test_says_which_options_are_wrong() -> None:
    with pytest.raises(InvalidInput, match=r"initializations must lie in \[2, inf\); got 1"):
        rank_networks({"a": NetworkSpec()}, (X, Y), initializations=1)
    with pytest.raises(InvalidInput, match="Did you mean 'standard_normal'"):
        rank_networks({"a": NetworkSpec()}, (X, Y), initialization="standard_norm")


def test_a_function_that_makes_a_module_is_a_candidate() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))

    assert rank_networks({"m": make}, X, initializations=2) == rank_networks({"m": make()}, X, initializations=2)
    with pytest.raises(InvalidInput, match="modules, or functions without arguments that make one; 'm' is str"):
        rank_networks({"m": "resnet18"}, X)  # type: ignore[dict-item]


def test_what_is_ranked_is_kept_when_it_is_stopped() -> None:
    def stop() -> nn.Module:
        raise KeyboardInterrupt

    linear = {name: nn.Linear(12, 4) for name in "ab"}
    assert {item.name for item in rank_networks(linear | {"c": stop}, X, initializations=2)} == {"a", "b"}
    with pytest.raises(KeyboardInterrupt):
        rank_networks({"a": nn.Linear(12, 4), "c": stop}, X, initializations=2)


def test_by_expected_accuracy_the_order_is_that_of_the_left_out_predictions() -> None:
    sees = nn.Linear(12, 4)
    constant = nn.Linear(12, 4, bias=False).requires_grad_(False)
    blind = nn.Sequential(constant, nn.Softmax(1), nn.Linear(4, 4))  # what is trained sees the same of every sample
    nn.init.zeros_(constant.weight)
    y = X[:, :4].argmax(1)
    found = rank_networks({"blind": blind, "sees": sees}, (X, y), by="expected_accuracy", initializations=2)
    assert [item.name for item in found] == ["sees", "blind"]
    assert found[0].expected_accuracy == kernel_leave_one_out(sees, X, y).accuracy > 0.6
    assert (found[0].tied_with_best, found[1].tied_with_best) == (True, False)
    assert found[1].rank_by_expected_accuracy == 2


def test_by_expected_accuracy_a_spec_keeps_its_own_initialisation_and_copies_are_tied() -> None:
    candidates = {
        "torch": spec(width=10),
        "again": spec(width=10),
        "he": NetworkSpec(options={"width": 10}, initialization="he_normal"),
    }
    table = rank_networks(candidates, (X, Y), by="expected_accuracy", initializations=2).to_pandas()
    assert table.expected_accuracy["torch"] == table.expected_accuracy["again"] != table.expected_accuracy["he"]
    assert table.tied_with_best["again"] == table.tied_with_best["torch"]
    assert table.rank_by_expected_accuracy["torch"] == table.rank_by_expected_accuracy["again"]


def test_by_expected_accuracy_works_for_regression_and_asks_for_targets() -> None:
    target = X[:, :1] * 2
    found = rank_networks({"a": nn.Linear(12, 1)}, (X, target), by="expected_accuracy", initializations=2)
    assert found[0].expected_accuracy == pytest.approx(1, abs=1e-3)
    with pytest.raises(InvalidInput, match="by='expected_accuracy' needs data with targets; got inputs alone"):
        rank_networks({"a": nn.Linear(12, 1)}, X, by="expected_accuracy")
    assert "expected_accuracy" not in rank_networks({"a": nn.Linear(12, 4)}, X, initializations=2).to_pandas()
