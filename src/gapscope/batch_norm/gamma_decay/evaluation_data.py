"""Network and samples on which the regularization by batch statistics is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gapscope.base.samples import Samples, slices
from gapscope.inspection.losses import Loss
from gapscope.inspection.outputs import prepare_inputs
from gapscope.inspection.validation import ready


@dataclass(frozen=True)
class EvaluationData:
    """Network in evaluation mode, its normalization layers in order, and samples."""

    network: nn.Module
    layers: dict[str, Any]
    samples: Samples
    loss: Loss
    chunk_size: int

    def batch(self, indices: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples, on the network's device."""
        assert self.samples.targets is not None
        x = prepare_inputs(self.network, self.samples.inputs[indices])
        return x, self.samples.targets[indices].to(x.device)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield (which samples, inputs, targets), chunk by chunk."""
        for part in slices(len(self.samples), self.chunk_size):
            yield part, *self.batch(part)


def prepare(network: nn.Module, data: Any, loss: Loss | None = None) -> tuple[nn.Module, Samples]:
    """Validate a network with data that have targets, and adapt the network.

    Args:
        loss: The caller's own loss, which may take targets of another shape than the outputs; None for the default.

    Raises:
        InvalidInput: There are no targets, or the default loss does not take them.
    """
    prepared = ready(network, data, needs=("targets",) if loss is not None else ("targets", "outputs"))
    return prepared.network, prepared.samples
