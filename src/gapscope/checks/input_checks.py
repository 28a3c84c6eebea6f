"""Checks of the inputs: GS105 and GS108."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.checks.context import Context
from gapscope.checks.costs import cost_of_scales, thinned
from gapscope.checks.fixes import find_varying
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.labels.leaking_columns import MIN_ROWS, name_columns
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.formatting import format_number
from gapscope.statistics.baselines import sample_features
from gapscope.statistics.row_groups import describe_groups

if TYPE_CHECKING:
    from gapscope.checks.estimators import EstimatorScores

# Largest spread of a column relative to the typical one (or the reverse), mean relative to spread, and typical
# spread.
MAX_SPREAD_RATIO, MAX_MEAN_RATIO, MAX_SPREAD = 30.0, 30.0, 30.0
# correlation of a column with the same one after scaling: one, up to the rounding of single precision
MIN_AGREEMENT = 0.99


def _is_floating_table_or_image(context: Context) -> bool:
    return context.everything.inputs.is_floating_point() and context.everything.has_one_input


@register_check("GS105", title="unscaled inputs", seconds=0.01)
def scaling(context: Context) -> Outcome:
    """Report columns of deviating scale, and inputs far from zero or of a large scale."""
    if not _is_floating_table_or_image(context):
        return NotChecked("scaling needs one floating point input")
    x = context.samples.inputs
    is_table = x.ndim == 2
    if not x.numel():
        return NotChecked("the inputs have no columns")
    scales = _Scales(_columns(x), context, "column" if is_table else "channel")
    if not bool(scales.varying.any()):
        return Finding("no input varies", "pass inputs that differ between samples", cost=1.0)
    evidence = scales.evidence
    if not evidence:
        constant = int((~scales.varying).sum())
        return Fine(
            f"spread {scales.typical:.3g}"
            + (f", {constant} constant {scales.noun}s" if constant and is_table else "")
        )
    if context.prepared is not None and _scales_itself(context, scales.noun):
        return Fine(f"{evidence}; the network scales them before its first weights")
    finding = Finding(
        evidence,
        "standardize the inputs (mean 0, standard deviation 1) before training",
        fixes=("standardize inputs",),
    )
    if context.estimator is not None:
        if is_table:
            return _of_estimator(context.estimator, finding)
        return finding
    is_scored = context.everything.kind != "positions" and context.most_frequent < 1
    # a kernel machine is blind to the mean and to the scale that all columns share
    if not is_table or not is_scored or not (scales.large or scales.small):
        return finding
    answer = cost_of_scales(context.data, context.n_classes if context.is_classifier else 0)
    # a small column is ignored by either, while large ones disturb a network more than a kernel machine
    cause = "small columns" if not scales.large and answer.low <= 0 else ""
    return replace(_with_cost(finding, answer), cause=cause)


def _with_cost(finding: Finding, cost: IntervalEstimate) -> Finding:
    value, low, high = (min(max(end, 0.0), 1.0) for end in (cost.value, cost.low, cost.high))
    return replace(finding, cost=value, interval=(low, high))


def _of_estimator(estimator: EstimatorScores, finding: Finding) -> Outcome:
    """Return the outcome of an estimator, by what its own clones predict from standardized columns."""
    if not estimator.depends_on_scale:
        return Fine(
            f"{finding.evidence}; the estimator predicts the same from standardized columns"
        )
    cost = estimator.cost_of_scales
    if cost is None:
        return finding
    if cost.value <= 0:
        return Fine(f"{finding.evidence}; the estimator gains nothing from standardized columns")
    return _with_cost(finding, cost)


def _columns(x: Tensor) -> Tensor:
    """Return the columns of a table, or the pixels of each channel, in float64 on the CPU."""
    x = x.double().cpu()
    return x if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)


class _Scales:
    """Spread and mean of columns, and which of them deviate.

    Args:
        columns: Columns [n, d], d > 0.
        context: For the names of columns.
        noun: What a column is called.
    """

    def __init__(self, columns: Tensor, context: Context, noun: str) -> None:
        self.names = context.everything.columns
        self.noun = noun
        self.spread = columns.std(0)
        self.center = columns.mean(0)
        self.varying = find_varying(self.spread, self.center)
        self.typical = 0.0
        self.large = []
        self.small = []
        self.far = []
        if not bool(self.varying.any()):
            return
        self.typical = float(self.spread[self.varying].median())
        self.far = _indices(self.varying & (self.center.abs() > MAX_MEAN_RATIO * self.spread))
        self.large = _indices(self.varying & (self.spread > MAX_SPREAD_RATIO * self.typical))
        # a column of two values, such as a rare indicator, has a small spread whatever its scale
        self.small = [
            i
            for i in _indices(self.varying & (self.spread < self.typical / MAX_SPREAD_RATIO))
            if len(columns[:, i].unique()) > 2
        ]

    @property
    def evidence(self) -> str:
        """Which columns deviate; empty if none does."""
        if self.large:
            most = f"{float(self.spread.max()) / self.typical:,.0f} times the typical spread"
            return f"{self._named(self.large)}: {'up to ' if len(self.large) > 1 else ''}{most}"
        if self.small:
            smallest = f"{float(self.spread[self.small].min()) / self.typical:.2g} times the typical spread"
            return (
                f"{self._named(self.small)}: {'down to ' if len(self.small) > 1 else ''}{smallest}"
            )
        if self.far:
            # the column whose mean is largest relative to its spread
            worst = max(self.far, key=lambda i: float(self.center[i].abs() / self.spread[i]))
            spread = float(self.spread[worst])
            center = float(self.center[worst])
            return (
                f"{self._named(self.far)} {'are' if len(self.far) > 1 else 'is'} far from 0: a spread of "
                f"{format_number(spread)} around {format_number(center)}"
            )
        if self.typical > MAX_SPREAD:
            return f"{self.noun}s have a typical spread of {format_number(self.typical)}"
        return ""

    def _named(self, indices: list[int]) -> str:
        noun = self.noun if len(indices) == 1 else f"{self.noun}s"
        return f"{noun} {name_columns(self.names, indices)}"


def _scales_itself(context: Context, noun: str) -> bool:
    """Return whether the first layer with a weight matrix receives the columns scaled, and none deviates."""
    # in evaluation mode, initial statistics of batch norm scale nothing
    network = with_data_statistics(context.network, context.samples.inputs)
    modules = {
        name: module
        for name, module in named_modules(network).items()
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False))
    }
    received: list[Tensor] = []
    first: list[str] = []

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        first.append(name)
        if name == first[0] and inputs and isinstance(inputs[0], Tensor):
            received.append(inputs[0].detach().clone())

    with inspection_mode(network), forward_hooks(modules, record, before=True):
        network_outputs(network, context.samples.inputs)
    if not received or not received[0].is_floating_point() or received[0].ndim < 2:
        return False
    columns = _columns(torch.cat(received))
    raw = _columns(context.samples.inputs)
    if columns.shape != raw.shape:
        return False
    scales = _Scales(columns, context, noun)
    if scales.evidence or not bool(scales.varying.any()):
        return False
    # layer norm scales rows: its outputs are no multiples of the columns
    before, after = (
        part[:, scales.varying] - part[:, scales.varying].mean(0) for part in (raw, columns)
    )
    agreement = (before * after).sum(0) / (before.norm(dim=0) * after.norm(dim=0)).clamp_min(1e-300)
    return bool((agreement.abs() > MIN_AGREEMENT).all())


def _indices(mask: Tensor) -> list[int]:
    return torch.nonzero(mask).flatten().tolist()


GROUPED = (
    "pass groups= to gapscope.forecast_accuracy or gapscope.out_of_sample, and split by groups; accuracies by "
    "leave-one-out and by random splits are too high"
)


@register_check("GS108", title="rows are not independent", seconds=0.1, information=True)
def order_of_rows(context: Context) -> Outcome:
    """Report rows in groups of nearly equal ones, and rows that resemble the next one, such as sliding windows."""
    n = len(context.everything)
    if n < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} samples or more")
    groups = describe_groups(context.everything, "rows", seed=context.seed)
    if groups:
        return Finding(
            groups, f"rows of one person, object or recording belong together: {GROUPED}"
        )
    # of a stretch in order, for evenly spaced samples are not neighbours
    part = context.everything.first(2 * len(thinned(n)))
    features = sample_features(part).float()
    if not features.shape[1]:
        return NotChecked("no input varies")
    step = (features[1:] - features[:-1]).norm(dim=1)
    generator = torch.Generator().manual_seed(context.seed)
    other = torch.randperm(len(part), generator=generator)
    same = torch.ones(len(part), dtype=torch.bool)
    next_same = torch.ones(len(part) - 1, dtype=torch.bool)
    if context.is_classifier:
        labels = part.y.cpu()
        same = labels[other] == labels
        next_same = labels[1:] == labels[:-1]
    same &= other != torch.arange(len(part))
    if int(same.sum()) < MIN_ROWS or int(next_same.sum()) < MIN_ROWS:
        return NotChecked("too few rows in order have the same label")
    random = float((features[other] - features).norm(dim=1)[same].median())
    ratio = float(step[next_same].median()) / max(random, 1e-12)
    text = f"the distance of neighbouring rows is {ratio:.2f} times that of random rows"
    # distance of neighbouring rows in units of that of random pairs: windows that overlap by half have 0.7, by nine
    # tenths 0.3. Features of independent rows have 1.
    if ratio >= 0.6:
        return Fine(text)
    return Finding(
        text,
        f"rows are in order (windows, time, one person after the other): {GROUPED}",
    )
