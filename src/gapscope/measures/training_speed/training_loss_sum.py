"""Sum of the training losses over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, ScalarInfo, register_measure


@register_measure(
    "training_loss_sum",
    title="training losses of all epochs together",
    needs=("history",),
    numbers={
        "all": ScalarInfo("nats (cross-entropy) or squared target units", "lower", "sum over epochs", "all epochs"),
        "last": ScalarInfo("nats (cross-entropy) or squared target units", "lower", "sum over epochs", "last epochs"),
    },
    cost="no pass",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    reference="Lyle et al. 2020 (arXiv:2010.14499), Sec. 3; Ru et al. 2021 (arXiv:2006.04492), eq. 1",
)
def training_loss_sum(network: nn.Module, *, history: Sequence[Mapping[str, Any]], last: int = 10) -> Scalars:
    r"""Sum of the training losses over the epochs of training, $\sum_t \ell_t$, and over the last ones; exact.

    It is large where training was slow. The loss of an epoch is what its row of the history calls `train_loss`: the
    mean over its batches, in training mode, without penalties. Compare networks with as many epochs.

    Args:
        network: Not looked at.
        history: One mapping an epoch, as training, a monitor's rows and records have it.
        last: Number of last epochs; all where there are fewer.

    Returns:
        The numbers "all" and "last".

    Raises:
        InvalidInput: An epoch has no `train_loss`.

    >>> history = [{"train_loss": 2.0}, {"train_loss": 1.0}, {"train_loss": 0.5}]
    >>> training_loss_sum(nn.Identity(), history=history, last=2).scalars()
    {'all': 3.5, 'last': 1.5}
    """
    check_range("last", last, 1)
    if any("train_loss" not in row for row in history):
        raise InvalidInput(
            "history must hold train_loss for every epoch; one row has none. Pass what gs.train returned, "
            "or one mapping an epoch such as {'epoch': 1, 'train_loss': 0.7}."
        )
    losses = [float(row["train_loss"]) for row in history]
    return Scalars({"all": sum(losses), "last": sum(losses[-last:])})
