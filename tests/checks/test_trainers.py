"""Trainers of tried advice: what a network that was trained on a part scores on the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.checks.trainers import FunctionTrainer


class _Overflows(nn.Module):
    """Its weights are finite, its outputs for large inputs are not."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, n_outputs)
        nn.init.constant_(self.linear.weight, 1e30)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.tensor([1.0, -1.0])[: self.linear.out_features]


def test_samples_with_outputs_that_overflow_are_scored_by_the_best_constant() -> None:
    x = torch.tensor([[1.0], [-1.0], [1e20], [1e20]])
    trained_on = Samples(x, torch.tensor([1, 1, 1, 0]))
    scored = Samples(x, torch.tensor([0, 0, 1, 0]))
    trainer = FunctionTrainer(lambda inputs, targets: _Overflows(2), None)
    scores = trainer.run(trained_on, {}, 0)(scored)
    # outputs (1e30, -1e30), (-1e30, 1e30), and twice (inf, -inf), where class 1, the more frequent one, counts
    assert scores.tolist() == [1, 0, 1, 0]


def test_regression_outputs_that_overflow_are_scored_by_the_mean() -> None:
    x = torch.tensor([[1e20], [1e20]])
    trained_on = Samples(x, torch.tensor([[1.0], [3.0]]))
    trainer = FunctionTrainer(lambda inputs, targets: _Overflows(1), None)
    scores = trainer.run(trained_on, {}, 0)(Samples(x, torch.tensor([[2.0], [4.0]])))
    assert scores.tolist() == [[0], [-4]]
