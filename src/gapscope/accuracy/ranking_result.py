"""Candidates of a ranking of networks, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapscope.accuracy.loo_rows import with_new_head
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples
from gapscope.base.specs import NetworkSpec
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
from gapscope.inspection.copies import copy_network
from gapscope.networks.factory import build_network
from gapscope.networks.initialization import initialize
from gapscope.results.result import RowResult

if TYPE_CHECKING:
    import pandas


Candidate = str | NetworkSpec | nn.Module | Callable[[], nn.Module] | tuple[Any, Any]


def name_candidates(candidates: Mapping[str, Candidate] | Sequence[Candidate]) -> dict[str, Any]:
    """Return name -> candidate, naming those of a list by registry name or class."""
    if is_mapping(candidates):
        named = {str(name): candidate for name, candidate in candidates.items()}
    elif is_list_or_tuple(candidates):
        named = {}
        for candidate in candidates:
            if isinstance(candidate, tuple):
                network = candidate[0]
            else:
                network = candidate
            if isinstance(network, str):
                base = network
            else:
                base = getattr(network, "name", None)
            if not isinstance(base, str):
                base = getattr(network, "__name__", type(network).__name__)
            number = 2
            name = base
            while name in named:
                name = f"{base} {number}"
                number = number + 1
            named[name] = candidate
    else:
        raise InvalidInput(
            f"candidates must be a mapping from names to networks, or a list; got {type(candidates).__name__}. Pass "
            "{name: network}."
        )
    if not named:
        raise InvalidInput(
            "candidates must hold one network or more; got none. Pass {name: network}."
        )
    return named


def instantiate(name: str, candidate: Any, samples: Samples, seed: int) -> NetworkSpec | nn.Module:
    """Return the spec or module of a candidate (modules are not changed)."""
    if isinstance(candidate, tuple):
        if len(candidate) != 2:
            raise InvalidInput(
                f"A candidate pair must be (network, head); {name!r} holds {len(candidate)} values. Pass two."
            )
        network = instantiate(name, candidate[0], samples, seed)
        if isinstance(network, NetworkSpec):
            raise InvalidInput(
                f"A head replaces the last layer of a module; {name!r} is a spec. Pass the spec alone."
            )
        if samples.targets is not None and samples.is_classification:
            n_classes = int(samples.targets.max()) + 1
        else:
            n_classes = None
        return with_new_head(network, samples, candidate[1], n_classes, seed)
    if isinstance(candidate, str):
        return NetworkSpec(name=candidate)
    if isinstance(candidate, NetworkSpec | nn.Module) or not callable(candidate):
        network = candidate
    else:
        network = candidate()
    if not isinstance(network, NetworkSpec | nn.Module):
        raise InvalidInput(
            f"Candidates must be names, NetworkSpecs, modules, functions without arguments that return one, or pairs "
            f"(network, head); {name!r} is {type(network).__name__}. Pass a module."
        )
    return network


def build_untrained(
    candidate: NetworkSpec | nn.Module,
    samples: Samples,
    n_outputs: int | None,
    initialization: str,
    seed: int,
) -> nn.Module:
    """Return a new network of a spec, or a reinitialized copy of a module."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(candidate, nn.Module):
        network = copy_network(candidate)
        initialize(network, initialization, generator)
        return network
    if n_outputs is None:
        if samples.targets is None:
            raise InvalidInput(
                "n_outputs is needed for data without targets; got inputs alone. Pass n_outputs."
            )
        if samples.is_classification:
            n_outputs = int(samples.targets.max()) + 1
        else:
            n_outputs = samples.targets.shape[1]
    check_range("n_outputs", n_outputs, 1)
    return build_network(
        candidate.name,
        input_shape=tuple(samples.inputs.shape[1:]),
        n_outputs=n_outputs,
        initialization=initialization,
        generator=generator,
        **candidate.options,
    )


_SUMMARY = {
    "expected_accuracy": "forecast",
    "low": "90 % from",
    "high": "to",
    "features_accuracy": "features",
    "ntk_accuracy": "NTK",
    "sensitivity": "S",
    "parameters": "parameters",
    "layers": "layers",
    "tied_with_best": "tied",
}


@dataclass(frozen=True, kw_only=True)
class RankedNetwork:
    """Ranked candidate (for regression the accuracies are R^2, inapplicable values None).

    Attributes:
        name: Name of the candidate.
        expected_accuracy: Forecast in [0, 1], as `forecast_accuracy` combines it.
        low: Lower end of its 90 % interval.
        high: Upper end.
        features_accuracy: Leave-one-out accuracy of the last hidden features, the lower reading.
        ntk_accuracy: Leave-one-out accuracy of the NTK, the upper reading.
        tied_with_best: Whether the interval of the paired difference to the best includes zero, or that of S reaches
            into the smallest.
        sensitivity: Output sensitivity S before training, mean over initializations.
        sensitivity_low: Lower end of its interval.
        sensitivity_high: Upper end.
        parameters: Number of trainable parameters.
        layers: Number of linear and convolutional layers that a forward pass calls.
        rank_by_expected_accuracy: 1 for the largest forecast.
        rank_by_sensitivity: 1 for the smallest S.
        rank_by_size: 1 for the fewest parameters; equal counts share the better rank.
        log_evidence: LogME of the last hidden features, in nats per sample.
        synaptic_flow: Measure `synaptic_flow` of the untrained network.
        jacobian_covariance: Measure `jacobian_covariance` of the untrained network.
        connection_sensitivity: Measure `connection_sensitivity` of the untrained network.
    """

    name: str
    expected_accuracy: float | None
    low: float | None
    high: float | None
    features_accuracy: float | None
    ntk_accuracy: float | None
    tied_with_best: bool
    sensitivity: float | None
    sensitivity_low: float | None
    sensitivity_high: float | None
    parameters: int
    layers: int
    rank_by_expected_accuracy: int | None
    rank_by_sensitivity: int | None
    rank_by_size: int
    log_evidence: float | None
    synaptic_flow: float | None
    jacobian_covariance: float | None
    connection_sensitivity: float | None


class NetworkRanking(RowResult[RankedNetwork]):
    """Networks, the one that is expected best first.

    Attributes:
        rows: One `RankedNetwork` per candidate; the result is the tuple of them.
        attributes: Name -> value of those below.
        by: What the order is by.
        rbf_accuracy: Leave-one-out accuracy of the RBF ridge, which needs no network; None without labels.
        abstained_because: Why the order means nothing, if no method predicts these labels; else empty.
        not_ranked: Name -> why this network could not be ranked.
        notes: Name -> approximations, what was omitted to keep the budget, and whether its weights were resampled,
            because they had fitted the labels; "all networks" -> what holds for all, such as groups of near copies.
        interrupted: Whether Ctrl-C ended it before all candidates were ranked.
    """

    by: str
    rbf_accuracy: float | None
    abstained_because: str
    not_ranked: dict[str, str]
    notes: dict[str, str]
    interrupted: bool

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per network, indexed by name, without empty columns."""
        return super().to_pandas().set_index("name").dropna(axis="columns", how="all")

    @property
    def sentences(self) -> tuple[str, ...]:
        """Ties, the baseline, and networks that are not ranked, one sentence each."""
        lines = list[str]()
        tied = [row.name for row in self if row.tied_with_best]
        if self.abstained_because:
            lines.append(f"Do not use this order: {self.abstained_because}.")
        if len(tied) > 1:
            lines.append(
                f"Tied: {', '.join(tied)}. Their differences are not significant; any of them is a fair choice."
            )
        if self.rbf_accuracy is not None:
            lines.append(f"RBF ridge on the inputs, without a network: {self.rbf_accuracy:.3f}.")
        lines += [f"{name}: {note}" for name, note in self.notes.items()]
        return (
            *lines,
            *(f"{name} is not ranked: {reason}" for name, reason in self.not_ranked.items()),
        )

    def __repr__(self) -> str:
        table = self.to_pandas()
        summary = table[[name for name in _SUMMARY if name in table]].rename(columns=_SUMMARY)
        summary.index.name = None
        return "\n".join([summary.to_string(float_format="{:.3g}".format), *self.sentences])
