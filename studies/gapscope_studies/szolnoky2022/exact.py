"""Equations 1 to 3 and the properties of Sec. 2.3, checked to rounding error on few samples."""

from __future__ import annotations

import math

import torch

from gapscope import functional
from gapscope.data import load_dataset
from gapscope.networks import build_network
from gapscope_studies.kit.claims import Claim, identity
from gapscope_studies.kit.study import Outcome, RunSettings

N, CLASSES, ROUNDING = 12, 10, 1e-8
RATE = 1e-6  # of the steps: the square of it is below the rounding of the difference, and no unit changes sides


def _jacobian(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return gradients of every output by all weights, float64 [n * classes, weights]."""
    weights = list(network.parameters())
    rows = [
        torch.cat(
            [part.flatten() for part in torch.autograd.grad(output, weights, retain_graph=True)]
        )
        for output in network(x).flatten()
    ]
    return torch.stack(rows)


def interlacing_violation(kernel: torch.Tensor) -> float:
    r"""Return the largest violation of the interlacing of centred and uncentred kernel, 0 or less if there is none.

    The centred kernel $H K H$ with $H = I - 11^\top/n$ has the spectrum of the covariance of the gradients, and K that
    of the uncentred one: $\lambda_1 \le \tilde\lambda_1 \le \dots \le \lambda_n \le \tilde\lambda_n$ (Sec. 2.3).

    >>> interlacing_violation(torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64))) < 1e-12
    True
    """
    centring = torch.eye(len(kernel), dtype=kernel.dtype) - 1 / len(kernel)
    uncentred, centred = (
        torch.linalg.eigvalsh(kernel),
        torch.linalg.eigvalsh(centring @ kernel @ centring),
    )
    return float(torch.cat([centred - uncentred, uncentred[:-1] - centred[1:]]).max())


def step_error(
    network: torch.nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    moved: torch.Tensor,
    kernel: torch.Tensor,
) -> float:
    r"""Return the relative error of $-K \nabla_f L$ as the change of outputs per unit of the learning rate.

    The network takes a step of gradient descent on samples x, y; `moved` are the inputs whose outputs change, and
    `kernel` [moved * classes, n * classes] is K. Two steps, extrapolated to a learning rate of 0 (Richardson).
    """
    weights = list(network.parameters())
    outputs = network(x)
    loss = torch.nn.functional.cross_entropy(outputs, y, reduction="sum")
    gradients = torch.autograd.grad(loss, [*weights, outputs])
    expected = -(kernel @ gradients[-1].flatten())
    changes = []
    with torch.no_grad():
        before = network(moved)
        for rate in (RATE, RATE / 2):
            for weight, gradient in zip(weights, gradients[:-1], strict=True):
                weight -= rate * gradient
            changes.append((network(moved) - before).flatten() / rate)
            for weight, gradient in zip(weights, gradients[:-1], strict=True):
                weight += rate * gradient
    return float((2 * changes[1] - changes[0] - expected).norm() / expected.norm())


def exact_checks(setting: RunSettings) -> Outcome:
    """Check steps of gradient descent, and trace, determinant and spectrum of the kernel J J^T."""
    torch.manual_seed(0)
    network = build_network(
        "fully_connected", input_shape=(1, 8, 8), n_outputs=CLASSES, width=16
    ).double()
    data = load_dataset("digits", root=setting.data_root).train
    x, y = data.inputs[:N].double(), data.y[:N]
    jacobian = _jacobian(network, x)
    kernel, n = jacobian @ jacobian.T, N * CLASSES
    trace, scale = float(kernel.trace()), float(kernel.abs().max())
    eigenvalues = torch.linalg.eigvalsh(kernel)
    covariance = torch.linalg.svdvals(jacobian) ** 2
    ours = float(functional.ntk_trace(network, x))
    logdet = float(functional.ntk_logdet(network, x))
    dense = float(torch.linalg.slogdet(kernel).logabsdet)

    def row(source: str, says: str, quantity: str, value: float, most: float = ROUNDING) -> Claim:
        return identity(
            source, f"{says} (a check of the code)", quantity, value, below=most, ours=True
        )

    # outputs of the first and of the second sample
    one, other = (
        slice(0, CLASSES),
        slice(CLASSES, 2 * CLASSES),
    )
    steps = {
        ("eq. 1", "a step on a sample changes its own outputs by -eta k(x, x) grad L"): (
            x[:1], y[:1], x[:1], kernel[one, one],
        ),
        ("eq. 2", "a step on a sample changes those of another by -eta k(x', x) grad L"): (
            x[:1], y[:1], x[1:2], kernel[other, one],
        ),
        ("eq. 3", "a step on a batch changes the outputs by -eta K grad L"): (x, y, x, kernel),
    }  # fmt: skip
    claims = [
        *(row(source, f"{says}, to first order", "relative error, extrapolated to eta = 0",
              step_error(network, *arguments)) for (source, says), arguments in steps.items()),
        row("Sec. 2.3", "tr K is the sum of squared gradient norms of all outputs", "relative difference",
            abs(trace / float(jacobian.square().sum()) - 1)),
        row("Sec. 2.3", "the measured trace is that of the dense kernel", "relative difference", abs(ours / trace - 1)),
        row("Sec. 2.3", "the measured log determinant is that of the dense kernel", "relative difference",
            abs(logdet / dense - 1), 1e-5),
        row("Sec. 2.3", "the kernel's spectrum is that of the uncentred covariance of the gradients",
            "largest difference over the largest entry",
            float((eigenvalues.flip(0) - covariance).abs().max()) / scale),
        row("Sec. 2.3", "eigenvalues of the centred and uncentred covariance interlace",
            "largest violation over the largest entry", interlacing_violation(kernel) / scale),
        row("Sec. 2.3", "the geometric mean of the eigenvalues is at most the arithmetic", "log of their ratio",
            dense / n - math.log(trace / n), 0.0),
    ]  # fmt: skip
    return Outcome(numbers={"trace": trace, "log determinant": dense}, claims=claims, seeds=(0,))
