r"""Neural tangent kernel of large networks, estimated from random projections of per-sample gradients.

For random P with $\mathrm{E}\, P^\top P = I$ the products $\langle P J_n, P J_m \rangle$ estimate $\langle J_n, J_m
\rangle$ without bias. Every parameter has a projection of its own, so that no noise arises between parameters:

    sum of outer products g_t a_t^T   left [r, O], right [s, K] of random signs: sum_t (left g_t) (right a_t)^T
    at most q = 256 entries           exact, as they are
    any other Jacobian [p]            random signs, and the sum of the entries that fall into each of q random buckets
    one position per sample           exact, from the factors: (a_n . a_m) (g_n . g_m)

The gradients of a chunk of samples are projected before those of the next one are computed, and no weight gradient is
formed: in operations, a sample costs one forward pass, and one pass back to the inputs of all layers per output.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import slices
from gapscope.gradients.contributions import (
    Contribution,
    DenseJacobian,
    EmbeddingContribution,
    Key,
    OuterProductFactors,
)
from gapscope.gradients.kernel import pass_bytes
from gapscope.gradients.products import multiply
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.gradients.verification import verify
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.outputs import prepare_inputs

# Rows of signs on either side of an outer product, and their product: as many numbers represent other Jacobians.
# Chosen for leave-one-out accuracy near the exact kernel's (results/pretrained/ntk_projected.json).
SIDE = 16
PROJECTIONS = SIDE**2


@dataclass
class _Projected:
    """Projections [n, q] and exact factors of the gradients of some samples."""

    values: Float[Tensor, "n q"]
    factors: dict[Key, tuple[Tensor, Tensor]]  # a [n, K] and g [n, C O] per weight

    def kernel(self, other: _Projected) -> Float[Tensor, "n m"]:
        """Return the estimated inner products, summed over outputs."""
        result = multiply(self.values, other.values.T)
        for key, (inputs, gradients) in self.factors.items():
            of_inputs, of_gradients = other.factors[key]
            # <g a^T, g' a'^T> = (a . a') (g . g')
            result += (inputs @ of_inputs.T) * (gradients @ of_gradients.T)
        return result

    def without(self, n: int) -> _Projected:
        """Return these without the first n samples."""
        return _Projected(
            self.values[n:],
            {key: (inputs[n:], g[n:]) for key, (inputs, g) in self.factors.items()},
        )


def _concatenate(parts: list[_Projected]) -> _Projected:
    keys = parts[0].factors
    return _Projected(
        torch.cat([part.values for part in parts]),
        {
            key: (
                torch.cat([part.factors[key][0] for part in parts]),
                torch.cat([part.factors[key][1] for part in parts]),
            )
            for key in keys
        },
    )


@dataclass
class _Projection:
    """The random projections of a network's parameters."""

    seed: int
    names: Mapping[int, str]  # of parameters, by identity
    _signs: dict[Hashable, Tensor] = field(default_factory=dict)
    _forms: dict[Key, type[Contribution]] | None = None

    def __call__(
        self, parts: Mapping[Key, Contribution], outputs: Float[Tensor, "n c"]
    ) -> _Projected:
        """Project the contributions of a chunk of samples with these outputs."""
        forms = {key: type(part) for key, part in parts.items()}
        if self._forms is None:
            self._forms = forms
        elif forms != self._forms:
            raise NotMeasurable(
                "The NTK of a large network needs samples that use the weights alike; these use them differently. "
                "Pass samples of one form, or use the features, gs.embed(network, data)."
            )
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        values = [torch.empty(len(outputs), 0, dtype=dtype, device=outputs.device)]
        factors: dict[Key, tuple[Tensor, Tensor]] = {}
        for key in self._forms:  # in one order for all chunks
            part = parts[key]
            if sum(parameter.numel() for parameter in part.parameters) <= PROJECTIONS:
                values += [
                    each.detach().flatten(2).transpose(0, 1).flatten(1) for each in part.dense()
                ]
            elif isinstance(part, OuterProductFactors):
                columns = part.layout.unfold(part.inputs.detach())
                if columns.shape[2] == 1:
                    gradients = part.gradients.detach()[..., 0].transpose(0, 1).flatten(1)
                    factors[key] = columns[..., 0].contiguous(), gradients.contiguous()
                    continue
                signs = self._signs_of(key, "columns", SIDE, columns.shape[1], columns)
                columns = torch.matmul(signs / SIDE**0.5, columns)
                values.append(self._outer(key, part.gradients, columns))
            elif isinstance(part, EmbeddingContribution):
                table = self._signs_of(
                    key, "columns", SIDE, len(part.parameters[0]), part.gradients
                )
                # column t is the row of the identity that position t reads
                columns = table[:, part.rows].transpose(0, 1) / SIDE**0.5
                values.append(self._outer(key, part.gradients, columns))
            else:
                assert isinstance(part, DenseJacobian)
                values.append(self._sketch(key, part.values.detach()))
        return _Projected(torch.cat(values, 1), factors)

    def _outer(
        self,
        key: Key,
        gradients: Float[Tensor, "c n o t"],
        columns: Float[Tensor, "n s t"],
    ) -> Float[Tensor, "n q"]:
        """Return sum_t (left g_t) (right a_t)^T, with other signs for every output."""
        parts: list[Tensor] = []
        for c, gradient in enumerate(gradients.detach()):
            left = self._signs_of(key, f"rows {c}", SIDE, gradient.shape[1], gradient)
            rows = torch.matmul(left / SIDE**0.5, gradient)
            parts.append(torch.bmm(rows, columns.mT).flatten(1))
        return torch.cat(parts, 1)

    def _sketch(self, key: Key, values: Float[Tensor, "c n p"]) -> Float[Tensor, "n q"]:
        """Return sums of entries with random signs over random buckets, others for every output."""
        p = values.shape[2]
        parts: list[Tensor] = []
        for c, jacobian in enumerate(values):
            generator = self._generator(key, f"buckets {c}")
            buckets = torch.randint(PROJECTIONS, (p,), generator=generator).to(values.device)
            signs = self._signs_of(key, f"signs {c}", 1, p, values)
            sums = values.new_zeros(len(jacobian), PROJECTIONS)
            parts.append(sums.index_add_(1, buckets, jacobian * signs))
        return torch.cat(parts, 1)

    def _generator(self, key: Key, purpose: str) -> torch.Generator:
        names = ", ".join(self.names[parameter] for parameter in key)
        return torch.Generator().manual_seed(derive_seed(self.seed, f"{purpose} of {names}"))

    def _signs_of(self, key: Key, purpose: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """Return random signs [rows, columns], the same in every call."""
        if (key, purpose) not in self._signs:
            generator = self._generator(key, purpose)
            signs = torch.randint(0, 2, (rows, columns), generator=generator) * 2 - 1
            self._signs[key, purpose] = signs.to(like)
        return self._signs[key, purpose]


def projected_kernel(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    landmarks: Tensor | None,
    *,
    seed: int,
    chunk_size: int | None,
) -> Float[Tensor, "n m"]:
    """Return an unbiased estimate of the traced kernel between samples and landmarks.

    Args:
        network: The network, in the mode in which it is measured.
        x: Inputs.
        landmarks: Indices of the samples of the columns; None for all.
        seed: Seed of the projections.
        chunk_size: Samples per pass; None: as many as fit into 1 GiB.
    """
    x = prepare_inputs(network, x)
    tape, outputs = record_forward(network, x[:1])
    if chunk_size is None:
        # a pass and its derivatives: about 8 samples of EfficientNet-Lite0 at 160 pixels, which take 0.077 CPU
        # seconds each; in passes of 4 samples 0.089, of 24 samples 0.079 and 1.6 GB more.
        bytes_at_most = memory_budget(x.device, 2**30)
        chunk_size = max(1, bytes_at_most // pass_bytes(tape, outputs))
    projection = _Projection(
        seed, {id(parameter): name for name, parameter in tape.parameters.items()}
    )
    del tape, outputs
    size = min(chunk_size, len(x) if landmarks is None else len(landmarks))
    # of passes that use the weights alike; all have the same weights and the same number of samples
    routings: dict[Hashable, tuple[frozenset[int], frozenset[int], frozenset[int]]] = {}

    def project(part: Tensor) -> _Projected:
        tape, outputs = record_forward(network, part)
        pattern = None if outputs.grad_fn is None else tape.pattern(outputs)
        if pattern not in routings:
            verify(tape, outputs)
            first = next(iter(routings.values()), tape.routing)
            whole_network, per_sample, shared = tape.routing
            # what bypasses the rules in the first pass does so in all, so that contributions have one form
            routings[pattern] = whole_network | first[0], per_sample | first[1], shared
        tape.route(*routings[pattern])
        return projection(tape.contributions(outputs, one_hot_cotangents(outputs)), outputs)

    def chunks(samples: Tensor) -> Iterator[_Projected]:
        for rows in slices(len(samples), size):
            # the last chunk begins earlier, so that all have one size
            start = min(rows.start, len(samples) - size)
            yield project(samples[start : start + size]).without(rows.start - start)

    columns = _concatenate(list(chunks(x if landmarks is None else x[landmarks])))
    if landmarks is None:
        return columns.kernel(columns)
    return torch.cat([part.kernel(columns) for part in chunks(x)])
