"""All normalization layers: shapes, modes, statistics, dtypes, compilation and gradients."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.layers._channel_norm import ChannelNorm

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "population": ("PopulationNorm", {}),
    "population detached": ("PopulationNorm", {"detach": True}),
    "mean only": ("MeanOnlyBatchNorm", {}),
    "mean only, no scale": ("MeanOnlyBatchNorm", {"scale": False}),
    "variance only": ("VarianceOnlyBatchNorm", {}),
    "variance only, rms": ("VarianceOnlyBatchNorm", {"rms": True}),
    "ghost": ("GhostBatchNorm", {"ghost_size": 3}),
}
SHAPES = {0: [(7, 3), (7, 3, 5)], 1: [(7, 3, 2, 5)], 2: [(7, 3, 2, 2, 3)]}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, dimensions: int = 2, **options: Any) -> ChannelNorm:
    """A layer of 3 channels in float64 with random gamma, beta and running statistics."""
    family, settings = KINDS[kind]
    layer = getattr(gapscope.batch_norm, f"{family}{dimensions}d")(3, **settings | options).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in [*layer.parameters(), layer.running_mean, layer.running_var]:
            if tensor is not None:
                tensor.copy_(torch.rand(3, generator=generator) + 0.5)
    return layer


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return 1 + 2 * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def function_of(layer: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    names = [name for name, _ in layer.named_parameters()]

    def function(h: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (h,))

    return function, [
        parameter.detach().clone().requires_grad_() for parameter in layer.parameters()
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "population"])
@pytest.mark.parametrize("affine", [True, False])
def test_first_and_second_derivatives(kind: str, affine: bool) -> None:
    options = {} if affine else {"affine": False}
    layer = build(kind, **options)
    function, parameters = function_of(layer)
    h = inputs(5, 3, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(function, (h, *parameters))
    assert torch.autograd.gradgradcheck(function, (h, *parameters))


@EVERY_KIND
def test_fast_and_differentiable_gradients_agree(kind: str) -> None:
    layer = build(kind)
    function, parameters = function_of(layer)
    h, g = inputs(5, 3, 2, 2).requires_grad_(), inputs(5, 3, 2, 2, seed=1)
    fast = torch.autograd.grad(function(h, *parameters), [h, *parameters], g)
    slow = torch.autograd.grad(function(h, *parameters), [h, *parameters], g, create_graph=True)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@EVERY_KIND
def test_gradients_under_function_transforms(kind: str) -> None:
    layer = build(kind) if "population" in kind else build(kind, track_running_stats=False)
    h = inputs(5, 3, 2, 2).requires_grad_()
    by_transform = torch.func.grad(lambda h: layer(h).sin().sum())(h.detach())
    (by_autograd,) = torch.autograd.grad(layer(h).sin().sum(), h)
    torch.testing.assert_close(by_transform, by_autograd)


@EVERY_KIND
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_one_two_and_three_dimensions_agree(kind: str, dimensions: int) -> None:
    for shape in SHAPES[dimensions - 1]:
        h = inputs(*shape)
        layer, flat = build(kind, dimensions), build(kind, 1)
        as_row = h[:, :, None] if h.ndim == 2 else h.flatten(2)
        torch.testing.assert_close(layer(h).view(as_row.shape), flat(as_row))
        torch.testing.assert_close(layer.eval()(h).view(as_row.shape), flat.eval()(as_row))


@EVERY_KIND
def test_wrong_shapes_are_rejected(kind: str) -> None:
    layer = build(kind)
    with pytest.raises(InvalidInput, match=r"width\]; got \[7, 3\]"):
        layer(inputs(7, 3))
    with pytest.raises(InvalidInput, match=r"\[7, 4, 2, 2\]"):
        layer(inputs(7, 4, 2, 2))
    layer = build(kind, 1)
    with pytest.raises(InvalidInput, match=r"\[n, 3, length\]; got"):
        layer(inputs(7, 3, 2, 2))
    if kind != "population detached":
        with pytest.raises(InvalidInput, match="least 2 values per"):
            layer(inputs(1, 3))
    assert layer.eval()(inputs(1, 3)).isfinite().all()


@EVERY_KIND
def test_constant_channels_are_finite_and_nan_stays_in_its_channel(kind: str) -> None:
    layer = build(kind)
    h = inputs(6, 3, 2, 2)
    h[:, 1] = 4.0
    clean = layer(h.requires_grad_())
    (gradient,) = torch.autograd.grad(clean.square().sum(), h)
    assert clean.isfinite().all() and gradient.isfinite().all()
    h = h.detach().clone()
    h[2, 1, 0, 0] = torch.nan
    y = layer(h)
    assert y[:, 1].isnan().any()
    torch.testing.assert_close(y[:, [0, 2]], clean[:, [0, 2]])
    for running in (layer.running_mean, layer.running_var):
        assert running is None or not running[[0, 2]].isnan().any()


@EVERY_KIND
def test_automatic_mixed_precision(kind: str) -> None:
    layer = build(kind).float()
    h = inputs(8, 3, 4, 4).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(nn.functional.conv2d(h, torch.eye(3)[:, :, None, None]))
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16 and h.grad is not None and h.grad.isfinite().all()
    exact = build(kind).float()(h.detach().bfloat16().float())
    torch.testing.assert_close(y.float(), exact, rtol=0.02, atol=0.05)
    for buffer in (layer.running_mean, layer.running_var):
        assert buffer is None or buffer.dtype == torch.float32


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@EVERY_KIND
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's compiler, of its own
def test_compilation_without_a_graph_break(kind: str, backend: str) -> None:
    plain = build(kind).float()
    compiled = torch.compile(copy.deepcopy(plain), backend=backend, fullgraph=True)
    results = []
    for layer in (plain, compiled):
        h = inputs(6, 3, 2, 2).float().requires_grad_()
        y = layer(h)
        y.sin().sum().backward()
        assert h.grad is not None
        results.append(
            [y.detach(), h.grad, *(p.grad for p in layer.parameters()), *layer.buffers()]
        )
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@EVERY_KIND
def test_state_dictionary_round_trip_and_reset(kind: str) -> None:
    layer, h = build(kind), inputs(6, 3, 2, 2)
    layer(h)
    other = build(kind)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(h), layer.eval()(h))
    layer.reset_parameters()
    fresh = type(layer)(3, **KINDS[kind][1]).double()
    for name, value in fresh.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(h), layer(h)) and "affine=True" in repr(
        layer
    )


@pytest.mark.parametrize("kind", ["mean only", "variance only", "ghost"])
def test_without_running_statistics_evaluation_uses_the_batch(kind: str) -> None:
    layer, h = build(kind, track_running_stats=False), inputs(6, 3, 2, 2)
    assert torch.equal(layer.eval()(h), build(kind)(h))
    assert not list(layer.buffers())


@pytest.mark.parametrize("kind", ["mean only", "variance only", "ghost"])
def test_running_statistics_are_those_of_torch_to_the_last_digits(kind: str) -> None:
    layer = build(kind, momentum=None, **({"ghost_size": 99} if kind == "ghost" else {}))
    plain: Any = nn.BatchNorm2d(3, momentum=None).double()
    for seed in range(3):
        h = inputs(6, 3, 2, 2, seed=seed)
        layer(h)
        plain(h)
    for name in ("running_mean", "running_var"):
        if (result := getattr(layer, name)) is not None:
            torch.testing.assert_close(result, getattr(plain, name), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("kind", ["mean only", "ghost"])
def test_an_infinity_stays_in_the_running_mean_as_in_torch(kind: str) -> None:
    layer, plain = build(kind), nn.BatchNorm2d(3).double()
    for _ in range(2):
        h = inputs(6, 3, 2, 2)
        h[0, 1, 0, 0] = torch.inf
        layer(h)
        plain(h)
    assert plain.running_mean is not None and layer.running_mean is not None
    assert (
        layer.running_mean.isinf().tolist()
        == plain.running_mean.isinf().tolist()
        == [False, True, False]
    )


@EVERY_KIND
@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("side", [1, 4])
def test_memory_formats_change_nothing(kind: str, n: int, side: int) -> None:
    """Strides of a dimension of size 1 decide between channels-last and contiguous."""
    if n * side == 1:
        return
    results = []
    for of_inputs in (torch.contiguous_format, torch.channels_last):
        for of_gradient in (torch.contiguous_format, torch.channels_last):
            layer = build(kind)
            h = inputs(n, 3, side, side).contiguous(memory_format=of_inputs).requires_grad_()
            g = inputs(n, 3, side, side, seed=1).contiguous(memory_format=of_gradient)
            y = layer(h)
            results.append([y, *torch.autograd.grad(y, [h, *layer.parameters()], g)])
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            torch.testing.assert_close(one, other)
