"""Losses of single samples, and the probability of sampled labels, for the label types of Hugging Face models."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gapscope.base.errors import NotMeasurable
from gapscope.base.targets import IGNORED


def label_kind(
    logits: Tensor, labels: Tensor, problem_type: str | None = None
) -> Literal["classes", "binary", "amounts"]:
    """Return what labels are: classes, zeros and ones per output, or regression targets.

    Args:
        logits: Outputs [n, outputs] or [n, positions, outputs].
        labels: Their labels.
        problem_type: That of the model's config; None if it has none.
    """
    if problem_type == "regression":
        return "amounts"
    if problem_type == "multi_label_classification":
        return "binary"
    if labels.is_floating_point():
        is_binary = logits.shape[-1] > 1 and bool(((labels == 0) | (labels == 1)).all())
        return "binary" if is_binary else "amounts"
    if logits.shape[-1] == 1:
        return "binary"
    return "classes"


def _align(logits: Tensor, labels: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return log probabilities [n, positions, classes] and their labels [n, positions]."""
    if labels.ndim == 1:
        logits = logits[:, None]
        labels = labels[:, None]
    elif causal:
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    return logits.float().log_softmax(-1), labels


def sequence_losses(
    logits: Tensor, labels: Tensor, *, causal: bool, problem_type: str | None = None
) -> Tensor:
    """Return the loss [n] per sample: its mean over labelled positions (nats), labels or squared errors.

    Args:
        logits: Outputs [n, outputs] or [n, positions, outputs].
        labels: Their labels.
        causal: Whether outputs at a position are about the label of the next one.
        problem_type: That of the model's config; None if it has none.
    """
    kind = label_kind(logits, labels, problem_type)
    if kind != "classes":
        logits = logits.float().flatten(1)
        labels = labels.to(logits.dtype).reshape(logits.shape)
        if kind == "amounts":
            return (logits - labels).square().mean(1)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    logs, labels = _align(logits, labels, causal=causal)
    losses = F.nll_loss(logs.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def log_probability_of_sampled(
    logits: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    causal: bool,
    problem_type: str | None = None,
) -> Tensor:
    """Return the log probability, a 0-d tensor, of labels that are sampled from the prediction.

    Args:
        logits: Outputs [n, outputs] or [n, positions, outputs].
        labels: Labels, which tell the positions that count.
        generator: Source of the labels.
        causal: Whether outputs at a position are about the label of the next one.
        problem_type: That of the model's config; None if it has none.

    Raises:
        NotMeasurable: The labels are regression targets, of which the network predicts no probabilities.
    """
    kind = label_kind(logits, labels, problem_type)
    if kind == "amounts":
        raise NotMeasurable(
            "needs predicted probabilities of classes; a regression network predicts none"
        )
    if kind == "binary":
        chances = logits.detach().float().sigmoid().cpu()
        drawn = torch.bernoulli(chances, generator=generator).to(logits.device)
        return -F.binary_cross_entropy_with_logits(logits.float(), drawn, reduction="sum")
    logs, labels = _align(logits, labels, causal=causal)
    logs = logs[labels != IGNORED]
    drawn = torch.multinomial(logs.detach().exp().cpu(), 1, generator=generator).to(logs.device)
    return logs.gather(1, drawn).sum()
