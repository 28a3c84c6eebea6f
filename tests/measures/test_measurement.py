"""`measure()`: of small networks, and all measures at once of a ResNet-18 and of BERT."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.losses import evaluate
from gapscope.measures.registry import list_measures
from support.cases import CASES, each
from support.door_networks import bert, resnet18
from support.measures_small import HISTORY, SMALL

X, Y = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
NETWORK = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_default_measures_are_those_that_the_data_allow() -> None:
    names = {reading.measure for reading in gs.measure(NETWORK, (X, Y))}
    assert {"accuracy", "loss", "parameter_count", "parameter_norm"} <= names
    assert "distance_from_initialization" not in names
    assert "distance_from_initialization" in {
        reading.measure
        for reading in gs.measure(
            NETWORK, (X, Y), initial_state=copy.deepcopy(NETWORK.state_dict())
        )
    }
    assert "accuracy" not in {reading.measure for reading in gs.measure(NETWORK, X)}
    assert "ntk_logdet" not in names  # its cost is not linear in n: only when named
    assert gs.measure(NETWORK, X, ["ntk_logdet"])["ntk_logdet.rank"].value > 0


def test_names_options_and_seeds() -> None:
    assert gs.measure(NETWORK, X, "parameter_count")["parameter_count"].value == 26  # type: ignore[arg-type]
    first, second = (gs.measure(NETWORK, X, ["output_sensitivity"], seed=seed) for seed in (0, 0))
    assert first["output_sensitivity"].value == second["output_sensitivity"].value
    third = gs.measure(
        NETWORK, X, ["output_sensitivity"], options={"output_sensitivity": {"noise_std": 0.2}}
    )
    assert third["output_sensitivity"].value != first["output_sensitivity"].value
    with pytest.raises(InvalidInput, match="loss; got 'accuracy'"):
        gs.measure(NETWORK, (X, Y), ["loss"], options={"accuracy": {}})


def test_an_error_names_measure_and_network() -> None:
    with pytest.raises(InvalidInput) as caught:
        gs.measure(NETWORK, (X, Y + 1), ["loss"])
    assert "while measuring loss of Sequential on [6, 3]" in caught.value.__notes__


@each()
def test_every_network_has_the_scores_of_its_own_outputs(name: str) -> None:
    network, samples = CASES[name].make(9, dtype=torch.float64)
    outputs = network(samples.inputs).detach()
    readings = gs.measure(
        network, (samples.inputs, samples.y), ["accuracy", "loss", "parameter_count"]
    )
    assert readings["accuracy"].value == pytest.approx(
        float((outputs.argmax(1) == samples.y).double().mean())
    )
    assert readings["loss"].value == pytest.approx(
        float(nn.functional.cross_entropy(outputs, samples.y))
    )
    trained = sum(
        parameter.numel() for parameter in network.parameters() if parameter.requires_grad
    )
    assert readings["parameter_count"].value == trained
    assert evaluate(network, samples)["loss"] == pytest.approx(readings["loss"].value)


FEW = 12
# of token ids: what moves or mixes inputs, sums over paths, and hidden layers of plain units
OF_TOKENS = {
    "augmentation_robustness", "davies_bouldin_mixup", "input_jacobian_norm", "jacobian_covariance",
    "margin_signature", "mixup_robustness", "output_sensitivity", "path_norm", "synaptic_flow",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "without"), [(resnet18, set()), (bert, OF_TOKENS)], ids=["ResNet-18", "BERT"]
)
def test_every_measure_has_its_numbers_or_a_reason_and_leaves_no_trace(
    make: Any, without: set[str]
) -> None:
    network, data = make()
    data = (
        {name: part[:FEW] for name, part in data.items()}
        if isinstance(data, dict)
        else [p[:FEW] for p in data]
    )
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes, random_state = [module.training for module in network.modules()], torch.get_rng_state()
    initial = {
        name: 0.9 * tensor if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    result = gs.measure(
        network,
        data if isinstance(data, dict) else tuple(data),
        "all",
        initial_state=initial,
        history=HISTORY,
        options=SMALL,
        time_budget=None,
        progress=False,
    )
    taken = {reading.measure for reading in result}
    assert set(result.unmeasured) == without and taken == set(list_measures()) - without, (
        result.unmeasured
    )
    assert all(len(why) > 20 and "\n" not in why for why in result.unmeasured.values())
    for name in taken:
        numbers = [reading for reading in result if reading.measure == name]
        assert [reading.number for reading in numbers] == list(list_measures()[name].numbers)
        assert any(math.isfinite(reading.value) for reading in numbers), name
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )
