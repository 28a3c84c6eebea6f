"""Fisher-Rao norm."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import slices
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import as_real, checked_outputs, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._directional import output_change
from gapscope.measures._forward import check_labelled
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "fisher_rao_norm",
    title="change of the loss when all weights grow",
    needs=("inputs", "labels"),
    units="squared nats",
    direction="lower",
    aggregation="mean over samples",
    cost="1 forward pass and 2 backward passes",
    cost_class="backward",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form of homogeneous networks; dense per-sample gradients",
    sampling=Sampling("mean", 64, lambda k: 5),
    reference="Liang, Poggio, Rakhlin and Stokes 2019 (arXiv:1711.01530), Sec. 3",
)
def fisher_rao_norm(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Estimate:
    r"""Squared Fisher-Rao norm with the labels given, $\frac1n \sum_i \langle \theta, \nabla_\theta \ell_i \rangle^2$.

    Exact; over all trainable weights, of the cross-entropy in nats, in evaluation mode. In a network of L + 1 layers
    without biases and with ReLU it is $(L+1)^2 \frac1n \sum_i \langle \partial \ell_i / \partial f, f(x_i)
    \rangle^2$. Each $\langle \theta, \nabla \ell_i \rangle$ is a derivative along the weights, so that no gradient of
    a single sample is formed.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The squared norm.

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> network = nn.Linear(1, 2, bias=False)  # f = (w1 x, w2 x), here of equal logits
    >>> _ = network.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> found = fisher_rao_norm(network, torch.tensor([[1.0]]), torch.tensor([1]))
    >>> bool(abs(found - (2 / (1 + torch.e**-2)) ** 2) < 1e-5)  # <dl/df, f> = p_0 f_0 + (p_1 - 1) f_1
    True
    """
    check_labelled("fisher_rao_norm", x, y)
    total = 0.0
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        x = prepare_inputs(network, x)
        check_sample_independence(network, x[:64])
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not parameters:
            raise NotMeasurable("A derivative by the weights needs trainable parameters; the network has none.")
        direction = [as_real(parameter.detach()) for parameter in parameters]

        def changes(part: Tensor, labels: Tensor) -> Float[Tensor, " n"]:
            outputs = checked_outputs(network(part), len(part))
            along = output_change(outputs, parameters, direction).double()
            outputs = outputs.detach().double().requires_grad_()
            (by_outputs,) = torch.autograd.grad(sample_losses(outputs, labels).sum(), outputs)
            return (by_outputs * along).sum(1)

        labels = prepare_inputs(network, y)
        chunk_size = samples_per_pass(
            network, x, chunk_size, one_pass=lambda first: changes(first, labels[: len(first)])
        )
        for part in slices(len(x), chunk_size):
            total += changes(x[part].clone(), labels[part]).square().sum().item()
    return Estimate(total / len(x))
