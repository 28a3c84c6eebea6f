r"""Paired canaries: an exact test of memorization.

Both samples of a pair come from the same distribution, and one of them, chosen at random, is in the training data. Let
$d_i$ be the loss of the other sample less that of the trained one. A network that has not memorized the trained samples
makes all patterns of the signs of $d_i$ equally likely, given their sizes. So the probability of
$T = \sum_i d_i / \sqrt{\sum_i d_i^2}$ at least as large as observed can be counted. It is at most $e^{-T^2/2}$
(Hoeffding 1963, theorem 2) for every model, data set and optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.containers import LABEL_NAMES
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import make_generator

# Number of pairs up to which all patterns of signs are counted: two halves of 2^16 sums.
MAX_COUNTED = 32


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """Return all 2^m sums of the values with signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def paired_p_value(differences: Sequence[float]) -> float:
    r"""Return the exact p-value of the sum of differences against random signs (one-sided).

    Exact for up to 32 pairs (all $2^m$ patterns are counted). Beyond, the bound $e^{-T^2/2}$ for T > 0, else 1.

    Args:
        differences: d_i, positive where the trained sample of a pair has the smaller loss.

    Raises:
        InvalidInput: There is no difference, or one is not finite.

    >>> paired_p_value([1.0, 2.0, 3.0])  # one of eight patterns
    0.125
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"Differences must be finite, one or more; got {list(differences)[:5]}.")
    total = values.sum()
    if len(values) > MAX_COUNTED:
        statistic = total / math.sqrt(float((values**2).sum()) or 1.0)
        return math.exp(-(statistic**2) / 2) if statistic > 0 else 1.0
    half = len(values) // 2
    first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    rounding = 1e-12 * np.abs(values).sum()
    as_large = len(second) - np.searchsorted(second, total - rounding - first)
    return float(as_large.sum()) / 2.0 ** len(values)


class _WithCanaries(Dataset):
    """Data set with some samples replaced and others appended."""

    def __init__(self, dataset: Any, replaced: Mapping[int, Any], added: Sequence[Any]) -> None:
        self.dataset, self.replaced, self.added = dataset, replaced, added

    def __len__(self) -> int:
        return len(self.dataset) + len(self.added)

    def __getitem__(self, index: int) -> Any:
        index = int(index)
        if index >= len(self.dataset):
            return self.added[index - len(self.dataset)]
        return self.replaced.get(index, self.dataset[index])


def _label_name(sample: Mapping[str, Any]) -> str:
    name = next((name for name in LABEL_NAMES if name in sample), None)
    if name is None:
        raise InvalidInput(f"Samples must be mappings with labels; got the names {', '.join(sample)}. Add 'labels'.")
    return name


class PairedCanaries:
    """Pairs of canaries of which one is in the training data, from `of_labels` or `of_tokens`.

    Args:
        dataset: Training data, with the trained canaries.
        trained: The canary of each pair that is in the training data.
        others: The other canary of each pair.
    """

    def __init__(self, dataset: Dataset, trained: Sequence[Mapping[str, Any]], others: Sequence[Any]) -> None:
        self.dataset, self.trained, self.others = dataset, list(trained), list(others)

    def __len__(self) -> int:
        return len(self.trained)

    @classmethod
    def of_labels(cls, dataset: Any, *, n_classes: int, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Return canaries that are samples with one of two random classes as label.

        With three classes or more both labels are errors; with two, about half of the canaries keep their label.

        Args:
            dataset: Mappings with a class label (`labels` or `label`).
            n_classes: Number of classes.
            number: Number of canaries; their own labels are not trained on.
            seed: Seed of the samples and classes.

        Raises:
            InvalidInput: There are fewer samples or classes than needed.
        """
        check_range("number", number, 2, len(dataset) // 2)
        check_range("n_classes", n_classes, 2)
        random = make_generator(seed, "paired canaries")
        replaced, others = {}, []
        for position in torch.randperm(len(dataset), generator=random)[:number].tolist():
            sample = dataset[position]
            name = _label_name(sample)
            given = int(sample[name])
            classes = [item for item in range(n_classes) if item != given or n_classes == 2]
            pair = [classes[item] for item in torch.randperm(len(classes), generator=random)[:2].tolist()]
            kind = torch.as_tensor(sample[name])
            replaced[position] = {**sample, name: torch.full_like(kind, pair[0])}
            others.append({**sample, name: torch.full_like(kind, pair[1])})
        return cls(_WithCanaries(dataset, replaced, []), list(replaced.values()), others)

    @classmethod
    def of_tokens(cls, dataset: Any, *, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Return canaries that are random token sequences, appended to a language model's data.

        They are as long as the first sample, and their tokens occur in the data.

        Args:
            dataset: Mappings with `input_ids` and `labels` of the same shape.
            number: Number of pairs.

        Raises:
            InvalidInput: The samples are not token sequences with labels.
        """
        check_range("number", number, 2)
        sample = dataset[0]
        name, ids = _label_name(sample), torch.as_tensor(sample.get("input_ids", ()))
        if ids.ndim != 1 or torch.as_tensor(sample[name]).shape != ids.shape:
            raise InvalidInput("of_tokens needs samples with input_ids and labels of one shape [length]; got others.")
        seen = [torch.as_tensor(dataset[i]["input_ids"])[torch.as_tensor(dataset[i][name]) >= 0]
                for i in range(min(len(dataset), 256))]  # fmt: skip
        tokens, random = torch.cat(seen).unique(), make_generator(seed, "paired canaries")

        def random_sequence() -> dict[str, Any]:
            row = tokens[torch.randint(len(tokens), ids.shape, generator=random)]
            extra = {"attention_mask": torch.ones_like(row)} if "attention_mask" in sample else {}
            return {**extra, "input_ids": row, name: row.clone()}

        pairs = [(random_sequence(), random_sequence()) for _ in range(number)]
        trained = [pair[0] for pair in pairs]
        return cls(_WithCanaries(dataset, {}, trained), trained, [pair[1] for pair in pairs])


def differences(of_trained: Tensor, of_others: Tensor) -> list[float]:
    """Return the losses of the others less those of the trained canaries, one per pair."""
    return (of_others.double() - of_trained.double()).tolist()
