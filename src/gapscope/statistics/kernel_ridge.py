"""Kernel ridge regression: leave-one-out predictions, log evidence, and class scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import NotMeasurable

Features = Float[Tensor, "n d"]
# targets, scores or predictions
Columns = Float[Tensor, "n k"]

# Leave-one-out residuals are divided by 1 - leverage, of which less than this is rounding.
MIN_DEGREES_OF_FREEDOM = 1e-9
# Rows of columns or of distances in memory at a time: 33 MB per 2,048 columns in float64.
BLOCK_ROWS = 2048
# Above this many samples, eigenvectors are computed again for every block of rows.
MAX_ROWS_IN_MEMORY = 20_000
# Predictions of all ridges that are held in memory then, by judgment: 128 MB; of more, the ridge is selected on about
# as many rows.
MAX_BYTES_OF_RIDGES = 2**27


@dataclass(frozen=True)
class Spectrum:
    r"""Kernel of n samples as $U \mathrm{diag}(w) U^\top$ with r columns, in float64."""

    vectors: Float[Tensor, "n r"]  # U
    values: Float[Tensor, " r"]  # w, not negative

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def device(self) -> torch.device:
        """Device of the eigenvectors."""
        return self.values.device

    @property
    def mean(self) -> float:
        """Mean of all n eigenvalues, the unit of ridges."""
        return float(self.values.sum()) / len(self)

    def project(self, b: Columns) -> Float[Tensor, "r k"]:
        r"""Return $U^\top b$."""
        return self.vectors.T @ b

    def rows(self, rows: slice | Int[Tensor, " b"]) -> Float[Tensor, "b r"]:
        """Return rows of U.

        Args:
            rows: A slice, or numbers of rows.
        """
        return self.vectors[rows]

    def blocks(self, every: int = 1) -> Iterator[tuple[slice, Float[Tensor, "b r"]]]:
        """Yield slices of rows with their rows of U; of blocks, the first of `every` so many."""
        for rows in row_blocks(len(self))[::every]:
            yield rows, self.rows(rows)


@dataclass(frozen=True)
class BlockedSpectrum(Spectrum):
    """Spectrum whose eigenvectors U = A B are computed again for every block of rows; `vectors` is B [m, r].

    Attributes:
        columns: Function that returns rows of A [b, m] for a slice or numbers of the n samples, in float64.
        n: Number of samples.
    """

    columns: Callable[[slice | Tensor], Tensor]
    n: int

    def __len__(self) -> int:
        return self.n

    def project(self, b: Columns) -> Float[Tensor, "r k"]:
        r"""Return $U^\top b$."""
        return self.vectors.T @ sum_over_blocks(lambda rows: self.columns(rows).T @ b[rows], self.n)

    def rows(self, rows: slice | Int[Tensor, " b"]) -> Float[Tensor, "b r"]:
        """Return rows of U.

        Args:
            rows: A slice, or numbers of rows.
        """
        return self.columns(rows) @ self.vectors


def row_blocks(n: int) -> list[slice]:
    """Return slices of n rows, of at most `BLOCK_ROWS` each."""
    return [slice(start, min(start + BLOCK_ROWS, n)) for start in range(0, n, BLOCK_ROWS)]


def sum_over_blocks(term: Callable[[slice], Tensor], n: int) -> Tensor:
    """Return the sum of a term over all blocks of n rows."""
    first, *others = row_blocks(n)
    total = term(first)
    for rows in others:
        total += term(rows)
    return total


@dataclass(frozen=True)
class LooResult:
    """Leave-one-out result for one ridge strength."""

    predictions: Columns  # at every sample, of the fit to all others
    squared_error: (
        float  # mean over samples, sum over the k targets, of the squared leave-one-out residual
    )
    effective_dimension: (
        float  # trace of the map from targets to fitted values, the intercept's 1 included
    )
    largest_leverage: float  # largest weight of a sample's target in its own fitted value


def _require_finite(kernel: Tensor) -> None:
    """Raise NotMeasurable if a kernel holds NaN or infinity, which some decompositions take in silence."""
    if not bool(kernel.isfinite().all()):
        raise NotMeasurable(
            "The kernel must be finite; it holds NaN or infinity. Check the outputs of the network, and the scale of "
            "the inputs."
        )


def spectrum(kernel: Float[Tensor, "n n"]) -> Spectrum:
    """Decompose the kernel of all pairs exactly.

    Raises:
        NotMeasurable: The kernel holds NaN or infinity.
    """
    _require_finite(kernel)
    values, vectors = torch.linalg.eigh(kernel.double())
    return Spectrum(vectors, values.clamp_min(0.0))


def nystroem_spectrum(
    columns: Callable[[slice | Tensor], Tensor], landmarks: Float[Tensor, "m m"], n: int
) -> Spectrum:
    r"""Decompose the Nystroem approximation $K_{nm} K_{mm}^{+} K_{mn}$.

    Above 20,000 samples nothing of the size of `columns` is computed: memory is that of a block of rows.

    Args:
        columns: Function that returns the rows of $K_{nm}$ of a slice, or with numbers.
        landmarks: $K_{mm}$.
        n: Number of samples.

    Raises:
        NotMeasurable: The kernel of the landmarks holds NaN or infinity.
    """
    _require_finite(landmarks)
    values, vectors = torch.linalg.eigh(landmarks.double())
    # the inverse square root would amplify eigenvalues below the rounding of the (usually float32) kernel; rounding
    # errors are independent, so their threshold does not grow with the number of landmarks
    threshold = 10 * torch.finfo(landmarks.dtype).eps
    is_blocked = n > MAX_ROWS_IN_MEMORY
    if is_blocked:
        # smaller ones are rounding of the sums over blocks
        threshold = max(threshold, 1e-10)
    retained = values > values[-1] * threshold
    root = vectors[:, retained] / values[retained].sqrt()

    def rows_of(rows: slice | Tensor) -> Tensor:
        return columns(rows).double()

    # with features F, K = F F^T; if F^T F v = w v, then F v / sqrt(w) is an eigenvector of K with the eigenvalue w
    if not is_blocked:
        features = rows_of(slice(0, n)) @ root
        squares, basis = _decompose(features.T @ features)
        return Spectrum(features @ basis, squares)
    gram = sum_over_blocks(lambda rows: _gram(rows_of(rows)), n)
    squares, basis = _decompose(root.T @ gram @ root)
    return BlockedSpectrum(root @ basis, squares, rows_of, n)


def linear_spectrum(features: Features) -> Spectrum:
    """Decompose the kernel of inner products of the features.

    Args:
        features: [n, d], in float64. Above 20,000 samples they are used block by block.
    """
    n, d = features.shape
    if n <= d:
        return spectrum(features @ features.T)
    # from the smaller d x d matrix, as in `nystroem_spectrum`
    values, basis = _decompose(features.T @ features)
    if n > MAX_ROWS_IN_MEMORY:
        return BlockedSpectrum(basis, values, features.__getitem__, n)
    return Spectrum(features @ basis, values)


def _gram(columns: Tensor) -> Tensor:
    return columns.T @ columns


def _decompose(gram: Float[Tensor, "m m"]) -> tuple[Float[Tensor, " r"], Float[Tensor, "m r"]]:
    """Return the positive eigenvalues of a Gram matrix, and their eigenvectors over the roots of these."""
    values, directions = torch.linalg.eigh(gram)
    positive = values > values[-1].clamp_min(1e-30) * len(values) * torch.finfo(torch.float64).eps
    values = values[positive]
    return values, directions[:, positive] / values.sqrt()


class _LeaveOneOut:
    r"""Leave-one-out residuals of kernel ridge regression with an intercept, for any ridge.

    Without an intercept, the residuals of targets b are $R b$ with $R = \rho (K + \rho I)^{-1}$. With a free intercept
    a, the residuals $R (b - a 1)$ sum to zero, so $a = 1^\top R b / (1^\top R 1)$ and the residuals are $\tilde R b$
    with $\tilde R = R - R 1 1^\top R / (1^\top R 1)$. The leave-one-out residuals are $(\tilde R b)_i / \tilde R_{ii}$.
    """

    def __init__(self, kernel: Spectrum, targets: Columns) -> None:
        self.kernel = kernel
        self.both = torch.cat([targets, torch.ones_like(targets[:, :1])], 1)
        self.inside = kernel.project(self.both)
        self.sums = self.both.sum(0)
        # without other directions R has no part that is the identity, and small residuals keep their digits
        self.is_full = len(kernel.values) == len(kernel)

    def residuals(
        self, ridges: Sequence[float], rows: slice, vectors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return leave-one-out residuals [q, b, k] and degrees of freedom [q, b] of rows of U, for q ridges."""
        ridge = torch.tensor(list(ridges), dtype=torch.float64, device=vectors.device)[:, None]
        values = self.kernel.values
        # R is U diag(shrinkage) U^T, or I - U diag(retained) U^T
        weights = (ridge if self.is_full else values) / (values + ridge)
        # one product for all ridges, of which most share the time of reading U
        weighted = weights.T[:, :, None] * self.inside[:, None, :]
        of_targets = (vectors @ weighted.flatten(1)).unflatten(1, weighted.shape[1:])
        of_targets = of_targets.transpose(0, 1)
        diagonal = (vectors.square() @ weights.T).T
        of_ones = torch.einsum("r,rqk->qk", self.inside[:, -1], weighted)
        if not self.is_full:
            # R b and R_ii
            of_targets = self.both[rows] - of_targets
            diagonal = 1 - diagonal
            of_ones = self.sums - of_ones  # 1^T R b
        ones = of_targets[:, :, -1:]
        total = of_ones[:, None, -1:]
        residuals = of_targets[:, :, :-1] - ones * of_ones[:, None, :-1] / total
        freedom = (diagonal - (ones.square() / total).squeeze(2)).clamp_min(MIN_DEGREES_OF_FREEDOM)
        return residuals / freedom[:, :, None], freedom

    def predict(self, ridges: Sequence[float]) -> list[LooResult]:
        """Return the predictions of all samples for every ridge, from one pass over the rows."""
        n = len(self.kernel)
        predictions = [self.both[:, :-1].clone() for _ in ridges]
        freedom = self.both.new_empty(len(ridges), n)
        errors = [0.0 for _ in ridges]
        for rows, vectors in self.kernel.blocks():
            residuals, freedom[:, rows] = self.residuals(ridges, rows, vectors)
            for i, each in enumerate(residuals):
                errors[i] += float(each.square().sum())
                predictions[i][rows] -= each
        return [
            LooResult(each, error / n, float(n - free.sum()), float(1 - free.min()))
            for each, error, free in zip(predictions, errors, freedom, strict=True)
        ]  # fmt: skip

    def squared_errors(self, ridges: Sequence[float]) -> list[float]:
        """Return the squared errors of each ridge, for blocks of about 20,000 rows in all."""
        every = max(1, len(self.kernel) // MAX_ROWS_IN_MEMORY)
        errors = torch.zeros(len(ridges), dtype=torch.float64)
        for rows, vectors in self.kernel.blocks(every):
            errors += self.residuals(ridges, rows, vectors)[0].square().sum((1, 2)).cpu()
        return errors.tolist()


def loo_predictions(kernel: Spectrum, targets: Columns, ridge: float) -> LooResult:
    """Return leave-one-out predictions and errors for one positive ridge.

    Args:
        kernel: The decomposed kernel.
        targets: [n, k], in float64, on the device of the kernel.
        ridge: The ridge, in units of the kernel.
    """
    return _LeaveOneOut(kernel, targets).predict([ridge])[0]


def select_ridge(
    kernel: Spectrum, targets: Columns, ridges: tuple[float, ...]
) -> tuple[float, LooResult]:
    """Return the ridge of the smallest leave-one-out squared error, and its result.

    Args:
        kernel: The decomposed kernel; one that is computed in blocks selects the ridge on about 20,000 rows, if the
            predictions of all ridges would take more than 128 MB.
        targets: [n, k], in float64, on the device of the kernel.
        ridges: Ridges in units of the mean eigenvalue.
    """
    unit = kernel.mean or 1.0
    leave_one_out = _LeaveOneOut(kernel, targets)
    scaled = [ridge * unit for ridge in ridges]
    n_bytes = len(ridges) * targets.numel() * targets.element_size()
    if isinstance(kernel, BlockedSpectrum) and n_bytes > MAX_BYTES_OF_RIDGES:
        errors = leave_one_out.squared_errors(scaled)
        best = errors.index(min(errors))
        return ridges[best], leave_one_out.predict([scaled[best]])[0]
    results = zip(ridges, leave_one_out.predict(scaled), strict=True)
    return min(results, key=lambda item: item[1].squared_error)


# a limit and a relative change of the ridge, by judgment
MAX_ITERATIONS, TOLERANCE = 200, 1e-6


def log_evidence_per_sample(features: Features, targets: Columns) -> float:
    r"""Return LogME: the maximum log evidence per sample in nats, mean over targets.

    The model of a target b (one-hot or regression) is $b = F w + \epsilon$, $w \sim N(0, \alpha^{-1} I)$ and
    $\epsilon \sim N(0, \beta^{-1} I)$. In the basis of the singular vectors of F, all sums are over singular values.
    """
    f = features.double()
    b = targets.double()
    n, d = f.shape
    left, singular, _ = torch.linalg.svd(f, full_matrices=False)
    values = singular.square()
    inside = left.T @ b
    outside = (b.square().sum(0) - inside.square().sum(0)).clamp_min(0.0)
    scores = [_maximum(values, inside[:, k], float(outside[k]), n, d) for k in range(b.shape[1])]
    return sum(scores) / len(scores)


def _maximum(values: Tensor, inside: Tensor, outside: float, n: int, d: int) -> float:
    """Maximize one target's evidence over alpha and beta, by MacKay's fixed point."""
    alpha = beta = 1.0
    for _ in range(MAX_ITERATIONS):
        residual, square_norm = _parts(values, inside, outside, alpha, beta)
        # number of well-determined weights, gamma: alpha = gamma / |w|^2 and beta = (n - gamma) / |b - F w|^2
        effective = float((beta * values / (alpha + beta * values)).sum())
        new_alpha = effective / max(square_norm, 1e-12)
        new_beta = max(n - effective, 1e-12) / max(residual, 1e-12)
        has_converged = abs(new_alpha / new_beta - alpha / beta) <= TOLERANCE * alpha / beta
        alpha = new_alpha
        beta = new_beta
        if has_converged:
            break
    return log_evidence(values, inside, outside, n, d, alpha, beta) / n


def _parts(
    values: Tensor, inside: Tensor, outside: float, alpha: float, beta: float
) -> tuple[float, float]:
    """Return the squared residual and the squared norm of the posterior mean weights."""
    # posterior mean weights in the singular basis: beta s b / (alpha + beta s^2), for s^2 = values and b = inside
    shrinkage = alpha / (alpha + beta * values)
    residual = float((shrinkage * inside).square().sum()) + outside
    return residual, float((values * (beta * inside / (alpha + beta * values)).square()).sum())


def log_evidence(
    values: Float[Tensor, " r"],
    inside: Float[Tensor, " r"],
    outside: float,
    n: int,
    d: int,
    alpha: float,
    beta: float,
) -> float:
    r"""Return the log density of $N(0, \beta^{-1} I + \alpha^{-1} F F^\top)$ in nats.

    `values` are squared singular values of F [n, d], `inside` the target's coordinates in the left singular vectors,
    `outside` the squared norm of its part orthogonal to them.
    """
    residual, square_norm = _parts(values, inside, outside, alpha, beta)
    log_determinant = float((alpha + beta * values).log().sum()) + (d - len(values)) * math.log(
        alpha
    )
    return 0.5 * (
        n * math.log(beta)
        + d * math.log(alpha)
        - n * math.log(2 * math.pi)
        - beta * residual
        - alpha * square_norm
        - log_determinant
    )


@dataclass(frozen=True)
class ClassScores:
    """Scores that weight all classes equally.

    Attributes:
        balanced_accuracy: Mean over classes of their accuracy, in [0, 1].
        auc: Area under the ROC curve; for more than two classes the mean of one against the rest.
        largest: Fraction of the samples in the largest class.
    """

    balanced_accuracy: float
    auc: float
    largest: float

    @classmethod
    def mean(cls, scores: list[ClassScores]) -> ClassScores:
        """Return the mean of several scores.

        Args:
            scores: Scores of the same labels, one or more.
        """
        n = len(scores)
        balanced = sum(item.balanced_accuracy for item in scores) / n
        return cls(balanced, sum(item.auc for item in scores) / n, scores[0].largest)


def are_unequal(labels: Int[Tensor, " n"]) -> bool:
    """Return whether the largest class has at least twice the samples of the smallest."""
    counts = labels.unique(return_counts=True)[1]
    return len(counts) > 1 and bool(counts.max() >= 2 * counts.min())


def class_scores(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> ClassScores:
    """Return balanced accuracy and area under the ROC curve.

    Pass one score per class; for more than two classes probabilities, not logits, because the area compares the scores
    of one class between samples. Classes without a sample do not count.
    """
    from sklearn.metrics import roc_auc_score

    labels = labels.cpu()
    scores = scores.detach().double().cpu()
    classes, counts = labels.unique(return_counts=True)
    correct = (scores.argmax(1) == labels).double()
    balanced = torch.stack([correct[labels == label].mean() for label in classes]).mean()
    if scores.shape[1] == 2:
        scores = scores - scores.flip(1)
    # of two classes, one against the rest is the other against the rest
    compared = classes[1:] if len(classes) == 2 else classes
    areas = [roc_auc_score(labels == label, scores[:, int(label)]) for label in compared]
    return ClassScores(float(balanced), sum(areas) / len(areas), float(counts.max()) / len(labels))
