"""Overlap of the classes at the first layer, times the error on mixtures: the 2020 competition's winner."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.inspection.hooks import capture_outputs
from gapscope.inspection.outputs import measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._first_layer import first_layer
from gapscope.measures._forward import check_labelled
from gapscope.measures._mixing import STREAM, mixed_logits
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure
from gapscope.measures.robustness.mixup_robustness import mean_with_error
from gapscope.results.estimate import Estimate

POOLED = 4


def davies_bouldin(features: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> float:
    r"""Return $\frac1C \sum_k \max_{j \ne k} (s_k + s_j) / \lVert c_k - c_j \rVert$ of the classes that have samples.

    Args:
        features: Features.
        y: Class labels.

    Returns:
        The index; NaN where there is one class only, infinite where two classes have the same centre.

    >>> davies_bouldin(torch.tensor([[0.0], [2.0], [9.0], [11.0]]), torch.tensor([0, 0, 1, 1]))  # (1 + 1) / 9
    0.2222222222222222
    """
    features, labels = features.double(), y.unique()
    if len(labels) < 2:
        return float("nan")
    groups = [features[y == label] for label in labels]
    centres = torch.stack([group.mean(0) for group in groups])
    within = torch.stack([(group - centre).norm(dim=1).mean() for group, centre in zip(groups, centres, strict=True)])
    ratios = (within[:, None] + within) / torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return ratios.fill_diagonal_(-torch.inf).amax(1).mean().item()


def _pooled(features: Tensor, module: nn.Module) -> Float[Tensor, "n d"]:
    """Largest value of each 4 x 4 block of a feature map, all positions where it is smaller; anything else as it is."""
    if isinstance(module, _ConvNd):
        dims = features.ndim - 2
        pool = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d, 3: torch.nn.functional.max_pool3d}
        size = [min(POOLED, length) for length in features.shape[2:]]
        features = pool[dims](features, size)
    return features.flatten(1)


@register_measure(
    "davies_bouldin_mixup",
    title="overlap of the classes at the first layer, times the error on mixtures",
    needs=("inputs", "labels"),
    numbers={
        "product": ScalarInfo("index", "lower", "of the two below"),
        "davies_bouldin": ScalarInfo("index", "lower", "mean over batches", "overlap of the classes"),
        "mixup_error": ScalarInfo("fraction of samples", "lower", "mean over samples", "error on mixtures"),
    },
    cost="2 forward passes",
    default=False,
    invariances=EVERYTHING,
    oracle="scikit-learn's Davies-Bouldin index",
    cross_checks=("PGDL first place",),
    sampling=Sampling("whole", 256, lambda k: 3),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.1 and 3.3; Davies and Bouldin 1979, eq. 5",
)
def davies_bouldin_mixup(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    batch_size: int = 150,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    r"""Davies-Bouldin index of the classes at the first layer, times one minus the accuracy on mixtures.

    The index is $\frac1C \sum_k \max_{j \ne k} \frac{s_k + s_j}{\lVert c_k - c_j \rVert}$, where $c_k$ is the centre
    of a class and $s_k$ the mean distance from it, of the output of the first convolution or linear layer, max-pooled
    4 x 4 where it is a feature map; a mean over random batches. The error is that of `mixup_robustness`. Standard
    errors are the spread among batches and among samples. Small batches make the index larger: compare networks on
    equal ones. The released code of the reference takes a mean over the other classes, and augmented images, for some
    of its tables.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, floating point.
        y: Class labels, as they were trained on.
        batch_size: Samples per batch of the index; what is left over from whole batches is not used.
        generator: Source of pairs and batches; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "product", "davies_bouldin" and "mixup_error".

    Raises:
        InvalidInput: The inputs are token ids, or an option is out of range.
        NotMeasurable: There is no first layer, or one class only.
    """
    check_range("batch_size", batch_size, 2)
    check_labelled("davies_bouldin_mixup", x, y)
    logits = mixed_logits(network, x, y, generator, chunk_size)
    error = mean_with_error((logits.argmax(1) != y.cpu()).double())
    features = []
    with measurement_mode(network) as network, torch.no_grad():
        x = prepare_inputs(network, x)
        name, module = first_layer(network, x)
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            with capture_outputs({name: module}) as seen:
                network(x[part].clone())
            features.append(_pooled(seen[name], module).cpu())
    features = torch.cat(features)
    order = torch.arange(len(x))
    if len(x) > batch_size:
        order = torch.randperm(len(x), generator=resolve_generator(generator, STREAM))
    batches = [part for part in order.split(min(batch_size, len(x))) if len(part) == min(batch_size, len(x))]
    found = torch.tensor([davies_bouldin(features[part], y.cpu()[part]) for part in batches], dtype=torch.float64)
    found = found[~found.isnan()]
    if len(found) == 0:
        raise NotMeasurable("An index of classes needs two classes or more; the samples have one.")
    index, spread = found.mean().item(), found.std().item() / len(found) ** 0.5 if len(found) > 1 else 0.0
    product_error = ((float(error) * spread) ** 2 + (index * (error.standard_error or 0.0)) ** 2) ** 0.5
    return Scalars(
        {
            "product": Estimate(index * error, product_error),
            "davies_bouldin": Estimate(index, spread if len(found) > 1 else None),
            "mixup_error": error,
        }
    )
