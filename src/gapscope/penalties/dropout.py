"""Dropout with an automatic probability, controlled as the strength of a penalty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from gapscope.base.errors import InvalidInput
from gapscope.penalties.base import Penalty, StrengthRule, register_penalty, strength_of


@register_penalty("automatic_dropout")
class AutomaticDropout(Penalty):
    """Dropout probability that adapts during training (adds 0 to the loss).

    By the rule of `AutomaticStrength` it falls while nothing is memorized, and rises when mislabelled samples are.
    `strength` is the current probability of all dropout layers. Dropout inside attention functions is unchanged.

    Args:
        strength: "auto" (0.3 at first, between 0.05 and 0.7), or an `AutomaticStrength` with other limits.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    >>> _, added = AutomaticDropout().forward_with_penalty(network, torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> added.item(), network[1].p
    (0.0, 0.3)
    """

    def __init__(self, strength: Literal["auto"] | StrengthRule = "auto") -> None:
        self.strength, self.automatic = strength_of(strength, "AutomaticDropout")
        if self.automatic is None:
            raise InvalidInput(
                f"strength of AutomaticDropout must be 'auto' or an AutomaticStrength; got {strength}. For a fixed "
                "probability use torch.nn.Dropout(p)."
            )
        if self.automatic.most >= 1:
            raise InvalidInput(
                f"most of the AutomaticStrength must be a probability below 1; got {self.automatic.most:g}. Pass "
                "AutomaticStrength(start=0.3, least=0.05, most=0.7), for example."
            )

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Set the probability of all dropout layers for this pass.

        Args:
            network: The network in training.
            inputs: Inputs of the mini-batch, as one tensor [n, ...].

        Raises:
            InvalidInput: The network has no dropout layers.
        """
        layers = [module for module in network.modules() if isinstance(module, _DropoutNd)]
        if not layers:
            raise InvalidInput(
                "AutomaticDropout needs a network with dropout layers (torch.nn.Dropout); this one has none. Add them, "
                "or use gs.penalties.L2Penalty('auto')."
            )
        for layer in layers:
            layer.p = self.strength
        yield inputs, None

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return 0, a 0-d tensor: the dropout layers act on the outputs alone.

        Args:
            network: The network in training.
            inputs: Inputs of the pass [n, ...]; they are not used.
            outputs: Outputs of the pass [n, K], with their graph.
            targets: Targets of the mini-batch; they are not used.
            observed: What `observe` yielded; it is not used.
        """
        return outputs.new_zeros(())
