"""Loss and accuracy of outputs against targets, and of a network on samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples, slices
from gapscope.base.targets import IGNORED, check_label_shape, check_labels, check_regression_shape, require_targets
from gapscope.inspection.memoization import memoize
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.outputs import inspection_mode, network_outputs, samples_per_pass

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function that returns the loss of each sample [n] from outputs [n, K] and targets, by default `sample_losses`."""


def class_logits(outputs: Tensor) -> Tensor:
    """Return the logits of all classes [n, C, ...] (one output z becomes the logits 0 and z).

    >>> class_logits(torch.tensor([[3.0]]))
    tensor([[0., 3.]])
    """
    return torch.cat([torch.zeros_like(outputs), outputs], 1) if outputs.shape[1:] == (1,) else outputs


def _with_positions(outputs: Tensor, labels: Tensor) -> Tensor:
    """Reshape outputs [n, K * P] (class-major) to [n, K, P] for labels of P positions."""
    positions = labels[0].numel() if labels.ndim > 1 else 1
    if outputs.ndim == 2 and positions > 1 and outputs.shape[1] % positions == 0:
        return outputs.reshape(len(outputs), -1, *labels.shape[1:])
    return outputs


def _cross_entropy(outputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    outputs = class_logits(_with_positions(outputs, labels))
    check_label_shape(labels, (len(outputs), *outputs.shape[2:]))
    try:
        return F.cross_entropy(outputs, labels, reduction=reduction)
    except IndexError:  # a label without an output; checked only now, because the check waits for the device
        check_labels(labels, outputs.shape[1])
        raise


def _regression_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    # [n] and [n, 1] are equivalent. No other shapes are adapted, so that no values are broadcast.
    scalar_shapes = {(len(outputs),), (len(outputs), 1)}
    if {tuple(outputs.shape), tuple(targets.shape)} <= scalar_shapes:
        targets = targets.view_as(outputs)
    check_regression_shape(targets, outputs.shape)
    return targets.to(outputs.dtype)


def default_loss(outputs: Float[Tensor, "n ..."], targets: Shaped[Tensor, "n ..."]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy (nats), or the mean squared error for float targets.

    The default loss of the library: training, penalties, gamma decay, evaluation.

    Outputs are raw [n, K]; one output is the logit of the second of two classes (binary cross-entropy). Targets are
    class labels [n] or regression targets [n, K] ([n] and [n, 1] are equivalent; no broadcasting). The squared error is
    a mean over n and K.

    Raises:
        InvalidInput: Regression targets have another shape than the outputs, or labels do not fit.
    """
    if not targets.is_floating_point():
        return _cross_entropy(outputs, targets, "mean")
    return F.mse_loss(outputs, _regression_targets(outputs, targets))


def sample_losses(outputs: Float[Tensor, "n ..."], targets: Shaped[Tensor, "n ..."]) -> Float[Tensor, " n"]:
    """Return each sample's loss, whose mean is `default_loss` (differentiable by `outputs`)."""
    if not targets.is_floating_point():
        losses = _cross_entropy(outputs, targets, "none")
    else:
        losses = (outputs - _regression_targets(outputs, targets)).square()
    return losses.reshape(len(outputs), -1).mean(1)


@memoize
def evaluate(network: nn.Module, samples: Samples, *, chunk_size: int | None = None) -> dict[str, float]:
    """Return {"loss", "accuracy"} over all samples (regression has no accuracy).

    The loss is the mean `default_loss`, accumulated in float64. For labels of positions (pixels, tokens) both are means
    over all positions with a label other than -100, and outputs [n, K * P] hold all positions of the first class first.

    Raises:
        InvalidInput: There are no targets, or a label has no output.
    """
    targets = require_targets(samples.targets)
    if samples.form is not None and not isinstance(network, NetworkAdapter):
        network = NetworkAdapter(network, samples.form)
    if samples.is_dense:
        return _scores_of_positions(network, samples, chunk_size)
    with inspection_mode(network):
        outputs = network_outputs(network, samples.inputs, chunk_size=chunk_size)
    targets = targets.to(outputs.device)
    if not samples.is_classification:
        return {"loss": default_loss(outputs.double(), targets).item()}
    outputs = class_logits(outputs)
    check_labels(targets, outputs.shape[1])
    correct = (outputs.argmax(1) == targets).double().mean()
    return {"loss": default_loss(outputs.double(), targets).item(), "accuracy": torch.as_tensor(correct).item()}


def _scores_of_positions(network: nn.Module, samples: Samples, chunk_size: int | None) -> dict[str, float]:
    """Sum loss and correct predictions over positions, chunk by chunk."""
    loss, correct, count = 0.0, 0.0, 0
    with inspection_mode(network):
        chunk_size = samples_per_pass(network, samples.inputs, chunk_size, at_most=16)
    for part in slices(len(samples), chunk_size):
        chunk = samples.subset(torch.arange(part.start, part.stop))
        labels = require_targets(chunk.targets).flatten(1)
        with inspection_mode(network):
            outputs = network_outputs(network, chunk.inputs, chunk_size=len(chunk))
        logits, labels = outputs.unflatten(1, (-1, labels.shape[1])).double(), labels.to(outputs.device)
        check_labels(labels, logits.shape[1])
        loss += F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
        count += int((labels != IGNORED).sum())
    if count == 0:
        raise NotMeasurable("At least one position must have a label; all are -100. Pass labels of the positions.")
    return {"loss": loss / count, "accuracy": correct / count}
