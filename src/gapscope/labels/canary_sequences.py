"""Random token sequences with labels, of the form that a data set has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.base.targets import IGNORED
from gapscope.base.user_data import read_sample
from gapscope.labels.canary_data import label_name, whole_numbers, with_values

MAX_READ = 256
"""Samples that are read for the tokens and labels that occur; by judgment, enough for the frequent ones."""


def _tokens_and_labels(sample: Any) -> tuple[Tensor, Tensor]:
    """Return the token ids and the labels of a sample, or raise InvalidInput unless they have one shape [length]."""
    labels = whole_numbers(sample[label_name(sample)], "labels")
    tokens = whole_numbers(sample.get("input_ids", ()), "input_ids")
    if tokens.ndim != 1 or labels.shape != tokens.shape:
        raise InvalidInput(
            f"of_tokens needs input_ids and labels of one shape [length]; got {list(tokens.shape)} and "
            f"{list(labels.shape)}. Use of_labels for one label per sample."
        )
    if len(tokens) and (tokens.is_floating_point() or labels.is_floating_point()):
        raise InvalidInput(
            f"of_tokens needs integers; got input_ids of {tokens.dtype} and labels of {labels.dtype}. Pass token ids."
        )
    return tokens, labels


def _are_shifted(tokens: Tensor, labels: Tensor) -> bool:
    """Return whether the labels that count are the next tokens."""
    counts = labels[:-1] != IGNORED
    return torch.equal(labels[:-1][counts], tokens[1:][counts])


class RandomSequences:
    """Source of random sequences, from the tokens and labels that occur in a data set.

    Args:
        dataset: Mappings with `input_ids` and `labels` of one shape.
        generator: Source of the tokens and labels.

    Raises:
        InvalidInput: The samples are not token sequences with labels.
    """

    def __init__(self, dataset: Any, generator: torch.Generator) -> None:
        self.generator = generator
        n = min(len(dataset), MAX_READ)
        read = [_tokens_and_labels(read_sample(dataset, index)) for index in range(n)]
        counting = [(tokens, labels) for tokens, labels in read if bool((labels != IGNORED).any())]
        if not counting:
            raise InvalidInput(
                f"Got labels that are all {IGNORED} in the first {n} samples; of_tokens needs labels that count. Pass "
                "labels, such as a copy of input_ids for a language model."
            )
        self.tokens = torch.cat([tokens[labels != IGNORED] for tokens, labels in counting]).unique()
        tags = torch.cat([labels[labels != IGNORED] for _, labels in counting])
        if int(tags.min()) < 0:
            raise InvalidInput(
                f"Got the label {int(tags.min())}; of_tokens needs labels of 0 or larger. Mark positions that do not "
                f"count by {IGNORED}."
            )
        self.labels = tags.unique()
        self.are_tokens = all(
            torch.equal(tokens[labels != IGNORED], labels[labels != IGNORED])
            for tokens, labels in counting
        )
        self.are_shifted = all(_are_shifted(tokens, labels) for tokens, labels in counting) and any(
            len(tokens) > 1 for tokens, _ in counting
        )

    def _random(self, values: Tensor, length: int) -> Tensor:
        return values[torch.randint(len(values), (length,), generator=self.generator)]

    def like(self, sample: Any) -> Any:
        """Return a random sequence with the length, types and other columns of a sample.

        Args:
            sample: A mapping with `input_ids` and `labels`.
        """
        length = len(sample["input_ids"])
        if self.are_tokens:
            tokens = self._random(self.tokens, length)
            labels = tokens.clone()
        elif self.are_shifted:
            row = self._random(self.tokens, length + 1)
            tokens = row[:-1]
            labels = row[1:]
        else:
            tokens = self._random(self.tokens, length)
            labels = self._random(self.labels, length)
        columns = {"input_ids": tokens, label_name(sample): labels}
        if "attention_mask" in sample:
            columns["attention_mask"] = torch.ones_like(tokens)
        return with_values(sample, columns)
