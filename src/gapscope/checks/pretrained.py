"""Pretrained networks in checks: their last hidden features stand for the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapscope.base.errors import GapscopeError
from gapscope.checks.costs import thinned
from gapscope.inspection.copies import copy_network
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.cpu_budget import forward_seconds
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import features_carry, features_row, network_before_training
from gapscope.statistics.baselines import INPUT_KERNELS, RBF, sample_features

if TYPE_CHECKING:
    from gapscope.checks.context import Context

# Samples on which the features are compared with the inputs: as many as show a fit of the labels.
MAX_COMPARED = 500
# Fraction of the remaining budget for the features of all samples: the other checks need the rest.
PART_OF_BUDGET = 0.25


def pretrained_network(context: Context) -> Ready | None:
    """Return a network whose features predict the labels significantly better than the inputs, without a fit to them.

    That is the network before training, if its initial state is known, or the network, if it has not fitted these
    labels, as one with a new head. None for labels of positions, and for a network that the budget does not allow.

    Args:
        context: What the checks use.
    """
    prepared = context.prepared
    if prepared is None or context.everything.kind == "positions":
        return None
    rows = thinned(len(prepared.samples), MAX_COMPARED)
    try:
        part = prepared.samples.subset(rows.to(prepared.samples.inputs.device))
        if context.initial_state is None:
            prepared = prepared.with_samples(part)
        else:
            bare = copy_network(prepared.bare)
            bare.load_state_dict(dict(context.initial_state))
            prepared = ready(bare, part)
        if not context.budget.part(PART_OF_BUDGET).affords(forward_seconds(prepared)):
            return None
        inputs = sample_features(part)
        if not inputs.shape[1]:
            return None
        targets = part.y.cpu()
        n_classes = max(context.n_classes, prepared.n_outputs) if context.is_classifier else None
        baselines = [kernel.row(inputs, targets, n_classes=n_classes) for kernel in INPUT_KERNELS]
        rbf = next(row for row in baselines if row.method == RBF)
        with context.budget.enforced(prepared.network):
            if network_before_training(prepared, rbf.predictions).prepared is not prepared:
                return None
            features = extract_features(prepared.network, part)
    except GapscopeError:
        return None
    row = features_row(features.values, targets, n_classes)
    # the features of a linear network are the inputs: they are better than the RBF kernel on linear data alone
    if all(features_carry(row, baseline, targets) for baseline in baselines):
        return prepared
    return None
