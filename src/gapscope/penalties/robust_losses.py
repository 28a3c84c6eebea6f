"""Noise-robust losses: replacements for cross-entropy, and baselines for penalties."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput, check_range, did_you_mean
from gapscope.base.options import check_settings
from gapscope.base.specs import LossSpec
from gapscope.base.targets import check_labels, require_labels
from gapscope.base.task import class_logits
from gapscope.inspection.losses import default_loss, sample_losses


class RobustLoss(ABC):
    """Loss of outputs [n, C], labels [n] and indices of the samples [n]."""

    @abstractmethod
    def __call__(
        self, outputs: Float[Tensor, "n c"], labels: Int[Tensor, " n"], indices: Int[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """Return the mean over the batch, differentiable by `outputs`."""

    def __repr__(self) -> str:
        settings = [
            f"{name}={getattr(self, name)!r}" for name in inspect.signature(type(self)).parameters
        ]
        return f"{type(self).__name__}({', '.join(settings)})"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that resumed training needs (none by default)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state, of which there is none.

        Args:
            state: Result of `state_dict`, which is empty.

        Raises:
            InvalidInput: The state is not empty.
        """
        if state:
            name = type(self).__name__
            raise InvalidInput(
                f"Got state {', '.join(state)}; {name} has none. Use the loss it was saved with."
            )


def _check_logits(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the logits of all classes, or raise InvalidInput if the labels do not fit."""
    require_labels(labels, "A noise-robust loss")
    if outputs.ndim != 2:
        raise InvalidInput(
            f"A noise-robust loss needs outputs of shape [n, C]; got {list(outputs.shape)}. For regression use the "
            "squared error."
        )
    logits = class_logits(outputs)
    check_labels(labels, logits.shape[1])
    return logits


class GeneralizedCrossEntropy(RobustLoss):
    r"""Generalized cross-entropy: mean of $(1 - p_y^q) / q$.

    $p_y$ is the probability of the label. The gradient is that of the cross-entropy times $p_y^q$, so that samples with
    an improbable label have less weight, such as mislabelled ones. $q \to 0$ is the cross-entropy, $q = 1$ the mean
    absolute error.

    Source: Zhang and Sabuncu 2018, Generalized Cross Entropy Loss (arXiv:1805.07836), their $L_q$ without truncation.

    Args:
        q: In (0, 1]; 0.7 is the paper's choice.

    >>> loss = GeneralizedCrossEntropy(q=1.0)
    >>> loss(torch.zeros(1, 4), torch.tensor([2]), torch.tensor([0])).item()
    0.75
    """

    def __init__(self, q: float = 0.7) -> None:
        check_range("q of GeneralizedCrossEntropy", q, 0, 1, low_open=True)
        self.q = q

    def __call__(
        self,
        outputs: Float[Tensor, "n c"],
        labels: Int[Tensor, " n"],
        indices: Int[Tensor, " n"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean over the batch."""
        # 1 - p^q = -expm1(q log p) avoids a difference of nearly equal numbers if p is near 1
        log_probability = -sample_losses(_check_logits(outputs, labels), labels)
        return (-torch.expm1(self.q * log_probability) / self.q).mean()


class EarlyLearningRegularization(RobustLoss):
    r"""Cross-entropy plus $\lambda$ times the mean of $\log(1 - \langle p_i, t_i \rangle)$.

    $t_i \leftarrow \beta t_i + (1 - \beta)\, p_i$ is a moving average of the sample's predicted probabilities, updated
    without a gradient before each use. The added term falls as the prediction approaches this average, which
    counteracts the gradient of a label error learned later. As in the authors' code, probabilities are clipped to
    [1e-4, 1 - 1e-4], and those that enter the average are normalized.

    Source: Liu, Niles-Weed, Razavian and Fernandez-Granda 2020, Early-Learning Regularization Prevents Memorization of
    Noisy Labels (arXiv:2007.00151), section 4.

    Args:
        strength: lambda, 0 or larger; 3 for CIFAR-10 in the paper.
        momentum: beta, in [0, 1); 0.7 for CIFAR-10 in the paper.
    """

    def __init__(self, strength: float = 3.0, momentum: float = 0.7) -> None:
        check_range("strength of EarlyLearningRegularization", strength, 0)
        check_range("momentum of EarlyLearningRegularization", momentum, 0, 1, high_open=True)
        self.strength = strength
        self.momentum = momentum
        self.averages = torch.zeros(0, 0)

    def _grow_to(self, indices: Tensor, probabilities: Tensor) -> None:
        """Extend the averages to one row per sample, zero before the first update."""
        if self.averages.shape[1] != probabilities.shape[1]:
            self.averages = probabilities.new_zeros(0, probabilities.shape[1])
        n_missing = int(indices.max()) + 1 - len(self.averages)
        if n_missing > 0:
            self.averages = torch.cat(
                [self.averages, self.averages.new_zeros(n_missing, self.averages.shape[1])]
            )
        self.averages = self.averages.to(probabilities)

    def __call__(
        self, outputs: Float[Tensor, "n c"], labels: Int[Tensor, " n"], indices: Int[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """Return the mean over the batch, and update the averages of its samples."""
        logits = _check_logits(outputs, labels)
        probabilities = logits.softmax(1).clamp(1e-4, 1 - 1e-4)
        current = probabilities.detach()
        self._grow_to(indices, current)
        indices = indices.to(current.device)
        averages = self.momentum * self.averages[indices] + (
            1 - self.momentum
        ) * current / current.sum(1, keepdim=True)
        self.averages[indices] = averages
        regularizer = (1 - (averages * probabilities).sum(1)).log()
        return default_loss(logits, labels) + self.strength * regularizer.mean()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages."""
        return {"averages": self.averages}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the averages.

        Args:
            state: Tensors by name, as `state_dict` returned them.
        """
        self.averages = state["averages"].clone()


LOSSES: dict[str, type[RobustLoss]] = {
    "generalized_cross_entropy": GeneralizedCrossEntropy,
    "early_learning": EarlyLearningRegularization,
}


def make_loss(spec: LossSpec) -> RobustLoss | None:
    """Build the loss that a spec names (None for the default loss)."""
    if spec.name == "default":
        return None
    if spec.name not in LOSSES:
        raise InvalidInput(
            f"training.loss.name must be 'default' or one of {', '.join(LOSSES)}; got {spec.name!r}."
            f"{did_you_mean(spec.name, ['default', *LOSSES])}"
        )
    loss_class = LOSSES[spec.name]
    check_settings(f"Loss {spec.name!r}", spec.options, loss_class)
    return loss_class(**spec.options)
