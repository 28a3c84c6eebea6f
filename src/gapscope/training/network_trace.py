"""Traces of networks: whether a recording is of the network of the recording before."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from gapscope.training.recordings import warn_or_print

# Weight matrices that are read, and values of each: some microseconds per recording.
MATRICES, VALUES = 8, 64
# Correlation of the weights of one network at two recordings, by judgment: that of other initial weights is 0, with a
# standard error of 0.04 for 8 matrices. With fewer values than one matrix gives, nothing is said.
MIN_CORRELATION = 0.2
# Training that makes weights so many times larger leaves a correlation of about a third with the initial ones, and one
# of 0 at more: such matrices tell nothing.
MAX_GROWTH = 3


@dataclass(frozen=True)
class NetworkTrace:
    """What is kept of a network to recognize it, also after a copy, a wrapper or a checkpoint.

    Attributes:
        n_weights: Number of values of its parameters.
        matrices: Scale and some standardized values of its largest weight matrices, by shape and number among those of
            this shape.
        parameters: Weak references to the parameters.
    """

    n_weights: int
    matrices: Mapping[str, tuple[float, Float[Tensor, " m"]]]
    parameters: tuple[Any, ...] = ()

    def difference(self, later: NetworkTrace) -> str:
        """Return why a later trace is that of another network; empty if it is not, or if this cannot be told.

        Matrices of the same shape are compared, since layers may have been added, replaced or wrapped.

        Args:
            later: Trace of the network of a later recording.
        """
        if self._ids & later._ids or not self.matrices or not later.matrices:
            return ""
        common = [key for key in self.matrices if key in later.matrices]
        if not common and self.n_weights == later.n_weights:
            return "its weights have other shapes"
        if not common:
            return f"it has {later.n_weights:,} weights, before {self.n_weights:,}"
        pairs = [(self.matrices[key], later.matrices[key]) for key in common]
        told = [(a, b) for (before, a), (after, b) in pairs if not after > MAX_GROWTH * before]
        if not told:
            return ""
        first, second = (torch.cat(values) for values in zip(*told, strict=True))
        norms = first.norm() * second.norm()
        if len(first) < VALUES or float(norms) == 0:
            return ""
        correlation = float(first @ second / norms)
        if correlation < MIN_CORRELATION:
            return f"its weights correlate with those before by {correlation:.2f}"
        # also of weights that are not finite
        return ""

    @property
    def _ids(self) -> set[int]:
        return {id(weight) for each in self.parameters if (weight := each()) is not None}

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: another process has other parameters."""
        return {**vars(self), "parameters": ()}

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values for `from_state`."""
        matrices = {key: [scale, values.tolist()] for key, (scale, values) in self.matrices.items()}
        return {"n_weights": self.n_weights, "matrices": matrices}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NetworkTrace:
        """Return the trace whose `state_dict` this is.

        Args:
            state: What `state_dict` returned; that of an older version has no matrices.
        """
        matrices = {
            str(key): (float(scale), torch.tensor(values))
            for key, (scale, values) in state.get("matrices", {}).items()
        }
        return cls(int(state["n_weights"]), matrices)


def trace_of(network: nn.Module) -> NetworkTrace:
    """Return the trace of a network, with or without wrappers.

    Args:
        network: The network.
    """
    weights = [w for w in network.parameters() if not isinstance(w, UninitializedParameter)]
    matrices: dict[str, Tensor] = {}
    counts: Counter[torch.Size] = Counter()
    for weight in weights:
        if weight.ndim > 1 and weight.numel() > 1:
            key = "x".join(map(str, weight.shape))
            matrices[f"{key} {counts[weight.shape]}"] = weight.detach()
            counts[weight.shape] += 1
    largest = sorted(matrices, key=lambda key: (-matrices[key].numel(), key))[:MATRICES]
    return NetworkTrace(
        sum(weight.numel() for weight in weights),
        {key: _standardized(matrices[key]) for key in largest},
        tuple(weakref.ref(weight) for weight in weights),
    )


def _standardized(matrix: Tensor) -> tuple[float, Tensor]:
    """Return the standard deviation of evenly spaced values of a matrix, and the values, standardized.

    Those of a constant matrix are 0.
    """
    flat = matrix.reshape(-1)
    values = flat[:: max(1, len(flat) // VALUES)][:VALUES].float().cpu()
    values = values - values.mean()
    scale = values.std()
    return float(scale), values / scale.clamp_min(torch.finfo(values.dtype).tiny)


class FollowedNetwork:
    """The network of a monitor, compared with that of the recording before.

    Attributes:
        other: Which recording is the first of another network, and how it differs; empty without one.
    """

    def __init__(self, trace: NetworkTrace | None = None, other: str = "") -> None:
        self._trace = trace
        self.other = other

    def begin(self, network: nn.Module) -> None:
        """Keep the trace of the network before training.

        Args:
            network: The network.
        """
        self._trace = trace_of(network)

    def compare(self, network: nn.Module, epoch: int) -> None:
        """Compare a network with that of the recording before, and warn of the first other one.

        Args:
            network: The network of this recording.
            epoch: Its epoch.
        """
        trace = trace_of(network)
        reason = "" if self._trace is None else self._trace.difference(trace)
        self._trace = trace
        if not reason or self.other:
            return
        self.other = f"epoch {epoch} is of another network than before: {reason}"
        warn_or_print(
            f"{self.other[0].upper()}{self.other[1:]}. Its numbers stand beside those of the network before, and "
            "alarms compare both. Use one monitor per network."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values for `from_state`."""
        trace = None if self._trace is None else self._trace.state_dict()
        return {"trace": trace, "other": self.other}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FollowedNetwork:
        """Return the followed network whose `state_dict` this is.

        Args:
            state: What `state_dict` returned; empty for that of a monitor that kept none.
        """
        trace = state.get("trace")
        return cls(
            None if trace is None else NetworkTrace.from_state(trace), str(state.get("other", ""))
        )
