"""Trace of the empirical Fisher information."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice
from gapscope.base.random_streams import resolve_generator
from gapscope.inspection.outputs import measurement_mode, network_outputs, prepare_inputs
from gapscope.measures._gradients import sample_square_norms
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


def _sampled(outputs: Float[Tensor, "n k"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """One class a sample, drawn from its softmax (by the largest of outputs with Gumbel noise)."""
    uniform = torch.rand(outputs.shape, generator=generator, device=generator.device, dtype=torch.float64)
    noise = -torch.log(-torch.log(uniform.clamp(min=1e-300)))
    return (outputs.double() + noise.to(outputs.device)).argmax(1)


@register_measure(
    "fisher_trace",
    title="size of the gradients of the individual samples' losses",
    needs=("inputs", "targets"),
    units="squared loss / squared weight units",
    direction="lower",
    aggregation="mean over samples, sum over weights",
    cost="1 forward pass and 2 backward passes",
    cost_class="backward",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="dense per-sample gradients",
    sampling=Sampling("mean", 64, lambda k: 6),
    reference="Jastrzebski et al. 2021 (arXiv:2012.14193), eq. 1, with the labels given",
)
def fisher_trace(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."] | None,
    *,
    labels: Literal["given", "sampled"] = "given",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Trace of the empirical Fisher information, $\frac1n \sum_i \lVert \nabla_\theta \ell_i \rVert^2$; exact.

    Over all trainable weights, with the targets given, in evaluation mode. No gradient of a single sample is formed,
    and no Jacobian: the cost does not grow with the number of outputs, be they a vocabulary.

    With `labels="sampled"` each sample's class is drawn once from what the network predicts, which makes an unbiased
    estimate of the trace of the Fisher information itself,
    $\frac1n \sum_i E_{y \sim p(y|x_i)} \lVert \nabla_\theta \log p(y|x_i) \rVert^2$ (Kunstner et al. 2019, eq. 3).

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets; not looked at where labels are sampled.
        labels: "given", or "sampled" for classes drawn from the prediction.
        generator: Source of sampled classes; None for the same ones at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The trace; with sampled labels its standard error is the spread among the samples, which is too large rather
        than too small (NaN for one sample).

    Raises:
        InvalidInput: An option is unknown, or there are no targets.
        NotMeasurable: The network has no trainable parameters.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.zeros_(network.weight)
    >>> fisher_trace(network, torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))  # (4 + 16) / 2
    10
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
