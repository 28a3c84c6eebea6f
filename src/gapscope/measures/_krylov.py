r"""Krylov spaces of the Hessian of the loss: what largest eigenvalue, trace and density are made of.

A Lanczos run from a vector v builds a small tridiagonal matrix T = Q^T H Q. Its eigenvalues reach the extreme ones of
H, its first entry is v^T H v, and its eigenvectors' first components are the weights of a quadrature of the spectrum as
v sees it. No more than products of H with vectors are formed, one a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.random_streams import given_or_repeatable
from gapscope.base.samples import slices
from gapscope.gradients.backward import whole_gradient
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.inspection.losses import loss_of
from gapscope.inspection.outputs import as_real, checked_outputs, inspecting, ready_inputs, samples_per_pass
from gapscope.inspection.sharing import shared
from gapscope.measures._perturbed import trainable

# measures of this stream go on with each other's runs
STREAM = "Hessian probes"


class Hessian:
    """The Hessian of the mean loss by all trainable weights, in evaluation mode, as products with vectors.

    Args:
        network: The network.
        x: Inputs.
        y: Class labels or regression targets.
        chunk_size: Samples a pass.
    """

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, chunk_size: int | None) -> None:
        self.network, self.x, self.y, self.chunk_size = network, x, y, chunk_size
        parameters = trainable(network)
        self.shapes = [as_real(parameter.detach()).shape for parameter in parameters]
        self.size = sum(shape.numel() for shape in self.shapes)
        self.device, self.dtype = parameters[0].device, as_real(parameters[0].detach()).dtype

    def times(self, vector: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the product of the Hessian with a vector."""
        with inspecting(self.network) as network, differentiable_kernels(network.modules()):
            # made anew, since a vector from a caller's inference mode cannot be differentiated
            pieces = vector.clone().split([shape.numel() for shape in self.shapes])
            direction = [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
            x, y, parameters = ready_inputs(network, self.x), ready_inputs(network, self.y), trainable(network)
            total = torch.zeros_like(vector)

            def product(part: Tensor, targets: Tensor) -> Tensor:
                loss = loss_of(checked_outputs(network(part.clone()), len(part)), targets) * (len(part) / len(x))
                gradient = whole_gradient(loss, parameters, create_graph=True)
                along = torch.stack([(g * v).sum() for g, v in zip(gradient, direction, strict=True)]).sum()
                if not along.requires_grad:  # the loss is linear in the weights
                    return torch.zeros_like(vector)
                found = torch.autograd.grad(along, parameters, materialize_grads=True)
                return torch.cat([as_real(g).flatten() for g in found])

            size = samples_per_pass(
                network, x, self.chunk_size, one_pass=lambda first: product(first, y[:1]), at_most=256
            )
            for part in slices(len(x), size):
                total += product(x[part], y[part])
        return total


class Run:
    """One Lanczos run from a vector of random signs, which goes on where it ended.

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

    def extend(self, steps: int) -> None:
        """Go on until so many steps are done, or the space is exhausted."""
        while len(self.diagonal) < steps and len(self.diagonal) < len(self.basis):
            newest = self.basis[-1]
            vector = self.hessian.times(newest)
            self.diagonal.append(float((vector.double() * newest.double()).sum()))
            before = float(vector.norm())
            for _ in range(2):
                for other in self.basis:
                    vector = vector - (vector @ other) * other
            length = float(vector.norm())
            if length <= 1e-5 * max(before, abs(self.diagonal[0])) or len(self.basis) == self.hessian.size:
                break
            self.beside.append(length)
            self.basis.append(vector / length)

    def quadrature(self, steps: int) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
        """Return Ritz values in ascending order and their weights, which sum to 1, after so many steps."""
        self.extend(steps)
        diagonal = torch.tensor(self.diagonal[:steps], dtype=torch.float64)
        beside = torch.tensor(self.beside[: len(diagonal) - 1], dtype=torch.float64)
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors[0].square()


class Krylov:
    """Lanczos runs from several random vectors, each begun when it is first asked for.

    Args:
        hessian: The Hessian.
        generator: Source of the vectors.
    """

    def __init__(self, hessian: Hessian, generator: torch.Generator) -> None:
        self.hessian = hessian
        seeds = torch.randint(2**62, (1024,), generator=generator, device=generator.device)
        self._seeds: Sequence[int] = seeds.tolist()
        self._runs: dict[int, Run] = {}

    def run(self, number: int) -> Run:
        """Return the run of one number, at most 1024."""
        if number not in self._runs:
            self._runs[number] = Run(self.hessian, self._seeds[number])
        return self._runs[number]


@shared
def krylov(
    network: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None, chunk_size: int | None
) -> Krylov:
    """Return the Krylov spaces of a network's Hessian on some samples.

    Args:
        network: The network.
        x: Inputs.
        y: Class labels or regression targets.
        generator: Source of the random vectors.
        chunk_size: Samples a pass.

    Returns:
        The spaces, nothing computed yet.
    """
    return Krylov(Hessian(network, x, y, chunk_size), given_or_repeatable(generator, STREAM))
