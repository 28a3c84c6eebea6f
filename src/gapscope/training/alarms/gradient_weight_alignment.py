"""Cosine between each sample's loss gradient by the last layer's weight and that weight."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples
from gapscope.inspection.hooks import forward_hooks, record_module_calls
from gapscope.inspection.outputs import check_labels, inspection_mode, network_outputs, prepare_inputs
from gapscope.training.alarms.base import PeakAlarm
from gapscope.training.alarms.registry import register_alarm

# excess kurtosis of the uniform distribution, with the other sign
_UNIFORM = 1.2


def last_linear_layer(network: nn.Module, x: Tensor) -> tuple[str, nn.Linear]:
    """Return the linear layer whose output is the network's, with its name.

    Raises:
        InvalidInput: The outputs come from something else.
    """
    outputs = network_outputs(network, x)
    for call in reversed(record_module_calls(network, prepare_inputs(network, x))):
        same_shape = call.output.shape == outputs.shape
        if isinstance(call.module, nn.Linear) and same_shape and torch.equal(call.output, outputs):
            return call.name, call.module
    raise InvalidInput(
        "gradient_weight_alignment needs a network whose outputs are those of its last layer, an nn.Linear; these "
        "outputs come from another module. Choose another alarm, such as 'label_wave'."
    )


def alignments(
    outputs: Float[Tensor, "n k"],
    features: Float[Tensor, "n d"],
    weight: Float[Tensor, "k d"],
    labels: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    r"""Cosine of the negative gradient of each sample's cross-entropy by W with W itself.

    The gradient of sample i is $(p_i - y_i) z_i^\top$ (softmax p, one-hot y, features z), so that the cosine is
    $\langle y_i - p_i, W z_i \rangle / (\lVert y_i - p_i \rVert \lVert z_i \rVert \lVert W \rVert_F)$; 0 where a
    gradient vanishes.
    """
    residual = nn.functional.one_hot(labels, outputs.shape[1]).to(outputs) - outputs.softmax(1)
    norms = residual.norm(dim=1) * features.norm(dim=1) * weight.norm()
    return (residual * (features @ weight.T)).sum(1) / norms.clamp_min(torch.finfo(outputs.dtype).tiny)


def observed_alignments(network: nn.Module, samples: Samples, labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the `alignments` of a network's samples in evaluation mode, float64 on the CPU."""
    features: list[Tensor] = []

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        features.append(inputs[0].detach().double().cpu())

    with inspection_mode(network):
        name, layer = last_linear_layer(network, samples.inputs[:2])
        with forward_hooks({name: layer}, record):
            # in one pass: a trial pass that measures memory would be recorded as well
            outputs = network_outputs(network, samples.inputs, chunk_size=len(samples)).double().cpu()
        weight = layer.weight.detach().double().cpu()
    check_labels(labels, outputs.shape[1])
    return alignments(outputs, torch.cat(features), weight, labels)


def excess_kurtosis(values: Float[Tensor, " n"]) -> float:
    """Return the excess kurtosis (0 if all values are equal)."""
    square = (values - values.mean()).square()
    variance = float(square.mean())
    return float(square.square().mean()) / variance**2 - 3 if variance > 0 else 0.0


@register_alarm("gradient_weight_alignment")
class GradientWeightAlignment(PeakAlarm):
    r"""Alarm on a falling alignment of per-sample loss gradients with the last layer's weight.

    With $\gamma_i$ the cosine between the negative loss gradient of sample i by the last layer's weight W and W itself,
    the alarm follows

    .. math:: GWA = \frac{\operatorname{mean}_i \gamma_i}{\operatorname{kurtosis}_i \gamma_i + 1.2}

    with the excess kurtosis, -1.2 for a uniform distribution (Hoelzl, Rueckert and Kaissis, NeurIPS 2025,
    arXiv:2510.25480, Sec. 4 and their code). Their rule takes the maximum after the first tenth of the training;
    `skip` ignores the first observations. A distribution with two modes has an excess kurtosis below -1.2, where the
    quotient changes its sign: `smallest` bounds the denominator from below, which the authors do not do, and
    `kurtosis=False` follows the mean alone.

    `observe` costs one forward pass of the monitored samples. A training loop that has the last layer's inputs can pass
    `alignments(...)` of any samples to `update`, almost for free. Cross-entropy alone.

    Args:
        fall: In units of GWA.
        skip: Number of first observations that are ignored.
        kurtosis: Divide by the kurtosis.
        smallest: Smallest denominator.

    >>> alarm = GradientWeightAlignment(window=1, patience=1, skip=0)
    >>> for epoch, cosines in enumerate([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5], [0.0, 0.1, 0.2]], start=1):
    ...     numbers = alarm.update(torch.tensor(cosines), epoch)  # three equal distances: excess kurtosis -1.5
    >>> alarm.raised_at, alarm.peak
    (3, 2)
    """

    description: ClassVar[str] = "loss gradients agree less with the weights"
    state_fields: ClassVar[tuple[str, ...]] = (*PeakAlarm.state_fields, "_looks")

    def __init__(
        self,
        *,
        window: int = 3,
        fall: float = 0.0,
        patience: int = 3,
        skip: int = 3,
        kurtosis: bool = True,
        smallest: float = 0.05,
    ) -> None:
        check_range("skip", skip, 0)
        check_range("smallest", smallest, 0, low_open=True)
        self.skip, self.kurtosis, self.smallest = skip, kurtosis, smallest
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._looks = 0

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Record the cosines of the monitored samples in evaluation mode (see `Alarm.observe`)."""
        return self.update(observed_alignments(network, samples, self._labels(samples)), epoch)

    def update(self, cosines: Float[Tensor, " n"], epoch: int) -> dict[str, float]:
        """Update with one cosine per sample (`alignments`), of the same or other samples each time.

        Returns:
            Mean and excess kurtosis of the cosines, GWA, and whether the alarm has been raised.
        """
        self._looks += 1
        mean, kurtosis = float(cosines.mean()), excess_kurtosis(cosines)
        value = mean / max(kurtosis + _UNIFORM, self.smallest) if self.kurtosis else mean
        if self._looks > self.skip:
            self.follow(value, epoch)
        return {
            "alarm.alignment": mean,
            "alarm.kurtosis": kurtosis,
            "alarm.value": value,
            "alarm.raised": float(self.raised),
        }
