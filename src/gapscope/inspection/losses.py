"""Loss and accuracy of outputs against targets, and of a network on samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples, slices
from gapscope.base.targets import IGNORED, check_labels, require_targets
from gapscope.base.task import check_no_invalid, class_logits, task_of
from gapscope.inspection.memoization import memoize
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.outputs import inspection_mode, network_outputs, samples_per_pass

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function that returns the loss of each sample [n] from outputs [n, K] and targets, by default `sample_losses`."""


def default_loss(
    outputs: Float[Tensor, "n ..."], targets: Shaped[Tensor, "n ..."]
) -> Float[Tensor, ""]:
    """Return the mean loss of the task: cross-entropy (nats), or the squared error for float targets.

    The default loss of the library: training, penalties, gamma decay, evaluation.

    Outputs are raw [n, K]; one output is the logit of the second of two classes (binary cross-entropy). Targets are
    class labels [n], several labels per sample (bool [n, K], binary cross-entropy), labels of positions [n, ...] or
    regression targets [n, K] ([n] and [n, 1] are equivalent; no broadcasting). Means are over n and K, or over the
    positions whose label is not -100.

    Raises:
        InvalidInput: Regression targets have another shape than the outputs, or labels do not fit.
    """
    return task_of(targets, is_counted=False).loss(outputs, targets)


def sample_losses(
    outputs: Float[Tensor, "n ..."], targets: Shaped[Tensor, "n ..."]
) -> Float[Tensor, " n"]:
    """Return each sample's loss, whose mean is `default_loss` (differentiable by `outputs`)."""
    return task_of(targets, is_counted=False).sample_losses(outputs, targets)


@memoize
def evaluate(
    network: nn.Module, samples: Samples, *, chunk_size: int | None = None, missing: bool = False
) -> dict[str, float]:
    """Return {"loss", "accuracy"} over all samples (regression has no accuracy).

    The loss is the mean `default_loss`, accumulated in float64. For labels of positions (pixels, tokens) both are means
    over all positions with a label other than -100, and outputs [n, K * P] hold all positions of the first class first.
    For several labels per sample the accuracy is that of single labels, and "exact_match" is the fraction of samples
    whose labels are all predicted correctly.

    With `missing`, all scores of a network with outputs that are NaN or infinite are NaN: in training it may diverge.

    Raises:
        InvalidInput: There are no targets, or a label has no output.
        NotMeasurable: Outputs are NaN or infinite, or no position has a label.
    """
    require_targets(samples)
    if samples.form is not None and not isinstance(network, NetworkAdapter):
        network = NetworkAdapter(network, samples.form)
    if samples.is_dense:
        result, n_invalid = _scores_of_positions(network, samples, chunk_size)
    else:
        result, n_invalid = _scores(network, samples, chunk_size)
    if not missing:
        check_no_invalid(n_invalid, len(samples))
    return dict.fromkeys(result, math.nan) if n_invalid else result


def _scores(
    network: nn.Module, samples: Samples, chunk_size: int | None
) -> tuple[dict[str, float], int]:
    """Return the scores, and the number of samples whose outputs are not finite."""
    with inspection_mode(network):
        outputs = network_outputs(network, samples.inputs, chunk_size=chunk_size)
    targets = samples.y.to(outputs.device)
    task = samples.task
    if task.scores:
        task.check_outputs(targets, outputs.shape[1])
    result = {"loss": task.loss(outputs.double(), targets).item()}
    if task.scores:
        correct = task.agrees(outputs, targets)
        result["accuracy"] = correct.double().mean().item()
    if "exact_match" in task.scores:
        result["exact_match"] = correct.all(1).double().mean().item()
    return result, int(task.is_invalid(outputs, targets).sum())


def _scores_of_positions(
    network: nn.Module, samples: Samples, chunk_size: int | None
) -> tuple[dict[str, float], int]:
    """Return the same for positions, over which loss and correct predictions are summed chunk by chunk."""
    loss = 0.0
    correct = 0.0
    count = 0
    n_invalid = 0
    with inspection_mode(network):
        chunk_size = samples_per_pass(network, samples.inputs, chunk_size, at_most=16)
    for part in slices(len(samples), chunk_size):
        chunk = samples.subset(torch.arange(part.start, part.stop))
        labels = require_targets(chunk.targets).flatten(1)
        with inspection_mode(network):
            outputs = network_outputs(network, chunk.inputs, chunk_size=len(chunk))
        logits = class_logits(outputs.unflatten(1, (-1, labels.shape[1])).double())
        labels = labels.to(outputs.device)
        check_labels(labels, logits.shape[1])
        loss += F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
        count += int((labels != IGNORED).sum())
        n_invalid += int(samples.task.is_invalid(logits, labels).sum())
    if count == 0:
        raise NotMeasurable(
            "At least one position must have a label; all are -100. Pass labels of the positions."
        )
    return {"loss": loss / count, "accuracy": correct / count}, n_invalid
