"""Robustness of the predictions under mixing and augmentation of the samples.

Standard errors are the spread over samples. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.inspection.losses import class_logits
from gapscope.inspection.outputs import checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._augmented import PENALTIES, Draws, UnitRange, check_images
from gapscope.measures._forward import check_labelled, forward_pass
from gapscope.measures._mixup import STREAM, mixed_logits
from gapscope.measures._numbers import Scalars
from gapscope.measures._types import FloatInputs, Inputs, Labels
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(
    register_measure,
    default=False,
    invariances=EVERYTHING,
)


def mean_with_error(values: Float[Tensor, " n"]) -> Estimate:
    """Return the mean over samples with its standard error (None for a single sample)."""
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else None
    return Estimate(values.mean().item(), error)


@_register(
    "mixup_robustness",
    title="predictions on mixtures of two samples of a class",
    needs=("inputs", "labels"),
    numbers={
        "accuracy": ScalarInfo("fraction of samples", "higher", "mean over samples"),
        "loss": ScalarInfo("nats", "lower", "mean over samples"),
    },
    cost="1 forward pass",
    oracle="closed form of a linear network",
    cross_checks=("PGDL first place",),
    sampling=Sampling("own", 128, lambda k: 1),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.3",
)
def mixup_robustness(
    network: nn.Module,
    x: FloatInputs,
    y: Labels,
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Compute accuracy and cross-entropy on samples mixed within their class (estimated).

    Samples are averaged half and half; each has one partner and is a partner once. The reference mixes all pairs of a
    class within a batch.

    Args:
        x: Inputs, floating point.

    Raises:
        InvalidInput: The inputs are token ids, or labels do not fit.

    >>> network = nn.Linear(1, 2, bias=False)  # class 1 where x > 0
    >>> _ = network.weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> x, y = torch.tensor([[3.0], [-1.0], [-2.0]]), torch.tensor([1, 1, 0])
    >>> mixup_robustness(network, x, y)["accuracy"]  # both mixtures of class 1 lie at 1
    1 ± 0
    """
    check_labelled("mixup_robustness", x, y)
    logits = mixed_logits(network, x, y, generator, chunk_size)
    correct = (logits.argmax(1) == y.cpu()).double()
    losses = F.cross_entropy(logits, y.cpu(), reduction="none")
    return Scalars({"accuracy": mean_with_error(correct), "loss": mean_with_error(losses)})


@_register(
    "augmentation_robustness",
    title="change of the predictions under augmentation",
    needs=("inputs",),
    numbers={
        "penalty": ScalarInfo("weighted changes", "lower", "sum over 7 transformations, mean over samples"),
        "agreement": ScalarInfo("fraction of predictions", "higher", "mean over samples and transformations"),
    },
    cost="8 forward passes",
    oracle="enumerated on a network whose predictions are known",
    cross_checks=("PGDL second place",),
    sampling=Sampling("own", 128, lambda k: 8),
    stream="augmentation",
    reference="Aithal K, Kashyap and Subramanyam 2021 (arXiv:2101.06459), Sec. 3",
)
def augmentation_robustness(
    network: nn.Module, x: Inputs, *, generator: torch.Generator | None = None, chunk_size: int | None = None
) -> Scalars:
    """Compute the penalized change of predictions under seven augmentations (estimated).

    For each sample and transformation the penalty is $|p - p'|$, the change of the largest probability, if the
    predicted class stays; else it is that transformation's: horizontal flip 6, saturation 1, central crop 2, Sobel
    edges 3, brightness 1, flip and saturation 12, random erasing 2. Their sum is at most 27. Labels are not used.
    Images are scaled from the range of all given images to [0, 1] while they are transformed. The reference's score is
    minus the sum over samples.

    Args:
        x: Images [n, channels, height, width].

    Raises:
        NotMeasurable: The inputs are no images.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> _ = nn.init.zeros_(network[1].weight)  # always the same prediction
    >>> augmentation_robustness(network, torch.rand(5, 1, 4, 4))["penalty"]
    0 ± 0
    """
    check_images(x)
    before = forward_pass(network, x, chunk_size=chunk_size).logits.softmax(1).max(1)
    draws = Draws.of(len(x), resolve_generator(generator, "augmentation"))
    images = UnitRange.of(x)
    penalties, agreements = [], []
    with measurement_mode(network) as network, torch.no_grad():
        x = prepare_inputs(network, x)
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            total, same = torch.zeros(part.stop - part.start).double(), torch.zeros(part.stop - part.start).double()
            for transform, penalty in PENALTIES.items():
                outputs = checked_outputs(network(images.change(transform, x[part], draws[part])), len(total))
                after = class_logits(outputs.double().cpu()).softmax(1).max(1)
                stays = after.indices == before.indices[part]
                total += torch.where(stays, (after.values - before.values[part]).abs(), penalty)
                same += stays
            penalties.append(total)
            agreements.append(same / len(PENALTIES))
    return Scalars(
        {
            "penalty": mean_with_error(torch.cat(penalties)),
            "agreement": mean_with_error(torch.cat(agreements)),
        }
    )
