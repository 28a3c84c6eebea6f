"""Backward passes: gradients of layers and inputs, second derivatives, random probes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.function import Function
from torch.nn.attention import SDPBackend, sdpa_kernel

from gapscope.base.errors import NotMeasurable, check_choice
from gapscope.gradients.frozen_batch_stats import freeze_batch_stats
from gapscope.gradients.products import fast_products
from gapscope.gradients.second_derivatives import bypassed
from gapscope.inspection.checkpoints import check_no_reentrant_checkpoint, stored_activations
from gapscope.inspection.execution import exclusive
from gapscope.inspection.network_errors import explained_errors
from gapscope.inspection.outputs import as_real
from gapscope.inspection.restoring import preserve_state, without_weight_hooks


def _dense(gradient: Tensor | None) -> Tensor | None:
    if gradient is not None and gradient.is_sparse:
        return gradient.to_dense()
    return gradient


def _is_leaf(source: Any) -> bool:
    return isinstance(source, Tensor) or source.node.name() == "torch::autograd::AccumulateGrad"


def _is_convolution(source: Any) -> bool:
    return not isinstance(source, Tensor) and bypassed(source.node).name() == "ConvolutionBackward0"


@contextmanager
def _without_batched_functions() -> Iterator[None]:
    """Raise RuntimeError where a backward pass in the body applies a Function to all cotangents at once.

    The Function's derivative would be lost, or be that of tensors with a dimension that its code does not expect.
    """

    def apply(function: type[Function], *arguments: Any, **keywords: Any) -> Any:
        if any(isinstance(a, Tensor) and is_legacy_batchedtensor(a) for a in arguments):
            raise RuntimeError(f"{function.__name__} cannot be vectorized over cotangents")
        return original.__get__(None, function)(*arguments, **keywords)

    with exclusive():
        original: Any = vars(Function)["apply"]
        Function.apply = classmethod(apply)  # type: ignore[assignment]
        try:
            yield
        finally:
            Function.apply = original


@torch.enable_grad()
def _weighted(outputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Tensor:
    """Return the weighted sum of the outputs; its gradient with respect to them is the weights.

    For a number torch needs no weights; to compare their shapes with those of the outputs it imports sympy, which takes
    as long as several training steps of a small network.

    Raises:
        RuntimeError: The shapes differ, as in torch.
    """
    pairs = list(zip(outputs, cotangents, strict=True))
    if any(output.shape != weights.shape for output, weights in pairs):
        raise RuntimeError("Mismatch in shape of outputs and cotangents")
    products = [(output * weights).sum() for output, weights in pairs]
    return torch.stack(products).sum() if len(products) > 1 else products[0]


def gradients_at(
    outputs: Sequence[Tensor],
    sources: Sequence[Any],
    cotangents: Sequence[Float[Tensor, "c ..."]],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """Return derivatives [C, ...] of the weighted outputs by tensors or gradient edges.

    `cotangents` are C weights of each output. Batch statistics are constants (`gapscope.gradients.frozen_batch_stats`).
    """
    if not sources:
        return []
    settings: dict[str, Any] = {
        "retain_graph": True,
        "create_graph": create_graph,
        "allow_unused": True,
    }
    rows_of_cotangents = list(zip(*cotangents, strict=True))
    with (
        freeze_batch_stats(parameters=any(map(_is_leaf, sources))),
        without_weight_hooks(sources),
    ):
        # vmap computes convolutions row by row and copies them, which does not pay for second derivatives
        if len(rows_of_cotangents) > 1 and not (
            create_graph and any(map(_is_convolution, sources))
        ):
            try:
                with (
                    fast_products(),
                    _without_batched_functions() if create_graph else nullcontext(),
                ):
                    gradients = torch.autograd.grad(
                        outputs, sources, cotangents, is_grads_batched=True, **settings
                    )
                return [_dense(gradient) for gradient in gradients]
            except (
                RuntimeError
            ):  # an operation whose backward vmap cannot batch: one cotangent after the other
                pass
        rows = [
            [
                _dense(gradient)
                for gradient in torch.autograd.grad(_weighted(outputs, row), sources, **settings)
            ]
            for row in rows_of_cotangents
        ]
    if len(rows) == 1:
        return [None if gradient is None else gradient[None] for gradient in rows[0]]
    return [
        None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)
    ]


def whole_gradient(
    value: Tensor,
    parameters: Sequence[Tensor],
    cotangent: Tensor | None = None,
    *,
    create_graph: bool,
) -> list[Tensor]:
    """Return the derivatives of a scalar, or of weighted outputs, by all parameters.

    Each is dense and real, zero if independent; a complex parameter has its real and imaginary parts.
    """
    with explained_errors(), without_weight_hooks(parameters):
        if cotangent is None:
            value = value
        else:
            value = _weighted([value], [cotangent])
        gradients = torch.autograd.grad(
            value, parameters, create_graph=create_graph, allow_unused=True
        )
    if any(gradient is None for gradient in gradients):
        check_no_reentrant_checkpoint(value)
    filled = zip(gradients, parameters, strict=True)
    return [
        as_real(torch.zeros_like(p) if gradient is None else gradient.to_dense())
        for gradient, p in filled
    ]


def per_sample_gradients(
    outputs: Float[Tensor, "n k"],
    sources: Sequence[Tensor],
    cotangents: Float[Tensor, "c n k"],
    *,
    create_graph: bool,
) -> list[Float[Tensor, "c n ..."]]:
    """Return per-sample derivatives by one backward pass per sample and cotangent.

    Correct for any use of the parameters; slower than all other strategies by a factor of the number of samples.
    """
    rows: list[list[Tensor]] = [[] for _ in sources]
    for i in range(len(outputs)):
        selected = torch.zeros_like(cotangents, dtype=outputs.dtype)
        selected[:, i] = cotangents[:, i].to(outputs.dtype)
        gradients = gradients_at([outputs], sources, [selected], create_graph=create_graph)
        for column, source, gradient in zip(rows, sources, gradients, strict=True):
            column.append(
                source.new_zeros(len(selected), *source.shape) if gradient is None else gradient
            )
    return [torch.stack(column, dim=1) for column in rows]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return g v / |v| like `torch._weight_norm`, whose second derivative wrongly takes |v| as a constant."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


@contextmanager
def _with_attributes(settings: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [getattr(owner, name) for owner, name, _ in settings]
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)


@contextmanager
def differentiable_kernels(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Use only kernels with right second derivatives in the body, also for a later backward.

    This concerns attention, recurrent layers and weight norm.
    """
    # the function of the same name hides the module of the older weight norm
    older: Any = sys.modules["torch.nn.utils.weight_norm"]
    settings = [(owner, "_weight_norm", _weight_norm) for owner in (torch, older)]
    if any(isinstance(module, nn.RNNBase) for module in modules):
        settings += [
            (backend, "enabled", False) for backend in (torch.backends.cudnn, torch.backends.mkldnn)
        ]
    with (
        exclusive(),
        stored_activations(),
        sdpa_kernel(SDPBackend.MATH),
        _with_attributes(settings),
    ):
        yield


def _check_constant(network: nn.Module, inputs: Tensor) -> None:
    """Raise unless the outputs are unchanged by other inputs."""
    with torch.no_grad(), preserve_state(network):
        network.eval()
        changed = inputs + torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).to(
            inputs
        )
        if torch.equal(network(inputs), network(changed)):
            return
    raise NotMeasurable(
        "The outputs change with the inputs, but are not connected to them in autograd's graph; a derivative by the "
        "inputs needs that. Remove detach or torch.no_grad between inputs and outputs in the forward pass."
    )


def input_gradient(
    network: nn.Module,
    outputs: Tensor,
    inputs: Tensor,
    cotangent: Tensor | None = None,
    *,
    create_graph: bool,
    retain_graph: bool | None = None,
) -> Tensor:
    """Return the derivative of a scalar or weighted outputs by the inputs.

    The network is evaluated at other inputs to confirm a missing derivative. `cotangent` weights the outputs.
    """
    gradient = None
    if outputs.requires_grad:
        with explained_errors():
            (gradient,) = torch.autograd.grad(
                outputs,
                inputs,
                cotangent,
                create_graph=create_graph,
                retain_graph=retain_graph,
                allow_unused=True,
            )
    if gradient is None:
        _check_constant(network, inputs.detach())
        gradient = torch.zeros_like(inputs)
        return gradient + 0 * outputs.sum() if create_graph else gradient
    return gradient


KINDS = ("class", "rademacher", "batch_sum")


def stratified_classes(n: int, n_outputs: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return one random output for each of n samples, all outputs equally often (up to one).

    Samples in random order are assigned to the outputs in turn, from a random output on; so each sample gets each
    output with the same probability for all n.
    """
    device = generator.device
    first = torch.randint(n_outputs, (1,), generator=generator, device=device)
    return (torch.randperm(n, generator=generator, device=device) + first) % n_outputs


def draw_probe(
    kind: str, n: int, n_outputs: int, generator: torch.Generator
) -> Float[Tensor, "n k"]:
    """Sample one probe [n, K], float32 (`probe_scale` gives its scale s).

    "class" has a one for one output per sample, stratified over the batch; "rademacher" and "batch_sum" have random
    signs, and differ in how the probe is used.
    """
    check_choice("probe", kind, KINDS)
    if kind == "class":
        classes = stratified_classes(n, n_outputs, generator)
        return torch.zeros(n, n_outputs, device=classes.device).scatter_(1, classes[:, None], 1.0)
    return (
        torch.randint(0, 2, (n, n_outputs), generator=generator, device=generator.device)
        .mul_(2)
        .sub_(1)
        .float()
    )


def probe_scale(kind: str, n_outputs: int) -> int:
    """Return the scale s of a probe: the number of outputs for "class", else 1."""
    return n_outputs if kind == "class" else 1


class ProbeSource:
    """Generator of probes that never touches the global random state.

    With several processes the rank is added to the seed, so that their probes differ.
    """

    def __init__(self, kind: str, seed: int = 0) -> None:
        check_choice("probe", kind, KINDS)
        self.kind = kind
        self.seed = seed
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        """The generator, created at its first use."""
        if self._generator is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if distributed else 0
            self._generator = torch.Generator().manual_seed(self.seed + rank)
        return self._generator

    def draw(self, outputs: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Sample a probe for these outputs, on their device, in their dtype (at least float32)."""
        probe = draw_probe(self.kind, outputs.shape[0], outputs.shape[1], self.generator)
        if outputs.dtype == torch.float64:
            dtype = outputs.dtype
        else:
            dtype = torch.float32
        return probe.to(outputs.device, dtype, non_blocking=True)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of the generator."""
        self.generator.set_state(state["generator"])
