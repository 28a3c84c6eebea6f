r"""Compare the layer-wise gradients with autograd once, and find the parameters for which they are not right.

With random weights u and a random half S of the batch, the layer-wise rows of S must add up to what autograd gives for
the outputs of S alone,

$$\sum_{n \in S} J_n^\top u_n = \nabla_\theta \sum_{n \in S} u_n \cdot f(x_n).$$

The left side is taken from a backward pass of all samples. So the two differ where a parameter is used outside a call
of its own module, where rows were taken for samples that are none, and where samples are mixed.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from gapscope.base.errors import NeverSupported, NotMeasurable
from gapscope.gradients.per_sample import is_repeatable_by_sample
from gapscope.gradients.tape import Tape

_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, frozenset[int]]] = weakref.WeakKeyDictionary()

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 5e-2}


def _tolerance(outputs: Tensor) -> float:
    """Largest relative difference of two right gradients: rounding, on a GPU also that of TF32 convolutions."""
    tensor_cores = outputs.is_cuda and outputs.dtype == torch.float32
    return 1e-2 if tensor_cores else _TOLERANCE.get(outputs.dtype, 1e-3)


def _key(tape: Tape, outputs: Tensor) -> Hashable:
    parameters = tuple(id(parameter) for parameter in tape.parameters.values())
    modes = tuple(module.training for module in tape.modules.values())
    calls = tuple((call.name, call.sample_dim if call.rule else None) for call in tape.calls)
    return tape.n, outputs.dtype, outputs.shape, parameters, modes, calls


def _disagreeing(tape: Tape, outputs: Tensor) -> set[int]:
    """Parameters whose layer-wise sums are not what autograd gives."""
    generator = torch.Generator().manual_seed(0)
    # Normal, not signs: those of two samples may cancel, and hide a parameter that acts on all samples alike.
    weights = torch.randn(outputs.shape, generator=generator).to(outputs)
    half = torch.zeros(tape.n)
    half[torch.randperm(tape.n, generator=generator)[: (tape.n + 1) // 2]] = 1
    half = half.to(outputs.device)
    sums: dict[int, Tensor] = {}
    for part in tape.contributions(outputs, weights[None]).values():
        for parameter, total in zip(part.parameters, part.weighted_sum(half.to(part.sources()[0])), strict=True):
            sums[id(parameter)] = total
    parameters = list(tape.parameters.values())
    weights = weights * half[:, None].to(outputs.dtype)
    expected = torch.autograd.grad(outputs, parameters, weights, retain_graph=True, materialize_grads=True)
    norm = torch.stack([gradient.float().norm() for gradient in expected]).norm()
    tolerance = _tolerance(outputs)
    wrong = set()
    for parameter, gradient in zip(parameters, expected, strict=True):
        difference = gradient if id(parameter) not in sums else gradient - sums[id(parameter)].to(gradient.dtype)
        if difference.norm() > tolerance * (gradient.norm() + 1e-2 * norm):
            wrong.add(id(parameter))
    return wrong


def _find_irregular(tape: Tape, outputs: Tensor) -> frozenset[int]:
    tolerance = _tolerance(outputs)
    irregular: set[int] = set()
    for call in tape.calls:
        if call.rule is None and not is_repeatable_by_sample(call, tolerance):
            irregular |= {id(parameter) for parameter in call.parameters.values()}
    for _ in range(2):
        tape.irregular = frozenset(irregular)
        if irregular and not is_repeatable_by_sample(tape.whole, tolerance):
            break
        wrong = _disagreeing(tape, outputs)
        if not wrong:
            return tape.irregular
        irregular |= wrong
    names = [name for name, parameter in tape.parameters.items() if id(parameter) in irregular]
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise NeverSupported(
        "Every output must depend on its own sample alone and be repeatable; the gradients of single samples by "
        f"{listed} do not add up to the gradient of the batch, or running the samples one by one gives other outputs. "
        "Put layers that mix samples into evaluation mode, and dropout too where parameters are used outside a layer."
    )


def verify(tape: Tape, outputs: Tensor) -> None:
    """Make sure that the tape's contributions are right, sending irregular parameters through the whole network.

    The outcome is remembered for the network as long as its parameters, modes and the batch's shape stay the same.

    Args:
        tape: The tape; its `irregular` is set.
        outputs: What the recorded pass returned.

    Raises:
        NeverSupported: Samples are mixed, or a parameter can be handled in no way.
        NotMeasurable: The outputs have no gradient.
    """
    if not outputs.requires_grad:
        raise NotMeasurable(
            "A network's outputs must depend on its trainable parameters with gradients enabled; these have no "
            "gradient. Look for torch.no_grad or detach in its forward pass."
        )
    known = _KNOWN.setdefault(tape.network, {})
    key = _key(tape, outputs)
    if key not in known:
        if not bool(torch.isfinite(outputs).all()):
            return  # a network that has diverged; nothing can be compared
        devices = [outputs.device] if outputs.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            known[key] = _find_irregular(tape, outputs)
    tape.irregular = known[key]
