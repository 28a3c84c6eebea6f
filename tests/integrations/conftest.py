"""An alarm that the tests can raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from gapscope.training.alarms.shared_learning import SharedLearning


class _RaisedIn(SharedLearning):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def observe(self, network: nn.Module, samples: Any, epoch: int) -> dict[str, float]:
        numbers = super().observe(network, samples, epoch)
        self.raised_at = epoch if epoch >= self.epoch else None
        return numbers


@pytest.fixture
def raised_in() -> Callable[[int], SharedLearning]:
    """Makes an alarm that is raised in the given epoch, whatever it sees."""
    return _RaisedIn
