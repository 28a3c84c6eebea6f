"""One normalised unit at the optimum of its gamma and beta: the setting in which the paper proves its theorem."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.inspection.losses import loss_of

SLOPE, SHIFT, NOISE = 1.5, 0.3, 0.5
MODELS = ("logistic", "linear", "relu")


class TwoLogits(nn.Module):
    """Logits (0, h): the softmax is then the sigmoid of h."""

    def forward(self, h: Tensor) -> Tensor:
        """Return [n, 2] from [n, 1]."""
        return torch.cat([torch.zeros_like(h), h], 1)


def population(model: str, n: int, generator: torch.Generator) -> Samples:
    """Standard normal pre-activations u [n, 1] with targets that the model fits: h = 1.5 u + 0.3.

    Args:
        model: "logistic" (labels drawn with probability sigmoid(h)), "linear" or "relu" (noise of deviation 0.5).
        n: Number of samples.
        generator: Source of randomness.

    Returns:
        The samples, float64.
    """
    u = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    h = SLOPE * u + SHIFT
    if model == "logistic":
        return Samples(u, (torch.rand(n, generator=generator, dtype=torch.float64) < h[:, 0].sigmoid()).long())
    noise = NOISE * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return Samples(u, (h.relu() if model == "relu" else h) + noise)


def fitted(model: str, samples: Samples) -> nn.Module:
    """Batch norm and the model's output, with exact population statistics and the best gamma and beta.

    Args:
        model: As for `population`.
        samples: The population.

    Returns:
        The network, float64, in evaluation mode.
    """
    norm = nn.BatchNorm1d(1, dtype=torch.float64)
    output = {"logistic": TwoLogits(), "linear": nn.Identity(), "relu": nn.ReLU()}[model]
    network = nn.Sequential(norm, output).eval()
    assert norm.running_mean is not None and norm.running_var is not None and samples.targets is not None
    norm.running_mean.copy_(samples.inputs.mean(0))
    norm.running_var.copy_(samples.inputs.var(0, unbiased=False))
    targets = samples.targets
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = loss_of(network(samples.inputs), targets)
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return network
