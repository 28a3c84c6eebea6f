"""Fixes: changes of training data or training configuration that findings advise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.second_data import as_second
from gapscope.base.specs import PenaltySpec, TrainingSpec
from gapscope.batch_norm.norm_layers import has_statistics, is_norm_layer
from gapscope.batch_norm.refresh import refresh_population
from gapscope.checks.copies import Copies
from gapscope.inspection.hooks import named_modules
from gapscope.inspection.validation import ready
from gapscope.labels.label_issues import find_issues_of_samples

# A training configuration: a spec, or keyword settings of a training function.
Spec = TrainingSpec | Mapping[str, Any]
L2 = "weight"


def get_setting(spec: Spec, name: str) -> float | None:
    """Return a setting of a configuration; None if it has none of this name.

    Args:
        spec: The configuration.
        name: "learning_rate", "epochs", "batch_size", "weight_decay", or "width" of a training function.
    """
    if not isinstance(spec, TrainingSpec):
        return spec.get(name)
    if name != "weight_decay":
        return getattr(spec, name, None)
    return sum(2 * float(item.options["strength"]) for item in spec.penalties if item.name == L2)


def with_setting(spec: Spec, name: str, value: float) -> Spec:
    """Return the configuration with another value of one setting (see `get_setting`)."""
    if not isinstance(spec, TrainingSpec):
        return {**spec, name: value}
    if name != "weight_decay":
        return replace(spec, **{name: value})
    others = tuple(item for item in spec.penalties if item.name != L2)
    # the penalty strength * |w|^2 has the gradient 2 * strength * w
    if value:
        added = (PenaltySpec(name=L2, options={"strength": value / 2}),)
    else:
        added = ()
    return replace(spec, penalties=(*others, *added))


@dataclass(frozen=True)
class Fix:
    """Change of the training data, of the inputs, of the training configuration, or of the network.

    Attributes:
        name: Name, as in `Finding.fixes`.
        change_data: Training samples, and CPU seconds that it may take, to changed ones; None if they stay.
        change_spec: Configuration to a changed one, or None if it does not apply; None if it stays.
        scale_inputs: Training samples to a function of inputs, which new data go through as well; None without.
        change_network: Changes an untrained network in place; None without.
        finish_network: Changes a trained network in place, from its training samples; None without.
        needs: Returns whether a network has what one of the two changes.
        is_far: Whether it is tried only where a finding suggests it, or where nothing is learned without.
    """

    name: str
    change_data: Callable[[Samples, CpuBudget], Samples] | None = None
    change_spec: Callable[[Spec], Spec | None] | None = None
    scale_inputs: Callable[[Samples], Callable[[Tensor], Tensor]] | None = None
    change_network: Callable[[nn.Module], None] | None = None
    finish_network: Callable[[nn.Module, Samples], None] | None = None
    needs: Callable[[nn.Module], bool] = lambda network: True
    is_far: bool = False

    def __repr__(self) -> str:
        return f"Fix({self.name!r})"

    @property
    def changes_network(self) -> bool:
        """True if the network is changed, not its data or its training configuration."""
        return self.change_network is not None or self.finish_network is not None

    def apply(
        self, data: Samples, spec: Spec, budget: CpuBudget | None = None
    ) -> tuple[Samples, Spec]:
        """Return changed training samples and configuration; unchanged ones for a fix of the network.

        Args:
            data: Training samples.
            spec: Training configuration.
            budget: CPU seconds for what the change of the data needs; None for no limit.

        Raises:
            InvalidInput: The fix changes nothing here.
        """
        if self.change_spec is None:
            new_spec = spec
        else:
            new_spec = self.change_spec(spec)
        if self.change_data is None:
            new_data = data
        else:
            new_data = self.change_data(data, budget or CpuBudget(None))
        if self.scale_inputs is not None:
            new_data = replace(new_data, inputs=self.scale_inputs(data)(new_data.inputs))
        if new_spec is None or (new_data is data and new_spec == spec and not self.changes_network):
            raise InvalidInput(f"The fix {self.name!r} changes nothing here. Choose another one.")
        return new_data, new_spec

    def map_inputs(self, train: Samples, inputs: Any) -> Any:
        """Return new inputs as a network that was trained on the changed samples needs them.

        Args:
            train: Training samples before the change.
            inputs: New inputs [n, ...], a tensor, array, list or frame, of which a tensor is returned; data with
                targets, of which Samples are returned.

        Raises:
            InvalidInput: They lack columns of the training samples, or have others.
        """
        if self.scale_inputs is None:
            return inputs
        scale = self.scale_inputs(train)
        if isinstance(inputs, list):
            with contextlib.suppress(ValueError):  # a list [x, y] is no array
                inputs = numpy.asarray(inputs)
        is_array = isinstance(inputs, numpy.ndarray) and inputs.dtype.kind in "biuf"
        if is_array or isinstance(inputs, Tensor):
            return scale(torch.as_tensor(inputs))
        new = as_second(inputs, train, "inputs", has_network=True)
        scaled = scale(new.inputs)
        if new.targets is None and not isinstance(inputs, Samples):
            return scaled
        return replace(new, inputs=scaled)


def _scaled(name: str, factor: float) -> Callable[[Spec], Spec | None]:
    def change(spec: Spec) -> Spec | None:
        value = get_setting(spec, name)
        if not value:
            return None
        is_count = name in ("epochs", "batch_size", "width")
        return with_setting(
            spec, name, max(1, round(value * factor)) if is_count else value * factor
        )

    return change


def _more_decay(spec: Spec) -> Spec | None:
    value = get_setting(spec, "weight_decay")
    if value is None:
        return None
    # where there is none, the middle of the grid of Zhang et al. 2017
    return with_setting(spec, "weight_decay", 5 * value if value else 5e-3)


def _larger_batches(spec: Spec) -> Spec | None:
    value = get_setting(spec, "batch_size")
    if value is None or value >= 16:
        return None
    return with_setting(spec, "batch_size", 16 * max(1, int(value) // 8))


def take(data: Samples, indices: Tensor) -> Samples:
    """Return the samples at `indices`, with their row numbers if the data have any.

    Args:
        data: The samples.
        indices: Indices of samples, in any order.
    """
    return data.subset(indices, keeps_rows=data.rows is not None)


# Suspected labels of samples: two fixes ask for those of the same samples, and the search is most of their cost.
_SUSPECTED: MutableMapping[Samples, tuple[Tensor, Tensor]] = WeakIdKeyDictionary()


def _suspected(data: Samples, budget: CpuBudget) -> tuple[Tensor, Tensor]:
    """Return indices of suspected labels, and the suggested labels."""
    if data not in _SUSPECTED:
        _SUSPECTED[data] = _search_suspected(data, budget)
    return _SUSPECTED[data]


def _search_suspected(data: Samples, budget: CpuBudget) -> tuple[Tensor, Tensor]:
    none = torch.empty(0, dtype=torch.long)
    if data.kind not in ("classification", "regression"):
        return none, none
    try:
        # indices of these samples, not row numbers
        issues = find_issues_of_samples(
            replace(data, rows=None, n_rows=0), rows=(), pairs=(), seed=0, budget=budget
        )
    except GapscopeError:
        return none, none
    n = issues.n_flagged
    if issues.flagged is None and data.is_classification:
        # leave-one-out margin of labels that are contradicted, where no rate of label errors can be estimated: a
        # half of the range, chosen on the data sets of the planted faults.
        n = int((issues.margin < -0.5).sum())
    indices = issues.indices[:n]
    suggested = issues.suggested_labels[:n]
    differs = suggested != issues.given_labels[:n]
    return indices[differs], suggested[differs]


def _drop_suspected(data: Samples, budget: CpuBudget) -> Samples:
    keep = torch.ones(len(data), dtype=torch.bool)
    keep[_suspected(data, budget)[0]] = False
    if bool(keep.all()):
        return data
    return take(data, torch.nonzero(keep).flatten())


def _correct_suspected(data: Samples, budget: CpuBudget) -> Samples:
    indices, suggested = _suspected(data, budget)
    if not len(indices):
        return data
    labels = data.y.clone()
    labels[indices] = suggested.reshape(labels[indices].shape).to(labels)
    return replace(data, targets=labels)


def _drop_duplicates(data: Samples, budget: CpuBudget) -> Samples:
    keep = torch.ones(len(data), dtype=torch.bool)
    keep[Copies(data, None, budget.remaining).repeats] = False
    if bool(keep.all()):
        return data
    return take(data, torch.nonzero(keep).flatten())


def _balance(data: Samples, budget: CpuBudget) -> Samples:
    """Repeat samples of rare classes until all classes have the same number."""
    if not data.is_classification:
        return data
    classes, counts = data.y.unique(return_counts=True)
    most = int(counts.max())
    if int(counts.min()) == most:
        return data
    rows: list[Tensor] = []
    for label in classes:
        members = torch.nonzero(data.y == label).flatten()
        rows.append(members.repeat(-(-most // len(members)))[:most])
    return take(data, torch.cat(rows))


# spread relative to the typical one: of columns of single precision, less is their rounding
MIN_SPREAD = 1e-6


def find_varying(spread: Tensor, mean: Tensor) -> Tensor:
    """Return which columns vary by more than the rounding of numbers: the others count as constant.

    Args:
        spread: Standard deviations, of any shape.
        mean: Means, of the same shape.
    """
    varying = spread > 1e-12 * (1 + mean.abs())
    if not bool(varying.any()):
        return varying
    return varying & (spread > MIN_SPREAD * spread[varying].median())


def _standardize(data: Samples) -> Callable[[Tensor], Tensor]:
    """Return the standardization of tables per column, of images per channel."""
    x = data.inputs
    if not x.is_floating_point() or not data.has_one_input:
        raise InvalidInput("Standardization needs one floating point input.")
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, keepdim=True)
    spread = x.std(axes, keepdim=True, correction=0)
    spread = torch.where(find_varying(spread, mean), spread, torch.ones_like(spread))
    if bool((mean.abs() < 0.1 * spread).all()) and bool(((spread > 0.8) & (spread < 1.25)).all()):
        raise InvalidInput("The inputs are standardized already.")
    shape = x.shape[1:]

    def scale(inputs: Tensor) -> Tensor:
        if inputs.ndim != x.ndim or inputs.shape[1] != shape[0]:
            raise InvalidInput(
                f"Inputs must have the shape of the training inputs, [n, {', '.join(map(str, shape))}]; got "
                f"{list(inputs.shape)}. Pass rows with the same columns, in the same order."
            )
        # whole numbers would round mean and spread
        dtype = inputs.dtype if inputs.is_floating_point() else mean.dtype
        wide = torch.promote_types(dtype, mean.dtype)
        scaled = inputs.to(wide) - mean.to(inputs.device)
        return (scaled / spread.to(inputs.device)).to(dtype)

    return scale


def _is_frozen(network: nn.Module) -> bool:
    return not all(weight.requires_grad for weight in network.parameters())


def _unfreeze(network: nn.Module) -> None:
    for weight in network.parameters():
        weight.requires_grad_(True)


def _batch_norms(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if is_norm_layer(module)]


def _has_batch_norm(network: nn.Module) -> bool:
    return bool(_batch_norms(network))


def _group_norm(network: nn.Module) -> None:
    """Replace batch norm by GroupNorm with the same scale and shift."""
    for name in _batch_norms(network):
        old: Any = network.get_submodule(name)
        channels = old.num_features
        # 16 channels per group, as in Wu and He 2018, table 3
        groups = math.gcd(channels, max(1, channels // 16))
        new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
        if old.affine:
            new.load_state_dict({"weight": old.weight.detach(), "bias": old.bias.detach()})
            new.to(old.weight)
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, new)


def _refresh(network: nn.Module, data: Samples) -> None:
    """Take the running statistics of batch norm from the training samples."""
    prepared = ready(network, data)
    names = [name for name, item in named_modules(prepared.network).items() if has_statistics(item)]
    refresh_population(prepared.network, prepared.samples.inputs, layers=names)


def is_advised(name: str, fixes: Sequence[str]) -> bool:
    """Return whether fixes hold one of this name, or the same by another factor: "learning rate x 3" and "x 1000".

    Args:
        name: Name of a fix.
        fixes: Names of fixes, as of `Finding.fixes`.
    """
    return any(name.rstrip("0123456789") == fix.rstrip("0123456789") for fix in fixes)


# Tried first where the unchanged training learns nothing: its learning rate may be wrong by factors.
OF_CHANCE = (
    "learning rate x 10",
    "learning rate / 10",
    "learning rate x 100",
    "learning rate / 100",
    "standardize inputs",
    "learning rate x 1000",
)
# In the order in which they are tried after those of the findings.
FIXES: dict[str, Fix] = {
    fix.name: fix
    for fix in (
        Fix("learning rate / 3", change_spec=_scaled("learning_rate", 1 / 3)),
        Fix("learning rate x 3", change_spec=_scaled("learning_rate", 3.0)),
        Fix("weight decay", change_spec=_more_decay),
        Fix("standardize inputs", scale_inputs=_standardize),
        Fix("drop flagged labels", change_data=_drop_suspected),
        Fix("twice the epochs", change_spec=_scaled("epochs", 2.0)),
        Fix("larger batches", change_spec=_larger_batches),
        Fix("less weight decay", change_spec=_scaled("weight_decay", 0.1)),
        Fix("half the epochs", change_spec=_scaled("epochs", 0.5)),
        Fix("correct flagged labels", change_data=_correct_suspected),
        Fix("balance classes", change_data=_balance),
        Fix("drop duplicates", change_data=_drop_duplicates),
        Fix("refresh batch norm statistics", finish_network=_refresh, needs=_has_batch_norm),
        Fix("GroupNorm", change_network=_group_norm, needs=_has_batch_norm),
        Fix("unfreeze", change_network=_unfreeze, needs=_is_frozen),
        Fix("learning rate / 10", change_spec=_scaled("learning_rate", 0.1)),
        Fix("wider", change_spec=_scaled("width", 2.0)),
        Fix("learning rate x 10", change_spec=_scaled("learning_rate", 10.0), is_far=True),
        Fix("learning rate x 100", change_spec=_scaled("learning_rate", 100.0), is_far=True),
        Fix("learning rate x 1000", change_spec=_scaled("learning_rate", 1000.0), is_far=True),
        Fix("learning rate / 100", change_spec=_scaled("learning_rate", 0.01), is_far=True),
    )
}
