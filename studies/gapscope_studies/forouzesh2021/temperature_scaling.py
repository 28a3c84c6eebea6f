"""Temperature scaling: one number, fitted on held-out data, that calibrates a classifier."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from scipy.optimize import brentq
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range, check_same_length
from gapscope.inspection.outputs import check_labels


def _slope(logits: Tensor, right: Tensor, inverse: float) -> float:
    """Return the derivative of the mean negative log-likelihood by the inverse temperature. It never decreases."""
    return ((logits * inverse).softmax(1) * logits).sum(1).sub(right).mean().item()


def fit_temperature(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    r"""Temperature T > 0 that minimizes the mean negative log-likelihood of `softmax(logits / T)`.

    .. math:: T = \arg\min_T -\frac1n \sum_i \log \mathrm{softmax}(f(x_i) / T)_{y_i}

    Guo et al., On Calibration of Modern Neural Networks, 2017. The log-likelihood is concave in 1/T, so the minimum is
    the only zero of its derivative, which is bracketed and found to rounding, in float64. Use held-out samples:
    on its own training samples per network that fits them all has no optimum.

    Dividing the outputs by T changes no prediction, divides output sensitivity by T^2 and every input Jacobian of
    the raw outputs by T.

    Args:
        logits: Raw outputs on held-out samples.
        labels: Their class labels.

    Returns:
        T; above 1 where the network was too sure of itself.

    Raises:
        InvalidInput: Logits and labels do not fit together.
        NotMeasurable: The likelihood has no maximum at a finite, positive temperature.

    >>> logits = torch.tensor([[2.0, 0.0]]).repeat(4, 1)  # three right in four: softmax must give 3/4 = e^a / (e^a + 1)
    >>> temperature = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    >>> round(temperature, 9) == round(2 / math.log(3), 9)
    True
    """
    if logits.ndim != 2 or not bool(torch.isfinite(logits).all()):
        raise InvalidInput(f"logits must be finite and of shape [n, K]; got shape {list(logits.shape)}.")
    check_same_length("logits", len(logits), "labels", len(labels))
    check_labels(labels, logits.shape[1])
    logits = logits.detach().cpu().double()
    logits = logits - logits.max(1, keepdim=True).values
    right = logits.gather(1, labels.cpu()[:, None]).squeeze(1)
    if not bool((right < 0).any()):
        raise NotMeasurable(
            "A temperature needs held-out samples that are not all predicted right, or the likelihood grows for ever "
            f"as T falls to 0; got {len(logits)} of {len(logits)} right. Use more samples, or samples not trained on."
        )
    if _slope(logits, right, 0.0) >= 0:
        raise NotMeasurable(
            "A temperature needs right classes that have larger logits than the average class, or the likelihood "
            "grows for ever with T; got a network no better than chance. Check the order of the labels."
        )
    low = high = -1 / logits.mean().item()
    while _slope(logits, right, low) >= 0:
        low /= 2
    while _slope(logits, right, high) <= 0:
        high *= 2
    logarithm = brentq(lambda s: _slope(logits, right, math.exp(s)), math.log(low), math.log(high), xtol=1e-14)
    return math.exp(-float(logarithm))  # type: ignore[arg-type]


class TemperatureScaled(nn.Module):
    """A network whose raw outputs are divided by a temperature. Predictions stay, probabilities soften for T > 1.

    The temperature is a buffer, so that it is saved with the weights and not trained.

    Args:
        temperature: T > 0, as `fit_temperature` returns it.

    >>> TemperatureScaled(nn.Identity(), 2.0)(torch.tensor([[4.0, 0.0]])).tolist()
    [[2.0, 0.0]]
    """

    temperature: Tensor

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        check_range("temperature", temperature, 0, low_open=True)
        self.network = network
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's raw outputs divided by the temperature."""
        outputs = self.network(x)
        return outputs / self.temperature.to(outputs.dtype)
