"""Local learning coefficient."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import measurement_mode, network_outputs, prepare_inputs, samples_per_pass
from gapscope.measures._perturbed import at_weights, loss_and_gradient, trainable
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


def _losses_at_the_weights(network: nn.Module, samples: Samples, size: int) -> Float[Tensor, " n"]:
    """Of every sample once, in float64 on the CPU, instead of in every step."""
    assert samples.targets is not None
    outputs = network_outputs(network, samples.inputs, chunk_size=size).double()
    return sample_losses(outputs, samples.targets).cpu()


@register_measure(
    "local_learning_coefficient",
    title="effective number of parameters around the weights",
    needs=("inputs", "targets"),
    units="half parameters",
    direction="lower",
    aggregation="mean over draws and chains",
    cost="1 forward and 1 backward pass of a batch per step, 400 steps",
    cost_class="many",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="closed form of a quadratic loss",
    sampling=Sampling("whole", 256, lambda k: 600),
    reference="Lau et al. 2023 (arXiv:2308.12108), Sec. 4: estimator and sampler",
)
def local_learning_coefficient(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    step_size: float = 1e-5,
    localization: float = 100.0,
    steps: int = 100,
    burn_in: int = 50,
    chains: int = 4,
    batch_size: int = 128,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Local learning coefficient $n \beta \, (E_w L_n(w) - L_n(\theta))$, $\beta = 1 / \log n$, by Langevin dynamics.

    w follows $\Delta w = \frac{\epsilon}{2} \big( \gamma (\theta - w) - n \beta \nabla L_b(w) \big) + \sqrt\epsilon\,
    N(0, I)$ around the weights, b a random batch; the mean is over the steps after the burn-in, with the loss on the
    batch of the step, minus the loss at the weights on the same batches. The standard error is the spread among
    chains: how well the estimate is repeated. It does not cover what the step size and a short chain leave out, and
    values of other settings are other numbers: compare networks under the same settings. For a quadratic loss of
    curvatures $h_i$ it tends to $\sum_i \frac{n \beta h_i}{2 (n \beta h_i + \gamma)}$, half the number of parameters
    where $\gamma$ is small. In evaluation mode, over all trainable weights. It may come out negative where the weights
    are no minimum.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        step_size: Step size epsilon.
        localization: Pull gamma back to the weights.
        steps: Steps of each chain, burn-in included.
        burn_in: Steps that do not count.
        chains: Number of chains, at least 2.
        batch_size: Samples per step; all where there are fewer.
        generator: Source of noise and batches; None for the same at every call.

    Returns:
        The coefficient with its standard error.

    Raises:
        InvalidInput: An option is out of range, or there are fewer than 2 samples.
        NotMeasurable: The network has no trainable parameters, or a chain diverged.
    """
    for name, value, low in (("steps", steps, 1), ("chains", chains, 2), ("batch_size", batch_size, 1)):
        check_range(name, value, low)
    check_range("burn_in", burn_in, 0, steps, high_open=True)
    check_range("step_size", step_size, 0, low_open=True)
    if len(x) < 2:
        raise InvalidInput("local_learning_coefficient needs two samples or more, for its temperature; got one.")
    n, source = len(x), resolve_generator(generator, "Langevin dynamics")
    scale = n / math.log(n)
    seeds = torch.randint(2**62, (chains,), generator=source, device=source.device).tolist()
    with measurement_mode(network) as network:
        samples = Samples(prepare_inputs(network, x), prepare_inputs(network, y))
        own = [parameter.detach() for parameter in trainable(network)]
        size = samples_per_pass(network, samples.inputs, None, one_pass=network, at_most=256)
        at_home = _losses_at_the_weights(network, samples, size)
        found = []
        for seed in seeds:
            draw, rises = torch.Generator().manual_seed(seed), []
            with at_weights(network, [start.clone() for start in own]) as leaves:
                for step in range(steps):
                    batch, mean_at_home = samples, at_home.mean().item()
                    if batch_size < n:
                        chosen = torch.randperm(n, generator=draw)[:batch_size]
                        batch = samples.subset(chosen.to(samples.inputs.device))
                        mean_at_home = at_home[chosen].mean().item()
                    loss, gradient = loss_and_gradient(network, batch, size, leaves)
                    if step >= burn_in:
                        rises.append(loss - mean_at_home)
                    with torch.no_grad():
                        for leaf, start, g in zip(leaves, own, gradient, strict=True):
                            noise = torch.randn(leaf.shape, generator=draw).to(leaf)
                            leaf += step_size / 2 * (localization * (start - leaf) - scale * g)
                            leaf += step_size**0.5 * noise
            found.append(scale * sum(rises) / len(rises))
    coefficients = torch.tensor(found, dtype=torch.float64)
    if not bool(coefficients.isfinite().all()):
        raise NotMeasurable("Langevin dynamics must stay finite; a chain diverged. Use a smaller step_size.")
    return Estimate(coefficients.mean().item(), coefficients.std().item() / chains**0.5)
