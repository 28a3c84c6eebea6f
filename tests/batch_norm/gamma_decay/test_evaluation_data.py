"""What is measured, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.evaluation_data import EvaluationData, require_targets
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


def test_targets_are_needed() -> None:
    with pytest.raises(InvalidInput, match=r"data must hold targets; got inputs alone. Pass \(x, y\)"):
        require_targets(torch.zeros(3, 2))
    assert len(require_targets((torch.zeros(3, 2), torch.zeros(3, 1)))) == 3
