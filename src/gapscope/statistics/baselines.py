"""Leave-one-out baselines without a network, which show how hard a data set is.

Common parameters:
    n_classes: Number of classes C; None for the largest label plus one.
    squares: `squared_distances` of the features, if they are computed already.
    groups: Group of each sample, 0, 1, ...: samples are predicted without their whole group; None: without themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from gapscope.base.precision import CONSTANT
from gapscope.base.samples import Samples
from gapscope.statistics.canonical_order import mixed_order
from gapscope.statistics.intervals import r_squared_scales
from gapscope.statistics.kernel_ridge import (
    MAX_ROWS_IN_MEMORY,
    Columns,
    Features,
    Spectrum,
    linear_spectrum,
    nystroem_spectrum,
    spectrum,
)  # fmt: skip
from gapscope.statistics.leave_group_out import select_held_out

Squares = Float[Tensor, "n n"]
Targets = Shaped[Tensor, "n ..."]
Groups = Int[Tensor, " n"]


# In units of the mean eigenvalue of the kernel; the leave-one-out error varies little between neighbours of this grid.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# samples, by judgment: an exact kernel of 2,000 takes 32 MB, and its decomposition 8e10 multiplications
MAX_EXACT, N_LANDMARKS = 2000, 1000
# Above so many samples the RBF kernel has fewer landmarks: their cost grows with the square, 1,000,000 rows take 30 s.
MANY_SAMPLES, N_LANDMARKS_OF_MANY = 200_000, 500
# Above this many samples, neighbours are those among the first principal components.
MAX_EXACT_NEIGHBOURS, N_COMPONENTS = 5000, 64
# columns of token frequencies; larger vocabularies are hashed
N_TOKENS = 2048
LINEAR, RBF, NEIGHBOURS = "linear ridge", "RBF ridge", "nearest neighbours"
# One core of a server of 2022: 25e9 multiplications of float64 per second; a distance with its part of a sort takes
# 2e-8 s. Rough on purpose: estimates from them do not depend on the load of the machine.
MULTIPLICATIONS_PER_SECOND, SECONDS_PER_DISTANCE = 2e10, 2e-8
# Times as many seconds of a kernel with groups, one block per group and ridge: measured on 25,000 and 100,000 rows.
GROUPED = 3

# Score above which one of several labels is predicted as present: scores are fitted to 0 and 1.
PRESENT = 0.5


@dataclass(frozen=True)
class LooRow:
    """Leave-one-out predictions of one method.

    Attributes:
        method: Name of the method, with its setting if there is one.
        uses: "labels", "inputs" or "network".
        score: Accuracy in [0, 1], or R^2 for regression.
        predictions: Scores of the classes, or regression targets; float64.
        groups: Group of each sample, if samples were predicted without their whole group; else None.
    """

    method: str
    uses: str
    score: float
    predictions: Columns
    groups: Groups | None = None

    @property
    def name(self) -> str:
        """The method without its setting: "nearest neighbours" of "nearest neighbours (5)"."""
        return self.method.split(" (", 1)[0]

    def correct(self, labels: Targets) -> Shaped[Tensor, " n"]:
        """True for samples that are predicted correctly; of several labels per sample the fraction that is.

        Args:
            labels: Class labels [n], or boolean labels [n, K].
        """
        labels = labels.to(self.predictions.device)
        if labels.dtype == torch.bool:
            return ((self.predictions > PRESENT) == labels).double().mean(1)
        return self.predictions.argmax(1) == labels


def feature_matrix(inputs: Targets) -> Features:
    """Return inputs as standardized columns [n, d], float64.

    Tables are standardized per column, images [n, channels, ...] per channel, so that pixels keep their relative
    scale. Constant columns are dropped.
    """
    x = inputs.detach().double()
    if x.ndim > 2:
        axes = (0, *range(2, x.ndim))
        x = (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True, correction=0).clamp_min(
            1e-12
        )
        x = x.flatten(1)
        return x[:, x.std(0, correction=0) > 1e-9]
    x = x.reshape(len(x), -1)
    if not x.shape[1]:
        return x
    spread = x.std(0, correction=0)
    # a column is constant if it varies by no more than the rounding of its values
    is_varying = spread > CONSTANT * x.abs().amax(0).clamp_min(1e-30)
    return (x[:, is_varying] - x[:, is_varying].mean(0)) / spread[is_varying]


def _token_counts(ids: Tensor) -> Tensor:
    """Return token frequencies per sample (at most 2,048 columns, then hashed)."""
    ids = ids.reshape(len(ids), -1).long() % N_TOKENS
    counts = torch.zeros(len(ids), N_TOKENS, dtype=torch.float64, device=ids.device)
    counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
    counts = counts[:, counts.amax(0) > 0] / ids.shape[1]
    return counts[:, counts.std(0, correction=0) > 1e-9]


def sample_features(samples: Samples) -> Features:
    """Return features [n, d] on the CPU: `feature_matrix`, or frequencies of token ids."""
    blocks = [
        feature_matrix(part) if part.is_floating_point() else _token_counts(part)
        for part in map(Tensor.cpu, samples.parts)
    ]
    return torch.cat(blocks, 1)


def target_matrix(targets: Targets, n_classes: int | None = None) -> Columns:
    """Return one-hot columns for labels, else several labels or regression targets [n, k], in float64."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        return targets.double().reshape(len(targets), -1)
    return torch.nn.functional.one_hot(targets, n_classes or int(targets.max()) + 1).double()


def fitted_units(targets: Tensor) -> Tensor:
    """Return the units in which several targets of regression [n, k] are fitted at once: their standard deviations.

    One regularization serves all targets; in their own units those of a large scale would choose it. Ones for a single
    target and for labels.

    Args:
        targets: Targets, or labels.
    """
    if not targets.is_floating_point() or targets.ndim < 2 or targets.shape[1] < 2:
        return torch.ones(1, dtype=torch.float64, device=targets.device)
    scales = torch.from_numpy(r_squared_scales(targets.cpu().numpy())).to(targets.device)
    return torch.where(scales.isfinite(), scales, 1.0)


def scored_row(
    method: str, uses: str, predictions: Tensor, targets: Tensor, groups: Groups | None = None
) -> LooRow:
    """Return a row with its accuracy, or with R^2 against the leave-one-out mean (of several targets, their mean)."""
    row = LooRow(method, uses, float("nan"), predictions, groups)
    if not targets.is_floating_point():
        return replace(row, score=float(row.correct(targets).double().mean()))
    truth = target_matrix(targets)
    scales = r_squared_scales(truth.cpu().numpy())
    if not math.isfinite(min(scales)):
        return row
    n = len(targets)
    # a sample's residual from the mean of all others is n / (n - 1) times that from the mean of all
    residuals = (predictions - truth).cpu() * ((n - 1) / n) / torch.from_numpy(scales)
    return replace(row, score=1 - float(residuals.square().sum(1).mean()))


def most_frequent_class(targets: Targets, n_classes: int | None = None) -> LooRow:
    """Predict the most frequent class, or the mean target of all other samples."""
    b = target_matrix(targets, n_classes)
    n = len(b)
    if targets.is_floating_point():
        return scored_row("mean target", "labels", (b.sum(0) - b) / (n - 1), targets)
    # of all samples: strict leave-one-out would score 0 on balanced classes
    frequencies = b.mean(0).expand_as(b)
    if targets.dtype == torch.bool:
        return scored_row("most frequent value of each label", "labels", frequencies, targets)
    return LooRow("most frequent class", "labels", float(b.mean(0).max()), frequencies)


def squared_distances(features: Features) -> Squares | None:
    """Return squared distances of all pairs in float64 (None above 2,000 samples)."""
    features = features.double()
    if len(features) <= MAX_EXACT:
        return torch.cdist(features, features).square_()
    return None


def find_nearest(
    queries: Features,
    features: Float[Tensor, "m d"] | None = None,
    k: int = 1,
    groups: Groups | None = None,
) -> tuple[Columns, Shaped[Tensor, "n k"]]:
    """Return distances and indices of the k nearest features (or other queries, of other groups if there are any).

    Of distances that float32 does not tell apart, any are the nearest; indices depend on values and positions alone.
    """
    candidates = queries if features is None else features
    distances = []
    indices = []
    norms = candidates.square().sum(1)
    # blocks of 64 rows of distances, 15 MB per 30,000 others: of 256 rows they take half as long again.
    for rows in torch.arange(len(queries), device=queries.device).split(64):
        part = queries[rows]
        lengths = part.square().sum(1, keepdim=True)
        # squared distances, as `torch.cdist` computes those of many rows
        block = torch.addmm(norms, part, candidates.T, alpha=-2)
        block += lengths
        block.clamp_min_(0.0)  # rounding must not order copies
        if groups is not None:
            block[groups[rows][:, None] == groups] = torch.inf
        elif features is None:
            block[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        # Rounding must not order equal distances: the float32 of a sum with this float32 has none of that of float64,
        # 64 of whose units it exceeds, and keeps all that is larger.
        small = (lengths * 2.0**-22).float().to(block.dtype)
        ranked = block.add_(small).float()
        # of equal distances, `min` takes the first
        nearest = ranked.min(1, keepdim=True) if k == 1 else ranked.topk(k, largest=False)
        distances.append((block.gather(1, nearest.indices) - small).sqrt())
        indices.append(nearest.indices)
    return torch.cat(distances), torch.cat(indices)


def _nearest(features: Tensor, targets: Columns, k: int, groups: Tensor | None) -> Tensor:
    """Return indices [n, k] of the k nearest samples of other groups, nearest first.

    Of samples at equal distance, those first in `mixed_order` are taken. If all of them voted instead, samples without
    signal would score less than chance: each lacks its own label.
    """
    _, kinds = targets.cpu().unique(dim=0, return_inverse=True)
    order = mixed_order(features, kinds)
    groups = None if groups is None else groups[order]
    if len(features) > MAX_EXACT_NEIGHBOURS and features.shape[1] > N_COMPONENTS:
        components = torch.linalg.eigh(features.T @ features).eigenvectors[:, -N_COMPONENTS:]
        features = features @ components
    nearest = find_nearest(features[order], k=k, groups=groups)[1]
    return order[nearest][order.argsort()]


def nearest_neighbours(
    features: Features,
    targets: Targets,
    *,
    ks: Sequence[int] = (1, 5, 15),
    n_classes: int | None = None,
    groups: Groups | None = None,
) -> LooRow:
    """Average the targets of the k nearest other samples, with the best k of `ks`.

    Above 5,000 samples, distances are those of the first 64 principal components.
    """
    b = target_matrix(targets, n_classes)
    largest_group = 1 if groups is None else int(groups.bincount().max())
    most = min(max(ks), len(features) - largest_group)
    ks = [k for k in ks if k <= most]
    nearest = _nearest(features, b, max(ks), groups)
    # the nearest neighbour breaks ties between classes
    first = (0.0 if targets.is_floating_point() else 1e-6) * b[nearest[:, 0]]
    rows = [
        scored_row(
            f"{NEIGHBOURS} ({k})", "inputs", b[nearest[:, :k]].mean(1) + first, targets, groups
        )
        for k in ks
    ]
    return max(rows, key=lambda row: row.score)


def held_out_predictions(
    kernel: Spectrum, targets: Columns, groups: Groups | None = None
) -> Columns:
    """Return the predictions of kernel ridge regression without each sample, or without its whole group.

    Args:
        kernel: The decomposed kernel.
        targets: Targets [n, k], in float64, on the device of the kernel.
        groups: Group of each sample, 0, 1, ...; None for single samples.
    """
    return select_held_out(kernel, targets, RIDGES, groups)[1]


def kernel_row(
    method: str,
    uses: str,
    kernel: Spectrum,
    targets: Targets,
    n_classes: int | None = None,
    groups: Groups | None = None,
) -> LooRow:
    """Fit kernel ridge regression with the ridge of the smallest squared error of held-out predictions."""
    encoded = target_matrix(targets, n_classes).to(kernel.device)
    units = fitted_units(targets).to(kernel.device)
    predictions = held_out_predictions(kernel, encoded / units, groups) * units
    return scored_row(method, uses, predictions, targets.to(kernel.device), groups)


def rbf_spectrum(features: Features, squares: Squares | None = None) -> Spectrum:
    r"""Decompose $\exp(-\lVert x - x' \rVert^2 / m)$, m the median squared distance.

    Exact up to 2,000 samples; beyond, the Nystroem approximation with 1,000 landmarks, above 200,000 with 500.
    """
    n = len(features)
    if squares is None:
        squares = squared_distances(features)
    if squares is not None:
        return spectrum((squares / -_median(squares)).exp_())
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: _n_landmarks(n)]
    landmarks = features[chosen.to(features.device)]
    between = torch.cdist(landmarks, landmarks).square_()
    width = _median(between)

    def columns(rows: slice | Tensor) -> Tensor:
        return torch.cdist(features[rows], landmarks).square_().div_(-width).exp_()

    return nystroem_spectrum(columns, (between / -width).exp_(), n)


def _n_landmarks(n: int) -> int:
    if n <= MANY_SAMPLES:
        return N_LANDMARKS
    return N_LANDMARKS_OF_MANY


def _median(squares: Float[Tensor, "m m"]) -> Tensor:
    """Return the median of the squared distances between different samples."""
    off_diagonal = squares[~torch.eye(len(squares), dtype=torch.bool, device=squares.device)]
    return off_diagonal.median().clamp_min(1e-12)


@dataclass(frozen=True)
class InputKernel:
    """A kernel of inputs or features, for all verbs: forecasts, label errors, held-out predictions, positions.

    Attributes:
        name: Name of its row.
        decompose: Function of features [n, d] and their `squared_distances` (None if they are not known).
        seconds: Function of n samples, d features and k targets that returns rough CPU seconds of its row.
    """

    name: str
    decompose: Callable[[Tensor, Tensor | None], Spectrum]
    seconds: Callable[[int, int, int], float]

    def row(
        self,
        features: Features,
        targets: Targets,
        *,
        n_classes: int | None = None,
        squares: Squares | None = None,
        groups: Groups | None = None,
    ) -> LooRow:
        """Fit ridge regression with this kernel to the targets."""
        kernel = self.decompose(features.double(), squares)
        return kernel_row(self.name, "inputs", kernel, targets, n_classes, groups)


def _seconds(kernel: int, n: int, rank: int, k: int) -> float:
    """Return the seconds of a ridge: a kernel in so many multiplications, and vectors times targets per ridge."""
    n_ridges = len(RIDGES)
    if n > MAX_ROWS_IN_MEMORY:  # computed in blocks, the ridge is selected on a part
        n_ridges = 1
    return (kernel + n_ridges * n * rank * (k + 1)) / MULTIPLICATIONS_PER_SECOND


def _linear_seconds(n: int, d: int, k: int) -> float:
    rank = min(n, d)
    return _seconds(n * d * rank + 10 * rank**3, n, rank, k)


def _rbf_seconds(n: int, d: int, k: int) -> float:
    rank = n
    kernel = n * n * d + 10 * n**3
    if n > MAX_EXACT:
        rank = min(n, _n_landmarks(n))
        kernel = 2 * n * rank**2 + 10 * rank**3
    return _seconds(kernel, n, rank, k)


INPUT_KERNELS = [
    InputKernel(LINEAR, lambda features, squares: linear_spectrum(features), _linear_seconds),
    InputKernel(RBF, rbf_spectrum, _rbf_seconds),
]
"""Kernels of inputs and features; a further one is one more entry."""

linear_ridge, rbf_ridge = (kernel.row for kernel in INPUT_KERNELS)
"""Functions that fit ridge regression on the features, and with an RBF kernel of median width (see `rbf_spectrum`)."""


def input_spectra(features: Features, what: str = "") -> Iterator[tuple[str, Spectrum]]:
    """Yield name and decomposition of every kernel of some features.

    Args:
        features: [n, d], standardized.
        what: The features in words, which their names then end with; empty for the names alone.
    """
    for kernel in INPUT_KERNELS:
        name = kernel.name
        if what:
            name += f" on {what}"
        yield name, kernel.decompose(features, None)


def baseline_seconds(n: int, d: int, k: int) -> dict[str, float]:
    """Return rough CPU seconds of the baselines of n samples with d features and k targets, by method."""
    components = d
    if n > MAX_EXACT_NEIGHBOURS:
        components = min(d, N_COMPONENTS)
    neighbours = n * n * (components / MULTIPLICATIONS_PER_SECOND + SECONDS_PER_DISTANCE)
    return {NEIGHBOURS: neighbours} | {
        kernel.name: kernel.seconds(n, d, k) for kernel in INPUT_KERNELS
    }


def loo_baselines(
    features: Features,
    targets: Targets,
    *,
    n_classes: int | None = None,
    squares: Squares | None = None,
    groups: Groups | None = None,
    affords: Callable[[float], bool] = lambda seconds: True,
) -> tuple[LooRow, ...]:
    """Return the baselines (only the first if no feature varies).

    Args:
        features: [n, d], such as those of `sample_features`.
        targets: Class labels [n] or regression targets [n, k].
        n_classes: Number of classes; None for the largest label plus one.
        squares: `squared_distances(features)`, if they are known.
        groups: Group of each sample, which is then predicted without it.
        affords: Function that returns whether so many CPU seconds are available; rows without are omitted, the most
            expensive first.
    """
    rows = [most_frequent_class(targets, n_classes)]
    n, d = features.shape
    if not d:
        return tuple(rows)
    if squares is None:
        squares = squared_distances(features)
    fits: dict[str, Callable[..., LooRow]] = {NEIGHBOURS: nearest_neighbours}
    fits |= {kernel.name: partial(kernel.row, squares=squares) for kernel in INPUT_KERNELS}
    seconds = baseline_seconds(n, d, rows[0].predictions.shape[1])
    if groups is not None:
        seconds |= {kernel.name: GROUPED * seconds[kernel.name] for kernel in INPUT_KERNELS}
    finished = {
        name: fits[name](features, targets, n_classes=n_classes, groups=groups)
        for name in sorted(fits, key=seconds.__getitem__)
        if affords(seconds[name])
    }
    return (*rows, *(finished[name] for name in fits if name in finished))
