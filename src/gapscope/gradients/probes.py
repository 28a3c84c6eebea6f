r"""Random probes v with $E[s\, v v^\top] = I$: one backward pass in place of C.

For the Jacobian $J_n$ [C, P] of one sample, $E\, s \lVert J_n^\top v_n \rVert^2 = \mathrm{tr}\, J_n J_n^\top$.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import check_choice

KINDS = ("class", "rademacher", "batch_sum")


def stratified_classes(n: int, n_outputs: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return one random output for each of n samples, all outputs equally often (up to one).

    A random order is dealt to the outputs in turn, beginning with a random output; so each sample gets each output
    with the same probability, whatever n is.
    """
    device = generator.device
    first = torch.randint(n_outputs, (1,), generator=generator, device=device)
    return (torch.randperm(n, generator=generator, device=device) + first) % n_outputs


def draw_probe(kind: str, n: int, n_outputs: int, generator: torch.Generator) -> Float[Tensor, "n k"]:
    """Sample one probe [n, K], float32 (`probe_scale` gives its scale s).

    Args:
        kind: "class" (a one for one output per sample, stratified over the batch), "rademacher" or "batch_sum" (random
            signs; the two differ in how the probe is used).
    """
    check_choice("probe", kind, KINDS)
    if kind == "class":
        classes = stratified_classes(n, n_outputs, generator)
        return torch.zeros(n, n_outputs, device=classes.device).scatter_(1, classes[:, None], 1.0)
    return torch.randint(0, 2, (n, n_outputs), generator=generator, device=generator.device).mul_(2).sub_(1).float()


def probe_scale(kind: str, n_outputs: int) -> int:
    """Return the scale s of a probe: the number of outputs for "class", else 1."""
    return n_outputs if kind == "class" else 1


class ProbeSource:
    """Generator of probes that never touches the global random state.

    Attributes:
        kind: See `draw_probe`.
        seed: Seed of the generator; with several processes the rank is added, so that their probes differ.
    """

    def __init__(self, kind: str, seed: int = 0) -> None:
        check_choice("probe", kind, KINDS)
        self.kind = kind
        self.seed = seed
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        """The generator (made at its first use)."""
        if self._generator is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if distributed else 0
            self._generator = torch.Generator().manual_seed(self.seed + rank)
        return self._generator

    def draw(self, outputs: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Sample a probe for these outputs, on their device, in their dtype (at least float32)."""
        probe = draw_probe(self.kind, outputs.shape[0], outputs.shape[1], self.generator)
        dtype = outputs.dtype if outputs.dtype == torch.float64 else torch.float32
        return probe.to(outputs.device, dtype, non_blocking=True)

    def state_dict(self) -> dict[str, Tensor]:
        """State of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where the saved source was."""
        self.generator.set_state(state["generator"])
