"""Spectra of weights, and Krylov methods for large operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.gradients.backward import differentiable_kernels, whole_gradient
from gapscope.inspection.losses import default_loss
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._forward import Inputs, Scalars
from gapscope.measures._gradients import trainable
from gapscope.measures._weights import squared_singular_values
from gapscope.measures.registry import ScalarInfo, register_measure

# measures of this stream extend each other's runs
STREAM = "Hessian probes"


class Hessian:
    """Matrix-free Hessian of the mean loss by the trainable weights, in evaluation mode."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, chunk_size: int | None) -> None:
        self.network, self.x, self.y, self.chunk_size = network, x, y, chunk_size
        parameters = trainable(network)
        self.shapes = [as_real(parameter.detach()).shape for parameter in parameters]
        self.size = sum(shape.numel() for shape in self.shapes)
        self.device, self.dtype = parameters[0].device, as_real(parameters[0].detach()).dtype

    def matvec(self, vectors: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """Return Hessian-vector products, sharing all backward passes but the last."""
        with measurement_mode(self.network) as network, differentiable_kernels(network.modules()):
            # recreated, since a vector from a caller's inference mode cannot be differentiated
            directions = [self._pieces(vector.clone()) for vector in vectors]
            x, y, parameters = prepare_inputs(network, self.x), prepare_inputs(network, self.y), trainable(network)
            total = torch.zeros_like(vectors)

            def products(part: Tensor, targets: Tensor) -> Tensor:
                loss = default_loss(checked_outputs(network(part.clone()), len(part)), targets) * (len(part) / len(x))
                gradient = whole_gradient(loss, parameters, create_graph=True)
                return torch.stack([_derivative(gradient, direction, parameters) for direction in directions])

            # measured once: every product does the same work
            self.chunk_size = samples_per_pass(
                network, x, self.chunk_size, one_pass=lambda first: products(first, y[: len(first)]), at_most=256
            )
            for part in slices(len(x), self.chunk_size):
                total += products(x[part], y[part])
        return total

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        """Return a vector in the shapes of the parameters."""
        pieces = vector.split([shape.numel() for shape in self.shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


def _derivative(
    gradient: Sequence[Tensor], direction: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Float[Tensor, " p"]:
    """Return the derivative of the gradient along a direction, retaining its graph."""
    along = torch.stack([(g * v).sum() for g, v in zip(gradient, direction, strict=True)]).sum()
    if not along.requires_grad:  # the loss is linear in the weights
        return torch.cat([torch.zeros_like(v).flatten() for v in direction])
    result = torch.autograd.grad(along, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([as_real(g).flatten() for g in result])


class LanczosRun:
    """Resumable Lanczos run from random signs, with full reorthogonalization, twice."""

    def __init__(self, hessian: Hessian, seed: int) -> None:
        self.hessian = hessian
        signs = torch.randint(0, 2, (hessian.size,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
        self.basis = [signs.to(hessian.device, hessian.dtype) / hessian.size**0.5]
        self.diagonal: list[float] = []
        self.off_diagonal: list[float] = []

    def can_continue(self, steps: int) -> bool:
        """Return whether it has fewer than `steps` steps and its space is not exhausted."""
        return len(self.diagonal) < steps and len(self.diagonal) < len(self.basis)

    def step(self, vector: Float[Tensor, " p"]) -> None:
        """Advance one step, given the product of the Hessian with the newest vector."""
        newest = self.basis[-1]
        self.diagonal.append(float((vector.double() * newest.double()).sum()))
        before = float(vector.norm())
        for _ in range(2):
            for other in self.basis:
                vector = vector - (vector @ other) * other
        length = float(vector.norm())
        if length > 1e-5 * max(before, abs(self.diagonal[0])) and len(self.basis) < self.hessian.size:
            self.off_diagonal.append(length)
            self.basis.append(vector / length)

    def quadrature(self, steps: int) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
        """Return Ritz values after `steps` steps, ascending, and their weights, of sum 1."""
        diagonal = torch.tensor(self.diagonal[:steps], dtype=torch.float64)
        off_diagonal = torch.tensor(self.off_diagonal[: len(diagonal) - 1], dtype=torch.float64)
        matrix = torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors[0].square()


class Krylov:
    """Lanczos runs from several random vectors, each started on first use."""

    def __init__(self, hessian: Hessian, generator: torch.Generator) -> None:
        self.hessian = hessian
        seeds = torch.randint(2**62, (1024,), generator=generator, device=generator.device)
        self._seeds: Sequence[int] = seeds.tolist()
        self._runs: list[LanczosRun] = []

    def runs(self, count: int, steps: int) -> list[LanczosRun]:
        """Return the first `count` runs (at most 1024), with at least `steps` steps if possible.

        Runs advance together: one step of ten runs costs less than half of ten steps of one run.
        """
        for number in range(len(self._runs), count):
            self._runs.append(LanczosRun(self.hessian, self._seeds[number]))
        while waiting := [run for run in self._runs[:count] if run.can_continue(steps)]:
            products = self.hessian.matvec(torch.stack([run.basis[-1] for run in waiting]))
            for run, product in zip(waiting, products, strict=True):
                run.step(product)
        return self._runs[:count]


@memoize
def krylov(
    network: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None, chunk_size: int | None
) -> Krylov:
    """Return the (lazy) Krylov spaces of a network's Hessian on some samples."""
    return Krylov(Hessian(network, x, y, chunk_size), resolve_generator(generator, STREAM))


# eigenvalues below this part of the largest are rounding
_ZERO = 1e-12


def power_law_fit(values: Float[Tensor, " r"]) -> tuple[float, float, float]:
    r"""Fit a power law: return alpha, x_min and the distance.

    $p(x) \propto x^{-\alpha}$, $x \ge x_{\min}$. For each start among the values the exponent is the one of largest
    likelihood, $1 + m / \sum \log(x_i / x_{\min})$ over the m values from it on; the start is that of the smallest
    Kolmogorov-Smirnov distance (Clauset, Shalizi and Newman 2009, eq. 3.1 and 3.9).
    """
    x = values.double().sort().values
    n, logs = len(x), values.double().sort().values.log()
    best = (math.nan, math.nan, math.inf)
    # sum of logarithms from each value on
    tails = logs.flip(0).cumsum(0).flip(0)
    for start in range(n - 1):
        m = n - start
        excess = float(tails[start]) - m * float(logs[start])
        if excess <= 0 or (start and x[start] == x[start - 1]):
            continue
        alpha = 1 + m / excess
        fitted = 1 - torch.exp((1 - alpha) * (logs[start:] - logs[start]))
        empirical = torch.arange(m, dtype=torch.float64) / m
        distance = float((fitted - empirical).abs().max())
        if distance < best[2]:
            best = (alpha, float(x[start]), distance)
    return best


@register_measure(
    title="power-law exponent of the weights' spectra",
    numbers={
        "alpha": ScalarInfo("exponent", "lower", "mean over layers"),
        "weighted": ScalarInfo(
            "exponent times decades", "lower", "mean over layers", "weighted by the largest eigenvalue"
        ),
    },
    cost_class="weights",
    default=False,
    reference="Martin, Peng and Mahoney 2021 (arXiv:2002.06716), eq. 5 and 6; Clauset, Shalizi and Newman 2009",
)
def power_law_alpha(network: nn.Module, x: Inputs, *, min_eigenvalues: int = 20) -> Scalars:
    r"""Compute the mean power-law exponents of the layers' spectra, plain and weighted.

    "alpha" is the mean of the exponents $\alpha_l$ fitted to the eigenvalues of $W_l^\top W_l$ by `power_law_fit`,
    "weighted" that of $\alpha_l \log_{10} \lambda_{\max, l}$. A kernel [O, I, h, w] counts as the matrix [O, I h w]
    (WeightWatcher joins the spectra of its h w slices); batch norm is folded in. Layers with fewer than
    `min_eigenvalues` positive eigenvalues are omitted.

    Args:
        min_eigenvalues: Smallest number of eigenvalues of a layer that counts, at least 3; WeightWatcher uses 50.

    Raises:
        NotMeasurable: No layer has so many eigenvalues.
    """
    check_range("min_eigenvalues", min_eigenvalues, 3)
    alphas, weighted = [], []
    for values in squared_singular_values(network, x).values():
        values = values[values > _ZERO * values[-1]]
        if len(values) < min_eigenvalues:
            continue
        alpha = power_law_fit(values)[0]
        if math.isfinite(alpha):
            alphas.append(alpha)
            weighted.append(alpha * math.log10(float(values[-1])))
    if not alphas:
        raise NotMeasurable(
            f"No layer has {min_eigenvalues} or more different eigenvalues, as the power-law fit needs. "
            "Pass a smaller min_eigenvalues."
        )
    return Scalars({"alpha": sum(alphas) / len(alphas), "weighted": sum(weighted) / len(weighted)})
