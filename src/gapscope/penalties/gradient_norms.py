"""Penalties on gradient norms: outputs by the inputs, and loss by the weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.targets import is_zero_one
from gapscope.gradients.backward import (
    ProbeSource,
    differentiable_kernels,
    input_gradient,
    probe_scale,
    whole_gradient,
)
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats, freeze_batch_stats
from gapscope.gradients.refused_layers import check_layers
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.inspection.losses import default_loss
from gapscope.inspection.mixing import check_not_mixing
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import check_has_gradient, checked_outputs, eager_mode
from gapscope.penalties.base import (
    Penalty,
    StrengthRule,
    bare_network,
    check_fixed,
    register_penalty,
    strength_of,
)
from gapscope.penalties.batches import data_parallel

# modes of networks, of all their layers, in which these have been found not to mix samples
_CHECKED: weakref.WeakKeyDictionary[nn.Module, set[tuple[bool, ...]]] = weakref.WeakKeyDictionary()


@register_penalty("input_jacobian")
class InputJacobianPenalty(Penalty):
    r"""Squared input-Jacobian norm $\lambda \sum \lVert \nabla_x f_c(x_n) \rVert^2 / (nC)$.

    Jacobian regularization (Hoffman et al. 2019, arXiv:1908.02729; Sokolic et al. 2017), there a mean over samples and
    a sum over outputs. A step with a probe costs about two plain training steps; the exact norm needs C
    backward passes. Batch statistics of BatchNorm and of the layers in `gapscope.batch_norm` are constants in the
    derivative by the inputs, so that samples do not interact, but depend on the weights in the penalty's gradient.
    Other layers that mix samples are an error.

    Args:
        strength: lambda, 0 or larger.

    >>> network = nn.Linear(2, 1)
    >>> _ = nn.init.constant_(network.weight, 3.0)
    >>> InputJacobianPenalty(0.5)(network, torch.zeros(4, 2)).item()  # 0.5 (3^2 + 3^2)
    9.0
    """

    def __init__(
        self,
        strength: float,
        *,
        method: Literal["probe", "exact"] = "probe",
        seed: int = 0,
    ) -> None:
        check_fixed(strength, "InputJacobianPenalty")
        check_choice("method", method, ("probe", "exact"))
        self.strength = strength
        self.method = method
        # one output per sample, stratified over the batch
        self._probes: ProbeSource = ProbeSource("class", seed)

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Enable gradients by the inputs, at frozen batch statistics.

        Args:
            network: The network in training.
            inputs: Inputs of the mini-batch, as one tensor [n, ...].

        Raises:
            InvalidInput: The inputs are not of a floating-point type.
            GapscopeError: A layer mixes samples.
        """
        if not inputs.is_floating_point():
            raise InvalidInput(
                f"InputJacobianPenalty needs floating-point inputs; got {inputs.dtype}. Pass the part of the network "
                "after the embedding, or use a penalty on the weights."
            )
        if inputs.requires_grad:
            inputs = inputs
        else:
            inputs = inputs.detach().requires_grad_()
        bare = unwrapped(network)
        modules = dict(bare.named_modules())
        checked = _CHECKED.setdefault(bare_network(network), set())
        mode = tuple(module.training for module in modules.values())
        if mode not in checked and check_not_mixing(bare, inputs.detach()):
            checked.add(mode)
        with (
            eager_mode(),
            differentiable_kernels(modules.values()),
            allow_frozen_stats(modules),
        ):
            yield inputs, None

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty, a 0-d tensor.

        Args:
            network: The network in training.
            inputs: Inputs of the pass [n, ...], as `observe` yielded them.
            outputs: Outputs of the pass [n, K], with their graph.
            targets: Targets of the mini-batch; they are not used.
            observed: What `observe` yielded; it is not used.
        """
        outputs = checked_outputs(outputs, len(inputs))
        if self.method == "exact":
            cotangents = one_hot_cotangents(outputs)
            scale = 1
        else:
            cotangents = self._probes.draw(outputs).to(outputs.dtype)[None]
            scale = probe_scale(self._probes.kind, outputs.shape[1])
        with freeze_batch_stats():
            squares = [
                input_gradient(network, outputs, inputs, cotangent, create_graph=True)
                .square()
                .sum()
                for cotangent in cotangents
            ]
        return self.strength * scale * torch.stack(squares).sum() / self.n_counted(outputs)


def _square_of_mean(gradient: Tensor, network: DistributedDataParallel) -> Tensor:
    """Return the squared norm of the gradient averaged over processes."""
    # The second term is 0. Its derivative is that of 2 mean . gradient; DistributedDataParallel averages it over
    # processes, and the average is the derivative of mean . mean.
    mean = gradient.detach().clone()
    torch.distributed.all_reduce(mean, group=network.process_group)
    mean /= torch.distributed.get_world_size(network.process_group)
    return mean.square().sum() + 2 * (mean * (gradient - gradient.detach())).sum()


def _check_task(outputs: Tensor, targets: Tensor) -> None:
    """Raise InvalidInput for floats of 0 and 1, which are classes or numbers: a later batch may tell, too late."""
    is_matched = targets.numel() == outputs.numel()
    if not targets.is_floating_point() or not is_matched or not is_zero_one(targets):
        return
    if targets.min() == targets.max():
        return
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        meaning = "y.bool() for several labels per sample"
    else:
        meaning = "y.long() for two classes"
    raise InvalidInput(
        f"LossGradientPenalty needs targets of one task; got floats [{', '.join(map(str, targets.shape))}] of 0 and 1 "
        f"alone. Pass {meaning}, or the loss of the training: "
        "loss=torch.nn.functional.binary_cross_entropy_with_logits of classes, loss=torch.nn.functional.mse_loss of "
        "numbers."
    )


@register_penalty("loss_gradient")
class LossGradientPenalty(Penalty):
    r"""Squared gradient norm $\mu \lVert \nabla_\theta L \rVert^2$ of the mean loss L.

    Explicit gradient regularization (Barrett and Dherin 2021, arXiv:2009.11162): a sum over all trainable weights, on
    which the batch statistics of BatchNorm depend. Exact; a step costs about two plain training steps. With
    DistributedDataParallel the gradient is that of the joint batch.

    Args:
        loss: Function of (outputs, targets), a mean over samples; None for cross-entropy with class labels, binary
            cross-entropy with several labels (bool), and mean squared error with regression targets. A first batch of
            floats that are all 0 or 1 could be either and is an error.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(network.weight, 3.0)
    >>> x, y = torch.tensor([[2.0]]), torch.tensor([[5.0]])
    >>> LossGradientPenalty(0.5)(network, x, y).item()  # 0.5 (2 (6 - 5) 2)^2
    8.0
    """

    needs_targets = True
    counts_calls = True

    def __init__(
        self,
        strength: float | Literal["auto"] | StrengthRule,
        *,
        every: int = 1,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        check_range("every", every, 1)
        self.strength, self.automatic = strength_of(strength, "LossGradientPenalty")
        self.every = every
        self.loss = loss

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Use twice differentiable kernels in calls with the penalty.

        Args:
            network: The network in training.
            inputs: Inputs of the mini-batch, as one tensor [n, ...].
        """
        is_due = self._calls % self.every == 0
        self._calls += 1
        if not is_due:
            yield inputs, False
            return
        modules = dict(unwrapped(network).named_modules())
        check_layers(modules, twice=True)
        with eager_mode(), differentiable_kernels(modules.values()):
            yield inputs, True

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the penalty, a 0-d tensor (zero in calls without it).

        Args:
            network: The network in training.
            inputs: Inputs of the pass [n, ...]; they are not used.
            outputs: Outputs of the pass [n, K], with their graph.
            targets: Targets of the mini-batch.
            observed: Whether this call has the penalty.

        Raises:
            InvalidInput: There are no targets.
        """
        if targets is None:
            raise InvalidInput(
                "LossGradientPenalty needs targets; got none. Call penalty.forward_with_penalty(network, x, y)."
            )
        if not observed:
            return outputs.new_zeros(())
        check_has_gradient(outputs)
        # of the first batch alone: to read values waits for the device
        if self.loss is None and self._calls == 1:
            _check_task(outputs, targets)
        loss = (self.loss or default_loss)(outputs, targets)
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        gradients = whole_gradient(loss, parameters, create_graph=True)
        if (parallel := data_parallel(network)) is not None:
            squares = [_square_of_mean(gradient, parallel) for gradient in gradients]
        else:
            squares = [gradient.square().sum() for gradient in gradients]
        return self.strength * self.every * torch.stack(squares).sum()
