"""Label issues of a check, ranked without a network that has fitted the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from gapscope.base.errors import GapscopeError
from gapscope.inspection.copies import copy_network
from gapscope.labels.label_issues import find_issues_of_samples
from gapscope.labels.results import LabelIssues
from gapscope.networks.initialization import resampled_state
from gapscope.statistics.baselines import LooRow

if TYPE_CHECKING:
    from gapscope.checks.context import Context


def rank_labels(context: Context) -> LabelIssues:
    """Return the label issues of all samples that the budget allows, as indices of all samples.

    They are ranked by the inputs, or by the features of a pretrained network. Those of positions are of the samples of
    which the network is read, with an untrained copy of it.

    Args:
        context: What the checks use.

    Raises:
        InvalidInput: See `gapscope.find_label_issues`.
        BudgetSpent: Forward passes of the copy took the time budget.
    """
    samples = context.data
    part = context.rows
    network = None
    if context.everything.kind == "positions":
        samples = context.samples
        part = context.indices
        network = _untrained_copy(context)
    known: Sequence[LooRow] = ()
    # the same kernels, if a check has needed the forecast, and if it has left no repeats out
    forecast = vars(context).get("forecast")
    if forecast is not None and context.distinct is samples:
        known = forecast.rows
    if len(samples) == len(context.everything):
        pairs = context.copies.pairs
    else:
        pairs = None
    budget = context.budget
    if network is not None:
        budget = budget.part(0.5)  # the checks that follow need the rest
    with budget.enforced(network or nn.Module()):
        issues = find_issues_of_samples(
            samples, known, pairs, seed=context.seed, budget=budget, network=network,
            known=context.features,
        )  # fmt: skip
    # indices of the part become those of all samples
    rows = part.tolist()
    conflicts = tuple((rows[i], rows[j]) for i, j in issues.conflicts)
    return replace(
        issues,
        indices=part[issues.indices.cpu()],
        conflicts=conflicts,
        samples=context.everything,
    )


def _untrained_copy(context: Context) -> nn.Module | None:
    """Return a copy of the network with its initial weights, or resampled ones; None without."""
    if context.prepared is None:
        return None
    network = copy_network(context.prepared.bare)
    try:
        network.load_state_dict(dict(context.initial_state or resampled_state(network)))
    except GapscopeError:  # layers whose weights cannot be resampled
        return None
    return network
