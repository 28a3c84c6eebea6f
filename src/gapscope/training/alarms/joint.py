"""Joint alarm: the sum of LOO agreement, gradient-weight alignment and label support."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.targets import check_labels
from gapscope.base.task import class_logits
from gapscope.inspection.hooks import copied_calls, record_module_calls
from gapscope.inspection.outputs import inspection_mode, network_outputs, prepare_inputs
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.base import PeakAlarm, outputs_of, register_alarm
from gapscope.training.alarms.shared_learning import Neighbourhood, label_support

# neighbours as in `SharedLearning`; weight of a sample's lead over its neighbours, by judgment
NEIGHBOURS, WEIGHT = 20, 0.5


def agreement(probabilities: Float[Tensor, "n k"], predictions: Float[Tensor, "n k"]) -> float:
    r"""Return the mean of $\sum_c p_{ic} b_{ic}$ for probabilities p and predictions b."""
    return float((probabilities * predictions).sum(1).mean())


def last_linear_layer(network: nn.Module, x: Tensor) -> tuple[str, nn.Linear]:
    """Return the linear layer whose output is the network's, with its name."""
    outputs = network_outputs(network, x)
    for call in reversed(record_module_calls(network, prepare_inputs(network, x))):
        same_shape = call.output.shape == outputs.shape
        if isinstance(call.module, nn.Linear) and same_shape and torch.equal(call.output, outputs):
            return call.name, call.module
    raise InvalidInput(
        "JointAlarm needs a network whose outputs are those of its last layer, an nn.Linear; got outputs of another "
        "module. Choose another alarm, such as 'shared_learning'."
    )


def alignments(
    outputs: Float[Tensor, "n k"],
    features: Float[Tensor, "n d"],
    weight: Float[Tensor, "k d"],
    labels: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    r"""Return the cosine between each sample's negative loss gradient by W and W itself.

    The gradient of sample i is $(p_i - y_i) z_i^\top$ (softmax p, one-hot y, features z), so that the cosine is
    $\langle y_i - p_i, W z_i \rangle / (\lVert y_i - p_i \rVert \lVert z_i \rVert \lVert W \rVert_F)$; 0 where a
    gradient vanishes. A single output is the logit of class 1 beside 0.
    """
    logits = class_logits(outputs)
    residual = nn.functional.one_hot(labels, logits.shape[1]).to(logits) - logits.softmax(1)
    residual = residual[:, -outputs.shape[1] :]
    norms = residual.norm(dim=1) * features.norm(dim=1) * weight.norm()
    return (residual * (features @ weight.T)).sum(1) / norms.clamp_min(
        torch.finfo(outputs.dtype).tiny
    )


def observed_alignments(
    network: nn.Module, samples: Samples, labels: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return the `alignments` of a network's samples in evaluation mode, float64 on the CPU."""
    with inspection_mode(network):
        name, layer = last_linear_layer(network, samples.inputs[:2])
        with copied_calls({name: layer}, before=True) as calls:
            # in one chunk: a trial pass that measures memory would be recorded as well
            outputs = (
                network_outputs(network, samples.inputs, chunk_size=len(samples)).double().cpu()
            )
        weight = layer.weight.detach().double().cpu()
    check_labels(labels, class_logits(outputs).shape[1])
    features = torch.cat([call.input.double().cpu() for call in calls])
    return alignments(outputs, features, weight, labels)


@register_alarm("joint")
class JointAlarm(PeakAlarm):
    r"""Alarm on a fall of $a + g + s$, three signals whose errors have different causes.

    - a, agreement: $\frac1n \sum_i \sum_c p_{ic} b_{ic}$ with the network's probabilities $p_{ic}$ and the predictions
      $b_{ic}$ of `kernel_leave_one_out` at the initial weights. It falls where labels are memorized, because $b_i$
      does not use the label of sample i.
    - g, alignment: the mean cosine between the negative loss gradient of a sample by the last layer's weight and that
      weight (Hoelzl, Rueckert and Kaissis, NeurIPS 2025, arXiv:2510.25480, Sec. 4, without their kurtosis).
    - s, label support: $s = q - (p - q) / 2$ with 20 neighbours in gradient space, at most a quarter of the monitored
      samples (`SharedLearning`).

    Costs one kernel of the monitored samples before training and at the observations 1, 2, 3, 5, 8, 12, 18, ..., and
    two forward passes per observation. The network must end in an nn.Linear.

    Args:
        fall: Tolerated fall, in units of the sum.
    """

    description: ClassVar[str] = (
        "progress on individual samples is shared less and less with similar ones"
    )
    state_fields: ClassVar[tuple[str, ...]] = (*PeakAlarm.state_fields, "_predictions", "_near")

    def __init__(self, *, window: int = 5, fall: float = 0.03, patience: int = 3) -> None:
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._predictions: Tensor | None = None
        self._near = Neighbourhood()

    def begin(self, network: nn.Module, samples: Samples) -> None:
        """Predict every monitored sample from all others, at the initial weights."""
        labels = self._labels(samples)
        with inspection_mode(network):
            loo = kernel_leave_one_out(network, samples.inputs, labels.to(samples.inputs.device))
        self._predictions = loo.predictions.clamp(0, 1).cpu()

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Observe outputs, last layer and sometimes neighbours (see `Alarm.observe`)."""
        if self._predictions is None:  # `begin` was not called before training
            self.begin(network, samples)
        assert self._predictions is not None
        labels = self._labels(samples)
        near = self._near.neighbours_at(
            network, samples, min(NEIGHBOURS, max(1, len(samples) // 4))
        )
        probabilities = outputs_of(network, samples).softmax(1)
        cosines = observed_alignments(network, samples, labels)
        return self.update(probabilities, labels, self._predictions, near, cosines, epoch)

    def update(
        self,
        probabilities: Float[Tensor, "n k"],
        labels: Int[Tensor, " n"],
        predictions: Float[Tensor, "n k"],
        neighbours: Int[Tensor, "n m"],
        cosines: Float[Tensor, " n"],
        epoch: int,
    ) -> dict[str, float]:
        """Update with one observation, `cosines` being `alignments`."""
        a = agreement(probabilities, predictions)
        g = float(cosines.mean())
        s = float(label_support(probabilities, labels, neighbours, WEIGHT)[2].mean())
        self.follow(a + g + s, epoch)
        return {
            "alarm.agreement": a,
            "alarm.alignment": g,
            "alarm.support": s,
            "alarm.value": a + g + s,
            "alarm.raised": float(self.raised),
        }
