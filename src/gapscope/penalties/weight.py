"""L2 penalty on all parameters."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapscope.inspection.outputs import as_real
from gapscope.penalties.base import Penalty, StrengthRule, register_penalty, strength_of


@register_penalty("weight")
class L2Penalty(Penalty):
    r"""L2 penalty $\lambda \sum_i |\theta_i|^2$ over all trainable parameters.

    With plain SGD this equals `weight_decay = 2 * strength`. Exact.

    >>> network = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(network.weight, 3.0)
    >>> L2Penalty(0.5)(network, torch.zeros(1, 2)).item()
    9.0
    """

    def __init__(self, strength: float | Literal["auto"] | StrengthRule) -> None:
        self.strength, self.automatic = strength_of(strength, "L2Penalty")

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty, a 0-d tensor, from the parameters alone.

        Args:
            network: The network, whose trainable parameters are penalized.
            inputs: Inputs of the pass [n, ...]; they are not used.
            outputs: Outputs of the pass [n, K]; they are not used.
            targets: Targets of the mini-batch; they are not used.
            observed: What `observe` yielded; it is not used.
        """
        squares = [
            as_real(parameter).square().sum()
            for parameter in network.parameters()
            if parameter.requires_grad
        ]
        return self.strength * torch.stack(squares).sum()
