"""The fixed random part of the training data that a monitor measures."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.user_data import Rows, check_length
from gapscope.inspection.outputs import inspection_mode


def choose_samples(
    data: Any, n_samples: int, seed: int, required: torch.Tensor | None
) -> tuple[Samples, torch.Tensor, torch.Tensor]:
    """Return a random part of the data, its indices and its rows in the data, without reading other samples.

    Args:
        data: Training data in any form.
        n_samples: Number of samples.
        seed: Seed of the choice.
        required: Indices of samples that must be among them; None for none.

    Raises:
        InvalidInput: A required sample is not among the data, or samples have no label where all are needed.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "monitored samples"))

    def choose(n: int) -> torch.Tensor:
        if required is not None and int(required.max()) >= n:
            raise InvalidInput(
                f"Got {n} samples; this alarm needs sample {int(required.max())}. Pass all training samples."
            )
        subset = torch.randperm(n, generator=generator)[:n_samples]
        return (
            (subset if required is None else torch.cat([subset, required]).unique()).sort().values
        )

    indices = None
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        check_length(data)
        indices = choose(len(data))  # type: ignore[arg-type]
        data = Rows(data, indices.tolist())
    # restores the global random states, which loaders and random augmentation change
    with inspection_mode(nn.Identity()):
        # a stream is read only as far as necessary: it may not end
        is_stream = isinstance(getattr(data, "dataset", data), IterableDataset) and required is None
        samples = as_samples(data, at_most=n_samples if is_stream else None)
    read = torch.arange(len(samples)) if samples.rows is None else samples.rows
    if indices is not None:
        rows = indices[read]
    else:
        indices = torch.arange(len(samples))
        if len(samples) > n_samples:
            indices = choose(len(samples))
            samples = samples.subset(indices)
        rows = read[indices]
    if required is not None and len(samples) != len(indices):
        raise InvalidInput(
            f"Got {len(indices) - len(samples)} samples without a label; this alarm needs all labels. Drop these "
            "samples first."
        )
    return samples, indices, rows
