"""Geometry of the classes in hidden layers.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.inspection.hooks import capture_outputs, weighted_calls
from gapscope.inspection.outputs import measurement_mode, prepare_inputs, samples_per_pass
from gapscope.inspection.sample_layout import certain_layouts, sample_layouts
from gapscope.measures._forward import (
    FeatureRows,
    FloatInputs,
    Inputs,
    Labels,
    Scalars,
    features_of,
    forward_pass,
    mean_with_error,
)
from gapscope.measures._noise import STREAM, mixed_logits, random_groups
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate
from gapscope.statistics.correlations import ROUNDING

_register = partial(register_measure, labels=True, default=False)


def _within_over_between(deviations: FeatureRows, means: Float[Tensor, "c d"]) -> float:
    """Return tr(S_W S_B^+) / C from deviations within classes and centred class means."""
    # means = U S V^T, so S_B^+ = C V S^-2 V^T, and tr(S_W S_B^+) / C = sum |deviations V / S|^2 / n
    _, sizes, directions = torch.linalg.svd(means, full_matrices=False)
    nonzero = sizes > ROUNDING * sizes[0]
    scaled = deviations @ directions[nonzero].mT / sizes[nonzero]
    return scaled.square().sum().item() / len(deviations)


@_register(
    title="neural collapse: tightness and symmetry of the class features",
    numbers={
        "within_over_between": ScalarInfo(
            "variance ratio", "lower", "mean over samples", "spread within classes"
        ),
        "unequal_norms": ScalarInfo(
            "standard deviation / mean", "lower", "over classes", "unequal class means"
        ),
        "unequal_angles": ScalarInfo(
            "cosine", "lower", "mean over pairs of classes", "unequal angles of class means"
        ),
        "head_mismatch": ScalarInfo(
            "squared distance", "lower", "sum over entries", "class means against the last layer"
        ),
        "centre_disagreement": ScalarInfo(
            "fraction of samples",
            "lower",
            "mean over samples",
            "predictions that differ from the nearest class mean",
        ),
    },
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Papyan, Han and Donoho 2020 (arXiv:2008.08186), NC1-NC4",
)
def neural_collapse(
    network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None
) -> Scalars:
    r"""Compute five numbers of neural collapse from the features before the last layer (exact).

    All are 0 if the classes have collapsed. With class means $\mu_c$, their mean $\mu$ and $m_c = \mu_c - \mu$ for C
    classes: "within_over_between" is $\frac1C \mathrm{tr}(\Sigma_W \Sigma_B^+)$ of the covariances within and between
    classes (NC1); "unequal_norms" the standard deviation over the mean of $\lVert m_c \rVert$, "unequal_angles" the
    mean of $|\cos(m_c, m_{c'}) + \frac1{C-1}|$ (NC2); "head_mismatch" $\lVert W / \lVert W \rVert_F - M / \lVert M
    \rVert_F \rVert_F^2$ for the weights of the last layer and the class means (NC3), NaN if the layer does not have one
    row per class that has samples; "centre_disagreement" the fraction of samples whose prediction is not the class of
    the nearest mean (NC4). Standard deviations divide by the number of classes.

    Raises:
        NotMeasurable: There are no features, or no two classes with different means.
    """
    result = forward_pass(network, x, chunk_size=chunk_size)
    y = y.cpu()
    features = features_of(result, "neural_collapse")
    labels = y.unique()
    centres = torch.stack([features[y == label].mean(0) for label in labels])
    means = centres - centres.mean(0)
    if len(labels) < 2 or float(means.abs().max()) == 0:
        raise NotMeasurable(
            "Neural collapse needs two classes with different mean features; got none."
        )
    count = len(labels)
    norms = means.norm(dim=1)
    rows = torch.searchsorted(labels, y)
    # relative to the longest, so that the mean of a class at the centre has no direction at any scale of the features
    directions = F.normalize(means / norms.max(), dim=1)
    # C class means of equal angles have pairwise cosines -1 / (C - 1)
    angles = (directions @ directions.mT + 1 / (count - 1)).abs()[
        ~torch.eye(count, dtype=torch.bool)
    ]
    nearest = labels[torch.cdist(features, centres).argmin(1)]
    values = {
        "within_over_between": _within_over_between(features - centres[rows], means),
        "unequal_norms": (norms.std(correction=0) / norms.mean()).item(),
        "unequal_angles": angles.mean().item(),
    }
    reasons = {}
    if isinstance(result.head, nn.Linear) and result.head.weight.shape == means.shape:
        head = result.head.weight.detach().double().cpu()
        values["head_mismatch"] = (head / head.norm() - means / means.norm()).square().sum().item()
    else:
        reasons["head_mismatch"] = "the last layer does not have one row of weights per class"
    values["centre_disagreement"] = (nearest != result.logits.argmax(1)).double().mean().item()
    return Scalars(values, reasons)


def label_variation(features: FeatureRows, y: Labels, neighbours: int) -> float:
    r"""Compute the label variation: weight fraction of graph edges between different labels.

    $\mathrm{tr}(Y^\top L Y) / \sum_{ij} A_{ij}$ with L = D - A and one-hot labels Y. An edge connects two samples if
    one is among the `neighbours` nearest ones of the other by cosine similarity; its weight is that similarity, or 0 if
    it is negative. Samples as similar as the last of the nearest are among them. The result is 0 if no edge has a
    weight.

    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> label_variation(features, torch.tensor([0, 0, 1, 1]), 1), label_variation(features, torch.arange(4), 1)
    (0.0, 1.0)
    """
    rows = F.normalize(features.double(), dim=1, eps=1e-300)
    similarity = (rows @ rows.mT).clamp(0, 1).fill_diagonal_(-1)
    # close to 1, similarities differ by less than rounding does far from it; lengths of chords do not
    chords = (2 - 2 * similarity).sqrt()
    largest = chords.topk(min(neighbours, len(rows) - 1), dim=1, largest=False).values[:, -1:]
    connected = chords <= largest + ROUNDING
    weights = similarity.clamp_min(0) * (connected | connected.mT)
    total = weights.sum().item()
    if total:
        return (weights * (y[:, None] != y)).sum().item() / total
    return 0.0


@_register(
    title="label variation among samples with similar features",
    numbers={
        "features": ScalarInfo(
            "fraction of edges", "lower", "weighted by similarity", "at the last hidden layer"
        ),
        "outputs": ScalarInfo(
            "fraction of edges", "lower", "weighted by similarity", "at the outputs"
        ),
        "change": ScalarInfo(
            "fraction of edges", "lower", "magnitude of the difference", "from one to the other"
        ),
    },
    sampling=Sampling("own", 500, lambda k: 2),
    stream="feature graphs",
    reference="Lassance et al. 2020 (arXiv:2011.12737), label variation",
)
def graph_label_variation(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    neighbours: int = 20,
    group_size: int = 500,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Compute the label variation over graphs of similar features, at two layers (estimated).

    `label_variation` at the last hidden layer ("features"), at the outputs ("outputs"), and the magnitude of their
    difference ("change"). Each is the mean over random groups of equal size, with a standard error from their spread
    (None for a single group). The reference divides by a constant and has variants with more layers and mixtures.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        neighbours: Nearest neighbours per sample.
        group_size: Samples per graph.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("neighbours", neighbours, 1)
    check_range("group_size", group_size, 2)
    result = forward_pass(network, x, chunk_size=chunk_size)
    y = y.cpu()
    features = features_of(result, "graph_label_variation")
    order = torch.arange(len(y))
    if len(y) > group_size:
        order = torch.randperm(len(y), generator=resolve_generator(generator, "feature graphs"))
    # one complete group at least, and no incomplete group in addition to two complete ones
    n = len(y)
    if n >= 2 * group_size:
        n = n // group_size * group_size
    rows = []
    for part in order[:n].split(group_size):
        first, second = (
            label_variation(signal[part], y[part], neighbours)
            for signal in (features, result.logits)
        )
        rows.append((first, second, abs(second - first)))
    columns = torch.tensor(rows, dtype=torch.float64).T
    return Scalars(
        dict(zip(("features", "outputs", "change"), map(mean_with_error, columns), strict=True))
    )


def davies_bouldin(features: FeatureRows, y: Labels) -> float:
    r"""Compute the Davies-Bouldin index of the classes that have samples.

    $\frac1C \sum_k \max_{j \ne k} (s_k + s_j) / \lVert c_k - c_j \rVert$ for class centres c and mean distances s from
    them. NaN for a single class, infinite if two classes have the same centre.

    >>> davies_bouldin(torch.tensor([[0.0], [2.0], [9.0], [11.0]]), torch.tensor([0, 0, 1, 1]))  # (1 + 1) / 9
    0.2222222222222222
    """
    features = features.double()
    labels = y.unique()
    if len(labels) < 2:
        return float("nan")
    groups = [features[y == label] for label in labels]
    centres = torch.stack([group.mean(0) for group in groups])
    within = torch.stack(
        [(group - centre).norm(dim=1).mean() for group, centre in zip(groups, centres, strict=True)]
    )
    ratios = (within[:, None] + within) / torch.cdist(
        centres, centres, compute_mode="donot_use_mm_for_euclid_dist"
    )
    return ratios.fill_diagonal_(-torch.inf).amax(1).mean().item()


def _pool(features: Tensor, module: nn.Module) -> FeatureRows:
    """Return flattened features, with feature maps max-pooled by at most 4 x 4."""
    if isinstance(module, _ConvNd):
        pools = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
        # 4 x 4, by judgment
        size = [min(4, length) for length in features.shape[2:]]
        features = pools[len(size) - 1](features, size)
    return features.flatten(1)


@_register(
    title="class overlap at the first layer times the error on mixed samples",
    numbers={
        "product": ScalarInfo("index", "lower", "of the two below"),
        "davies_bouldin": ScalarInfo(
            "index", "lower", "mean over batches", "overlap of the classes"
        ),
        "mixup_error": ScalarInfo(
            "fraction of samples", "lower", "mean over samples", "error on mixed samples"
        ),
    },
    sampling=Sampling("own", 300, lambda k: 3),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.1 and 3.3; Davies and Bouldin 1979, eq. 5",
)
def davies_bouldin_mixup(
    network: nn.Module,
    x: FloatInputs,
    y: Labels,
    *,
    batch_size: int = 150,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Compute the Davies-Bouldin index times the error on mixed samples (estimated).

    The index is `davies_bouldin` of the output of the first convolution or linear layer (feature maps max-pooled 4 x
    4), a mean over random batches. The error is that of `mixup_robustness`. Standard errors are the spread over batches
    and over samples. Small batches increase the index: compare networks with equal batch sizes. The released code of
    the reference averages over the other classes, and uses augmented images for some of its tables.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        batch_size: Samples per batch of the index; incomplete batches are omitted.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    Raises:
        NotMeasurable: There is no first layer, or only one class.
    """
    check_range("batch_size", batch_size, 2)
    logits = mixed_logits(network, x, y, generator, chunk_size)
    error = mean_with_error((logits.argmax(1) != y.cpu()).double())
    features = []
    with measurement_mode(network) as network, torch.no_grad():
        x = prepare_inputs(network, x)
        calls = weighted_calls(network, x[:1])
        if not calls:
            raise NotMeasurable(
                "The network calls no convolution or linear layer; the Davies-Bouldin index needs one."
            )
        name = calls[0].name
        module = calls[0].module
        layout = certain_layouts(sample_layouts(network, x, {name: module}), [name])[name]
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            with capture_outputs({name: module}) as captured:
                network(x[part].clone())
            n = part.stop - part.start
            rows = _pool(layout.rows_first(captured[name], n), module)
            features.append(layout.grouped(rows, n).flatten(1).cpu())
    features = torch.cat(features)
    batches = random_groups(len(x), batch_size, generator, STREAM)
    indices = torch.tensor(
        [davies_bouldin(features[part], y.cpu()[part]) for part in batches], dtype=torch.float64
    )
    indices = indices[~indices.isnan()]
    if len(indices) == 0:
        raise NotMeasurable(
            "The samples have one class; the Davies-Bouldin index needs at least two."
        )
    index = mean_with_error(indices)
    # standard error of a product of independent estimates, to first order
    product_error = (
        (error * (index.standard_error or 0.0)) ** 2 + (index * (error.standard_error or 0.0)) ** 2
    ) ** 0.5
    product = Estimate(index * error, product_error)
    return Scalars({"product": product, "davies_bouldin": index, "mixup_error": error})
