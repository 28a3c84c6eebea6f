"""What each measure says leaves it unchanged does, and what it does not name changes it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gapscope.measures.registry import REPARAMETRIZATIONS, Measure, list_measures
from gapscope.results.readings import Readings
from measures_small import HISTORY, SMALL, options_of
from reparametrized import CHANGES, relu_network

NETWORK, SAMPLES, INITIAL = relu_network()
MEASURES = list_measures()
# random vectors and noise are not reparametrized with the weights: enough of them, and how far the rest may be off
DRAWS: dict[str, dict[str, Any]] = {
    "hessian_trace": {"probes": 24},
    "hessian_density": {"probes": 8, "steps": 6},
    "pacbayes_flatness": {"draws": 48},
    "pacbayes_magnitude_flatness": {"draws": 48},
    "local_learning_coefficient": {"chains": 8, "steps": 3, "burn_in": 1},
}
TOLERANCE: dict[str, float] = {"pacbayes_flatness": 0.6, "pacbayes_magnitude_flatness": 0.6, "hessian_density": 0.4}
# what changes it is not seen in so few steps of the chains
UNSEEN = {("local_learning_coefficient", "layer rescaling")}


def take(item: Measure, network: Any) -> Readings:
    initial = INITIAL if "initial" in item.needs else None
    given = {**SMALL.get(item.name, {}), **DRAWS.get(item.name, {}), **options_of(item)}
    return item(network, SAMPLES, initial_state=initial, history=HISTORY, **given)


@pytest.fixture(scope="module")
def plain() -> dict[str, Readings]:
    return {name: take(item, NETWORK) for name, item in MEASURES.items()}


def test_each_reparametrization_keeps_the_predictions() -> None:
    assert list(CHANGES) == list(REPARAMETRIZATIONS)
    for change in CHANGES.values():
        other = change(NETWORK)
        assert not all(torch.equal(a, b) for a, b in zip(NETWORK.parameters(), other.parameters(), strict=True))
        torch.testing.assert_close(other(SAMPLES.inputs).softmax(1), NETWORK(SAMPLES.inputs).softmax(1))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_unchanged_by_what_they_name_and_by_nothing_else(
    name: str, change: str, plain: dict[str, Readings]
) -> None:
    item = MEASURES[name]
    found = take(item, CHANGES[change](NETWORK))
    pairs = [(mine.value, theirs) for mine, theirs in zip(found, plain[name], strict=True)]
    same = [
        mine == theirs.value
        or (math.isnan(mine) and math.isnan(theirs.value))
        or abs(mine - theirs.value)
        <= max(TOLERANCE.get(name, 1e-4) * abs(theirs.value), 4 * (theirs.standard_error or 0.0))
        for mine, theirs in pairs
    ]
    if (name, change) not in UNSEEN:
        assert all(same) is (change in item.invariances), (
            f"{change!r} {'leaves' if all(same) else 'changes'} {name}: its `unchanged_by` must say so; {pairs}"
        )
