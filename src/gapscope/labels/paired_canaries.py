r"""Pairs of samples of which a coin put one into the training data: an exact test of memorizing.

Both samples of a pair are drawn alike, and a coin says which is trained on. Whoever has not learned from the trained
ones cannot tell them from the others: given the sizes of the differences $d_i$ = loss of the other - loss of the
trained one, every pattern of their signs is equally likely. So the chance of $T = \sum_i d_i / \sqrt{\sum_i d_i^2}$ as
large as it is can be counted, and is at most $e^{-T^2/2}$ (Hoeffding 1963, theorem 2), whatever model, data and
optimizer are.
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

# pairs up to which all patterns of signs are counted: two halves of 2^16 sums
COUNTED = 32


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """All 2^m sums of the values with signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def paired_p_value(differences: Sequence[float]) -> float:
    r"""Chance that the sum of the differences is as large as it is, if every sign were a coin's.

    Exact for up to 32 pairs (all $2^m$ patterns are counted), else the bound $e^{-T^2/2}$ for T > 0, and 1.

    Args:
        differences: d_i, positive where the trained sample of a pair has the smaller loss.

    Returns:
        The p-value, in (0, 1].

    Raises:
        InvalidInput: There is no difference, or one is not finite.

    >>> paired_p_value([1.0, 2.0, 3.0])  # one of eight patterns
    0.125
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"Differences must be finite, one or more; got {list(differences)[:5]}.")
    total = values.sum()
    if len(values) > COUNTED:
        statistic = total / math.sqrt(float((values**2).sum()) or 1.0)
        return math.exp(-(statistic**2) / 2) if statistic > 0 else 1.0
    half = len(values) // 2
    first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    rounding = 1e-12 * np.abs(values).sum()
    as_large = len(second) - np.searchsorted(second, total - rounding - first)
    return float(as_large.sum()) / 2.0 ** len(values)


class _WithCanaries(Dataset):
    """A data set with some samples in place of its own, and some behind them."""

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
    found = next((name for name in LABEL_NAMES if name in sample), None)
    if found is None:
        raise InvalidInput(f"Samples must be mappings with labels; got the names {', '.join(sample)}. Add 'labels'.")
    return found


class PairedCanaries:
    """Canaries in pairs, one of each in the training data; made by `of_labels` or `of_tokens`.

    Args:
        dataset: What is to be trained on, the trained canaries among it.
        trained: The canary of each pair that is in it.
        others: The canary of each pair that is not.
    """

    def __init__(self, dataset: Dataset, trained: Sequence[Mapping[str, Any]], others: Sequence[Any]) -> None:
        self.dataset, self.trained, self.others = dataset, list(trained), list(others)

    def __len__(self) -> int:
        return len(self.trained)

    @classmethod
    def of_labels(cls, dataset: Any, *, n_classes: int, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Samples whose label a coin chose between two classes that are drawn at random.

        With three classes or more both are wrong; with two, about half of the canaries keep their label.

        Args:
            dataset: Mappings with a class label (`labels` or `label`).
            n_classes: Number of classes.
            number: Number of canaries; their labels are lost to training.
            seed: Seed of choice, classes and coins.

        Returns:
            The canaries.

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
        """Sequences of random tokens, as long as the data's first, added to the data of a language model.

        Both of a pair are drawn alike from the tokens that occur in the data, so that either might have been trained.

        Args:
            dataset: Mappings with `input_ids` and `labels` of the same shape.
            number: Number of pairs.
            seed: Seed of the tokens.

        Returns:
            The canaries.

        Raises:
            InvalidInput: The samples are no token sequences with labels.
        """
        check_range("number", number, 2)
        sample = dataset[0]
        name, ids = _label_name(sample), torch.as_tensor(sample.get("input_ids", ()))
        if ids.ndim != 1 or torch.as_tensor(sample[name]).shape != ids.shape:
            raise InvalidInput("of_tokens needs samples with input_ids and labels of one shape [length]; got others.")
        seen = [torch.as_tensor(dataset[i]["input_ids"])[torch.as_tensor(dataset[i][name]) >= 0]
                for i in range(min(len(dataset), 256))]  # fmt: skip
        tokens, random = torch.cat(seen).unique(), make_generator(seed, "paired canaries")

        def drawn() -> dict[str, Any]:
            row = tokens[torch.randint(len(tokens), ids.shape, generator=random)]
            extra = {"attention_mask": torch.ones_like(row)} if "attention_mask" in sample else {}
            return {**extra, "input_ids": row, name: row.clone()}

        pairs = [(drawn(), drawn()) for _ in range(number)]
        trained = [pair[0] for pair in pairs]
        return cls(_WithCanaries(dataset, {}, trained), trained, [pair[1] for pair in pairs])


def differences(of_trained: Tensor, of_others: Tensor) -> list[float]:
    """Losses of the others less those of the trained ones, one a pair."""
    return (of_others.double() - of_trained.double()).tolist()
