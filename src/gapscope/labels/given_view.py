"""Log probabilities of the user's own model, of which overconfident ones are no evidence of label errors.

Probabilities that are too near to 0 and 1 contradict labels with confidence where the model is only mistaken. A higher
temperature explains this as well as label errors do, and is therefore among the candidates. Hard predictions, 0 and 1,
leave no temperature to fit: they do not tell how sure the model is.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor

from gapscope.labels.error_model import LOG_TEMPERATURES
from gapscope.labels.kernel_views import ClassView, class_view
from gapscope.results.estimate import percent

SMALLEST = 1e-6  # probability that 0 is replaced by
# Up to those of naive Bayes on pixels, whose log odds are 10 to 30 times too large. Without them the lower end was
# above the rate in 3 of 27 answers of an overfitted logistic regression, with them in 1; others did not change.
TEMPERATURES = (*LOG_TEMPERATURES, 5.0, 8.0, 13.0, 20.0, 30.0)
# log odds of a prediction that is called certain, 99 to 1: hard predictions are often clipped to that
CERTAIN = math.log(99) - 1e-3


def log_probabilities(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return logarithms, in which a probability of 0 is not larger than any other one.

    >>> import torch
    >>> log_probabilities(torch.tensor([[0.0, 1.0]])).exp().round(decimals=6).tolist()
    [[9.999999974752427e-07, 1.0]]
    """
    positive = probabilities[probabilities > 0]
    return probabilities.clamp_min(min(SMALLEST, float(positive.min()))).log()


def certain_fraction(log_probabilities: Float[Tensor, "n c"]) -> float:
    """Return the fraction of predictions that share the largest log odds, 0 if these are below 99 to 1.

    Args:
        log_probabilities: Logarithms of predicted probabilities.
    """
    first, second = log_probabilities.topk(2, 1).values.unbind(1)
    odds = first - second
    largest = odds.max()
    if largest < CERTAIN:
        return 0.0
    return float((odds >= largest - 1e-3).double().mean())


def given_view(probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> ClassView:
    """Return the view of probabilities that were passed.

    Args:
        probabilities: Probabilities of the classes, at least two.
        labels: Given labels, columns of the probabilities.
    """
    scores = log_probabilities(probabilities)
    certain = certain_fraction(scores)
    return class_view("pred_probs", scores, labels, TEMPERATURES, certain=certain)


def note_on_certain(view: ClassView) -> tuple[str, ...]:
    """Return a sentence on predictions that do not tell how sure the model is, if so many are certain.

    Args:
        view: Scores of the classes.
    """
    if not view.is_certain:
        return ()
    return (
        f"pred_probs are equally certain (0 or 1) for {percent(view.certain)} of the labels, so that errors cannot be "
        "told from mistakes of the model. Pass soft probabilities, such as gs.out_of_sample(None, data).",
    )
