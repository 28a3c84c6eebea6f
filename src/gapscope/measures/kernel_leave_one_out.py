"""Leave-one-out predictions of NTK ridge regression in closed form."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.outputs import checked_outputs, measurement_mode, network_outputs
from gapscope.measures.ntk import empirical_ntk
from gapscope.measures.registry import ScalarInfo, register_measure
from gapscope.statistics.kernel_ridge import LooResult, Spectrum, nystroem_spectrum, select_ridge, spectrum

# in units of the mean eigenvalue; the leave-one-out error is flat between neighbours of this grid
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MIN_RIDGE = 1e-9


@dataclass(frozen=True)
class KernelLeaveOneOut:
    """Leave-one-out predictions of all samples, with accuracy and errors.

    Attributes:
        predictions: LOO prediction of the targets (one column per class, or a regression target), [n, k], float64.
        labels: Class labels; None for regression.
        ridge: The chosen ridge, in units of the mean eigenvalue of the kernel.
        squared_error: Mean over samples, sum over targets, of the squared held-out residual (of one-hot labels, or in
            squared units of the regression target).
        explained: R²: 1 minus that over the same error of leave-one-out means, the best constant.
        generalized_cross_validation: As squared_error, with the mean leverage in place of each sample's own.
        effective_dimension: Degrees of freedom of the fit, its intercept's 1 included.
        largest_leverage: Largest weight of a sample's own target in its fit; near 1 LOO is unreliable.
        landmarks: Number of landmarks of the Nystroem approximation; None if the kernel is exact.
    """

    predictions: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"] | None
    ridge: float
    squared_error: float
    explained: float
    generalized_cross_validation: float
    effective_dimension: float
    largest_leverage: float
    landmarks: int | None

    @property
    def accuracy(self) -> float:
        """Fraction of samples whose LOO prediction is their label (NaN for regression)."""
        if self.labels is None:
            return float("nan")
        return float((self.predictions.argmax(1) == self.labels).double().mean())

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        accuracy = {} if self.labels is None else {"accuracy": self.accuracy}
        return accuracy | {
            "squared_error": self.squared_error,
            "explained": self.explained,
            "effective_dimension": self.effective_dimension,
            "largest_leverage": self.largest_leverage,
        }


@dataclass(frozen=True)
class LooAtBothWeights:
    """Leave-one-out predictions at the initial and at the trained weights.

    Attributes:
        initial: At the initial weights, which are independent of the labels: an unbiased LOO prediction.
        trained: At the given weights: gradients were fitted to the held-out labels, so what was memorized comes back.
        alignment: Cosine of the two centred kernels; 1 if training did not change the features.
    """

    initial: KernelLeaveOneOut
    trained: KernelLeaveOneOut
    alignment: float

    def scalars(self) -> dict[str, float]:
        """Return the numbers of both by name, and the accuracy (or R²) that the given weights add."""
        first, second = self.initial.scalars(), self.trained.scalars()
        name = "accuracy" if "accuracy" in first else "explained"
        return {
            **{f"initial.{key}": value for key, value in first.items()},
            **{f"trained.{key}": value for key, value in second.items()},
            "memorised": second[name] - first[name],
            "alignment": self.alignment,
        }


def kernel_alignment(first: Float[Tensor, "n m"], second: Float[Tensor, "n m"]) -> float:
    r"""Compute the alignment (cosine) of two centred kernels.

    $\langle K_c, K'_c \rangle / (\lVert K_c \rVert \lVert K'_c \rVert)$. $K_c$ is K less the means of its rows and of
    its columns (Cortes, Mohri and Rostamizadeh 2012, definition 4).

    Args:
        first: A kernel, of all pairs or of all samples with some of them.
        second: Another of the same pairs.

    Returns:
        1 if they are equal up to a factor; NaN if one is constant.

    >>> kernel_alignment(torch.eye(3), 2 * torch.eye(3) + 1)
    1.0
    """
    a, b = (k.double() - k.double().mean(0) - k.double().mean(1, keepdim=True) + k.double().mean()
            for k in (first, second))  # fmt: skip
    return float((a * b).sum() / (a.norm() * b.norm()))


@dataclass(frozen=True)
class KernelColumns:
    """Traced kernel between all samples and all or some of them.

    Attributes:
        values: The kernel, traced over outputs.
        chosen: Indices of the samples of the columns; None for all.
    """

    values: Float[Tensor, "n m"]
    chosen: Int[Tensor, " m"] | None

    @property
    def landmarks(self) -> int | None:
        """Number of landmarks (None for an exact kernel)."""
        return None if self.chosen is None else len(self.chosen)

    def spectrum(self) -> Spectrum:
        """Decompose the kernel, or its Nystroem approximation."""
        if self.chosen is None:
            return spectrum(self.values)
        return nystroem_spectrum(self.values, self.values[self.chosen.to(self.values.device)])


class _CombinedOutputs(nn.Module):
    r"""Network with k orthonormal combinations of its C outputs, times $\sqrt{C / k}$."""

    combinations: Tensor

    def __init__(self, network: nn.Module, n_outputs: int, k: int) -> None:
        super().__init__()
        self.network = network
        # always the same combinations, so that kernels of several networks can be compared
        square = torch.randn(n_outputs, n_outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.register_buffer("combinations", torch.linalg.qr(square).Q[:, :k] * (n_outputs / k) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the combinations, [n, k]."""
        outputs = checked_outputs(self.network(x), len(x))
        return outputs @ self.combinations.to(outputs)


def _combined(network: nn.Module, x: Tensor, combinations: int | None) -> nn.Module:
    if combinations is None:
        return network
    with measurement_mode(network):
        n_outputs = network_outputs(network, x[:1]).shape[1]
    return _CombinedOutputs(network, n_outputs, combinations) if combinations < n_outputs else network


def kernel_columns(
    network: nn.Module, x: Tensor, max_exact: int, landmarks: int, generator: torch.Generator | None, size: int | None,
    combinations: int | None = None,
) -> KernelColumns:  # fmt: skip
    """Compute the traced kernel, with landmarks beyond `max_exact` samples.

    Batch norm layers that still have their initial statistics, as before training, get those of the samples.

    Args:
        max_exact: Samples up to which the kernel is computed whole.
        landmarks: Number of landmarks beyond `max_exact` samples.
        size: `chunk_size` of `empirical_ntk`.
        combinations: As for `kernel_leave_one_out`.
    """
    network = _combined(with_data_statistics(network, x), x, combinations)
    if len(x) <= max_exact:
        return KernelColumns(empirical_ntk(network, x, outputs="traced", chunk_size=size), None)
    chosen = torch.randperm(len(x), generator=resolve_generator(generator))[:landmarks].to(x.device)
    return KernelColumns(empirical_ntk(network, x, x[chosen], outputs="traced", chunk_size=size), chosen)


def _targets(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Regression targets as they are, or one column per class, in float64."""
    if y.is_floating_point():
        return y.double()
    with measurement_mode(network):
        outputs = network_outputs(network, x[:1]).shape[1]
    classes = max(outputs, int(y.max()) + 1)
    return torch.nn.functional.one_hot(y, classes).double()


def _constant_error(targets: Tensor) -> float:
    """Return the mean squared LOO residual of the mean: residuals times n / (n - 1)."""
    n = len(targets)
    return float(((targets - targets.mean(0)) * n / (n - 1)).square().sum(1).mean())


def kernel_leave_one_out(
    network: nn.Module,
    x: Float[Tensor, "n ..."] | Int[Tensor, "n ..."],
    y: Int[Tensor, " n"] | Float[Tensor, "n k"],
    *,
    ridges: tuple[float, ...] = RIDGES,
    max_exact: int = 2000,
    landmarks: int = 1000,
    combinations: int | None = None,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> KernelLeaveOneOut:
    r"""Predict every sample by NTK ridge regression fitted to all *other* samples.

    With the traced kernel $K_{ij} = \sum_c \nabla_\theta f_c(x_i) \cdot \nabla_\theta f_c(x_j)$ of the network as it
    stands (evaluation mode; batch norm layers before training get the statistics of the samples), targets b (one-hot
    labels, or regression targets) and $\tilde R$ the matrix that maps b to the residuals of kernel ridge regression
    with a free intercept, the held-out prediction is

    $$b_i - \frac{(\tilde R b)_i}{\tilde R_{ii}},$$

    exactly what n refits would give, from one decomposition for all ridges (Bachmann, Hofmann and Lucchi 2022,
    arXiv:2203.03443, for kernels of networks; the identity is older). The ridge is the one of smallest held-out squared
    error. The intercept takes the class frequencies of those that are left, so that unequal classes need nothing more.

    **At the initial weights** nothing of this knows the labels: the accuracy estimates, before training, what the
    trained network will reach on new samples whose labels are as noisy as these. It judges the data and the features at
    hand, not learned features: too low where training learns much better features. **At trained weights** the features
    were fitted to the labels that are left out; memorized labels come back, and the number is too high.

    Up to `max_exact` samples the kernel machine is computed exactly (memory: n^2 floats of the kernel and 3 n^2 float64
    of the decomposition; at 2,000 about 110 MB). Beyond, the kernel is that of the Nystroem approximation with
    `landmarks` samples drawn at random (memory: n times landmarks), whose held-out predictions are again exact for the
    approximate kernel.

    With `combinations` = k the sum over the C outputs is estimated without bias from k random orthonormal combinations
    of them, for k / C of the cost. At k = 4 of 10 outputs the accuracy differed by .001 to .01.

    Args:
        ridges: Ridges to choose from, in units of the mean eigenvalue of the kernel.
        max_exact: Samples up to which the kernel is computed whole.
        landmarks: Number of landmarks beyond `max_exact` samples.
        combinations: Number of combinations of the outputs; None for all outputs.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> found = kernel_leave_one_out(nn.Linear(1, 2), x, torch.tensor([0, 0, 1, 1]))
    >>> found.accuracy, found.predictions.argmax(1).tolist()
    (1.0, [0, 0, 1, 1])
    """
    _check(x, ridges, max_exact, landmarks)
    if combinations is not None:
        check_range("combinations", combinations, 1)
    columns = kernel_columns(network, x, max_exact, landmarks, generator, chunk_size, combinations)
    return _left_out_of(columns, network, x, y, ridges)


def _check(x: Tensor, ridges: tuple[float, ...], max_exact: int, landmarks: int) -> None:
    check_range("max_exact", max_exact, 1)
    check_range("landmarks", landmarks, 2)
    if len(x) < 3:
        raise InvalidInput(f"kernel_leave_one_out needs three samples or more; got {len(x)}. Pass more samples.")
    if not ridges or not min(ridges) >= MIN_RIDGE:
        raise InvalidInput(
            f"ridges must be numbers of at least {MIN_RIDGE:g}, one or more: below it rounding decides; got {ridges}. "
            "Leave them out."
        )


def loo_from_kernel(
    kernel: Float[Tensor, "n n"],
    network: nn.Module,
    x: Float[Tensor, "n ..."] | Int[Tensor, "n ..."],
    y: Int[Tensor, " n"] | Float[Tensor, "n k"],
    *,
    ridges: tuple[float, ...] = RIDGES,
) -> KernelLeaveOneOut:
    """As `kernel_leave_one_out`, from a given traced kernel of all pairs.

    Args:
        kernel: `empirical_ntk(network, x, outputs="traced")`.
        ridges: As for `kernel_leave_one_out`.
    """
    _check(x, ridges, len(x), 2)
    return _left_out_of(KernelColumns(kernel, None), network, x, y, ridges)


def _left_out_of(
    columns: KernelColumns, network: nn.Module, x: Tensor, y: Tensor, ridges: tuple[float, ...]
) -> KernelLeaveOneOut:
    kernel = columns.spectrum()
    targets = _targets(network, x, y).to(kernel.vectors.device)
    ridge, found = select_ridge(kernel, targets, ridges)
    return _result(found, ridge, targets, y, columns.landmarks)


def _result(found: LooResult, ridge: float, targets: Tensor, y: Tensor, landmarks: int | None) -> KernelLeaveOneOut:
    constant = _constant_error(targets)
    return KernelLeaveOneOut(
        predictions=found.predictions,
        labels=None if y.is_floating_point() else y.to(found.predictions.device),
        ridge=ridge,
        squared_error=found.squared_error,
        explained=1 - found.squared_error / constant if constant else float("nan"),
        generalized_cross_validation=found.generalized_cross_validation,
        effective_dimension=found.effective_dimension,
        largest_leverage=found.largest_leverage,
        landmarks=landmarks,
    )


_FACTS = {
    "accuracy": ScalarInfo("fraction of samples", "higher", "mean over samples"),
    "squared_error": ScalarInfo("squared target", "lower", "mean over samples, sum over targets"),
    "explained": ScalarInfo("fraction of the squared error of the best constant", "higher", "over samples"),
    "effective_dimension": ScalarInfo("degrees of freedom", "none", "sum over samples"),
    "largest_leverage": ScalarInfo("weight of a sample's own target", "none", "maximum over samples"),
}


@register_measure(
    "kernel_leave_one_out",
    title="prediction of each sample from the gradients of all others",
    numbers={
        **{f"{weights}.{name}": facts for weights in ("initial", "trained") for name, facts in _FACTS.items()},
        "memorised": ScalarInfo("accuracy or R²", "lower", "trained minus initial"),
        "alignment": ScalarInfo("cosine", "none", "over pairs of samples"),
    },
    cost_class="superlinear",
    default=False,
    reference="Bachmann, Hofmann and Lucchi 2022 (arXiv:2203.03443)",
)
def kernel_leave_one_out_at_both_weights(
    network: nn.Module,
    x: Float[Tensor, "n ..."] | Int[Tensor, "n ..."],
    y: Int[Tensor, " n"] | Float[Tensor, "n k"],
    *,
    initial_state: Mapping[str, Tensor],
    ridges: tuple[float, ...] = RIDGES,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> LooAtBothWeights:
    """Compute `kernel_leave_one_out` at the initial weights and at the given ones.

    Args:
        ridges: As for `kernel_leave_one_out`.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
    """
    _check(x, ridges, max_exact, landmarks)
    with torch.inference_mode(False):
        before = copy.deepcopy(network)
        before.load_state_dict(dict(initial_state))
    # the same landmarks for both
    generator = generator or torch.Generator().manual_seed(0)
    state, columns = generator.get_state(), []
    for one in (before, network):
        generator.set_state(state)
        columns.append(kernel_columns(one, x, max_exact, landmarks, generator, chunk_size))
    first, second = (_left_out_of(each, network, x, y, ridges) for each in columns)
    return LooAtBothWeights(first, second, kernel_alignment(columns[0].values, columns[1].values))
