"""Distance between the gradients of batches."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples
from gapscope.inspection.outputs import measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._perturbed import loss_and_gradient, norm_of, trainable
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "gradient_disparity",
    title="distance between the gradients of batches",
    needs=("inputs", "targets"),
    units="loss / weight units",
    direction="lower",
    aggregation="mean over pairs of batches",
    cost="1 forward and 1 backward pass of 5 batches",
    cost_class="backward",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="closed form",
    sampling=Sampling("own", 320, lambda k: 4),
    reference="Forouzesh and Thiran 2021 (arXiv:2107.06665), Sec. 3",
)
def gradient_disparity(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    batches: int = 5,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Mean distance between the gradients of batches, $\frac{2}{s (s-1)} \sum_{i < j} \lVert g_i - g_j \rVert_2$.

    $g_i$ is the gradient of the mean loss of a batch by all trainable weights, in evaluation mode. The s batches are
    random and have no sample in common; where there are fewer than s times `batch_size` samples, batches are of one
    s-th of them. The standard error is the jackknife over batches.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        batches: Number of batches s, 3 or more.
        batch_size: Samples per batch, at the most.
        generator: Source of the batches; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The mean distance with its standard error.

    Raises:
        InvalidInput: An option is out of range, or there are fewer samples than batches.
        NotMeasurable: The network has no trainable parameters.
    """
    check_range("batches", batches, 3)
    check_range("batch_size", batch_size, 1)
    size = min(batch_size, len(x) // batches)
    if size < 1:
        raise InvalidInput(f"gradient_disparity needs a sample a batch, here {batches}; got {len(x)} samples.")
    order = torch.randperm(len(x), generator=resolve_generator(generator, "batches of gradients"))
    with measurement_mode(network) as network:
        samples = Samples(prepare_inputs(network, x), prepare_inputs(network, y))
        at_once = samples_per_pass(network, samples.inputs, chunk_size, one_pass=network, at_most=256)
        parts = order[: batches * size].to(samples.inputs.device).split(size)
        leaves = trainable(network)
        gradients = [loss_and_gradient(network, samples.subset(part), at_once, leaves)[1] for part in parts]
    distances = torch.zeros(batches, batches, dtype=torch.float64)
    for i, j in itertools.combinations(range(batches), 2):
        distance = norm_of([a - b for a, b in zip(gradients[i], gradients[j], strict=True)])
        distances[i, j] = distances[j, i] = distance
    mean = distances.sum().item() / (batches * (batches - 1))
    left = (distances.sum() - 2 * distances.sum(1)) / ((batches - 1) * (batches - 2))
    error = ((batches - 1) / batches * (left - left.mean()).square().sum()).sqrt().item()
    return Estimate(mean, error)
