r"""Curvature of the loss along gamma and beta of normalization layers.

Batch statistics act as $\gamma \to \gamma(1-s)$, $\beta \to \beta - \gamma a$, equally at all positions of a sample.
The cost of noise with known covariance therefore follows from $H_{\gamma\gamma} = \frac1n \sum_j \partial^2 \ell_j /
\partial\gamma_i^2$ and the corresponding $H_{\beta\beta}$ and $H_{\gamma\beta}$.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples, slices
from gapscope.batch_norm.layers._channel_norm import per_channel
from gapscope.batch_norm.norm_layers import Layers, batch_norm_layers
from gapscope.batch_norm.refresh import refresh_population
from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.losses import Loss, sample_losses
from gapscope.inspection.outputs import checked_outputs, prepare_inputs
from gapscope.inspection.sample_layout import SampleLayout
from gapscope.inspection.validation import ready
from gapscope.results.estimate import Estimate


@dataclass(frozen=True)
class EvaluationData:
    """Network in evaluation mode, its normalization layers in order, and samples."""

    network: nn.Module
    layers: Layers
    layouts: dict[str, SampleLayout]  # of their inputs
    samples: Samples
    loss: Loss
    chunk_size: int

    def batch(self, indices: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some samples, on the network's device."""
        x = prepare_inputs(self.network, self.samples.inputs[indices])
        return x, self.samples.y[indices].to(x.device)

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield (slice of the samples, inputs, targets), chunk by chunk."""
        for part in slices(len(self.samples), self.chunk_size):
            yield part, *self.batch(part)


def prepare(
    network: nn.Module, data: Any, loss: Loss | None = None, layers: Sequence[str] | None = None
) -> tuple[nn.Module, Samples]:
    """Validate a network that has these layers, with data that have targets (of any shape for a caller's loss)."""
    prepared = ready(
        network, data, needs=("targets",) if loss is not None else ("targets", "outputs")
    )
    batch_norm_layers(prepared.network, layers)
    return prepared.network, prepared.samples


def copy_with_population(
    network: nn.Module, samples: Samples, layers: Sequence[str] | None, chunk_size: int | None
) -> tuple[nn.Module, list[str]]:
    """Return a copy with exact population statistics in some layers, and their names."""
    network = copy_network(network)
    names = list(batch_norm_layers(network, layers))
    refresh_population(network, samples, samples=len(samples), layers=names, chunk_size=chunk_size)
    return network, names


def check_batch_sizes(name: str, sizes: Sequence[int], n_samples: int) -> None:
    """Raise InvalidInput for a batch size below 2 or not below the number of samples."""
    for size in sizes:
        check_range(f"{name} (at least 2, below the number of samples)", size, 2, n_samples - 1)


def mean_estimate(values: Tensor) -> Estimate:
    """Return the mean of independent values with its standard error."""
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())


def _checked_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    losses = loss(outputs, targets)
    if losses.shape != (len(outputs),):
        raise InvalidInput(
            f"loss must return one number per sample, shape [{len(outputs)}]; got {list(losses.shape)}. "
            "Use reduction='none' and, for several outputs, a mean over them."
        )
    return losses


def output_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Float[Tensor, "n k"]:
    """Return the gradient of each sample's loss by its own outputs."""
    outputs = outputs.detach().requires_grad_()
    return torch.autograd.grad(_checked_losses(loss, outputs, targets).sum(), outputs)[0]


def _hessian_factor(loss: Loss, outputs: Tensor, targets: Tensor) -> Float[Tensor, "n k r"]:
    r"""Return F with $F F^\top$ = Hessian of each sample's loss, convex in its own outputs."""
    outputs = outputs.double().requires_grad_()
    if targets.is_floating_point():
        targets = targets.double()
    (gradient,) = torch.autograd.grad(
        _checked_losses(loss, outputs, targets).sum(), outputs, create_graph=True
    )
    # Row k of the Hessian by the outputs is the gradient of entry k of the gradient.
    columns = [
        torch.autograd.grad(column.sum(), outputs, retain_graph=True, materialize_grads=True)[0]
        for column in gradient.unbind(1)
    ]
    values, vectors = torch.linalg.eigh(torch.stack(columns, 2))
    if bool((values < -1e-6 * values.abs().max()).any()):
        raise InvalidInput(
            "curvature='gauss_newton' needs a loss convex in the outputs; this one has a negative curvature. "
            "Use curvature='squared_score'."
        )
    # H = V diag(w) V^T = F F^T with F = V sqrt(w)
    return vectors * values.clamp_min(0).sqrt()[:, None, :]


def hessian_directions(
    loss: Loss, outputs: Tensor, targets: Tensor, signs: Float[Tensor, "d n k"] | None
) -> Iterator[Float[Tensor, "n k"]]:
    """Yield directions whose outer products sum to the Hessian of each sample's loss by its outputs.

    Args:
        loss: Loss of each sample.
        outputs: Outputs [n, K].
        targets: Targets [n, ...].
        signs: Random signs z; then direction d is F z_d, and its outer product has the Hessian as its expectation.
    """
    outputs = outputs.detach()
    if signs is not None:
        signs = signs.to(outputs)
    is_softmax = loss is sample_losses and not targets.is_floating_point() and outputs.shape[1] > 1
    if not is_softmax:
        factor = _hessian_factor(loss, outputs, targets)
        # E[(F z)(F z)^T] = F E[z z^T] F^T = F F^T
        yield from (
            factor.unbind(2)
            if signs is None
            else torch.einsum("nkr,dnr->dnk", factor, signs.to(factor))
        )
        return
    # H = diag(p) - p p^T = F F^T with the columns sqrt(p_k) (e_k - p) of F, one by one: all take n K^2 numbers
    p = outputs.softmax(1)
    root = p.sqrt()
    if signs is None:
        for column, unit in zip(root.split(1, 1), torch.eye(p.shape[1]).to(p), strict=True):
            yield column * (unit - p)
    else:
        for z in signs:
            yield root * z - p * (root * z).sum(1, keepdim=True)


class Tap(NamedTuple):
    """Captured normalization layer of one forward pass."""

    normalized: Tensor  # u = (h - mu) / sigma, [n, C, positions], without gradient
    output: Tensor  # gamma u + beta, in the graph
    layout: SampleLayout  # of the output


def arranged(tensor: Tensor, layout: SampleLayout, n: int) -> Float[Tensor, "n c ..."]:
    """Return input or output of a normalization layer as [n, C, ...], with the rows of a sample as positions."""
    grouped = layout.by_sample(tensor, n)
    if layout.per_sample > 1:
        return grouped.movedim(1, -1)
    return grouped


def restored(values: Float[Tensor, "n c ..."], layout: SampleLayout) -> Tensor:
    """Return what `arranged` returned in the layout that it had."""
    if layout.per_sample > 1:
        values = values.movedim(-1, 1)
    return layout.restored(values)


def _with_positions(tensor: Tensor) -> Tensor:
    """Return [n, C, ...] as [n, C, positions]."""
    return tensor[..., None].flatten(2)


def normalized_input(layer: Any, h: Float[Tensor, "n c ..."]) -> Float[Tensor, "n c ..."]:
    """Return (h - running_mean) / sqrt(running_var + eps)."""
    return (h - per_channel(layer.running_mean, h)) * per_channel(
        (layer.running_var + layer.eps).rsqrt(), h
    )


def tapped_forward(evaluation: EvaluationData, x: Tensor) -> tuple[Tensor, dict[str, Tap]]:
    """Return outputs [n, K] in the graph, and the taps of all normalization layers by name."""
    taps: dict[str, Tap] = {}

    def tap(name: str, layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        layout = evaluation.layouts[name]
        u = normalized_input(layer, arranged(inputs[0].detach(), layout, len(x)))
        taps[name] = Tap(_with_positions(u).detach(), output, layout)
        return output.clone()  # the next layer may work in place

    if x.is_floating_point():
        x = x.clone().requires_grad_()
    with forward_hooks(evaluation.layers, tap):
        outputs = checked_outputs(evaluation.network(x), len(x))
    return outputs, taps


def derivatives_along(
    outputs: Tensor, taps: dict[str, Tap], direction: Tensor
) -> Iterator[tuple[str, Float[Tensor, "n c"], Float[Tensor, "n c"]]]:
    """Yield (layer name, derivative by gamma, by beta) of each sample's <outputs, direction>."""
    # The layer's output is gamma u + beta with gradient g: the derivatives are sums of g u and of g over positions.
    layer_outputs = [tap.output for tap in taps.values()]
    gradients = torch.autograd.grad(
        outputs,
        layer_outputs,
        direction.to(outputs.dtype),
        retain_graph=True,
        materialize_grads=True,
    )
    for (name, tap), gradient in zip(taps.items(), gradients, strict=True):
        g = _with_positions(arranged(gradient, tap.layout, len(outputs)))
        yield name, (g * tap.normalized).sum(2), g.sum(2)
