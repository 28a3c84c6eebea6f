"""What is measured, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.curvature import EvaluationData, prepare
from gapscope.inspection.losses import sample_losses


def test_chunks_cover_all_samples_in_their_order() -> None:
    samples = Samples(torch.randn(10, 3), torch.arange(10))
    chunks = list(EvaluationData(nn.Linear(3, 10), {}, samples, sample_losses, 4).chunks())
    assert [part for part, _, _ in chunks] == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert torch.equal(torch.cat([x for _, x, _ in chunks]), samples.inputs)
    assert torch.cat([y for _, _, y in chunks]).tolist() == list(range(10))


def test_a_batch_is_any_choice_of_samples() -> None:
    samples = Samples(torch.randn(10, 3), torch.arange(10))
    x, y = EvaluationData(nn.Linear(3, 10), {}, samples, sample_losses, 4).batch(torch.tensor([7, 2]))
    assert torch.equal(x, samples.inputs[[7, 2]]) and y.tolist() == [7, 2]


class TwoInputs(nn.Module):
    """Adds two inputs, and returns its logits in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(left + right)}


def test_targets_are_needed_and_networks_of_several_inputs_are_adapted() -> None:
    network, x, y = TwoInputs(), torch.randn(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(InvalidInput, match="must hold targets"):
        prepare(network, {"left": x, "right": x})
    adapted, samples = prepare(network, {"left": x, "right": 2 * x, "labels": y})
    assert torch.equal(adapted(samples.inputs), network.layer(3 * x))
    assert len(samples) == 3
