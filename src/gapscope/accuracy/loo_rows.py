"""Leave-one-out rows of a network, and the forecast that rows combine to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.gradients.projections import PROJECTIONS
from gapscope.inspection.copies import copy_network
from gapscope.inspection.execution import exclusive
from gapscope.inspection.validation import Ready, ready
from gapscope.measures._forward import forward_pass
from gapscope.measures.cpu_budget import (
    affordable_kernel,
    affordable_projection,
    forward_seconds,
)
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import (
    FEATURES,
    MANY_PARAMETERS,
    features_carry,
    features_row,
    is_large,
    network_before_training,
    paired_gain,
)
from gapscope.measures.kernel_leave_one_out import (
    KernelLeaveOneOut,
    kernel_leave_one_out,
    projected_leave_one_out,
)
from gapscope.results.estimate import NORMAL_90, NORMAL_99_ONE_SIDED, percent
from gapscope.statistics.baselines import LINEAR, RBF, LooRow, scored_row
from gapscope.statistics.grouped_scores import independent_samples, variance_of_mean

NTK = "NTK"
# Standard deviation of trained networks around their forecast, at an accuracy of 50 %: chosen for a coverage of 90 %
# on 141 networks; coverage 91 % on 113 further ones (results/expected_accuracy/small/baselines.json).
NETWORK_ERROR = 0.060
# Reach of the interval below and above the forecast for vectors (results/expected_accuracy/small/intervals.json), each
# in 5 % quantiles: sampling error, deviation of networks, and fraction of the growth per doubling of the samples.
BELOW, ABOVE = (2.5, 0.065, 1.0), (1.3, 0.085, 0.3)


def add_network_rows(
    rows: list[LooRow],
    notes: list[str],
    prepared: Ready,
    n_classes: int | None,
    options: dict[str, Any],
    budget: CpuBudget,
    seed: int | None,
    groups: Tensor | None = None,
) -> Ready | None:
    """Add the rows of the last hidden features and of the NTK that fit into the budget, and notes on the others.

    Args:
        rows: Rows without the network; RBF ridge, or else the last one, is the baseline of `network_before_training`.
        notes: Sentences about the data and missing rows, added to.
        prepared: The network with its samples.
        n_classes: Number of classes, None for regression.
        options: Options of `kernel_leave_one_out`.
        budget: CPU seconds.
        seed: Seed of the estimated NTK of a large network; None omits it.
        groups: Group of each sample, which is then predicted without it.

    Returns:
        The network of these rows; None if it could not be used.
    """
    samples = prepared.samples
    forward = forward_seconds(prepared)
    if shortage := budget.shortage(forward):
        notes.append(f"There are no rows of the network: {shortage}")
        return None
    baseline = next((row for row in rows if row.method == RBF), rows[-1])
    try:
        with budget.enforced(prepared.network):
            before = network_before_training(prepared, baseline.predictions, groups)
    except BudgetSpent as error:
        notes.append(f"There are no rows of the network: {error}")
        return None
    notes += [before.note] if before.note else []
    if before.prepared is None:
        return None
    prepared = before.prepared
    network = with_data_statistics(prepared.network, samples.inputs)
    try:
        features = extract_features(prepared.network, samples, batch_size=options["chunk_size"])
        rows.append(features_row(features.values, samples.y.cpu(), n_classes, groups))
        notes += features.notes
    except GapscopeError as error:
        notes.append(f"There is no row of hidden features: {error}")
    if is_large(prepared.bare) and _features_carry(rows, samples.y.cpu()):
        notes.append(
            f"There is no NTK row: above {MANY_PARAMETERS:,} parameters these features carry the forecast."
        )
        return prepared
    if is_large(prepared.bare) and seed is None:
        notes.append(
            f"There is no NTK row, as above {MANY_PARAMETERS:,} parameters in any ranking."
        )
        return prepared
    targets = samples.y.to(samples.inputs.device)
    several = targets.dtype == torch.bool
    if several:
        targets = targets.to(samples.inputs.dtype)
    try:
        result, note = _kernel_result(
            network, prepared, targets, options, budget, groups, seed=seed, forward=forward
        )
    except GapscopeError as error:
        notes.append(f"There is no NTK row: {error}")
        return prepared
    if result is None:
        notes.append(f"There is no NTK row. {note}")
        return prepared
    notes += [note] if note else []
    method = f"{NTK} (estimate)" if is_large(prepared.bare) else NTK
    predictions = result.predictions.cpu()
    if several or result.labels is None:
        rows.append(scored_row(method, "network", predictions, samples.y.cpu(), groups))
    else:
        rows.append(LooRow(method, "network", result.accuracy, predictions, groups))
    return prepared


def _kernel_result(
    network: nn.Module,
    prepared: Ready,
    targets: Tensor,
    options: dict[str, Any],
    budget: CpuBudget,
    groups: Tensor | None,
    *,
    seed: int | None,
    forward: float,
) -> tuple[KernelLeaveOneOut | None, str]:
    """Return predictions by the NTK (None if it does not fit the budget), exact or estimated, and a note."""
    samples = prepared.samples
    n_outputs = prepared.n_outputs
    settings: dict[str, Any] | None
    if is_large(prepared.bare):
        of_projection = {name: options[name] for name in ("max_exact", "landmarks", "chunk_size")}
        of_projection["seed"] = seed
        k, note = affordable_projection(
            network, samples, of_projection, budget, n_outputs=n_outputs, forward=forward
        )
        if k is None:
            return None, note
        settings = of_projection | {"combinations": k}
        function = projected_leave_one_out
        if k == n_outputs:
            combined = ""
        else:
            combined = f" of {k} random combinations of the outputs"
        note = f"The NTK is estimated from {PROJECTIONS} projections per weight{combined}."
    else:
        settings, note = affordable_kernel(
            network, samples, options, budget, n_outputs=n_outputs, forward=forward
        )
        if settings is None:
            return None, note
        function = kernel_leave_one_out
    with budget.enforced(network):
        return function(network, samples.inputs, targets, groups=groups, **settings), note


def _features_carry(rows: Sequence[LooRow], targets: Tensor) -> bool:
    """Return whether the last hidden features are significantly better than the RBF kernel of the inputs."""
    by_name = {row.name: row for row in rows}
    return {FEATURES, RBF} <= by_name.keys() and features_carry(
        by_name[FEATURES], by_name[RBF], targets
    )


def combine_rows(
    rows: Sequence[LooRow], targets: Tensor, *, large: bool = False, wide: bool = False
) -> tuple[LooRow, ...]:
    """Return the rows whose mean score is the forecast.

    These are the RBF and NTK rows; the rows of the network (last hidden features and NTK) if its features are
    significantly better than the RBF kernel, as those of pretrained networks are; else the best row. Of a large network
    with such features they are the features alone, and the better of features and RBF kernel without an NTK. Without an
    NTK they are the linear and the RBF ridge, if the linear one is significantly better on wide data, such as features
    and texts. The mean of both errs less than the better row, whose score was chosen for being larger; on narrow tables
    RBF ridge alone errs least.

    Args:
        rows: Rows, the first of which uses the labels alone.
        targets: Targets.
        large: Whether the network has more than a million parameters, or features stand for one.
        wide: Whether there are at least as many columns as samples.
    """
    by_name = {row.name: row for row in rows}
    features = by_name.get(FEATURES)
    rbf = by_name.get(RBF)
    linear = by_name.get(LINEAR)
    names = (RBF, NTK)
    if wide and rbf and linear and NTK not in by_name and paired_gain(linear, rbf, targets).low > 0:
        names = (LINEAR, RBF)
    if _features_carry(rows, targets):
        names = (FEATURES,) if large else (FEATURES, NTK)
    elif large and features and rbf and NTK not in by_name and features.score > rbf.score:
        names = (FEATURES,)
    available = [by_name[name] for name in names if name in by_name]
    if available:
        return tuple(available)
    return (max(rows, key=lambda row: row.score),)


def forecast_interval(score: float, n: float, growth: float | None = None) -> tuple[float, float]:
    """Return the 90 % interval of a forecast of accuracy, see `forecast_accuracy`.

    Args:
        score: The forecast.
        n: Number of independent samples.
        growth: Gain of accuracy per doubling of the samples, for vectors; None for images and other inputs, for which
            networks deviate from kernels by as much with many samples.
    """
    # the variance per sample, at least that of one error among n samples
    variance = max(score * (1 - score), (1 - 1 / n) / n)
    if growth is None:
        below = above = NORMAL_90 * (variance * (1 / n + 4 * NETWORK_ERROR**2)) ** 0.5
    else:
        reaches = [
            (variance * (sampling**2 / n + network**2) + (slope * max(growth, 0.0)) ** 2) ** 0.5
            for sampling, network, slope in (BELOW, ABOVE)
        ]
        below, above = reaches
    return max(0.0, score - below), min(1.0, score + above)


def mean_score(rows: Sequence[LooRow]) -> float:
    """Return the mean score of the rows."""
    return sum(row.score for row in rows) / len(rows)


def reason_to_abstain(rows: Sequence[LooRow], targets: Tensor, n: int | None = None) -> str:
    """Return the reason to abstain if no row is significantly better than the first, else "".

    Args:
        rows: Rows, the first of which uses the labels alone.
        targets: Targets.
        n: Number of independent predictions; None for the number of targets.
    """
    if targets.is_floating_point():
        best = max(row.score for row in rows)
        if best > 0:
            return ""
        return "no method explains any of the variance"
    base = rows[0].score
    methods = rows[1:]
    n = n or len(targets)
    if len(methods) < 2:
        level = NORMAL_90
    else:
        level = NORMAL_99_ONE_SIDED
    error = (base * (1 - base) / n) ** 0.5
    if any(row.score > base + level * _error(row, rows[0], targets, error) for row in methods):
        return ""
    return f"no method is significantly better than the most frequent class ({percent(base, 1)})"


def _error(row: LooRow, base: LooRow, targets: Tensor, default: float) -> float:
    """Return the standard error of the gain of a row on the base: of its groups, or the default without any."""
    if row.groups is None:
        return default
    gain = row.correct(targets).double() - base.correct(targets).double()
    return variance_of_mean(gain.cpu().numpy(), row.groups.cpu().numpy()) ** 0.5


def independent_predictions(rows: Sequence[LooRow], targets: Tensor) -> float:
    """Return the number of independent samples that the mean accuracy of some rows was computed from.

    Args:
        rows: Rows of one data set, one or more.
        targets: Class labels [n], or boolean labels [n, K].
    """
    groups = rows[0].groups
    if groups is None:
        return len(targets)
    correct = torch.stack([row.correct(targets).double() for row in rows]).mean(0)
    return independent_samples(correct.cpu().numpy(), groups.cpu().numpy())


def with_new_head(
    network: nn.Module, samples: Samples, head: str | nn.Module, n_classes: int | None, seed: int
) -> nn.Module:
    """Return a copy of the network with another last layer, "new" or a given module."""
    if head != "new" and not isinstance(head, nn.Module):
        raise InvalidInput(f"head must be 'new', a module or None; got {head!r}.")
    network = copy_network(network)
    prepared = ready(network, Samples(samples.inputs[:8], form=samples.form))
    last = forward_pass(prepared.network, prepared.samples.inputs).head
    if not isinstance(last, nn.Linear):
        raise InvalidInput(
            f"head='new' replaces the last layer, which must be linear; got {type(last).__name__}. Pass a network "
            "whose last layer is nn.Linear, or replace the head yourself."
        )
    if isinstance(head, nn.Linear) and head.in_features != last.in_features:
        raise InvalidInput(
            f"head must take the {last.in_features} features of the last layer; got a layer that takes "
            f"{head.in_features}. Pass nn.Linear({last.in_features}, {head.out_features}), or 'new'."
        )
    name = next(name for name, module in network.named_modules() if module is last)
    if isinstance(head, nn.Module):
        new = copy_network(head)
    else:
        with exclusive(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "new head"))
            new = nn.Linear(
                last.in_features, n_classes or samples.y.shape[1], bias=last.bias is not None
            )
        new = new.to(last.weight.device, last.weight.dtype)
    if not name:
        return new
    network.set_submodule(name, new)
    return network
