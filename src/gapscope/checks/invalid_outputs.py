"""Outputs that are NaN or infinite: their samples, the score on the others, and the outcomes of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gapscope.checks.expected import regression_score
from gapscope.checks.registry import Check, Finding, NotChecked, Outcome
from gapscope.checks.trainers import sample_scores
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.training.loss_course import LOWER

if TYPE_CHECKING:
    from gapscope.checks.context import Context

NO_SAMPLES = torch.zeros(0, dtype=torch.bool)


def invalid_samples(context: Context) -> tuple[Tensor, Tensor]:
    """Return which training samples, and which test samples, have outputs that are NaN or infinite, [n] each.

    Args:
        context: What the checks computed. Without a torch network, or without test samples, [n] is empty.
    """
    if context.prepared is None:
        return NO_SAMPLES, NO_SAMPLES
    samples = context.samples
    test = context.test
    training = samples.task.is_invalid(context.logits, samples.y.cpu())
    if test is None or test.targets is None or context.test_network is None:
        return training, NO_SAMPLES
    with inspection_mode(context.test_network):
        outputs = network_outputs(context.test_network, test.inputs)
    return training, test.task.is_invalid(outputs.cpu(), test.y.cpu())


def score_of_valid(context: Context) -> float:
    """Return the score on the training samples whose outputs are finite; 0 if there are none.

    Args:
        context: What the checks computed, for a torch network.
    """
    rows = torch.nonzero(~context.invalid_samples[0]).flatten()
    if not len(rows):
        return 0.0
    if len(rows) == len(context.samples):
        return context.train_score
    samples = context.samples.subset(rows)
    outputs = context.logits[rows]
    if context.has_accuracy:
        return float(sample_scores(samples, outputs).double().mean())
    return regression_score(outputs, samples.y).value


def judge_invalid_outputs(check: Check, context: Context) -> Outcome | None:
    """Return the outcome of a check of a network with outputs that are NaN or infinite, else None.

    Args:
        check: A check.
        context: What the checks computed.
    """
    if not check.needs_network or check.code == "GS201":  # which has a finding of its own
        return None
    for invalid, kind in zip(context.invalid_samples, ("", "test "), strict=True):
        count = int(invalid.sum())
        text = f"the outputs of {count:,} of {len(invalid):,} {kind}samples are NaN or infinite"
        if count and check.code == "GS302":
            return Finding(
                text,
                "correct the forward pass (logarithm, root or quotient of 0, overflow), or lower the learning rate",
                cost=count / len(invalid),
                fixes=LOWER,
                headline=f"This network predicts nothing for some samples: {text}.",
            )
        if count and (not kind or check.generalization):
            return NotChecked(text)
    return None
