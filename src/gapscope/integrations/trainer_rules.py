"""What the Hugging Face Trainer does with batches and losses, in one place: columns, accumulated gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.inspection.checkpoints import graph_nodes

# transformers before 4.53 looks at the model alone
_IGNORES_MISSING_COUNT = [int(part) for part in version("transformers").split(".")[:2]] < [4, 53]


def check_trainer(trainer: Any, owner: str) -> None:
    """Refuse what is no Trainer.

    Args:
        trainer: What was passed as the Trainer.
        owner: Function or class that needs it, for the message.

    Raises:
        InvalidInput: It is none.
    """
    if not hasattr(trainer, "compute_loss"):
        raise InvalidInput(f"{owner} needs a transformers Trainer; got {type(trainer).__name__}.")


def collate_as_in_training(trainer: Any, samples: Sequence[Any]) -> Mapping[str, Any]:
    """Return samples as one batch, without the columns that the Trainer removes before its collator."""
    loader = getattr(trainer.callback_handler, "train_dataloader", None)
    collate = getattr(loader, "collate_fn", None) or trainer.data_collator
    return trainer._get_collator_with_removed_columns(collate)(list(samples))


def n_accumulated(trainer: Any) -> int:
    """Return the number of batches of the present optimizer step (the last one of an epoch may have fewer)."""
    # earlier versions of transformers divide by the setting
    return getattr(
        trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps
    )


def is_left_to_loss(trainer: Any, options: Mapping[str, Any]) -> bool:
    """Return whether the Trainer leaves the division by the number of batches to `compute_loss`.

    Args:
        trainer: The Trainer.
        options: Keyword arguments of `compute_loss`.
    """
    declared = getattr(trainer, "loss_is_scaled_for_ga", None)
    if declared is not None:
        return bool(declared)
    if trainer.compute_loss_func is not None:
        return True
    has_count = options.get("num_items_in_batch") is not None
    return bool(trainer.model_accepts_loss_kwargs) and (has_count or _IGNORES_MISSING_COUNT)


def accumulation_divisor(trainer: Any, options: Mapping[str, Any]) -> float:
    """Return by how much a mean over one batch must be divided, to be added to the result of `compute_loss`.

    Args:
        trainer: The Trainer.
        options: Keyword arguments of `compute_loss`.
    """
    if is_left_to_loss(trainer, options):
        return float(n_accumulated(trainer))
    return 1.0


def _depends_on(loss: Tensor, leaf: Tensor) -> bool:
    """Return whether a loss was computed from this tensor."""
    return any(getattr(node, "variable", None) is leaf for node in graph_nodes(loss))


def _loss_in(result: Any) -> Tensor:
    """Return the loss of a result of `compute_loss`, with or without outputs."""
    if isinstance(result, Tensor):
        return result
    loss: Tensor = result[0]
    return loss


def _process_factor(trainer: Any, options: Mapping[str, Any]) -> float:
    """Return by how much the Trainer multiplies the loss because it is divided by the items of all processes."""
    is_own = not type(trainer).compute_loss.__module__.startswith("transformers.")
    has_items = options.get("num_items_in_batch") is not None
    if is_own or not has_items or not trainer.args.average_tokens_across_devices:
        return 1.0
    if not trainer.model_accepts_loss_kwargs and trainer.compute_loss_func is None:
        return 1.0
    if trainer.args.n_gpu > 1:
        return float(trainer.args.n_gpu)
    replicas = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
    return float(trainer.accelerator.num_processes // replicas)


class MeanLoss:
    """Mean losses of batches from the results of the Trainer's `compute_loss`.

    A loss that is divided by the number of items of all accumulated batches is a part of the step's mean. Some models
    are given that number and ignore it: their loss is the mean of the batch. The first call finds out which it is.

    Args:
        trainer: The Trainer.
        compute_loss: Its method.
    """

    def __init__(self, trainer: Any, compute_loss: Callable[..., Any]) -> None:
        self.trainer = trainer
        self.compute_loss = compute_loss
        self.uses_count: bool | None = None

    def call(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Return the result of `compute_loss`.

        Args:
            model: Its model.
            inputs: Its batch.
            *args: Its other arguments.
            **options: Its keyword arguments.
        """
        count = options.get("num_items_in_batch")
        is_first = self.uses_count is None and model.training and torch.is_grad_enabled()
        if not is_first or not isinstance(count, Tensor):
            return self.compute_loss(model, inputs, *args, **options)
        followed = count.detach().float().clone().requires_grad_()
        try:
            result = self.compute_loss(
                model, copy.copy(inputs), *args, **options | {"num_items_in_batch": followed}
            )
        except Exception:  # a loss that needs the number without a gradient
            self.uses_count = True
            return self.compute_loss(model, inputs, *args, **options)
        self.uses_count = _depends_on(_loss_in(result), followed)
        return result

    def of(self, result: Any, options: Mapping[str, Any]) -> Tensor:
        """Return the mean loss of a batch, a 0-d tensor; the mean of these is that of the accumulated step.

        Args:
            result: Result of `compute_loss`.
            options: Its keyword arguments.
        """
        loss = _loss_in(result).detach().mean()
        trainer = self.trainer
        if not is_left_to_loss(trainer, options):
            return loss
        declared = getattr(trainer, "loss_is_scaled_for_ga", None)
        if options.get("num_items_in_batch") is None and not declared:
            return loss
        if self.uses_count is False and not declared:
            return loss / _process_factor(trainer, options)
        return loss * n_accumulated(trainer)
