"""Penalties in two processes against one process on the joined batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.penalties.base import Penalty, forward_with_penalties
from gapscope.penalties.gradient_norms import InputJacobianPenalty, LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from support.two_processes import together


class _Network(nn.Module):
    """A network with a parameter outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 3, 3)
        self.token = nn.Parameter(torch.randn(27))
        self.head = nn.Linear(27, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.convolution(x).flatten(1) + self.token))


def _cases() -> dict[str, Penalty]:
    return {
        "exact trace": GradientSimilarityPenalty(0.1, method="exact"),
        "loss gradient": LossGradientPenalty(0.1),
        "input jacobian": InputJacobianPenalty(0.1, method="exact"),
        "weight": L2Penalty(0.1),
    }


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 1, 5, 5, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (8,), generator=generator)


def _gradient(network: Any, penalty: Penalty, x: Tensor, y: Tensor) -> Tensor:
    network.zero_grad()
    for _ in range(2):  # twice: the second step meets what the first has remembered
        network.zero_grad()
        outputs, value = forward_with_penalties(network, x, y, [penalty])
        (F.cross_entropy(outputs, y) + value).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2
    )
    x, y = (part.chunk(2)[rank] for part in _batch())
    network = DistributedDataParallel(_Network().double())
    gradients = {name: _gradient(network, penalty, x, y) for name, penalty in _cases().items()}
    probing = GradientSimilarityPenalty(0.1)
    gradients["probes differ"] = probing.state_dict()["generator"].double()
    gradients["probe"] = _gradient(network, probing, x, y)
    torch.save(gradients, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_two_processes_give_the_gradient_of_the_joined_batch(tmp_path: Path) -> None:
    together(_process, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    network, (x, y) = _Network().double(), _batch()
    for name, penalty in _cases().items():
        right = _gradient(network, penalty, x, y)
        torch.testing.assert_close(first[name], right, rtol=1e-10, atol=1e-12, msg=name)
        assert torch.equal(first[name], second[name])
    assert torch.equal(first["probe"], second["probe"])
    assert not torch.equal(first["probes differ"], second["probes differ"])
