"""Curvature of the loss: Fisher information and Hessian.

The loss is the mean cross-entropy, or the mean squared error for regression, in evaluation mode; derivatives are by all
trainable weights. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotYetSupported, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.base.task import KINDS
from gapscope.gradients.backward import differentiable_kernels, whole_gradient
from gapscope.inspection.losses import default_loss
from gapscope.inspection.outputs import (
    BACKWARD_CHUNK_SIZE,
    as_real,
    checked_outputs,
    measurement_mode,
    network_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.measures._forward import Inputs, Targets, mean_with_error
from gapscope.measures._gradients import Tensors, loss_share, sample_square_norms, trainable
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

# random vectors of the Hessian measures
STREAM = "Hessian probes"
_register = partial(register_measure, cost_class="many", default=False, tasks=KINDS)


def _sample_classes(outputs: Float[Tensor, "n k"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Sample one class per sample from the softmax: the argmax of outputs plus Gumbel noise."""
    uniform = torch.rand(
        outputs.shape, generator=generator, device=generator.device, dtype=torch.float64
    )
    noise = -torch.log(-torch.log(uniform.clamp(min=1e-300)))
    return (outputs.double() + noise.to(outputs.device)).argmax(1)


@_register(
    title="mean squared norm of the per-sample loss gradients",
    numbers=ScalarInfo(
        "squared loss / squared weight units", "lower", "mean over samples, sum over weights"
    ),
    cost_class="backward",
    sampling=Sampling("mean", 64, lambda k: 6),
    reference="Jastrzebski et al. 2021 (arXiv:2012.14193), eq. 1, with the labels given",
)
def fisher_trace(
    network: nn.Module,
    x: Inputs,
    y: Targets | None,
    *,
    labels: Literal["given", "sampled"] = "given",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the trace of the empirical Fisher information at the data's labels (exact).

    $\frac1n \sum_i \lVert \nabla_\theta \ell_i \rVert^2$. Neither per-sample gradients nor Jacobians are formed; the
    cost does not grow with the number of outputs.

    With `labels="sampled"` y is not used and one class per sample is sampled from the prediction: an unbiased estimate
    of the trace of the Fisher information itself, $\frac1n \sum_i E_{y \sim p(y|x_i)} \lVert \nabla_\theta \log
    p(y|x_i) \rVert^2$ (Kunstner et al. 2019, eq. 3). Its standard error is the spread among the samples, a conservative
    estimate (None for one sample).

    Labels of positions: $\ell_i$ is the sum over the sample's labelled positions, divided by their mean number.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        labels: "given", or "sampled" for classes sampled from the prediction.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    Raises:
        InvalidInput: There are no targets.
        NotYetSupported: Labels of positions are to be sampled.
    """
    check_choice("labels", labels, ("given", "sampled"))
    if labels == "given":
        if y is None:
            raise InvalidInput(
                "fisher_trace needs targets y; got None. Pass them, or labels='sampled'."
            )
        return Estimate(sample_square_norms(network, x, y, chunk_size=chunk_size).mean().item())
    if y is not None and y.ndim > 1 and y.dtype == torch.int64:
        raise NotYetSupported(
            'labels of fisher_trace must be "given" for labels of positions; got "sampled".'
        )
    with measurement_mode(network) as measured:
        outputs = network_outputs(measured, prepare_inputs(measured, x), chunk_size=chunk_size)
    norms = sample_square_norms(
        network, x, _sample_classes(outputs, resolve_generator(generator)), chunk_size=chunk_size
    )
    return mean_with_error(norms)


class Hessian:
    """Matrix-free Hessian of the mean loss by the trainable weights, in evaluation mode."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, chunk_size: int | None) -> None:
        self.network = network
        self.x = x
        self.y = y
        self.chunk_size = chunk_size
        parameters = trainable(network)
        self.shapes = [as_real(parameter.detach()).shape for parameter in parameters]
        self.size = sum(shape.numel() for shape in self.shapes)
        self.device = parameters[0].device
        self.dtype = as_real(parameters[0].detach()).dtype

    def matvec(self, vectors: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
        """Return Hessian-vector products, which share all backward passes except the last."""
        with measurement_mode(self.network) as network, differentiable_kernels(network.modules()):
            # cloned: tensors created in a caller's inference mode cannot be differentiated
            directions = [self._pieces(vector.clone()) for vector in vectors]
            x = prepare_inputs(network, self.x)
            y = prepare_inputs(network, self.y)
            parameters = trainable(network)
            total = torch.zeros_like(vectors)

            def products(part: Tensor, targets: Tensor) -> Tensor:
                fraction = loss_share(targets, y)
                if fraction == 0:
                    return torch.zeros_like(vectors)
                outputs = checked_outputs(network(part.clone()), len(part))
                loss = fraction * default_loss(outputs, targets)
                gradient = whole_gradient(loss, parameters, create_graph=True)
                return torch.stack(
                    [_derivative(gradient, direction, parameters) for direction in directions]
                )

            # measured once, since every product does the same work
            self.chunk_size = samples_per_pass(
                network,
                x,
                self.chunk_size,
                one_pass=lambda first: products(first, y[: len(first)]),
                at_most=BACKWARD_CHUNK_SIZE,
            )
            for part in slices(len(x), self.chunk_size):
                total += products(x[part], y[part])
        return total

    def probes(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "count p"]:
        """Return vectors of random signs, scaled to length 1."""
        source = resolve_generator(generator, STREAM)
        seeds = torch.randint(2**62, (count,), generator=source, device=source.device).tolist()
        bits = [
            torch.randint(0, 2, (self.size,), generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]
        signs = torch.stack(bits) * 2 - 1
        return signs.to(self.device, self.dtype) / self.size**0.5

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        """Return a vector in the shapes of the parameters."""
        pieces = vector.split([shape.numel() for shape in self.shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


def _derivative(gradient: Tensors, direction: Tensors, parameters: Tensors) -> Float[Tensor, " p"]:
    """Return the derivative of the gradient along a direction, retaining its graph."""
    along = torch.stack([(g * v).sum() for g, v in zip(gradient, direction, strict=True)]).sum()
    if not along.requires_grad:  # the loss is linear in the weights
        return torch.cat([torch.zeros_like(v).flatten() for v in direction])
    result = torch.autograd.grad(along, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([as_real(g).flatten() for g in result])


@_register(
    title="largest curvature of the loss (top Hessian eigenvalue)",
    numbers=ScalarInfo("loss / squared weight units", "lower", "of the mean loss over samples"),
    sampling=Sampling("whole", 64, lambda k: 250),
    stream=STREAM,
    reference="Lanczos 1950; Yao et al. 2020 (arXiv:1912.07145), Sec. III-B",
)
def hessian_top_eigenvalue(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    steps: int = 30,
    tolerance: float = 1e-4,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    """Compute the largest eigenvalue of the Hessian by Lanczos iteration from a random vector.

    The largest Ritz value approaches the largest eigenvalue (not the largest in magnitude) from below, faster than
    power iteration; its last change is the standard error. Memory: one vector of the size of the weights per step.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        steps: Maximum number of Hessian-vector products.
        tolerance: Relative change of the Ritz value below which the iteration stops.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    from scipy.linalg import eigvalsh_tridiagonal

    check_range("steps", steps, 1)
    hessian = Hessian(network, x, y, chunk_size)
    basis = list(hessian.probes(1, generator))
    largest = before = math.nan
    # T = V^T H V in the basis V of the Krylov space is tridiagonal; its largest eigenvalue is the largest Ritz value
    diagonal = list[float]()
    off_diagonal = list[float]()
    while len(diagonal) < steps:
        (product,) = hessian.matvec(basis[-1][None])
        diagonal.append(float((product.double() * basis[-1].double()).sum()))
        before = largest
        largest = float(eigvalsh_tridiagonal(diagonal, off_diagonal)[-1])
        # orthogonalized twice: rounding would bring back directions that have converged
        remainder = product
        for vector in [*basis, *basis]:
            remainder = remainder - (remainder @ vector) * vector
        length = float(remainder.norm())
        can_grow = (
            length > 1e-5 * max(float(product.norm()), abs(diagonal[0]))
            and len(basis) < hessian.size
        )
        if not can_grow or abs(largest - before) <= tolerance * abs(largest):
            break
        off_diagonal.append(length)
        basis.append(remainder / length)
    return Estimate(largest, abs(largest - before))


@_register(
    title="summed curvature of the loss (Hessian trace)",
    numbers=ScalarInfo(
        "loss / squared weight units", "lower", "sum over weights, of the mean loss over samples"
    ),
    sampling=Sampling("whole", 64, lambda k: 90),
    stream=STREAM,
    reference="Hutchinson 1990, eq. 2.1; Yao et al. 2020 (arXiv:1912.07145), Sec. III-C",
)
def hessian_trace(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    probes: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the trace of the Hessian by Hutchinson's estimator (unbiased).

    $\frac1p \sum_k v_k^\top H v_k$ over p vectors of random signs; the standard error is their spread.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        probes: Number of random vectors, at least 2.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("probes", probes, 2)
    hessian = Hessian(network, x, y, chunk_size)
    vectors = hessian.probes(probes, generator)
    pairs = zip(vectors, hessian.matvec(vectors), strict=True)
    # the probes have length 1, vectors of signs the root of the number of weights
    values = [
        hessian.size * float((vector.double() * product.double()).sum())
        for vector, product in pairs
    ]
    return mean_with_error(torch.tensor(values, dtype=torch.float64))
