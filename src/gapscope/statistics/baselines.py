"""Leave-one-out baselines without a network, which show how hard a data set is.

Common parameters:
    n_classes: Number of classes C; None for the largest label plus one.
    squares: `squared_distances` of the features, if they are computed already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.statistics.kernel_ridge import Spectrum, nystroem_spectrum, select_ridge, spectrum

# In units of the mean eigenvalue of the kernel; the leave-one-out error varies little between neighbours of this grid.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MAX_EXACT, N_LANDMARKS = 2000, 1000
BLOCK = 2048
# Above this many samples, neighbours are those among the first principal components, in float32.
MAX_EXACT_NEIGHBOURS, N_COMPONENTS = 5000, 64
N_TOKENS = 2048


@dataclass(frozen=True)
class LooRow:
    """Leave-one-out predictions of one method."""

    method: str
    uses: str  # "labels", "inputs" or "network"
    score: float  # accuracy, or R^2 for regression
    predictions: Float[Tensor, "n k"]  # scores of classes, or regression targets; float64

    def correct(self, labels: Shaped[Tensor, " n"]) -> Shaped[Tensor, " n"]:
        """True for samples that are predicted correctly."""
        return self.predictions.argmax(1) == labels.to(self.predictions.device)


def feature_matrix(inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
    """Return inputs as standardized columns [n, d], float64.

    Tables are standardized per column, images [n, channels, ...] per channel, so that pixels keep their relative
    scale. Constant columns are dropped.
    """
    x = inputs.detach().double()
    if x.ndim > 2:
        axes = (0, *range(2, x.ndim))
        x = (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True, correction=0).clamp_min(1e-12)
        x = x.flatten(1)
        return x[:, x.std(0, correction=0) > 1e-9]
    x = x.reshape(len(x), -1)
    spread = x.std(0, correction=0)
    # a column is constant if it varies by no more than the rounding of its values
    is_varying = spread > 1e-9 * x.abs().amax(0).clamp_min(1e-30)
    return (x[:, is_varying] - x[:, is_varying].mean(0)) / spread[is_varying]


def _token_counts(ids: Tensor) -> Tensor:
    """Return token frequencies per sample (at most 2,048 columns, then hashed)."""
    ids = ids.reshape(len(ids), -1).long() % N_TOKENS
    counts = torch.zeros(len(ids), N_TOKENS, dtype=torch.float64, device=ids.device)
    counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
    counts = counts[:, counts.amax(0) > 0] / ids.shape[1]
    return counts[:, counts.std(0, correction=0) > 1e-9]


def sample_features(samples: Samples) -> Float[Tensor, "n d"]:
    """Return features [n, d] on the CPU: `feature_matrix`, or frequencies of token ids."""
    x = samples.inputs.cpu()
    parts = (x,) if samples.form is None else samples.form.unpack(x)
    blocks = [feature_matrix(part) if part.is_floating_point() else _token_counts(part) for part in parts]
    return torch.cat(blocks, 1)


def target_matrix(targets: Shaped[Tensor, "n ..."], n_classes: int | None = None) -> Float[Tensor, "n k"]:
    """Return one-hot columns for labels, else the regression targets [n, k], in float64."""
    if targets.is_floating_point():
        return targets.double().reshape(len(targets), -1)
    return torch.nn.functional.one_hot(targets, n_classes or int(targets.max()) + 1).double()


def _row(method: str, uses: str, predictions: Tensor, targets: Tensor) -> LooRow:
    """Return a row with its accuracy, or with R^2 against the leave-one-out mean."""
    if not targets.is_floating_point():
        return LooRow(method, uses, float((predictions.argmax(1) == targets).double().mean()), predictions)
    truth, n = targets.double().reshape(len(targets), -1), len(targets)
    # a sample's residual from the mean of all others is n / (n - 1) times that from the mean of all
    of_mean = ((truth - truth.mean(0)) * n / (n - 1)).square().sum()
    score = float(1 - (predictions - truth).square().sum() / of_mean) if float(of_mean) else float("nan")
    return LooRow(method, uses, score, predictions)


def most_frequent_class(targets: Shaped[Tensor, "n ..."], n_classes: int | None = None) -> LooRow:
    """Predict the most frequent class, or the mean target of all other samples."""
    b = target_matrix(targets, n_classes)
    n = len(b)
    if targets.is_floating_point():
        return _row("mean target", "labels", (b.sum(0) - b) / (n - 1), targets)
    # of all samples: strict leave-one-out would score 0 on balanced classes
    frequencies = b.mean(0).expand_as(b)
    return LooRow("most frequent class", "labels", float(b.mean(0).max()), frequencies)


def squared_distances(features: Float[Tensor, "n d"]) -> Float[Tensor, "n n"] | None:
    """Return squared distances of all pairs in float64 (None above 2,000 samples)."""
    features = features.double()
    return torch.cdist(features, features).square_() if len(features) <= MAX_EXACT else None


def find_nearest(
    queries: Float[Tensor, "n d"], features: Float[Tensor, "m d"] | None = None, k: int = 1
) -> tuple[Float[Tensor, "n k"], Shaped[Tensor, "n k"]]:
    """Return distances and indices of the k nearest features (or other queries)."""
    candidates, distances, indices = queries if features is None else features, [], []
    for start in range(0, len(queries), BLOCK):
        block = torch.cdist(queries[start : start + BLOCK], candidates)
        if features is None:
            rows = torch.arange(len(block), device=block.device)
            block[rows, rows + start] = torch.inf
        # of equal distances, `min` takes the first
        nearest = block.min(1, keepdim=True) if k == 1 else block.topk(k, largest=False)
        distances.append(nearest.values)
        indices.append(nearest.indices)
    return torch.cat(distances), torch.cat(indices)


def _nearest(features: Tensor, k: int, squares: Tensor | None) -> Tensor:
    """Return indices [n, k] of the k nearest other samples, nearest first."""
    if squares is not None:
        return squares.clone().fill_diagonal_(torch.inf).topk(k, largest=False).indices
    if len(features) > MAX_EXACT_NEIGHBOURS:
        if features.shape[1] > N_COMPONENTS:
            features = features @ torch.linalg.eigh(features.T @ features).eigenvectors[:, -N_COMPONENTS:]
        features = features.float()
    return find_nearest(features, k=k)[1]


def nearest_neighbours(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n ..."],
    *,
    ks: Sequence[int] = (1, 5, 15),
    n_classes: int | None = None,
    squares: Float[Tensor, "n n"] | None = None,
) -> LooRow:
    """Average the targets of the k nearest other samples, with the best k of `ks`.

    Above 5,000 samples, distances are those of the first 64 principal components.
    """
    b = target_matrix(targets, n_classes)
    nearest = _nearest(features, min(max(ks), len(features) - 1), squares)
    rows: list[LooRow] = []
    for k in ks:
        if k > nearest.shape[1]:
            continue
        # the nearest neighbour breaks ties between classes
        votes = b[nearest[:, :k]].mean(1) + 1e-6 * b[nearest[:, 0]] * (not targets.is_floating_point())
        rows.append(_row(f"nearest neighbours ({k})", "inputs", votes, targets))
    return max(rows, key=lambda row: row.score)


def kernel_row(
    method: str, uses: str, kernel: Spectrum, targets: Shaped[Tensor, "n ..."], n_classes: int | None = None
) -> LooRow:
    """Fit kernel ridge regression with the ridge of the smallest leave-one-out squared error."""
    _, result = select_ridge(kernel, target_matrix(targets, n_classes).to(kernel.vectors.device), RIDGES)
    return _row(method, uses, result.predictions, targets.to(kernel.vectors.device))


def linear_spectrum(features: Tensor) -> Spectrum:
    """Decompose the kernel of inner products of the features."""
    n, d = features.shape
    if n <= d:
        return spectrum(features @ features.T)
    # from the smaller d x d matrix, as in `nystroem_spectrum`
    values, directions = torch.linalg.eigh(features.T @ features)
    positive = values > values[-1].clamp_min(1e-30) * d * torch.finfo(torch.float64).eps
    return Spectrum(features @ (directions[:, positive] / values[positive].sqrt()), values[positive])


def linear_ridge(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n ..."], *, n_classes: int | None = None
) -> LooRow:
    """Fit ridge regression on the features."""
    return kernel_row("linear ridge", "inputs", linear_spectrum(features.double()), targets, n_classes)


def rbf_spectrum(features: Float[Tensor, "n d"], squares: Float[Tensor, "n n"] | None = None) -> Spectrum:
    r"""Decompose $\exp(-\lVert x - x' \rVert^2 / m)$, m the median squared distance.

    Exact up to 2,000 samples; beyond, the Nystroem approximation with 1,000 landmarks.
    """
    n = len(features)
    squares, landmarks = squared_distances(features) if squares is None else squares, None
    if squares is None:
        landmarks = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:N_LANDMARKS].to(features.device)
        squares = torch.cdist(features, features[landmarks]).square_()
    between = squares if landmarks is None else squares[landmarks]
    off_diagonal = between[~torch.eye(len(between), dtype=torch.bool, device=between.device)]
    kernel = (squares / -off_diagonal.median().clamp_min(1e-12)).exp_()
    return spectrum(kernel) if landmarks is None else nystroem_spectrum(kernel, kernel[landmarks])


def rbf_ridge(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n ..."],
    *,
    n_classes: int | None = None,
    squares: Float[Tensor, "n n"] | None = None,
) -> LooRow:
    """Fit ridge regression with an RBF kernel of median width (see `rbf_spectrum`)."""
    return kernel_row("RBF ridge", "inputs", rbf_spectrum(features.double(), squares), targets, n_classes)


def loo_baselines(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n ..."],
    *,
    n_classes: int | None = None,
    squares: Float[Tensor, "n n"] | None = None,
) -> tuple[LooRow, ...]:
    """Return all baselines, cheapest first (only the first if no feature varies)."""
    rows = [most_frequent_class(targets, n_classes)]
    if features.shape[1]:
        squares = squared_distances(features) if squares is None else squares
        rows += [
            nearest_neighbours(features, targets, n_classes=n_classes, squares=squares),
            linear_ridge(features, targets, n_classes=n_classes),
            rbf_ridge(features, targets, n_classes=n_classes, squares=squares),
        ]
    return tuple(rows)
