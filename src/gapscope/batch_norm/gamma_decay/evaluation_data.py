"""What the regularisation by batch statistics is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples, as_samples, slices
from gapscope.inspection.losses import Loss
from gapscope.inspection.outputs import prepare_inputs


@dataclass(frozen=True)
class EvaluationData:
    """A network in evaluation mode, with the samples that are taken for its population.

    Attributes:
        network: The network.
        layers: Name -> normalisation layer, in forward order.
        samples: Inputs with targets.
        loss: Loss of each sample.
        chunk_size: Samples a pass.
    """

    network: nn.Module
    layers: dict[str, Any]
    samples: Samples
    loss: Loss
    chunk_size: int

    def batch(self, indices: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples, on the network's device."""
        assert self.samples.targets is not None
        x = prepare_inputs(self.network, self.samples.inputs[indices])
        return x, self.samples.targets[indices].to(x.device)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield (which samples, inputs, targets), chunk by chunk."""
        for part in slices(len(self.samples), self.chunk_size):
            yield part, *self.batch(part)


def require_targets(data: Any) -> Samples:
    """Return data as samples that have targets.

    Args:
        data: Inputs with targets in any form.

    Returns:
        The samples.

    Raises:
        InvalidInput: There are no targets.
    """
    samples = as_samples(data)
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    return samples
