r"""Krylov spaces of the loss Hessian, for its top eigenvalue, trace and spectral density.

A Lanczos run from a vector v builds a small tridiagonal matrix T = Q^T H Q. Its eigenvalues reach the extreme ones of
H, its first entry is v^T H v, and its eigenvectors' first components give the weights of a quadrature of the spectrum
from v (their squares). Only Hessian-vector products are formed, one per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.gradients.backward import whole_gradient
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.inspection.losses import default_loss
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._perturbed import trainable

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
    found = torch.autograd.grad(along, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([as_real(g).flatten() for g in found])


class LanczosRun:
    """Resumable Lanczos run from a vector of random signs.

    Every new vector is made orthogonal to all before it, twice.

    Args:
        hessian: The Hessian.
        seed: Seed of the first vector.
    """

    def __init__(self, hessian: Hessian, seed: int) -> None:
        self.hessian = hessian
        signs = torch.randint(0, 2, (hessian.size,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
        self.basis = [signs.to(hessian.device, hessian.dtype) / hessian.size**0.5]
        self.diagonal: list[float] = []
        self.beside: list[float] = []

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
            self.beside.append(length)
            self.basis.append(vector / length)

    def quadrature(self, steps: int) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
        """Return Ritz values after `steps` steps, ascending, and their weights, of sum 1."""
        diagonal = torch.tensor(self.diagonal[:steps], dtype=torch.float64)
        beside = torch.tensor(self.beside[: len(diagonal) - 1], dtype=torch.float64)
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors[0].square()


class Krylov:
    """Lanczos runs from several random vectors, each started on first use.

    Args:
        hessian: The Hessian.
    """

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
