"""Readings that `estimate_accuracy` is computed from, from two kernels."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.batch_norm.data_statistics import with_data_statistics
from gapscope.measures.empirical_ntk import empirical_ntk
from gapscope.measures.gradient_neighbours import neighbours_from_kernel
from gapscope.measures.kernel_leave_one_out import kernel_alignment, kernel_leave_one_out, loo_from_kernel
from gapscope.results.progress import progress

MAX_PAIRS = 1000  # samples that are compared with each other at the trained weights


def accuracy_readings(
    network: nn.Module,
    initial_state: Mapping[str, Tensor],
    samples: Samples,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
) -> dict[str, float]:
    """Return leave-one-out scores at the initial weights, neighbours' votes and alignment.

    The names are those that `gs.measure` gives the same numbers, so that a pool's readings fit as well: all of
    `kernel_leave_one_out` at the initial weights, its `alignment`, and for classification `gradient_neighbours`. Where
    there are more than 1,000 samples, the neighbours and the alignment are those of 1,000 drawn at random.

    Raises:
        InvalidInput: There are no targets.
    """
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    with torch.inference_mode(False):
        before = copy.deepcopy(network)
        before.load_state_dict(dict(initial_state))
    before = with_data_statistics(before, samples.inputs)
    pairs = _some(samples)
    assert pairs.targets is not None
    kernels: list[Tensor] = []
    with progress("estimating", 3) as bar:
        for name, one in (("initial", before), ("trained", network)):
            bar.step(f"gradients at the {name} weights")
            kernels.append(empirical_ntk(one, pairs.inputs, outputs="traced", chunk_size=chunk_size))
            bar.advance()
        bar.step("left-out predictions")
        if len(pairs) == len(samples):
            left_out = loo_from_kernel(kernels[0], network, samples.inputs, samples.targets)
        else:
            left_out = kernel_leave_one_out(before, samples.inputs, samples.targets, max_exact=max_exact,
                                            landmarks=landmarks, chunk_size=chunk_size)  # fmt: skip
    found = {f"kernel_leave_one_out.initial.{name}": value for name, value in left_out.scalars().items()}
    if samples.is_classification:
        vote = neighbours_from_kernel(
            kernels[1], network, pairs.inputs, pairs.targets, neighbours=min(20, len(pairs) - 1)
        )
        found |= {f"gradient_neighbours.{name}": value for name, value in vote.scalars().items()}
    return found | {"kernel_leave_one_out.alignment": kernel_alignment(*kernels)}


def _some(samples: Samples) -> Samples:
    if len(samples) <= MAX_PAIRS:
        return samples
    return samples.subset(torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:MAX_PAIRS])
