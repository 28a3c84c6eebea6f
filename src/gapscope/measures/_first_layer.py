"""Margins at the output of the first layer, scaled by the spread of its features."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gapscope.ablation.margins import boundary_distances_with_variances
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples
from gapscope.inspection.hooks import Weighted, record_module_calls
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.results.estimate import Estimate

EPSILON = 1e-14


def first_layer(network: nn.Module, x: Tensor) -> tuple[str, nn.Module]:
    """Return the first convolution or linear layer that a forward pass of one sample calls.

    Raises:
        NotMeasurable: There is none.
    """
    for call in record_module_calls(network, prepare_inputs(network, x[:1])):
        if isinstance(call.module, Weighted):
            return call.name, call.module
    raise NotMeasurable("There must be a first convolution or linear layer; the network calls none.")


def trimmed_mean(values: Float[Tensor, " d"], share: float = 0.05) -> float:
    """Return the mean of all but the smallest and the largest twentieth of the values."""
    cut = int(share * len(values))
    return values.sort().values[cut : len(values) - cut].mean().item()


def first_layer_margin(network: nn.Module, samples: Samples, chunk_size: int | None) -> Estimate:
    r"""Compute the mean margin at the first layer in units of its features' trimmed deviation.

    Raises:
        NotMeasurable: There is no first layer, it does not vary, or it is the last one and constant.
    """
    with measurement_mode(network) as network:
        check_sample_independence(network, prepare_inputs(network, samples.inputs[:64]))
        name, _ = first_layer(network, samples.inputs)
        distances, variances = boundary_distances_with_variances(
            network, samples, [name], epsilon=EPSILON, chunk_size=chunk_size
        )
    spread = trimmed_mean(variances[0]) ** 0.5
    if spread == 0:
        raise NotMeasurable(f"Layer '{name}' must vary over the samples; it is constant.")
    values = distances[0] / spread
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else None
    return Estimate(values.mean().item(), error)
