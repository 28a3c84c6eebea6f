"""Error messages of measures and penalties for unusable networks and inputs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.network_errors import dtype_mismatch_message

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 2


def _penalized(network: Any, x: Tensor) -> Any:
    return gs.GradientSimilarityPenalty(0.1).forward_with_penalty(network, x)


VERBS: dict[str, Callable[[Any, Tensor], Any]] = {
    "penalty": _penalized,
    "ntk_trace": gs.functional.ntk_trace,
    "input_jacobian_norm": gs.functional.input_jacobian_norm,
    "output_sensitivity": gs.functional.output_sensitivity,
    "unit_sparsity": lambda network, x: gs.functional.unit_sparsity(network, x, Y),
    "margin_signature": lambda network, x: gs.functional.margin_signature(network, x, Y),
    "expected_accuracy": lambda network, x: gs.forecast_accuracy(network, (x, Y)),
    "estimate_accuracy": lambda network, x: gs.estimate_accuracy(
        network, (x.repeat(10, 1), Y.repeat(10))
    ),
    "measure": lambda network, x: gs.measure(network, (x, Y)),
    "compare": lambda network, x: gs.compare({"one": network, "other": network}, (x, Y)),
}


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_module_gets_a_message(verb: str) -> None:
    with pytest.raises(InvalidInput, match=r"torch.nn.Module; got function. Wrap"):
        VERBS[verb](lambda x: x, X)
    with pytest.raises(InvalidInput, match=r"class Linear. Pass"):
        VERBS[verb](nn.Linear, X)
    with pytest.raises(InvalidInput, match=r"a SimpleNamespace.*attribute model"):
        VERBS[verb](SimpleNamespace(model=_network()), X)
    with pytest.raises(InvalidInput, match=r"a Monitor, which records"):
        VERBS[verb](gs.Monitor((X, torch.arange(len(X)) % 2), ["loss"]), X)


@pytest.mark.parametrize("verb", VERBS)
def test_inputs_of_a_wrong_kind_get_a_message(verb: str) -> None:
    with pytest.raises(InvalidInput, match=r"torch.int64|layers accept; got Long. Use x.float"):
        VERBS[verb](_network(), (255 * X).long())
    with pytest.raises(InvalidInput, match=r"complex64|got ComplexFloat"):
        VERBS[verb](_network(), X + 0j)
    with pytest.raises(InvalidInput, match=r"none. Load"):
        VERBS[verb](_network(), X.to("meta"))


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "penalty"])
def test_weights_without_numbers_are_named(verb: str) -> None:
    with pytest.raises(InvalidInput, match=r"'0.weight' is"):
        VERBS[verb](_network().to("meta"), X)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(4, 2), X.long()),
        (nn.Conv2d(1, 1, 2), X.long().reshape(20, 1, 2, 2)),
        (nn.Conv1d(1, 1, 2), X.to(torch.int32)[:, None]),
        (nn.LayerNorm(4), X.long()),
        (nn.Linear(4, 2), X.double()),
    ],
    ids=["linear", "conv2d", "conv1d", "layer norm", "double"],
)
def test_dtype_messages_of_torch_are_recognized(layer: nn.Module, x: Tensor) -> None:
    with pytest.raises(RuntimeError) as caught:
        layer(x)
    assert (
        "inputs must have the type of the network's weights, float; got double"
        if x.dtype == torch.float64
        else "inputs must have a type that the network's layers accept; got "
    ) in dtype_mismatch_message(caught.value)
    assert (
        dtype_mismatch_message(
            RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")
        )
        == ""
    )
