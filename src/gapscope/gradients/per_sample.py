"""The exact per-sample Jacobian of one module alone, for everything that has parameters and no rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from gapscope.gradients.contributions import Contribution, Dense
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.gradients.layer_rules import Call, samples_first


def _sample_dim(shape: Sequence[int], n: int) -> int | None:
    """First dimension, of the first two, that has size n."""
    return list(shape[:2]).index(n) if n in shape[:2] else None


class _Repeated:
    """A recorded call of one module, repeated on the whole batch or on one sample."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.leaves, self.structure = tree_flatten((call.arguments, dict(call.keywords)))
        shapes = [leaf.shape if isinstance(leaf, Tensor) else () for leaf in self.leaves]
        self.dims = [_sample_dim(shape, call.n) for shape in shapes]
        found = [_sample_dim(out.shape, call.n) for out in call.outputs]
        self.output_dims = [dim for dim in found if dim is not None]

    @property
    def has_samples(self) -> bool:
        """Whether an argument and every output has a dimension of n samples."""
        return any(dim is not None for dim in self.dims) and len(self.output_dims) == len(self.call.outputs)

    def __call__(self, parameters: Mapping[str, Tensor], leaves: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the recorded outputs for other arguments; buffers of the module stay as they are."""
        arguments, keywords = tree_unflatten(list(leaves), self.structure)
        state = {name: buffer.clone() for name, buffer in self.call.module.named_buffers()} | dict(parameters)
        outputs = tree_flatten(functional_call(self.call.module, state, arguments, keywords))[0]
        return tuple(outputs[out.index] for out in self.call.outputs)

    def over_samples(self, function: Callable[..., Any], *extra: Sequence[Tensor]) -> Any:
        """Apply `function(leaves of one sample, its part of extra [C, ...])` to every sample by vmap."""

        def of_one(leaves: Sequence[Any], *parts: Sequence[Tensor]) -> Any:
            pairs = zip(leaves, self.dims, strict=True)
            return function([leaf if dim is None else leaf.unsqueeze(dim) for leaf, dim in pairs], *parts)

        in_dims = (self.dims, *([dim + 1 for dim in self.output_dims] for _ in extra))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return vmap(of_one, in_dims=in_dims)(self.leaves, *extra)

    def sample(self, i: int) -> list[Any]:
        """Arguments of sample i, as a batch of one."""
        pairs = zip(self.leaves, self.dims, strict=True)
        return [leaf if dim is None else leaf.narrow(dim, i, 1) for leaf, dim in pairs]


def _vectorized(repeated: _Repeated, gradients: Sequence[Tensor]) -> list[Tensor]:
    parameters = dict(repeated.call.parameters)

    def of_one(leaves: Sequence[Any], parts: Sequence[Tensor]) -> dict[str, Tensor]:
        pull: Any = vjp(lambda p: repeated(p, leaves), parameters)[1]
        cotangents = [part.unsqueeze(dim + 1) for part, dim in zip(parts, repeated.output_dims, strict=True)]
        return vmap(lambda one: pull(one)[0])(tuple(cotangents))

    jacobians = repeated.over_samples(of_one, list(gradients))
    return [jacobian.transpose(0, 1) for jacobian in jacobians.values()]


def _one_by_one(repeated: _Repeated, gradients: Sequence[Tensor]) -> list[Tensor]:
    parameters, create_graph = dict(repeated.call.parameters), torch.is_grad_enabled()
    by_sample = []
    for i in range(repeated.call.n):
        with torch.enable_grad():
            outputs = repeated(parameters, repeated.sample(i))
        parts = [g.narrow(dim + 1, i, 1) for g, dim in zip(gradients, repeated.output_dims, strict=True)]
        rows = [
            torch.autograd.grad(
                outputs,
                list(parameters.values()),
                [part[c] for part in parts],
                retain_graph=True,
                create_graph=create_graph,
                materialize_grads=True,
                allow_unused=True,
            )
            for c in range(len(parts[0]))
        ]
        by_sample.append([torch.stack(column) for column in zip(*rows, strict=True)])
    return [torch.stack(column, dim=1) for column in zip(*by_sample, strict=True)]


def per_sample_jacobian(call: Call, gradients: Sequence[Float[Tensor, "c ..."]]) -> list[Contribution]:
    """Return the Jacobian of a call by its parameters, one sample at a time; exact for any module.

    Args:
        call: The call; the module is run again for every sample, by vmap where it can be.
        gradients: Derivatives of the outputs by each output of the call.

    Returns:
        One contribution a parameter.
    """
    repeated = _Repeated(call)
    with differentiable_kernels(call.module.modules()), call.autocast():
        try:
            jacobians = _vectorized(repeated, gradients)
        except RuntimeError:  # vmap has no rule for an operation, or the module looks at values
            jacobians = _one_by_one(repeated, gradients)
    pairs = zip(call.parameters.values(), jacobians, strict=True)
    return [Dense((parameter,), samples_first(jacobian.flatten(2), None)) for parameter, jacobian in pairs]


def is_repeatable_by_sample(call: Call, tolerance: float) -> bool:
    """Whether a module gives every sample the same outputs alone as in its batch.

    Args:
        call: The call; the module is run again, so random numbers in it show.
        tolerance: Largest difference, relative to the largest output.

    Returns:
        False where samples are mixed, random numbers are drawn, or no dimension holds the samples (the first eight
        samples are tried).
    """
    repeated = _Repeated(call)
    if not repeated.has_samples:
        return False
    parameters = dict(call.parameters)
    with torch.no_grad(), differentiable_kernels(call.module.modules()), call.autocast():
        whole = repeated(parameters, repeated.leaves)
        for i in range(min(call.n, 8)):
            alone = repeated(parameters, repeated.sample(i))
            for together, single, dim in zip(whole, alone, repeated.output_dims, strict=True):
                scale = float(together.abs().max())
                if float((together.narrow(dim, i, 1) - single).abs().max()) > tolerance * scale:
                    return False
    return True
