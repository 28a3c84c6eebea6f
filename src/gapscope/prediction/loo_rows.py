"""Leave-one-out rows of a network, and the forecast that rows combine to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.copies import copy_network
from gapscope.inspection.execution import RANDOM_STREAMS
from gapscope.inspection.validation import Ready, ready
from gapscope.measures._forward import forward_pass
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import FEATURES, features_row, paired_gain
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.results.estimate import percent
from gapscope.results.progress import is_interactive, notify
from gapscope.statistics.baselines import LooRow

RBF, NTK = "RBF ridge", "NTK"
# Standard deviation of trained networks around their forecast, at an accuracy of 50 %: chosen for a coverage of 90 %
# on 141 networks; coverage 91 % on 113 further ones (results/expected_accuracy/small/baselines.json).
NETWORK_ERROR = 0.060
NORMAL_90 = 1.645
NORMAL_95_ONE_SIDED, NORMAL_99_ONE_SIDED = 1.645, 2.326
TRIAL, MIN_LANDMARKS = 64, 100
COMBINATIONS = 4  # of the outputs, where the kernel of all of them is too expensive
NOTIFY_ABOVE_SECONDS = 10.0


def add_network_rows(
    rows: list[LooRow],
    notes: list[str],
    prepared: Ready,
    n_classes: int | None,
    options: dict[str, Any],
    budget: float | None,
) -> None:
    """Add the rows of the last hidden features and of the NTK, and notes on missing ones."""
    samples = prepared.samples
    network = with_data_statistics(prepared.network, samples.inputs)
    try:
        features = extract_features(prepared.network, samples, batch_size=options["chunk_size"])
        rows.append(features_row(features.values, samples.y.cpu(), n_classes))
        notes += features.notes
    except GapscopeError as error:
        notes.append(f"There is no row of hidden features: {error}")
    try:
        affordable, note = options_within_budget(network, samples, options, budget)
        notes += [f"There is no NTK row. {note}" if affordable is None else note] if note else []
        if affordable is None:
            return
        targets = samples.y.to(samples.inputs.device)
        result = kernel_leave_one_out(network, samples.inputs, targets, **affordable)
    except GapscopeError as error:
        notes.append(f"There is no NTK row: {error}")
        return
    score = result.explained if result.labels is None else result.accuracy
    rows.append(LooRow(NTK, "network", score, result.predictions.cpu()))


def options_within_budget(
    network: nn.Module, samples: Samples, options: dict[str, Any], budget: float | None, *, more_columns: float = 0.0
) -> tuple[dict[str, Any] | None, str]:
    """Return options that fit into a time budget (or None), and a note on the difference."""
    n = len(samples)
    if n <= 2 * TRIAL or (budget is None and not is_interactive()):
        return options, ""
    columns = n if n <= options["max_exact"] else min(n, options["landmarks"])
    per_sample, per_pair = _seconds_per_sample_and_pair(network, samples, options)
    fixed = n * (per_sample + per_pair * more_columns)
    seconds = fixed + n * per_pair * columns
    if budget is None or seconds <= budget:
        if seconds > NOTIFY_ABOVE_SECONDS:
            notify(f"The neural tangent kernel takes about {seconds:.0f} s; time_budget= limits it.")
        return options, ""
    note = ""
    if "combinations" in options and options["combinations"] is None:
        options = options | {"combinations": COMBINATIONS}
        note = f"The NTK is that of {COMBINATIONS} random combinations of the outputs. "
        per_sample, per_pair = _seconds_per_sample_and_pair(network, samples, options)
        fixed = n * (per_sample + per_pair * more_columns)
        if fixed + n * per_pair * columns <= budget:
            return options, f"{note}All outputs would take about {seconds:.0f} s."
    affordable = int((budget - fixed) / (n * per_pair)) if per_pair else 0
    if affordable < MIN_LANDMARKS:
        return None, f"The kernel would take about {seconds:.0f} s, more than time_budget={budget:.3g}."
    note += (
        f"The NTK is approximated with {affordable} landmarks: all {columns} columns would take about {seconds:.0f} s."
    )
    return options | {"max_exact": 1, "landmarks": affordable}, note


def _seconds_per_sample_and_pair(network: nn.Module, samples: Samples, options: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds per sample's gradients and per kernel entry, from timed trials."""
    part = samples.subset(torch.linspace(0, len(samples) - 1, 2 * TRIAL).long())

    def trial(n: int) -> float:
        start = time.perf_counter()
        kernel_leave_one_out(network, part.inputs[:n], part.y[:n], **options)
        return time.perf_counter() - start

    trial(TRIAL)  # the first call verifies gradients
    small, large = trial(TRIAL), trial(2 * TRIAL)
    # small = TRIAL (s + TRIAL p), large = 2 TRIAL (s + 2 TRIAL p)
    per_pair = max(large - 2 * small, 0.0) / (2 * TRIAL**2)
    return max(small / TRIAL - TRIAL * per_pair, 0.0), per_pair


def combine_rows(rows: Sequence[LooRow], targets: Tensor) -> tuple[LooRow, ...]:
    """Return the rows whose mean score is the forecast.

    These are the RBF and NTK rows; the rows of the network (last hidden features and NTK) if its features are
    significantly better than the RBF kernel, as those of pretrained networks are; else the best row.
    """
    by_name = {row.method: row for row in rows}
    features, rbf = by_name.get(FEATURES), by_name.get(RBF)
    better = features is not None and rbf is not None and paired_gain(features, rbf, targets).low > 0
    names = (FEATURES, NTK) if better else (RBF, NTK)
    available = [by_name[name] for name in names if name in by_name]
    return tuple(available) if available else (max(rows, key=lambda row: row.score),)


def forecast_interval(score: float, n: int) -> tuple[float, float]:
    """90 % interval of a forecast of accuracy, see `forecast_accuracy`."""
    # the variance per sample, at least that of one error among n samples
    variance = max(score * (1 - score), (1 - 1 / n) / n)
    spread = NORMAL_90 * (variance * (1 / n + 4 * NETWORK_ERROR**2)) ** 0.5
    return max(0.0, score - spread), min(1.0, score + spread)


def mean_score(rows: Sequence[LooRow]) -> float:
    """Return the mean score of the rows."""
    return sum(row.score for row in rows) / len(rows)


def reason_to_abstain(rows: Sequence[LooRow], targets: Tensor) -> str:
    """Return the reason to abstain if no row is significantly better than the first, else ""."""
    if targets.is_floating_point():
        best = max(row.score for row in rows)
        return "" if best > 0 else "no method explains any of the variance"
    base, methods = rows[0].score, rows[1:]
    n = len(targets)
    level = NORMAL_95_ONE_SIDED if len(methods) < 2 else NORMAL_99_ONE_SIDED
    error = (base * (1 - base) / n) ** 0.5
    if any(row.score > base + level * error for row in methods):
        return ""
    return f"no method is significantly better than the most frequent class ({percent(base, 1)})"


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
        with RANDOM_STREAMS, torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "new head"))
            new = nn.Linear(last.in_features, n_classes or samples.y.shape[1], bias=last.bias is not None)
        new = new.to(last.weight.device, last.weight.dtype)
    if not name:
        return new
    network.set_submodule(name, new)
    return network
