"""Leave-one-out predictions of NTK ridge regression in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.groups import numbered_groups
from gapscope.base.random_streams import make_generator, resolve_generator
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.targets import is_zero_one
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.gradients.projections import projected_kernel
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.copies import copy_network
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.network_checks import check_module
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    prepare_inputs,
)
from gapscope.measures._forward import Inputs, Scalars, Targets, number_of_outputs
from gapscope.measures._weights import StateDict
from gapscope.measures.ntk import empirical_ntk
from gapscope.measures.registry import ScalarInfo, check_numbers, register_measure
from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.intervals import r_squared_scales
from gapscope.statistics.kernel_ridge import (
    MAX_ROWS_IN_MEMORY,
    Spectrum,
    loo_predictions,
    nystroem_spectrum,
    select_ridge,
    spectrum,
)  # fmt: skip
from gapscope.statistics.leave_group_out import select_held_out


@dataclass(frozen=True)
class KernelLeaveOneOut:
    """Leave-one-out predictions of all samples, with accuracy and errors.

    Attributes:
        predictions: LOO prediction of the targets (one column per class, or per regression target), [n, k], float64.
        labels: Class labels; None for regression and for several labels per sample.
        ridge: The selected ridge, in units of the mean eigenvalue of the kernel.
        squared_error: Mean over samples of the summed squared LOO residuals (of one-hot labels, of several labels,
            or in squared units of the regression target).
        explained: R², compared with the leave-one-out mean: of several targets or labels the mean over them, as
            everywhere; of classes that of their one-hot columns together.
        effective_dimension: Degrees of freedom of the fit, including 1 for the intercept.
        largest_leverage: Largest weight of the target of a sample in its own fit; near 1 LOO is unreliable.
    """

    predictions: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"] | None
    ridge: float
    squared_error: float
    explained: float
    effective_dimension: float
    largest_leverage: float

    @property
    def accuracy(self) -> float:
        """Fraction of samples whose LOO prediction is their label (NaN for regression)."""
        if self.labels is None:
            return float("nan")
        return float((self.predictions.argmax(1) == self.labels).double().mean())

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            name: getattr(self, name)
            for name in _NUMBERS
            if name != "accuracy" or self.labels is not None
        }


def kernel_alignment(first: Float[Tensor, "n m"], second: Float[Tensor, "n m"]) -> float:
    r"""Compute the alignment (cosine) of two centred kernels (NaN if one is constant).

    $\langle K_c, K'_c \rangle / (\lVert K_c \rVert \lVert K'_c \rVert)$ for kernels of the same pairs of samples, with
    the means of rows and columns subtracted (Cortes, Mohri and Rostamizadeh 2012, definition 4).

    >>> kernel_alignment(torch.eye(3), 2 * torch.eye(3) + 1)
    1.0
    """
    kernels = [kernel.double() for kernel in (first, second)]
    a, b = (k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in kernels)
    return float((a * b).sum() / (a.norm() * b.norm()))


@dataclass(frozen=True)
class KernelColumns:
    """Traced kernel between all samples and the landmarks with these indices (None for all)."""

    values: Float[Tensor, "n m"]
    landmarks: Int[Tensor, " m"] | None

    def spectrum(self) -> Spectrum:
        """Decompose the kernel, or its Nystroem approximation."""
        if self.landmarks is None:
            return spectrum(self.values)
        square = self.values[self.landmarks.to(self.values.device)]
        return nystroem_spectrum(self.values.__getitem__, square, len(self.values))


class _CombinedOutputs(nn.Module):
    r"""Network with k orthonormal combinations of its C outputs, times $\sqrt{C / k}$."""

    combinations: Tensor

    def __init__(self, network: nn.Module, n_outputs: int, k: int, seed: int = 0) -> None:
        super().__init__()
        self.network = network
        # whose gradients are verified once for all combinations
        self.__dict__["adapted_from"] = getattr(network, "adapted_from", network)
        # the same combinations for all networks, so that their kernels can be compared
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(n_outputs, n_outputs, dtype=torch.float64, generator=generator)
        self.register_buffer(
            "combinations", torch.linalg.qr(normal).Q[:, :k] * (n_outputs / k) ** 0.5
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the combinations, [n, k]."""
        outputs = checked_outputs(self.network(x), len(x))
        return outputs @ self.combinations.to(outputs)


def _combined(network: nn.Module, x: Tensor, k: int | None, seed: int = 0) -> nn.Module:
    """Return the network with k combinations of its outputs, or itself if it has no more."""
    if k is None:
        return network
    with measurement_mode(network):
        n_outputs = number_of_outputs(network, x)
    if k < n_outputs:
        return _CombinedOutputs(network, n_outputs, k, seed)
    return network


def kernel_columns(
    network: nn.Module,
    x: Tensor,
    max_exact: int,
    landmarks: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
    combinations: int | None = None,
) -> KernelColumns:
    """Compute the traced kernel, with landmarks above `max_exact` samples.

    Batch norm layers with initial statistics, as before training, use those of the samples.
    """
    network = _combined(with_data_statistics(network, x), x, combinations)
    indices = _landmarks(x, max_exact, landmarks, resolve_generator(generator))
    max_bytes = None
    if indices is not None and len(x) > MAX_ROWS_IN_MEMORY:
        # temporaries of the kernel of many samples, which themselves take much memory: columns of 1,000 landmarks
        # for 6,000 images and LeNet-5 take 0.44 GB above the rest in place of 1.1, in no more time
        max_bytes = memory_budget(x.device, 2**29)
    others = None if indices is None else x[indices]
    values = empirical_ntk(
        network, x, others, outputs="traced", chunk_size=chunk_size, max_bytes=max_bytes
    )
    return KernelColumns(values, indices)


def _landmarks(
    x: Tensor, max_exact: int, landmarks: int, generator: torch.Generator
) -> Tensor | None:
    """Return the indices of random landmarks of more than `max_exact` samples, else None."""
    if len(x) <= max_exact:
        return None
    return torch.randperm(len(x), generator=generator)[:landmarks].to(x.device)


def kernel_leave_one_out(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    combinations: int | None = None,
    groups: Any = None,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> KernelLeaveOneOut:
    r"""Predict every sample by NTK ridge regression fitted to all *other* samples.

    With the traced kernel $K_{ij} = \sum_c \nabla_\theta f_c(x_i) \cdot \nabla_\theta f_c(x_j)$ of the network at its
    current weights (evaluation mode; batch norm layers before training use the statistics of the samples), targets b
    (one-hot labels, or regression targets) and the matrix $\tilde R$ that maps b to the residuals of kernel ridge
    regression with a free intercept, the LOO prediction is

    $$b_i - \frac{(\tilde R b)_i}{\tilde R_{ii}},$$

    exactly that of n refits, from one decomposition for all ridges (Bachmann, Hofmann and Lucchi 2022,
    arXiv:2203.03443, for kernels of networks; the identity is older). The ridge of smallest LOO squared error is
    selected. **At the initial weights** the accuracy predicts, before training, the accuracy of the trained network on
    new samples with the same label noise; it is too low if training learns much better features. **At trained
    weights** it is too high, because the features were fitted to the held-out labels.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        max_exact: Number of samples up to which the kernel is exact (memory: n^2 floats and 3 n^2 float64; at 2,000
            about 110 MB).
        landmarks: Number of random landmarks of the Nystroem approximation for more samples (memory: n times
            landmarks); LOO predictions are exact for the approximated kernel.
        combinations: Number k of random orthonormal combinations of the C outputs, an unbiased estimate of the sum over
            outputs at k / C of the cost (for 4 of 10 the accuracy differed by 0.001 to 0.01); None for all.
        groups: One label per sample: samples are predicted without their whole group (patient, author), exactly
            as by refits, and the ridge is that of the smallest error of these predictions; None: without themselves.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        generator: Source of random numbers; None for the same numbers in every call.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> result = kernel_leave_one_out(nn.Linear(1, 2), x, torch.tensor([0, 0, 1, 1]))
    >>> result.accuracy, result.predictions.argmax(1).tolist()
    (1.0, [0, 0, 1, 1])
    """
    check_module(network)
    check_numbers("kernel_leave_one_out", y)
    samples = Samples(x, y, notes=())  # raises InvalidInput for targets that do not fit
    if not isinstance(y, Tensor):
        y = samples.y
    _check(x, max_exact, landmarks)
    if combinations is not None:
        check_range("combinations", combinations, 1)
    columns = kernel_columns(network, x, max_exact, landmarks, generator, chunk_size, combinations)
    return _leave_one_out(columns, network, x, y, groups)


def projected_leave_one_out(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    combinations: int,
    max_exact: int = 2000,
    landmarks: int = 1000,
    groups: Any = None,
    chunk_size: int | None = None,
    seed: int = 0,
) -> KernelLeaveOneOut:
    """Estimate `kernel_leave_one_out` of a large network from random projections of its gradients.

    The kernel is estimated without bias (`gapscope.gradients.projections`), from 256 numbers per parameter tensor and
    combination of the outputs.

    Args:
        network: Network that returns raw outputs [n, K].
        x: Inputs [n, ...].
        y: Class labels [n], several labels per sample [n, K] (zeros and ones), or regression targets [n, K].
        combinations: Number of random orthonormal combinations of the outputs; as many as outputs are exact.
        max_exact: Number of samples up to which there are no landmarks.
        landmarks: Number of random landmarks for more samples.
        groups: As for `kernel_leave_one_out`.
        chunk_size: Samples per pass; None: as many as memory allows, up to a maximum.
        seed: Seed of combinations, projections and landmarks.
    """
    Samples(x, y, notes=())  # raises InvalidInput for targets that do not fit
    _check(x, max_exact, landmarks)
    combined = _combined(
        with_data_statistics(network, x), x, combinations, derive_seed(seed, "combinations")
    )
    indices = _landmarks(x, max_exact, landmarks, make_generator(seed, "landmarks"))
    with measurement_mode(combined, passes_only=True) as measured:
        check_sample_independence(measured, prepare_inputs(measured, x))
        values = projected_kernel(measured, x, indices, seed=seed, chunk_size=chunk_size)
    return _leave_one_out(KernelColumns(values, indices), network, x, y, groups)


def _check(x: Tensor, max_exact: int = 1, landmarks: int = 2) -> None:
    check_range("max_exact", max_exact, 1)
    check_range("landmarks", landmarks, 2)
    if len(x) < 3:
        raise InvalidInput(
            f"Got {len(x)} samples; kernel_leave_one_out needs at least 3. Pass more samples."
        )


def loo_from_kernel(
    kernel: Float[Tensor, "n n"],
    network: nn.Module,
    x: Inputs,
    y: Targets,
    groups: Any = None,
) -> KernelLeaveOneOut:
    """Compute `kernel_leave_one_out` from `empirical_ntk(network, x, outputs="traced")`."""
    _check(x)
    return _leave_one_out(KernelColumns(kernel, None), network, x, y, groups)


def _leave_one_out(
    columns: KernelColumns,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    groups: Any = None,
) -> KernelLeaveOneOut:
    kernel = columns.spectrum()
    if y.is_floating_point() or (y.ndim == 2 and is_zero_one(y)):
        labels = None
        targets = y.double().to(kernel.device)
    elif y.ndim > 1:
        raise InvalidInput(
            f"y must be class labels [n], zeros and ones [n, K], or numbers for regression; got {y.dtype} "
            f"{list(y.shape)}. Pass y.float() for regression."
        )
    else:
        labels = y.long().to(kernel.device)
        with measurement_mode(network):
            n_outputs = number_of_outputs(network, x)
        targets = torch.nn.functional.one_hot(labels, max(n_outputs, int(y.max()) + 1)).double()
    if groups is None:
        ridge, result = select_ridge(kernel, targets, RIDGES)
    else:
        numbers = numbered_groups(groups, len(targets), "kernel_leave_one_out").to(kernel.device)
        ridge, held_out = select_held_out(kernel, targets, RIDGES, numbers)
        result = loo_predictions(kernel, targets, ridge * (kernel.mean or 1.0))
        error = float((targets - held_out).square().sum(1).mean())
        result = replace(result, predictions=held_out, squared_error=error)
    if labels is None:
        scales = torch.from_numpy(r_squared_scales(targets.cpu().numpy())).to(targets.device)
    else:
        scales = targets.var(0, correction=0).sum().sqrt()
    # LOO residuals of the mean are its residuals times n / (n - 1)
    shrunk = 1 - 1 / len(targets)
    residuals = (targets - result.predictions) * shrunk / scales
    varies = bool(scales.isfinite().any() & (scales > 0).all())
    return KernelLeaveOneOut(
        predictions=result.predictions,
        labels=labels,
        ridge=ridge,
        squared_error=result.squared_error,
        explained=1 - float(residuals.square().sum(1).mean()) if varies else math.nan,
        effective_dimension=result.effective_dimension,
        largest_leverage=result.largest_leverage,
    )


_NUMBERS = {
    "accuracy": ScalarInfo("fraction of samples", "higher", "mean over samples"),
    "squared_error": ScalarInfo("squared target", "lower", "mean over samples, sum over targets"),
    "explained": ScalarInfo(
        "fraction of the squared error of the best constant", "higher", "over samples"
    ),
    "effective_dimension": ScalarInfo("degrees of freedom", "none", "sum over samples"),
    "largest_leverage": ScalarInfo(
        "weight of a sample's own target", "none", "maximum over samples"
    ),
}


@register_measure(
    "kernel_leave_one_out",
    title="leave-one-out predictions of NTK ridge regression",
    numbers={
        **{
            f"{weights}.{name}": info
            for weights in ("initial", "trained")
            for name, info in _NUMBERS.items()
        },
        "memorised": ScalarInfo("accuracy or R²", "lower", "trained minus initial"),
        "alignment": ScalarInfo("cosine", "none", "over pairs of samples"),
    },
    cost_class="superlinear",
    default=False,
    reference="Bachmann, Hofmann and Lucchi 2022 (arXiv:2203.03443)",
)
def kernel_leave_one_out_at_both_weights(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    initial_state: StateDict,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Scalars:
    """Compute the leave-one-out results at "initial" and "trained" (current) weights.

    "memorised" is the difference of the accuracies (or R²), trained minus initial; "alignment" the cosine of the two
    centred kernels.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        initial_state: State dictionary of the network before training.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        generator: Source of random numbers; None for the same numbers in every call.
    """
    _check(x, max_exact, landmarks)
    with torch.inference_mode(False):
        untrained = copy_network(network)
        untrained.load_state_dict(dict(initial_state))
    # the same landmarks for both
    generator = generator or torch.Generator().manual_seed(0)
    state = generator.get_state()
    columns = []
    for each in (untrained, network):
        generator.set_state(state)
        columns.append(kernel_columns(each, x, max_exact, landmarks, generator, chunk_size))
    initial, trained = (_leave_one_out(each, network, x, y).scalars() for each in columns)
    name = "accuracy" if "accuracy" in initial else "explained"
    return Scalars(
        {
            **{f"initial.{key}": value for key, value in initial.items()},
            **{f"trained.{key}": value for key, value in trained.items()},
            "memorised": trained[name] - initial[name],
            "alignment": kernel_alignment(columns[0].values, columns[1].values),
        }
    )
