"""Predictions on changed images: the measure of the 2020 competition's second place."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.inspection.losses import class_logits
from gapscope.inspection.outputs import checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._augmented import PENALTIES, Draws, UnitRange, check_images
from gapscope.measures._forward import forward_pass
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure
from gapscope.measures.robustness.mixup_robustness import mean_with_error


@register_measure(
    "augmentation_robustness",
    title="change of the predictions when images are changed",
    needs=("inputs",),
    numbers={
        "penalty": ScalarInfo("weighted changes", "lower", "sum over 7 transformations, mean over samples"),
        "agreement": ScalarInfo("fraction of predictions", "higher", "mean over samples and transformations"),
    },
    cost="8 forward passes",
    default=False,
    invariances=EVERYTHING,
    oracle="enumerated on a network whose predictions are known",
    cross_checks=("PGDL second place",),
    sampling=Sampling("own", 128, lambda k: 8),
    stream="augmentation",
    reference="Aithal K, Kashyap and Subramanyam 2021 (arXiv:2101.06459), Sec. 3",
)
def augmentation_robustness(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    r"""How much predictions change under seven transformations of images, weighted as in the competition.

    For each sample and transformation: $|p - p'|$, the change of the largest probability, where the predicted class
    stays, else that transformation's penalty: horizontal flip 6, saturation 1, central crop 2, Sobel edges 3,
    brightness 1, flip and saturation 12, random erasing 2. Labels are not used. Images are brought to the range 0 to 1
    of all images given while they are changed, which is the range of the competition's. The largest penalty is 27;
    the competition's score is minus the sum over samples. The standard error is the spread over samples.

    Args:
        network: Classifier that returns logits [n, K].
        x: Images [n, channels, height, width].
        generator: Source of the factors and rectangles; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "penalty" and "agreement".

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
