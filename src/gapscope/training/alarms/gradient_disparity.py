"""Alarm on the distance between the loss gradients of mini-batches."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import checked_outputs, inspection_mode, prepare_inputs
from gapscope.training.alarms.base import PeakAlarm, register_alarm


def _gradient(
    network: nn.Module, x: Tensor, targets: Tensor, parameters: list[nn.Parameter]
) -> Tensor:
    losses = sample_losses(checked_outputs(network(x), len(x)), targets.to(x.device))
    scaled = losses.mean() / losses.std().clamp_min(torch.finfo(losses.dtype).tiny)
    gradients = torch.autograd.grad(scaled, parameters, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def scaled_gradient_disparity(
    network: nn.Module,
    samples: Samples,
    *,
    batch_size: int,
    batches: int,
    generator: torch.Generator,
) -> float:
    r"""Return the mean distance $\lVert g_i - g_j \rVert_2$ of mini-batch loss gradients.

    Forouzesh and Thiran 2021 (arXiv:2107.06665), Sec. 3, in training mode. As in their code the loss of a mini-batch is
    divided by the standard deviation of its samples' losses.

    Raises:
        InvalidInput: There are fewer than batches * batch_size samples.
    """
    order = torch.randperm(len(samples), generator=generator)[: batches * batch_size]
    if len(order) < batches * batch_size:
        raise InvalidInput(
            f"gradient_disparity needs {batches} batches of {batch_size} samples; got {len(samples)} samples. "
            "Monitor more samples, or use smaller batches."
        )
    with inspection_mode(network, mode="train"):
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        gradients = [
            _gradient(
                network,
                prepare_inputs(network, samples.inputs[batch]),
                samples.y[batch],
                parameters,
            )
            for batch in order.split(batch_size)
        ]
    return float(torch.pdist(torch.stack(gradients)).mean())


@register_alarm("gradient_disparity")
class GradientDisparityAlarm(PeakAlarm):
    """Alarm on a rising distance between the loss gradients of mini-batches.

    It follows the logarithm of `scaled_gradient_disparity`, which bounds how much a step on one mini-batch raises the
    loss on another. Forouzesh and Thiran 2021 (arXiv:2107.06665), Sec. 5, stop after five observations above the
    smallest. For classification and regression; `observe` costs `batches` backward passes of `batch_size` samples.

    Args:
        fall: Tolerated rise above the smallest value, in units of the natural logarithm.
        batch_size: Samples per batch.
        batches: Batches per observation.
    """

    classes_only: ClassVar[bool] = False
    description: ClassVar[str] = "loss gradients of mini-batches grow apart"

    def __init__(
        self,
        *,
        window: int = 1,
        fall: float = 0.0,
        patience: int = 5,
        batch_size: int = 32,
        batches: int = 4,
        seed: int = 0,
    ) -> None:
        check_range("batch_size", batch_size, 2)
        check_range("batches", batches, 2)
        self.batch_size = batch_size
        self.batches = batches
        self.seed = seed
        super().__init__(window=window, fall=fall, patience=patience)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Compare mini-batch gradients of the monitored samples (see `Alarm.observe`)."""
        # one generator per epoch, so that resumed training needs no state of it
        generator = torch.Generator().manual_seed(
            derive_seed(self.seed, f"mini-batches of epoch {epoch}")
        )
        disparity = scaled_gradient_disparity(
            network, samples, batch_size=self.batch_size, batches=self.batches, generator=generator
        )
        return self.update(disparity, epoch)

    def update(self, disparity: float, epoch: int) -> dict[str, float]:
        """Update with the next `scaled_gradient_disparity`, and return the numbers by name."""
        self.follow(-math.log(max(disparity, 1e-300)), epoch)
        return {"alarm.disparity": disparity, "alarm.raised": float(self.raised)}
