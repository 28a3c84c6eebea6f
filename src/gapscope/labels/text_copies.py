"""Texts that repeat another one but for a few words, as token ids or as frequencies of words."""

from __future__ import annotations

from difflib import SequenceMatcher

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.statistics.baselines import N_TOKENS, find_nearest

# Frequencies of words have at least so many columns, of which a text fills at most a tenth.
MIN_COLUMNS, MAX_FILLED = 100, 0.1
# Token sequences share this fraction in order: one token in twenty may differ. If one holds all tokens of the other,
# words were added: then one in ten.
MIN_EQUAL_TOKENS, MIN_EQUAL_IF_ADDED = 0.95, 0.9


def are_word_frequencies(samples: Samples) -> bool:
    """Return whether inputs are sparse rows, as frequencies of words are."""
    inputs = samples.inputs
    if (
        not samples.has_one_input
        or samples.columns
        or inputs.ndim != 2
        or not inputs.is_floating_point()
    ):
        return False
    return inputs.shape[1] >= MIN_COLUMNS and float((inputs != 0).double().mean()) <= MAX_FILLED


def _tokens(row: Int[Tensor, " t"], padding: int | None) -> list[int]:
    """Return tokens without those at the end that only fill the length."""
    tokens: list[int] = row.flatten().tolist()
    while padding is not None and tokens and tokens[-1] == padding:
        tokens.pop()
    return tokens


def _padding(ids: Int[Tensor, "n t"]) -> int | None:
    """Return the token that fills rows up (None if they end in several tokens, mostly)."""
    value, count = ids.flatten(1)[:, -1].unique(return_counts=True)
    if int(count.max()) > len(ids) / 2:
        return int(value[count.argmax()])
    return None


def have_equal_order(samples: Samples, i: int, j: int) -> bool:
    """Return whether two samples have almost the same tokens in the same order."""
    for part in samples.parts:
        if part.is_floating_point():
            continue
        if part.ndim == 1:  # one number per sample, such as an id, is no text
            if part[i] != part[j]:
                return False
            continue
        padding = _padding(part)
        first = _tokens(part[i], padding)
        second = _tokens(part[j], padding)
        matcher = SequenceMatcher(None, first, second, autojunk=False)
        n_equal = sum(block.size for block in matcher.get_matching_blocks())
        is_added = n_equal == min(len(first), len(second))
        if matcher.ratio() < (MIN_EQUAL_IF_ADDED if is_added else MIN_EQUAL_TOKENS):
            return False
    return True


def _frequencies(samples: Samples) -> Float[Tensor, "n d"] | None:
    """Return rows of unit length whose products are cosines (None for inputs that are no texts)."""
    if are_word_frequencies(samples):
        rows = samples.inputs.cpu().float()
    elif (
        samples.has_one_input
        and samples.inputs.ndim == 2
        and not samples.inputs.is_floating_point()
    ):
        ids = samples.inputs.cpu()
        padding = _padding(ids)
        if padding is None:
            counted = torch.ones_like(ids)
        else:
            counted = (ids != padding).long()
        rows = torch.zeros(len(ids), N_TOKENS, dtype=torch.float32)
        rows.scatter_add_(1, ids % N_TOKENS, counted.float())
    else:
        return None
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)


def copied_texts(samples: Samples, n: int | None = None) -> list[tuple[int, int]] | None:
    """Return pairs (i, j), i < j, of a text and a text that repeats it but for few words (None for other inputs).

    Args:
        samples: Samples; only token ids [n, t] and frequencies of words [n, d] are texts.
        n: Number of the first samples, whose copies are searched among the later ones; None for all among all.
    """
    rows = _frequencies(samples)
    if rows is None:
        return None
    distances, nearest = find_nearest(rows) if n is None else find_nearest(rows[n:], rows[:n])
    # copies have a cosine of 0.9 of the frequencies of words (and pairs of words): one word was added to
    # five. Of 31 such pairs among 4,000 texts of customers all say the same; from 0.82 to 0.85 words that matter
    # differ.
    limit = (2 - 2 * 0.9) ** 0.5
    pairs: set[tuple[int, int]] = set()
    for k in torch.nonzero(distances[:, 0] <= limit).flatten().tolist():
        found = int(nearest[k, 0])
        own = k if n is None else n + k
        pairs.add((min(found, own), max(found, own)))
    if not samples.inputs.is_floating_point():
        pairs = {pair for pair in pairs if have_equal_order(samples, *pair)}
    return sorted(pairs)
