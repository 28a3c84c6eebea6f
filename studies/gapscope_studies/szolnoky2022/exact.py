"""Equations 1 to 3 and consequences in Sec. 2, checked to rounding error on few samples."""

from __future__ import annotations

import math

import torch

from gapscope import functional
from gapscope.data import load_dataset
from gapscope.networks import build_network
from gapscope_studies.kit.claims import Claim, identity
from gapscope_studies.kit.study import Outcome, RunSettings

N, CLASSES, ROUNDING = 12, 10, 1e-8


def _jacobian(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return gradients of every output by all weights, float64 [n * classes, weights]."""
    weights = list(network.parameters())
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(output, weights, retain_graph=True)])
        for output in network(x).flatten()
    ]
    return torch.stack(rows)


def interlacing_violation(kernel: torch.Tensor) -> float:
    """Return the largest interlacing violation by a kernel without its last row and column.

    >>> interlacing_violation(torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64))) <= 0
    True
    """
    eigenvalues, without_last = torch.linalg.eigvalsh(kernel), torch.linalg.eigvalsh(kernel[:-1, :-1])
    return float(torch.maximum(eigenvalues[:-1] - without_last, without_last - eigenvalues[1:]).max())


def exact_checks(setting: RunSettings) -> Outcome:
    """Check trace, determinant and spectrum of the kernel of model gradients, J J^T."""
    torch.manual_seed(0)
    network = build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=CLASSES, width=16).double()
    x = load_dataset("digits", root=setting.data_root).train.inputs[:N].double()
    jacobian = _jacobian(network, x)
    kernel, n = jacobian @ jacobian.T, N * CLASSES
    trace, scale = float(kernel.trace()), float(kernel.abs().max())
    eigenvalues = torch.linalg.eigvalsh(kernel)
    covariance = torch.linalg.svdvals(jacobian) ** 2
    ours = float(functional.ntk_trace(network, x))
    logdet = float(functional.ntk_logdet(network, x))
    dense = float(torch.linalg.slogdet(kernel).logabsdet)

    def row(source: str, says: str, quantity: str, value: float, most: float = ROUNDING) -> Claim:
        return identity(source, f"{says} (a check of the code)", quantity, value, below=most, ours=True)

    claims = [
        row("eq. 1", "tr K is the sum of squared gradient norms of all outputs", "relative difference",
            abs(trace / float(jacobian.square().sum()) - 1)),
        row("eq. 2", "the measured trace is that of the dense kernel", "relative difference", abs(ours / trace - 1)),
        row("eq. 3", "the measured log determinant is that of the dense kernel", "relative difference",
            abs(logdet / dense - 1), 1e-5),
        row("Sec. 2", "the kernel's spectrum is that of the uncentred covariance of the gradients",
            "largest difference over the largest entry",
            float((eigenvalues.flip(0) - covariance).abs().max()) / scale),
        row("Sec. 2", "leaving a gradient out, eigenvalues interlace", "largest violation over the largest entry",
            interlacing_violation(kernel) / scale),
        row("Sec. 2", "the geometric mean of the eigenvalues is at most the arithmetic", "log of their ratio",
            dense / n - math.log(trace / n), 0.0),
    ]  # fmt: skip
    return Outcome(numbers={"trace": trace, "log determinant": dense}, claims=claims, seeds=(0,))
