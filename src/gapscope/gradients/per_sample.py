"""Exact per-sample Jacobian of one module, for modules without a layer rule."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from gapscope.gradients.backward import differentiable_kernels, gradients_at
from gapscope.gradients.contributions import Contribution, DenseJacobian, Tensors
from gapscope.gradients.layer_rules import Call, NotSeparable, samples_first
from gapscope.inspection.norms import uses_batch_statistics
from gapscope.inspection.outputs import as_real, raw_outputs
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import ParameterSubstitution


class _ReplayableCall:
    """Recorded call of one module that can be repeated with other arguments and parameters."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.parameters = list(call.parameters.values())
        self.sources = [call.substituted[parameter] for parameter in self.parameters]
        self.leaves, self.structure = tree_flatten((call.arguments, dict(call.keywords)))
        self.dims = call.argument_dims
        self.output_dims = [dim for dim in call.output_dims if dim is not None]
        if all(dim is None for dim in self.dims) or len(self.output_dims) < len(call.outputs):
            raise NotSeparable(
                f"no dimension of an argument or an output of '{call.name}' holds the samples"
            )

    def __call__(
        self, leaves: Sequence[Any], parameters: Sequence[Tensor] | None = None
    ) -> Tensors:
        """Return the recorded outputs for other arguments and parameters."""
        arguments, keywords = tree_unflatten(list(leaves), self.structure)
        if parameters is None:
            outputs = self.call.module(*arguments, **keywords)
        else:
            pairs = zip((*self.parameters, *self.sources), (*parameters, *parameters), strict=True)
            with ParameterSubstitution(pairs) as substituted, substituted.install(self.call.module):
                outputs = self.call.module(*arguments, **keywords)
        flat = tree_flatten(raw_outputs(outputs))[0]
        return tuple(flat[out.index] for out in self.call.outputs)

    def sample(self, i: int) -> list[Any]:
        """Return the arguments of sample i, as a batch of one."""
        pairs = zip(self.leaves, self.dims, strict=True)
        return [leaf if dim is None else leaf.narrow(dim, i, 1) for leaf, dim in pairs]

    def outputs_of_sample(self, leaves: Sequence[Any], parameters: Sequence[Tensor]) -> Tensors:
        """Return the outputs of one sample, for use in vmap."""
        pairs = zip(leaves, self.dims, strict=True)
        batch_of_one = [leaf if dim is None else leaf.unsqueeze(dim) for leaf, dim in pairs]
        if not any(isinstance(module, nn.RNNBase) for module in self.call.module.modules()):
            return self(batch_of_one, parameters)
        # vmap has no rule for fused recurrent layers. Under a derivative, here by an unused number, torch decomposes
        # them into steps for which it has.
        unused = torch.zeros((), device=parameters[0].device)
        return vjp(lambda _: self(batch_of_one, parameters), unused)[0]


class _MaskedPadding(TorchFunctionMode):
    """Context in which embeddings mask the gradient of their padding by the indices.

    vmap over copies of the weights keeps the row of `padding_idx` out of the gradient of the first copy alone.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`; an embedding is called without padding, and its outputs there are constants."""
        kwargs = kwargs or {}
        signature = _EMBEDDINGS.get(func)
        if signature is None:
            return func(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        named = call.arguments
        padding, none = named["padding_idx"], signature.parameters["padding_idx"].default
        if padding is None or (func is torch.embedding and padding < 0):
            return func(*args, **kwargs)
        named["padding_idx"] = none
        rows = func(*call.args, **call.kwargs)
        indices = named["input"] if func is F.embedding else named["indices"]
        is_padding = indices.eq(padding % len(named["weight"])).unsqueeze(-1)
        return torch.where(is_padding, rows.detach(), rows)


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Signature of `torch.embedding`, which has none of its own."""
    raise NotImplementedError


_EMBEDDINGS = {
    F.embedding: inspect.signature(F.embedding),
    torch.embedding: inspect.signature(_embedding),
}


def _vectorized(
    repeated: _ReplayableCall, gradients: Sequence[Tensor], *, create_graph: bool
) -> list[Tensor | None]:
    """Compute rows for all samples at once, each with its own copy of the parameters."""
    # With a copy of the parameters per sample, df_n / dcopy_n is row n of the Jacobian. Only the forward pass is
    # vectorized by vmap: vmap of a derivative by the parameters loses the second derivative of layer_norm.
    n = repeated.call.n
    leaves = repeated.leaves
    sources = repeated.sources
    if not create_graph:
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        sources = [source.detach().requires_grad_() for source in sources]
    with torch.enable_grad(), _MaskedPadding():
        copies = [source.expand(n, *source.shape) for source in sources]
        outputs = vmap(repeated.outputs_of_sample, in_dims=(repeated.dims, [0] * len(copies)))(
            leaves, copies
        )
    pairs = zip(gradients, repeated.output_dims, strict=True)
    cotangents = [gradient.movedim(dim + 1, 1).unsqueeze(dim + 2) for gradient, dim in pairs]
    return gradients_at(outputs, copies, cotangents, create_graph=create_graph)


def _one_by_one(
    repeated: _ReplayableCall, gradients: Sequence[Tensor], *, create_graph: bool
) -> list[Tensor | None]:
    rows = []
    for i in range(repeated.call.n):
        with torch.enable_grad():
            outputs = repeated(repeated.sample(i))
        parts = [
            g.narrow(dim + 1, i, 1) for g, dim in zip(gradients, repeated.output_dims, strict=True)
        ]
        row_gradients = gradients_at(outputs, repeated.sources, parts, create_graph=create_graph)
        pairs = zip(row_gradients, repeated.sources, strict=True)
        rows.append([s.new_zeros(len(parts[0]), *s.shape) if g is None else g for g, s in pairs])
    return [torch.stack(column, dim=1) for column in zip(*rows, strict=True)]


def dense_contribution(parameter: Tensor, jacobian: Float[Tensor, "c n ..."]) -> DenseJacobian:
    """Return the Jacobian by one parameter (by the two parts of a complex one)."""
    return DenseJacobian(
        (parameter,), samples_first(as_real(jacobian).reshape(*jacobian.shape[:2], -1), None)
    )


def per_sample_jacobian(
    call: Call, gradients: Sequence[Float[Tensor, "c ..."]]
) -> list[Contribution]:
    """Return the exact Jacobian of a call by running its module again per sample."""
    if any(uses_batch_statistics(module) for module in call.module.modules()):
        raise NotSeparable(
            f"'{call.name}' uses the statistics of the batch, which a single sample does not have"
        )
    repeated = _ReplayableCall(call)
    create_graph = torch.is_grad_enabled()
    with (
        preserve_state(call.module),
        differentiable_kernels(call.module.modules()),
        call.autocast(),
        warnings.catch_warnings(),
    ):
        # about the repetition: slow under vmap, or statistics of a batch of one
        warnings.simplefilter("ignore")
        try:
            jacobians = _vectorized(repeated, gradients, create_graph=create_graph)
        except RuntimeError:  # vmap has no rule for an operation, or the module looks at values
            jacobians = _one_by_one(repeated, gradients, create_graph=create_graph)
    pairs = zip(repeated.parameters, jacobians, strict=True)
    return [
        dense_contribution(parameter, jacobian)
        for parameter, jacobian in pairs
        if jacobian is not None
    ]
