"""Tests of every registered measure, new ones included.

Labels, initial weights, a generator and a chunk size are passed to the measures that have these arguments.
"""

from __future__ import annotations

import copy
import math
import random
from functools import cache
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.measures.registry import Measure, list_measures
from gapscope.results.readings import Readings
from gapscope.training.loop import train
from support.cases import CASES
from support.measures_small import HISTORY, SMALL, options_of

MEASURES = list_measures()
N, FEW = 24, 8


def some_samples(dtype: torch.dtype = torch.float32) -> Samples:
    return CASES["convolutional"].samples(N, dtype=dtype)


def some_network() -> nn.Module:
    """A small convolutional network with batch norm and dropout, trained a little, left in training mode."""
    network, samples = CASES["convolutional"].make(N)
    network.initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}  # type: ignore[assignment]
    train(network, samples, TrainingSpec(learning_rate=0.1, epochs=15, batch_size=8))
    return network.train()


NETWORK = some_network()
# token ids can be neither shifted nor differentiated; no plain hidden layer of units is there
REFUSED = {
    ("encoder", measure)
    for measure in ("input_jacobian_norm", "output_sensitivity", "margin_signature")
}
REFUSED |= {("LSTM", "unit_sparsity"), ("residual, group norm", "unit_sparsity")}
# sums over paths are those of piecewise linear networks
SMOOTH = ("fully connected", "residual, group norm", "encoder", "low-rank adapters", "LSTM")
REFUSED |= {(name, "path_norm") for name in SMOOTH}
BY_INPUTS = ("mixup_robustness", "davies_bouldin_mixup", "jacobian_covariance", "synaptic_flow")
REFUSED |= {("encoder", measure) for measure in BY_INPUTS}
OF_VECTORS = ("fully connected", "encoder", "low-rank adapters", "LSTM")
REFUSED |= {(name, "augmentation_robustness") for name in OF_VECTORS}


def take(item: Measure, network: nn.Module, samples: Samples, **given: Any) -> Readings:
    initial: dict[str, Tensor] = {
        name: tensor.to(samples.inputs.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in NETWORK.initial.items()  # type: ignore[operator, union-attr]
    }
    return item(
        network,
        samples,
        initial_state=initial if "initial" in item.needs else None,
        history=HISTORY,
        **SMALL.get(item.name, {}),
        **options_of(item, **given),
    )


@cache
def expected(name: str, dtype: torch.dtype = torch.float32) -> Readings:
    """What one call gave, once for all tests: each of them takes the measure again in its own way beside it."""
    return take(MEASURES[name], copy.deepcopy(NETWORK).to(dtype), some_samples(dtype))


def assert_close(first: Readings, second: Readings, tolerance: float) -> None:
    assert [reading.name for reading in first] == [reading.name for reading in second]
    for mine, theirs in zip(first, second, strict=True):
        if (
            mine.standard_error is not None
            and theirs.standard_error is not None
            and tolerance > 1e-3
        ):
            allowed = 6 * (mine.standard_error + theirs.standard_error)
        else:
            allowed = tolerance * (1 + abs(theirs.value))
        same = mine.value == theirs.value or (
            mine.value != mine.value and theirs.value != theirs.value
        )
        assert same or abs(mine.value - theirs.value) <= allowed, (
            f"{mine.name}: {mine.value} and {theirs.value}"
        )


every_measure = pytest.mark.parametrize("item", MEASURES.values(), ids=list(MEASURES))


@pytest.mark.parametrize(
    "name", sorted(name for name, item in MEASURES.items() if "labels" in item.needs)
)
def test_a_direct_call_rejects_targets_that_are_not_labels(name: str) -> None:
    samples = some_samples()
    initial = {"initial_state": NETWORK.initial} if "initial" in MEASURES[name].needs else {}
    with pytest.raises(GapscopeError, match=f"{name}.*class labels"):
        MEASURES[name].function(NETWORK, samples.inputs, torch.zeros(N, 3), **initial)


# options with which few samples have several random groups, and landmarks
RANDOM: dict[str, dict[str, Any]] = {
    "davies_bouldin_mixup": {"batch_size": 16},
    "graph_label_variation": {"group_size": 10},
    "jacobian_covariance": {"group_size": 16},
    "kernel_leave_one_out": {"max_exact": 10, "landmarks": 10},
}


@pytest.mark.parametrize(
    "name", [name for name in MEASURES if "generator" in MEASURES[name].options]
)
def test_a_number_that_depends_on_the_seed_is_not_exact(name: str) -> None:
    item = MEASURES[name]
    options = {**SMALL.get(name, {}), **RANDOM.get(name, {})}
    first, second = (
        item(
            NETWORK,
            some_samples(),
            initial_state=NETWORK.initial,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
        for seed in (1, 2)
    )
    for mine, other in zip(first, second, strict=True):
        assert mine.value == other.value or mine.standard_error is not None, mine


@every_measure
def test_nothing_is_changed(item: Measure) -> None:
    network = copy.deepcopy(NETWORK)
    network[0].eval()  # type: ignore[index]
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    modes = [module.training for module in network.modules()]
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gradients = [parameter.grad for parameter in network.parameters()]
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[union-attr]
    samples = some_samples()
    inputs = samples.inputs.clone()
    take(item, network, samples)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.state_dict().items())
    assert all(
        p.grad is g and bool((p.grad == 1).all())
        for p, g in zip(network.parameters(), gradients, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert numpy.random.get_state()[1].tolist() == states[2]  # type: ignore[union-attr]
    assert torch.equal(samples.inputs, inputs) and not samples.inputs.requires_grad
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )


@pytest.mark.parametrize(
    "name", [name for name, item in MEASURES.items() if "chunk_size" in item.options]
)
def test_chunks_have_no_effect(name: str) -> None:
    item = MEASURES[name]
    network, samples = copy.deepcopy(NETWORK).double(), some_samples(torch.float64)
    assert_close(take(item, network, samples, chunk_size=7), expected(name, torch.float64), 1e-9)
    few = samples.subset(torch.arange(9))
    assert_close(take(item, network, few, chunk_size=1), take(item, network, few), 1e-9)


@every_measure
def test_the_order_of_samples_has_no_effect(item: Measure) -> None:
    network, samples = copy.deepcopy(NETWORK).double(), some_samples(torch.float64)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    tolerance = 1e-2 if "generator" in item.options else 1e-9
    assert_close(
        take(item, network, samples.subset(order)), expected(item.name, torch.float64), tolerance
    )


@every_measure
def test_single_precision_agrees_with_double(item: Measure) -> None:
    for mine, theirs in zip(expected(item.name), expected(item.name, torch.float64), strict=True):
        if mine.standard_error is not None:  # the draws of the two precisions differ
            assert theirs.standard_error is not None
            assert abs(mine.value - theirs.value) <= 6 * (
                mine.standard_error + theirs.standard_error
            )
        elif theirs.value == theirs.value and abs(theirs.value) != float("inf"):
            assert abs(mine.value - theirs.value) <= 1e-3 * (1 + abs(theirs.value)), mine.name


@every_measure
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients_get_the_same_numbers(item: Measure, context: Any) -> None:
    before = expected(item.name)
    with context():
        assert_close(take(item, NETWORK, some_samples()), before, 0.0)


@every_measure
def test_a_second_call_gives_the_same_numbers_in_either_mode(item: Measure) -> None:
    assert_close(
        take(item, copy.deepcopy(NETWORK).eval(), some_samples()), expected(item.name), 0.0
    )


def _taken(item: Measure, network: nn.Module, samples: Samples, **given: Any) -> Readings | str:
    """The readings, or the sentence that says why there are none."""
    initial = {name: 0.9 * tensor for name, tensor in network.state_dict().items()}
    try:
        given = {**SMALL.get(item.name, {}), **options_of(item, **given), "history": HISTORY}
        return item(
            network, samples, initial_state=initial if "initial" in item.needs else None, **given
        )
    except GapscopeError as error:
        return str(error)


class _Slice(nn.Module):
    """A network without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.flatten(1)[:, :3]


def _degenerate_network(kind: str) -> nn.Module:
    network = copy.deepcopy(NETWORK) if kind != "no parameters" else _Slice()
    if kind == "frozen":
        network.requires_grad_(False)
    if kind == "NaN":
        next(network.parameters()).data.flatten()[0] = float("nan")
    return network


@every_measure
@pytest.mark.parametrize("kind", ["no parameters", "frozen", "NaN"])
def test_a_degenerate_network_has_finite_numbers_or_a_reason(item: Measure, kind: str) -> None:
    readings = _taken(item, _degenerate_network(kind), some_samples())
    assert isinstance(readings, str) or any(math.isfinite(reading.value) for reading in readings)


@cache
def _made(name: str) -> tuple[nn.Module, Samples]:
    return CASES[name].make(FEW, dtype=torch.float64)


# every measure is taken of a ResNet-18 once more behind the front door, in test_measurement
_DEAR = ("many", "superlinear")
# all search for a deviation: one of them is measured on every network, the others on two
_ONE_SEARCH = {name for name in MEASURES if name.startswith("pacbayes_")} - {
    "pacbayes_magnitude_flatness"
}


def _marks(item: Measure, name: str) -> list[Any]:
    if item.cost_class in _DEAR and name == "ResNet-18, narrow":
        return [pytest.mark.slow]
    if item.name in _ONE_SEARCH and name not in ("fully connected", "convolutional"):
        return [pytest.mark.thorough]
    return []


_PAIRS = [
    pytest.param(item, name, id=f"{item.name}-{name}", marks=_marks(item, name))
    for item in MEASURES.values() for name in CASES
]  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("item", "name"), _PAIRS)
def test_every_network_has_equal_numbers_for_any_chunk_size_or_a_reason(
    item: Measure, name: str
) -> None:
    network, samples = copy.deepcopy(_made(name))
    state = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    result = _taken(item, network, samples)
    assert all(torch.equal(state[key], tensor) for key, tensor in network.state_dict().items())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )
    assert isinstance(result, str) is ((name, item.name) in REFUSED), result
    if isinstance(result, str):
        return
    assert [reading.number for reading in result] == list(item.numbers)
    assert any(math.isfinite(reading.value) for reading in result)
    if "chunk_size" in item.options:
        again = _taken(item, network, samples, chunk_size=5)
        assert isinstance(again, Readings)
        assert_close(again, result, 1e-9)
