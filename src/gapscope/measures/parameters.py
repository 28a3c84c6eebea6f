"""Size baselines: number and norm of the parameters, and operations of a forward pass."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gapscope.gradients.backward import differentiable_kernels
from gapscope.gradients.refused_layers import check_not_quantized
from gapscope.inspection.network_checks import check_finite, check_whole
from gapscope.inspection.outputs import as_real, measurement_mode, prepare_inputs
from gapscope.measures._forward import Inputs
from gapscope.measures._gradients import norm_of
from gapscope.measures._weights import StateDict, initial_value
from gapscope.measures.registry import ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def _check_parameters(network: nn.Module) -> None:
    """Refuse weights of which each process holds a part, and quantized layers."""
    check_whole(network)
    check_not_quantized(dict(network.named_modules()))


@register_measure(
    title="number of parameters",
    numbers=ScalarInfo("parameters", "lower", "sum over all trainable parameters"),
    cost_class="weights",
    reference="",
)
def parameter_count(network: nn.Module) -> Estimate:
    """Count the trainable parameters, shared ones once (exact).

    Raises:
        ReplaceLayer: Layers are quantized, whose weights are no parameters.
        InvalidInput: Weights are sharded over processes.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    _check_parameters(network)
    return Estimate(
        sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    )


@register_measure(
    title="squared L2 norm of the weights",
    numbers=ScalarInfo("squared weight units", "lower", "sum over all trainable parameters"),
    cost_class="weights",
    reference="Jiang et al., Fantastic Generalization Measures, 2020, section C.2",
)
def parameter_norm(network: nn.Module) -> Estimate:
    r"""Compute the squared L2 norm of all trainable parameters, biases included (exact).

    $\sum_i |\theta_i|^2$, accumulated in float64.

    Raises:
        ReplaceLayer: Layers are quantized, whose weights are no parameters.
        InvalidInput: Weights are sharded over processes, or not finite.

    >>> layer = nn.Linear(2, 1)
    >>> _ = nn.init.constant_(layer.weight, 2.0), nn.init.constant_(layer.bias, 1.0)
    >>> parameter_norm(layer)
    9
    """
    _check_parameters(network)
    check_finite(network)
    parameters = [
        parameter.detach() for parameter in network.parameters() if parameter.requires_grad
    ]
    return Estimate(
        sum(as_real(parameter).double().square().sum().item() for parameter in parameters)
    )


def weight_differences(network: nn.Module, initial_state: StateDict) -> list[Tensor]:
    """Return the trainable weights minus their initial values, in float64."""
    differences = []
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            initial = as_real(initial_value(initial_state, name, parameter)).double()
            differences.append(as_real(parameter.detach()).double() - initial)
    return differences


@register_measure(
    title="distance of the weights from their initial values",
    numbers=ScalarInfo("weight units", "lower", "L2 norm over all trainable parameters"),
    cost_class="weights",
    reference="Jiang et al., Fantastic Generalization Measures, 2020, section C.3",
)
def distance_from_initialization(network: nn.Module, *, initial_state: StateDict) -> Estimate:
    r"""Compute the L2 distance of all trainable parameters from their initial values (exact).

    $\|\theta - \theta_0\|_2$, accumulated in float64.

    Raises:
        InvalidInput: `initial_state` lacks a parameter or has another shape for it, or a weight is not finite.

    >>> import copy
    >>> layer = nn.Linear(2, 1)
    >>> initial_state = copy.deepcopy(layer.state_dict())
    >>> layer.weight.data += 1.5
    >>> layer.bias.data += 3.5**0.5
    >>> distance_from_initialization(layer, initial_state=initial_state)
    2.82843
    """
    _check_parameters(network)
    check_finite(network)
    return Estimate(norm_of(weight_differences(network, initial_state)))


@register_measure(
    title="multiply-accumulate operations of one forward pass",
    numbers=ScalarInfo(
        "multiplications with an addition", "none", "sum over layers, of one sample"
    ),
    cost_class="weights",
    default=False,
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), the baseline of zero-cost proxies",
)
def multiply_accumulates(network: nn.Module, x: Inputs) -> Estimate:
    r"""Count the multiply-accumulate operations of one forward pass for one sample (exact).

    A linear layer of I inputs and O outputs has $I O$ per position, a convolution $O \cdot I / g \cdot k_h k_w$ per
    output position; attention counts its two products. Biases, normalization, activations and pooling are not counted.
    """
    # fused layers hide their products from the counter; with weights that need gradients torch does not fuse
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        network.requires_grad_(True)
        counter = FlopCounterMode(display=False)
        with counter:
            network(prepare_inputs(network, x[:1]).clone())
    return Estimate(counter.get_total_flops() / 2)
