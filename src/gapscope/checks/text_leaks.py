"""Text columns whose words give the label away, a part of GS107.

Intents and reviews predict their labels by many words. A text gives the label away if one word per class decides nearly
all rows, or if it contains the name of its class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.foreign_data import with_spaces
from gapscope.base.random_streams import make_generator

_WORD = re.compile(r"[^\W\d_]+|\d+")
MIN_ROWS_PER_CLASS = 10
"""In classes of fewer rows on average, a word stands in all rows of one by chance."""
MAX_WORDS = 4096
"""The most frequent words of a column that are looked at, by judgment for memory and time."""


def _words(text: str) -> list[str]:
    return _WORD.findall(with_spaces(text).casefold())


def named_in_text(texts: Sequence[str], labels: Tensor, names: Sequence[str]) -> float:
    """Return the fraction of the texts that contain the name of their class, and no longer one of another class.

    Args:
        texts: One text per sample.
        labels: Class labels [n].
        names: Names of the classes; those without a letter are in no text.
    """
    phrases = [f" {' '.join(_words(name))} " for name in names]
    known = [
        (len(phrase), k)
        for k, phrase in enumerate(phrases)
        if re.search(r"[^\W\d_]", phrase) and phrases.count(phrase) == 1
    ]
    n_named = 0
    for text, label in zip(texts, labels.tolist(), strict=True):
        padded = f" {' '.join(_words(text))} "
        found = [(length, k) for length, k in known if phrases[k] in padded]
        longest = [k for length, k in found if length == max(found)[0]]
        n_named += longest == [label]
    return n_named / len(texts)


def _presence(texts: Sequence[str]) -> Tensor:
    """Return which of the most frequent words each text contains, [n, words]."""
    words = [set(_words(text)) for text in texts]
    counts = Counter(word for own in words for word in own)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS]
    numbers = {word: k for k, word in enumerate(frequent)}
    present = torch.zeros(len(texts), len(numbers), dtype=torch.bool)
    for row, own in enumerate(words):
        present[row, [numbers[word] for word in own if word in numbers]] = True
    return present


def decided_by_words(texts: Sequence[str], labels: Tensor) -> float:
    """Return the accuracy with which one word per class predicts rows of the half in which it was not chosen.

    The word of a class has the largest F1 score. Words are tried in this order, and rows without one have the most
    frequent class of such rows.

    Args:
        texts: One text per sample.
        labels: Class labels [n].
    """
    present = _presence(texts)
    classes, codes = labels.unique(return_inverse=True)
    if not present.shape[1]:
        return 0.0
    of_class = torch.nn.functional.one_hot(codes, len(classes)).float()
    # by their content, so that the order of the rows does not decide the halves
    rows = torch.tensor(sorted(range(len(texts)), key=lambda row: (texts[row], int(codes[row]))))
    order = rows[torch.randperm(len(texts), generator=make_generator(0, "halves of texts"))]
    halves = order[::2], order[1::2]
    n_correct = 0
    for chosen, scored in (halves, halves[::-1]):
        both = present[chosen].float().T @ of_class[chosen]
        totals = present[chosen].sum(0)[:, None] + of_class[chosen].sum(0)
        f1, word = (2 * both / totals.clamp_min(1)).max(0)
        by_quality = f1.argsort(descending=True, stable=True)
        has_word = present[:, word[by_quality]]
        unmatched = chosen[~has_word[chosen].any(1)]
        rest = codes[unmatched if len(unmatched) else chosen].mode().values
        first = by_quality[has_word.int().argmax(1)]
        predicted = torch.where(has_word.any(1), first, rest)
        n_correct += int((predicted == codes)[scored].sum())
    return n_correct / len(texts)
