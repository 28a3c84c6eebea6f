"""Curvature of the loss: Fisher information, Hessian and local learning coefficient.

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

from gapscope.base.errors import InvalidInput, NotMeasurable, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import measurement_mode, network_outputs, prepare_inputs, samples_per_pass
from gapscope.measures._forward import Inputs, Scalars, Targets, mean_with_error
from gapscope.measures._gradients import (
    at_weights,
    loss_and_gradient,
    sample_square_norms,
    samples_on_device,
    trainable,
)
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.measures.spectra import STREAM, krylov
from gapscope.results.estimate import Estimate

_register = partial(register_measure, cost_class="many", default=False)


def _sampled(outputs: Float[Tensor, "n k"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Sample one class per sample from the softmax (argmax of outputs plus Gumbel noise)."""
    uniform = torch.rand(outputs.shape, generator=generator, device=generator.device, dtype=torch.float64)
    noise = -torch.log(-torch.log(uniform.clamp(min=1e-300)))
    return (outputs.double() + noise.to(outputs.device)).argmax(1)


@_register(
    title="mean squared norm of the per-sample loss gradients",
    numbers=ScalarInfo("squared loss / squared weight units", "lower", "mean over samples, sum over weights"),
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
    r"""Compute the trace of the empirical Fisher information with the given labels (exact).

    $\frac1n \sum_i \lVert \nabla_\theta \ell_i \rVert^2$. Neither per-sample gradients nor Jacobians are formed, so
    that the cost does not grow with the number of outputs.

    With `labels="sampled"` one class per sample is sampled from the prediction. This gives an unbiased estimate of the
    trace of the Fisher information itself, $\frac1n \sum_i E_{y \sim p(y|x_i)} \lVert \nabla_\theta \log p(y|x_i)
    \rVert^2$ (Kunstner et al. 2019, eq. 3); y is then not used. Its standard error is the spread among the samples,
    which is too large rather than too small (NaN for one sample).

    Args:
        labels: "given", or "sampled" for classes sampled from the prediction.

    Raises:
        InvalidInput: There are no targets.
    """
    check_choice("labels", labels, ("given", "sampled"))
    if labels == "given":
        if y is None:
            raise InvalidInput("fisher_trace needs targets y; got None. Pass them, or labels='sampled'.")
        return Estimate(sample_square_norms(network, x, y, chunk_size=chunk_size).mean().item())
    with measurement_mode(network) as measured:
        outputs = network_outputs(measured, prepare_inputs(measured, x), chunk_size=chunk_size)
    norms = sample_square_norms(network, x, _sampled(outputs, resolve_generator(generator)), chunk_size=chunk_size)
    return Estimate(float(norms.mean()), float(norms.std()) / len(norms) ** 0.5)


@_register(
    title="spread of the curvature over directions",
    numbers={
        "smallest": ScalarInfo("loss / squared weight units", "higher", "of the mean loss over samples"),
        "negative_share": ScalarInfo("fraction", "lower", "of the summed magnitudes of eigenvalues"),
        "dimension": ScalarInfo(
            "eigenvalues", "none", "squared sum over sum of squares", "number of curved directions"
        ),
    },
    sampling=Sampling("whole", 64, lambda k: 430),
    stream=STREAM,
    reference="Ghorbani, Krishnan and Xiao 2019 (arXiv:1901.10159), Sec. 2; quadrature of Golub and Welsch 1969",
)
def hessian_density(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    probes: int = 2,
    steps: int = 20,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    r"""Compute three numbers of the Hessian's spectral density by Lanczos quadrature.

    Runs from random vectors give nodes $\lambda_j$ with weights $w_j$, whose sums estimate means over all eigenvalues.
    "negative_share" is the fraction of negative curvature, $\sum_{\lambda_j < 0} w_j |\lambda_j| / \sum_j w_j
    |\lambda_j|$. "dimension" is the number of curved directions of P weights, $P (\sum_j w_j \lambda_j)^2 / \sum_j w_j
    \lambda_j^2 = (\mathrm{tr} H)^2 / \mathrm{tr} H^2$. "smallest" is the smallest node of all runs; it approaches the
    smallest eigenvalue from above. Sums are averaged over runs before they are divided. Standard errors are the spread
    of the smallest nodes over runs, and the jackknife over runs.

    Args:
        probes: Number of runs, at least 2.
        steps: Products with the Hessian a run.

    Raises:
        NotMeasurable: The network has no trainable parameters, or the loss is linear in them.
    """
    check_range("probes", probes, 2, 1024)
    check_range("steps", steps, 2)
    spaces = krylov(network, x, y, generator=generator, chunk_size=chunk_size)
    rows = []
    for run in spaces.runs(probes, steps):
        nodes, weights = run.quadrature(steps)
        negative = (weights * nodes.abs())[nodes < 0].sum()
        rows.append([nodes[0], negative, weights @ nodes.abs(), weights @ nodes, weights @ nodes.square()])
    sums = torch.tensor(rows, dtype=torch.float64)
    if not bool((sums[:, 2] > 0).all()):
        raise NotMeasurable(
            "All eigenvalues of the Hessian are 0; a spectral density needs a loss that is curved in the weights."
        )

    def ratios(means: Tensor) -> Tensor:
        return torch.stack([means[1] / means[2], spaces.hessian.size * means[3] ** 2 / means[4]])

    negative_share, dimension = ratios(sums.mean(0)).tolist()
    without = torch.stack([ratios((sums.sum(0) - row) / (probes - 1)) for row in sums])
    errors = ((probes - 1) * without.var(0, correction=0)).sqrt().tolist()
    return Scalars(
        {
            "smallest": Estimate(sums[:, 0].min().item(), sums[:, 0].std().item() / probes**0.5),
            "negative_share": Estimate(negative_share, errors[0]),
            "dimension": Estimate(dimension, errors[1]),
        }
    )


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

    The largest Ritz value after at most `steps` Hessian-vector products, or as soon as its relative change is below
    `tolerance`. It approaches the eigenvalue from below, faster than power iteration, and finds the largest eigenvalue,
    not the largest in magnitude. Memory: one vector of the size of the weights per step.

    Args:
        steps: Products with the Hessian, at the most.
        tolerance: Relative change at which it ends.
    """
    check_range("steps", steps, 1)
    spaces, before = krylov(network, x, y, generator=generator, chunk_size=chunk_size), 0.0
    for step in range(1, steps + 1):
        (run,) = spaces.runs(1, step)
        largest = run.quadrature(step)[0][-1].item()
        if step > 1 and abs(largest - before) <= tolerance * abs(largest):
            break
        before = largest
    return Estimate(largest)


@_register(
    title="summed curvature of the loss (Hessian trace)",
    numbers=ScalarInfo("loss / squared weight units", "lower", "sum over weights, of the mean loss over samples"),
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
        probes: Number of random vectors, at least 2.
    """
    check_range("probes", probes, 2, 1024)
    spaces = krylov(network, x, y, generator=generator, chunk_size=chunk_size)
    values = [run.diagonal[0] * spaces.hessian.size for run in spaces.runs(probes, 1)]
    return mean_with_error(torch.tensor(values, dtype=torch.float64))


@_register(
    title="effective number of parameters around the weights",
    numbers=ScalarInfo("half parameters", "lower", "mean over steps and chains"),
    sampling=Sampling("whole", 256, lambda k: 600),
    reference="Lau et al. 2023 (arXiv:2308.12108), Sec. 4: estimator and sampler",
)
def local_learning_coefficient(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    step_size: float = 1e-5,
    localization: float = 100.0,
    steps: int = 100,
    burn_in: int = 50,
    chains: int = 4,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Compute the local learning coefficient by Langevin dynamics.

    $n \beta \, (E_w L_n(w) - L_n(\theta))$. $\beta = 1 / \log n$, and w follows $\Delta w = \frac{\epsilon}{2} \big(
    \gamma (\theta - w) - n \beta \nabla L_b(w) \big) + \sqrt\epsilon\, N(0, I)$ around the weights, b a random batch.
    The mean is over the steps after the burn-in; each step compares the loss on its batch with the loss at the weights
    on the same batch. The standard error is the spread over chains. It does not cover the bias of the step size and of
    short chains: compare networks under the same settings. For a quadratic loss with curvatures $h_i$ the expected
    value is $\sum_i \frac{n \beta h_i}{2 (n \beta h_i + \gamma)}$, half the number of parameters for small $\gamma$. It
    can be negative if the weights are no minimum.

    Args:
        step_size: Step size epsilon.
        localization: Pull gamma back to the weights.
        steps: Steps of each chain, burn-in included.
        burn_in: Steps that do not count.
        chains: Number of chains, at least 2.
        batch_size: Samples per step; all where there are fewer.

    Raises:
        NotMeasurable: A chain diverged.
    """
    for name, value, low in (("steps", steps, 1), ("chains", chains, 2), ("batch_size", batch_size, 1)):
        check_range(name, value, low)
    check_range("burn_in", burn_in, 0, steps, high_open=True)
    check_range("step_size", step_size, 0, low_open=True)
    check_range("the number of samples", len(x), 2)
    n, source = len(x), resolve_generator(generator, "Langevin dynamics")
    scale = n / math.log(n)
    seeds = torch.randint(2**62, (chains,), generator=source, device=source.device).tolist()
    with measurement_mode(network) as network:
        samples = samples_on_device(network, x, y)
        weights = [parameter.detach() for parameter in trainable(network)]
        size = samples_per_pass(network, samples.inputs, None, one_pass=network, at_most=256)
        outputs = network_outputs(network, samples.inputs, chunk_size=size).double()
        start_losses = sample_losses(outputs, samples.targets).cpu()  # type: ignore[arg-type]
        values = []
        for seed in seeds:
            draw, rises = torch.Generator().manual_seed(seed), []
            with at_weights(network, [start.clone() for start in weights]) as leaves:
                for step in range(steps):
                    batch, start_loss = samples, start_losses.mean().item()
                    if batch_size < n:
                        chosen = torch.randperm(n, generator=draw)[:batch_size]
                        batch = samples.subset(chosen.to(samples.inputs.device))
                        start_loss = start_losses[chosen].mean().item()
                    loss, gradient = loss_and_gradient(network, batch, size, leaves)
                    if step >= burn_in:
                        rises.append(loss - start_loss)
                    with torch.no_grad():
                        for leaf, start, g in zip(leaves, weights, gradient, strict=True):
                            noise = torch.randn(leaf.shape, generator=draw).to(leaf)
                            leaf += step_size / 2 * (localization * (start - leaf) - scale * g)
                            leaf += step_size**0.5 * noise
            values.append(scale * sum(rises) / len(rises))
    coefficients = torch.tensor(values, dtype=torch.float64)
    if not bool(coefficients.isfinite().all()):
        raise NotMeasurable("A chain of the Langevin dynamics diverged; all must stay finite. Use a smaller step_size.")
    return mean_with_error(coefficients)
