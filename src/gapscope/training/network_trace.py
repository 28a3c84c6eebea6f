"""Traces of networks: whether a recording is of the network of the recording before."""

from __future__ import annotations

import hashlib
import weakref
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


@dataclass(frozen=True)
class NetworkTrace:
    """What is kept of a network to recognize it, also after a copy, a wrapper or a checkpoint.

    Attributes:
        shapes: Hash of the shapes of its parameters, in their order.
        n_weights: Number of their values.
        values: Some values of its weight matrices, standardized.
        parameters: Weak references to the parameters.
    """

    shapes: str
    n_weights: int
    values: Float[Tensor, " m"]
    parameters: tuple[Any, ...] = ()

    def difference(self, later: NetworkTrace) -> str:
        """Return why a later trace is that of another network; empty if it is not, or if this cannot be told.

        Args:
            later: Trace of the network of a later recording.
        """
        if self._ids & later._ids:
            return ""
        if self.shapes != later.shapes:
            if self.n_weights == later.n_weights:
                return "its weights have other shapes"
            return f"it has {later.n_weights:,} weights, before {self.n_weights:,}"
        norms = self.values.norm() * later.values.norm()
        if len(self.values) < VALUES or float(norms) == 0:
            return ""
        correlation = float(self.values @ later.values / norms)
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
        return {
            "shapes": self.shapes,
            "n_weights": self.n_weights,
            "values": self.values.tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NetworkTrace:
        """Return the trace whose `state_dict` this is.

        Args:
            state: What `state_dict` returned.
        """
        return cls(str(state["shapes"]), int(state["n_weights"]), torch.tensor(state["values"]))


def trace_of(network: nn.Module) -> NetworkTrace:
    """Return the trace of a network, with or without wrappers.

    Args:
        network: The network.
    """
    weights = [w for w in network.parameters() if not isinstance(w, UninitializedParameter)]
    shapes = hashlib.sha256(str([list(weight.shape) for weight in weights]).encode()).hexdigest()
    matrices = [weight.detach() for weight in weights if weight.ndim > 1 and weight.numel() > 1]
    step = -(-len(matrices) // MATRICES) or 1
    values = [torch.empty(0), *(_standardized(matrix) for matrix in matrices[::step])]
    return NetworkTrace(
        shapes[:16],
        sum(weight.numel() for weight in weights),
        torch.cat(values),
        tuple(weakref.ref(weight) for weight in weights),
    )


def _standardized(matrix: Tensor) -> Tensor:
    """Return evenly spaced values of a matrix with mean 0 and standard deviation 1; zeros of a constant one."""
    flat = matrix.reshape(-1)
    values = flat[:: max(1, len(flat) // VALUES)][:VALUES].float().cpu()
    values = values - values.mean()
    return values / values.std().clamp_min(torch.finfo(values.dtype).tiny)


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
