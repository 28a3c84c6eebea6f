"""Euclidean length of a normalized layer's weights relative to the empirical length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import NotMeasurable
from gapscope.batch_norm.gamma_decay.evaluation_data import EvaluationData
from gapscope.batch_norm.norm_layers import preceding_layers
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.moments import ChannelMoments


def euclidean_length_factors(subject: EvaluationData) -> dict[str, Tensor]:
    r"""Return the ratio $\sqrt{a}\, \lVert w_i \rVert / \sigma_i$ of Euclidean to empirical length per channel.

    $\mathrm{Var}(w_i^\top x) = w_i^\top \Sigma w_i$ is $\sigma_i^2$; with $\Sigma = a I$, a the mean variance of the
    inputs' coordinates (of the channels of its group, in a convolution, borders left aside), it is $a \lVert w_i
    \rVert^2$. The ratio is 1 for white inputs.

    Raises:
        NotMeasurable: A layer is not fed by a linear or convolutional layer alone.
    """
    network, layers = subject.network, subject.layers
    feeders = preceding_layers(network, layers, subject.batch(slice(1))[0])
    for name in layers:
        if name not in feeders:
            raise NotMeasurable(
                f"metric='euclid' needs the weights before layer '{name}', whose input is not the output of one linear "
                "or convolutional layer. Leave it out of layers, or use metric='empirical'."
            )
    modules = {name: named_modules(network)[source] for name, source in feeders.items()}
    moments = {name: ChannelMoments() for name in modules}

    def take_in(name: str, module: Any, inputs: tuple[Tensor, ...]) -> None:
        moments[name].update(inputs[0])

    with forward_hooks(modules, take_in, before=True), torch.no_grad():
        for _, x, _ in subject.chunks():
            network(x)
    return {name: _factor(modules[name], layers[name], moments[name].variance) for name in layers}


def _factor(module: Any, layer: Any, input_variance: Tensor) -> Tensor:
    groups = getattr(module, "groups", 1)
    variance = input_variance.view(groups, -1).mean(1).repeat_interleave(len(module.weight) // groups)
    squared_norm = module.weight.detach().double().flatten(1).square().sum(1)
    return (variance * squared_norm / (layer.running_var.double() + layer.eps)).sqrt()
