"""Loss that dropout adds to a fixed network, and the dropout rate that adds a given loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range, did_you_mean
from gapscope.base.samples import Samples, slices
from gapscope.inspection.hooks import Weighted, forward_hooks, named_modules
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import inspection_mode, prepare_inputs, samples_per_pass
from gapscope.results.estimate import Estimate

LARGEST_RATE = 0.9
"""Rates above this are not looked at."""


def name_of_last_linear_layer(network: nn.Module, samples: Samples) -> str:
    """Return the name of the linear or convolutional layer that runs last.

    Raises:
        NotMeasurable: There is no such layer.
    """
    order: list[str] = []
    candidates = {name: module for name, module in named_modules(network).items() if isinstance(module, Weighted)}
    with inspection_mode(network), forward_hooks(candidates, lambda name, *_: order.append(name)), torch.no_grad():
        network(prepare_inputs(network, samples.inputs[:1]))
    if not order:
        raise NotMeasurable(
            "The network must run a linear or convolutional layer, before which dropout goes; it has none."
        )
    return order[-1]


class DropoutLoss:
    r"""Expected loss with dropout minus the loss without, in evaluation mode.

    $\frac1n \sum_j E_m[\ell_j(m)] - \ell_j$, with `draws` masks m per sample. Inputs of each layer are set
    to 0 with probability `rate` and divided by 1 - rate, one by one, as `torch.nn.Dropout` does. The same random
    numbers serve every rate, so that the excess is smooth in it. Unbiased; the standard error is over samples.
    Cost: `draws` forward passes per rate.

    Args:
        layers: Names of the layers whose inputs are dropped.
        draws: Masks per sample.

    Raises:
        InvalidInput: A layer's name is unknown, or there are no targets.
    """

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        layers: Sequence[str],
        *,
        draws: int = 4,
        seed: int = 0,
        chunk_size: int | None = None,
    ) -> None:
        if samples.targets is None:
            raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
        known = named_modules(network)
        for name in layers:
            if name not in known or not name:
                raise InvalidInput(
                    f"dropout_before must name layers of the network; got {name!r}.{did_you_mean(name, known)}"
                )
        check_range("draws", draws, 1)
        self.network, self.samples, self.targets = network, samples, samples.targets
        self.layers = {name: known[name] for name in layers}
        self.draws, self.seed = draws, seed
        with inspection_mode(network):
            self.chunk_size = samples_per_pass(network, samples.inputs, chunk_size)
        self.plain = self._losses()

    def _losses(self) -> Tensor:
        parts = []
        with inspection_mode(self.network), torch.no_grad():
            for part in slices(len(self.samples), self.chunk_size):
                outputs = self.network(prepare_inputs(self.network, self.samples.inputs[part]))
                parts.append(sample_losses(outputs, self.targets[part].to(outputs.device)).double().cpu())
        return torch.cat(parts)

    def excess(self, rate: float) -> Estimate:
        """Return the excess loss at a dropout rate in [0, 1)."""
        check_range("rate", rate, 0, 1, high_open=True)
        generator = torch.Generator().manual_seed(self.seed)

        def drop(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
            kept = torch.rand(inputs[0].shape, generator=generator) >= rate
            return inputs[0] * kept.to(inputs[0]) / (1 - rate), *inputs[1:]

        with forward_hooks(self.layers, drop, before=True):
            dropped = torch.stack([self._losses() for _ in range(self.draws)]).mean(0)
        gains = dropped - self.plain
        return Estimate(gains.mean().item(), (gains.std() / len(gains) ** 0.5).item())

    def matching_rate(self, target: Estimate) -> Estimate | None:
        """Return the rate whose excess loss is `target` (None if no rate up to 0.9 adds as much).

        Its standard error is that of both excesses over the slope between them.
        """
        if self.excess(LARGEST_RATE) <= target:
            return None
        rate = float(brentq(lambda p: float(self.excess(p)) - float(target), 0.0, LARGEST_RATE, xtol=2e-4))  # type: ignore[arg-type]
        beyond = min(1.2 * rate + 1e-3, 0.95)
        there = self.excess(rate)
        slope = (self.excess(beyond) - there) / (beyond - rate)
        errors = (there.standard_error or 0.0) ** 2 + (target.standard_error or 0.0) ** 2
        return Estimate(rate, errors**0.5 / slope if slope > 0 else None)
