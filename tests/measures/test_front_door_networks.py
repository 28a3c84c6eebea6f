"""All measures at once of a ResNet-18 and of Hugging Face's BERT as they come: numbers or reasons, and no trace."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gapscope as gs
from door_networks import bert, resnet18
from gapscope.measures.registry import list_measures
from measures_small import HISTORY, SMALL

FEW = 12
# of token ids: what moves or mixes inputs, sums over paths, and hidden layers of plain units
OF_TOKENS = {
    "augmentation_margin", "augmentation_robustness", "davies_bouldin_mixup", "input_jacobian_norm",
    "jacobian_covariance", "margin_signature", "mixup_margin", "mixup_robustness", "output_sensitivity", "path_norm",
    "path_norm_over_margin", "synaptic_flow",
}  # fmt: skip


@pytest.mark.parametrize(("make", "without"), [(resnet18, set()), (bert, OF_TOKENS)], ids=["ResNet-18", "BERT"])
def test_every_measure_has_its_numbers_or_a_reason_and_leaves_no_trace(make: Any, without: set[str]) -> None:
    network, data = make()
    data = {name: part[:FEW] for name, part in data.items()} if isinstance(data, dict) else [p[:FEW] for p in data]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes, random_state = [module.training for module in network.modules()], torch.get_rng_state()
    initial = {name: 0.9 * tensor if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    found = gs.measure(
        network,
        data if isinstance(data, dict) else tuple(data),
        "all",
        initial_state=initial,
        history=HISTORY,
        options=SMALL,
        time_budget=None,
        progress=False,
    )
    taken = {reading.measure for reading in found}
    assert set(found.unmeasured) == without and taken == set(list_measures()) - without, found.unmeasured
    assert all(len(why) > 20 and "\n" not in why for why in found.unmeasured.values())
    for name in taken:
        numbers = [reading for reading in found if reading.measure == name]
        assert [reading.number for reading in numbers] == list(list_measures()[name].numbers)
        assert any(math.isfinite(reading.value) for reading in numbers), name
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
