"""Gamma decay as a penalty: the regularization of batch norm, without batch statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_choice, check_range
from gapscope.base.options import with_prefix
from gapscope.batch_norm.gamma_decay.decay import Covariance, gamma_decay
from gapscope.batch_norm.gamma_decay.layer_decay import quadratic
from gapscope.inspection.outputs import checked_outputs
from gapscope.penalties.base import Penalty, bare_network, check_fixed, register_penalty


@register_penalty("gamma_decay")
class GammaDecayPenalty(Penalty):
    r"""Gamma decay $\alpha \sum_i \zeta_i \gamma_i^2$ over the normalization layers.

    For networks with PopulationNorm layers (then equal to batch norm in expectation, to order 1/M), or with BatchNorm
    layers and batches of `batch_norm_size` > M, for which the penalty is the missing part. zeta is that of
    `gamma_decay`, measured at every `every`-th call as the mean of the previous and the current value, and constant in
    the backward pass.

    Cost: a measurement is a forward and (1 + K) or (1 + draws) backward passes; other calls cost nothing.

    Reference: Luo et al. 2019, eq. 3 and section 5 ("PN + gamma decay"). Appendix B.3 finds that a constant zeta hardly
    helps; one chosen on held-out data did help in our run (results/luo2019/small/constant_decay.md).

    Args:
        strength: alpha, 0 or larger; 1 is that of batch norm.
        batch_size: M, the batch size with the same regularization.
        every: Calls between measurements of zeta; not stated in the paper, once per epoch is enough.
        batch_norm_size: Batch size of the network's BatchNorm layers; None for population statistics.
        data: Inputs with targets for the measurements (any form that `gamma_decay` takes); None for the mini-batches.
        covariance: See `gamma_decay`; "diagonal" is the paper's and costs less for wide layers. By default "full".
        draws: See `gamma_decay`; None for all K outputs.

    >>> network = nn.BatchNorm1d(1, eps=0.0).double()  # loss (u - y)^2 with u = -1 or 1: zeta = 1/M
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    >>> round(GammaDecayPenalty(batch_size=10)(network.eval(), u, u).item(), 6)
    0.1
    """

    needs_targets = True
    counts_calls = True

    def __init__(
        self,
        strength: float = 1.0,
        *,
        batch_size: int,
        every: int = 100,
        batch_norm_size: int | None = None,
        data: Any = None,
        covariance: Covariance = "full",
        draws: int | None = None,
        seed: int = 0,
    ) -> None:
        check_range("batch_size of GammaDecayPenalty", batch_size, 2)
        check_fixed(strength, "GammaDecayPenalty")
        check_range("every", every, 1)
        if batch_norm_size is not None:
            check_range(
                "batch_norm_size (larger than batch_size)",
                batch_norm_size,
                batch_size,
                low_open=True,
            )
        check_choice("covariance", covariance, get_args(Covariance))
        self.batch_size = batch_size
        self.strength = strength
        self.every = every
        # batch norm regularizes in proportion to 1 / (batch size)
        if batch_norm_size is None:
            self.missing = 1.0
        else:
            self.missing = 1 - batch_size / batch_norm_size
        self.data = data
        self.draws = draws
        self.covariance: Covariance = covariance
        self._generator = torch.Generator().manual_seed(seed)
        self._rates: dict[str, Tensor] = {}

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty, a 0-d tensor that is differentiable by gamma (zero in calls without it).

        Args:
            network: The network in training.
            inputs: Inputs of the pass [n, ...], the population if no data were passed to the penalty.
            outputs: Outputs of the pass [n, K], with their graph.
            targets: Targets of the mini-batch, for the curvature of the loss; None if the penalty has data of its own.
            observed: What `observe` yielded; it is not used.

        Raises:
            InvalidInput: There are neither targets nor data of the penalty.
        """
        checked_outputs(outputs, len(inputs))
        if self._calls % self.every == 0:
            if self.data is None and targets is None:
                raise InvalidInput(
                    "GammaDecayPenalty needs targets, for the curvature of the loss; got inputs alone. Call "
                    "penalty.forward_with_penalty(network, x, y), or pass data=."
                )
            with torch.autocast(outputs.device.type, enabled=False):
                if self.data is None:
                    self._measure(network, (inputs.detach(), targets))
                else:
                    self._measure(getattr(network, "adapted_from", network), self.data)
        self._calls += 1
        total = outputs.new_zeros(())
        layers = dict(bare_network(network).named_modules())
        for name, rate in self._rates.items():
            weight: Any = layers[name].weight
            total = total + quadratic(weight, rate.to(weight))
        return self.strength * self.missing * total

    def _measure(self, network: nn.Module, data: Any) -> None:
        decay = gamma_decay(
            network, data, batch_size=self.batch_size, covariance=self.covariance, draws=self.draws, replacement=True,
            generator=self._generator,
        )  # fmt: skip
        layers: dict[str, Any] = dict(bare_network(network).named_modules())
        with_gamma = {
            name: layer for name, layer in decay.items() if layers[name].weight is not None
        }
        if not with_gamma:
            raise NotMeasurable(
                "GammaDecayPenalty needs normalization layers with gamma; these have affine=False."
            )
        for name, layer in with_gamma.items():
            previous = self._rates.get(name, layer.rate)
            self._rates[name] = torch.lerp(layer.rate, previous, 0.5)

    def state_dict(self) -> dict[str, Tensor]:
        """Return number of calls, generator state and rates."""
        rates = {f"rate.{name}": rate for name, rate in self._rates.items()}
        return {**super().state_dict(), "generator": self._generator.get_state(), **rates}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`.

        Args:
            state: Tensors by name, as `state_dict` returned them.
        """
        super().load_state_dict(state)
        self._generator.set_state(state["generator"].cpu())
        self._rates = with_prefix(state, "rate.")
