r"""The fraction of wrong labels, from samples that were given a wrong label on purpose (canaries).

A sample's margin is the score of its given label less the largest other score. If a share r of the labels is wrong in
the way the canaries' are, then with F for distributions of margins

$$F_{all} = (1 - r) F_{right} + r F_{wrong} \ge r F_{wrong} .$$

A canary's new label is the true one where the given label was wrong and the draw put it right, about $r / (C - 1)$ of
them: $F_{canary} \le (1 - r / (C - 1)) F_{wrong} + \dots$, so that with $\varrho = \min_t F_{all}(t) / F_{canary}(t)$

$$r \le \frac{\varrho}{1 + \varrho / (C - 1)},$$

with equality where the margins of clean labels do not reach as far down as those of wrong ones. The minimum is taken
over those t that a good part of the canaries lie below; else it would follow the noise of a few.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def margins_of(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the score of each label less the largest other score.

    >>> margins_of(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0])).item()
    -3.0
    """
    given = scores.gather(1, labels[:, None]).squeeze(1)
    return given - scores.scatter(1, labels[:, None], -torch.inf).amax(1)


def noise_rate_bound(
    margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], n_classes: int | None = None, *, quantile: float = 0.5
) -> float:
    r"""Upper bound of the fraction of wrong labels; the formula of this file.

    Args:
        margins: Of samples with the labels as given.
        canaries: Of the canaries.
        n_classes: Number of classes C; None leaves $\varrho$ itself, a bound that is a little looser.
        quantile: Fraction of the canaries that must lie below a t.

    Returns:
        The bound, between 0 and 1; estimated, with an error of the order of $1 / sqrt m$ of itself.

    >>> right, wrong = torch.ones(80), -torch.ones(20)
    >>> round(noise_rate_bound(torch.cat([right, wrong]), -torch.ones(30)), 6)
    0.2
    """
    ordered = canaries.sort().values
    thresholds = ordered[int(quantile * (len(ordered) - 1)) :]
    below = torch.searchsorted(margins.sort().values, thresholds, right=True).double() / len(margins)
    of_canaries = torch.searchsorted(ordered, thresholds, right=True).double() / len(ordered)
    ratio = float((below / of_canaries).min())
    return ratio if n_classes is None else ratio / (1 + ratio / (n_classes - 1))


def clean_accuracy(accuracy: float, rate: float, n_classes: float) -> float:
    r"""Return the accuracy on clean labels, from the accuracy on labels of which a share r is wrong at random.

    $A = (A_{noisy} - r / (C - 1)) / (1 - r C / (C - 1))$.

    >>> round(clean_accuracy(0.9 * 0.8 + 0.1 * 0.2 / 9, 0.2, 10), 6)
    0.9
    """
    others = n_classes - 1
    return (accuracy - rate / others) / max(1 - rate * n_classes / others, 1e-12)
