"""Advice of errors about types and shapes of inputs, outputs and targets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.network_errors import dtype_mismatch_message

X = torch.randn(24, 5)


@pytest.mark.parametrize("method", ["bfloat16", "half", "double"])
def test_inputs_of_another_type_name_that_of_the_weights(method: str) -> None:
    network = getattr(nn.Linear(5, 3), method)()
    penalty = gs.GradientSimilarityPenalty(1e-3)
    with pytest.raises(InvalidInput, match=rf"Use x\.{method}\(\), or network\.float\(\)") as error:
        penalty.forward_with_penalty(network, X, torch.arange(24) % 3)
    assert "got float" in str(error.value)


@pytest.mark.parametrize(
    ("network", "x", "advice"),
    [
        (nn.Conv2d(1, 2, 3), torch.ones(2, 1, 5, 5).double(), "Use x.float()."),
        (nn.LSTM(5, 2).double(), torch.ones(2, 5), "Use x.double(), or"),
        (nn.Linear(5, 2), torch.ones(2, 5).long(), "got Long. Use x.float()"),
    ],
)
def test_messages_of_torch_about_types(network: nn.Module, x: torch.Tensor, advice: str) -> None:
    with pytest.raises(Exception) as error:
        network(x)
    assert advice in dtype_mismatch_message(error.value)


def test_counts_beside_one_output_may_be_targets_of_regression() -> None:
    with pytest.raises(InvalidInput, match=r"pass y\.float\(\) for regression"):
        gs.measure(nn.Linear(5, 1), (X, torch.arange(24) % 4 + 1), ["loss"])


@pytest.mark.parametrize("targets", [X[:, 0], X[:, :1]])
def test_several_outputs_per_target_need_a_wrapper(targets: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match="one output per target"):
        gs.measure(nn.Linear(5, 3), (X, targets), ["loss"])


def test_probabilities_as_targets_name_the_loss() -> None:
    network, soft = nn.Linear(5, 3), torch.randn(24, 3).softmax(1)
    result = gs.measure(network, (X, soft), ["loss"])
    squared = float((network(X).detach() - soft).square().mean())
    assert result["loss"].value == pytest.approx(squared, rel=1e-4)
    assert any("squared error, not the cross-entropy" in note for note in result.notes)


@pytest.mark.parametrize(
    ("inputs", "weights", "is_type"),
    [
        ("torch.FloatTensor", "torch.cuda.FloatTensor", False),
        ("torch.FloatTensor", "UnknownDeviceType", False),
        ("torch.cuda.FloatTensor", "torch.cuda.HalfTensor", True),
        ("c10::BFloat16", "float", True),
    ],
)
def test_another_device_is_no_other_type(inputs: str, weights: str, is_type: bool) -> None:
    error = RuntimeError(f"Input type ({inputs}) and weight type ({weights}) should be the same")
    assert bool(dtype_mismatch_message(error)) == is_type
