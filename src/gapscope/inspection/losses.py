"""Loss and accuracy of outputs against targets, and of a network on samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.outputs import check_labels, inspecting, network_outputs


def loss_of(outputs: Float[Tensor, "n k"], targets: Shaped[Tensor, "n ..."]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy (nats) for class labels, the mean squared error for float targets [n, k].

    Args:
        outputs: Raw outputs, for classification logits.
        targets: Class labels [n] or regression targets [n, k]; the squared error is a mean over n and k.

    Returns:
        The loss, differentiable by `outputs`.

    Raises:
        InvalidInput: Regression targets have another number of columns than the outputs.
    """
    if not targets.is_floating_point():
        return F.cross_entropy(outputs, targets)
    if outputs.shape != targets.shape:
        raise InvalidInput(
            f"Regression targets must have the shape of the outputs, {list(outputs.shape)}; got {list(targets.shape)}. "
            f"Build the network with {targets.shape[1]} outputs."
        )
    return F.mse_loss(outputs, targets.to(outputs.dtype))


def scores(network: nn.Module, samples: Samples, *, chunk_size: int = 512) -> dict[str, float]:
    """Return {"loss", "accuracy"} in evaluation mode over all samples; regression has no accuracy. Exact.

    Args:
        network: The network.
        samples: Inputs with targets.
        chunk_size: Samples a forward pass; without effect on the result beyond rounding.

    Returns:
        Mean loss (see `loss_of`, accumulated in float64) and the fraction of right predictions.

    Raises:
        InvalidInput: There are no targets, or a label has no output.
    """
    if samples.targets is None:
        raise InvalidInput("Scores need targets; got inputs alone. Pass data as (x, y).")
    with inspecting(network):
        outputs = network_outputs(network, samples.inputs, chunk_size=chunk_size)
    targets = samples.targets.to(outputs.device)
    if not samples.is_classification:
        return {"loss": loss_of(outputs.double(), targets).item()}
    check_labels(targets, outputs.shape[1])
    right = (outputs.argmax(1) == targets).double().mean()
    return {"loss": loss_of(outputs.double(), targets).item(), "accuracy": torch.as_tensor(right).item()}
