"""What the self-check must see: each of these networks once gave a wrong number without a word."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gapscope.base.errors import NeverSupported, NotMeasurable, SlowGradients
from gapscope.gradients import tape as tape_module
from gapscope.gradients import verification
from gapscope.gradients.contributions import Contribution, DenseJacobian
from gapscope.gradients.per_sample import per_sample_jacobian
from gapscope.gradients.projections import projected_kernel
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.gradients.traces import per_sample_traces
from gapscope.gradients.verification import verify
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gradients.reference import (
    CASES,
    OwnLayerNorm,
    Wrapped,
    check_traces,
    dense_jacobian,
    gradient_of,
)


def traces(network: nn.Module, x: Tensor) -> Tensor:
    return per_sample_traces(network, x, None, chunk_size=64)[0]


@pytest.mark.parametrize("n", [2, 3, 6, 12])
def test_a_batch_that_happens_to_be_sorted_hides_no_sorting(n: int) -> None:
    network, x = CASES["samples sorted inside"].make(n=n)
    order = x[:, 0].argsort()
    traces(network, x[order])
    check_traces(network, x[order.flip(0)])
    network = CASES["samples sorted inside"].make()[0]
    traces(network, x[order.flip(0)])
    check_traces(network, x[order.roll(1)])


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3)))[1:])
def test_no_permutation_of_the_samples_passes(permutation: tuple[int, ...]) -> None:
    order = torch.tensor(permutation)
    network = Wrapped(
        lambda net, x: (
            net.head(torch.cat([torch.tanh(net.layer(x[order])), x[order]], 1)[order.argsort()])
            if len(x) == 3
            else net.head(torch.cat([torch.tanh(net.layer(x)), x], 1))
        ),
        layer=nn.Linear(4, 4),
        head=nn.Linear(8, 2),
    ).double()
    check_traces(network, torch.randn(3, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    "name", ["one layer under two names", "patched forward", "lstm", "weight norm"]
)
def test_the_network_is_the_same_object_by_object_afterwards(name: str) -> None:
    network, x = CASES[name].make()
    slots = [
        (module, dict(module._parameters), dict(module._buffers)) for module in network.modules()
    ]
    first = traces(network, x)
    for module, parameters, buffers in slots:
        assert all(module._parameters[key] is value for key, value in parameters.items())
        assert all(module._buffers[key] is value for key, value in buffers.items())
    copy.deepcopy(network)
    assert torch.equal(traces(network, x), first)


def test_what_no_faster_way_follows_is_right_and_said_once() -> None:
    torch.manual_seed(0)
    network = Wrapped(
        lambda net, x: net.head(F.dropout(torch.tanh(net.layer(x) @ net.mixer), 0.5, net.training)),
        layer=nn.Linear(3, 8),
        head=nn.Linear(8, 2),
        mixer=nn.Parameter(torch.eye(8) + 0.1),
    ).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    penalty = GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    with pytest.warns(SlowGradients, match=r"backward pass per sample.*requires_grad_\(False\)"):
        outputs, value = penalty.forward_with_penalty(network, x)
    parameters = list(network.parameters())
    rows = [
        torch.autograd.grad(output, parameters, create_graph=True) for output in outputs.flatten()
    ]
    expected = torch.stack([gradient.square().sum() for row in rows for gradient in row]).sum()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient_of(value, network), gradient_of(expected, network))
    penalty(network, x)


def test_mixing_behind_a_zero_initialized_head_raises() -> None:
    network = Wrapped(
        lambda net, x: net.head(torch.tanh(net.layer(x)).flip(0)),
        layer=nn.Linear(3, 4),
        head=nn.Linear(4, 2),
    )
    nn.init.zeros_(network.get_parameter("head.weight"))
    with pytest.raises(NeverSupported, match="own sample alone"):
        verify(*record_forward(network, torch.randn(4, 3)))


def test_a_second_derivative_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached(*given: Any) -> list[Contribution]:
        parts = per_sample_jacobian(*given)
        return [
            DenseJacobian(part.parameters, part.values.detach())
            for part in parts
            if isinstance(part, DenseJacobian)
        ]

    monkeypatch.setattr(tape_module, "per_sample_jacobian", detached)
    network = nn.Sequential(nn.Linear(4, 6), OwnLayerNorm(6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    with pytest.warns(SlowGradients, match=r"by 1\.weight are computed"):
        value = GradientSimilarityPenalty(1.0, method="exact", reduction="sum")(network, x)
    expected = dense_jacobian(network, x, create_graph=True).square().sum()
    torch.testing.assert_close(gradient_of(value, network), gradient_of(expected, network))


class Cube(torch.autograd.Function):
    """x^3 with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradients[0]


@pytest.mark.parametrize(
    ("activation", "first_uses"), [(torch.tanh, [8, 16]), (Cube.apply, [0, 8, 16])]
)
def test_second_derivatives_are_compared_at_once_where_the_user_wrote_one(
    activation: Any, first_uses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    original = verification._second_derivative_differs

    def record(tape: Tape, outputs: Tensor, seed: int, n_cotangents: int) -> bool:
        compared.append(seed)
        return original(tape, outputs, seed, n_cotangents)

    monkeypatch.setattr(verification, "_second_derivative_differs", record)
    network = Wrapped(
        lambda net, x: net.head(activation(net.layer(x))),
        layer=nn.Linear(4, 6),
        head=nn.Linear(6, 2),
    )
    network.double()
    x = torch.randn(5, 4, dtype=torch.float64)
    penalty = GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    for _ in range(20):
        value = penalty(network, x)
    assert compared == first_uses
    expected = dense_jacobian(network, x, create_graph=True).square().sum()
    torch.testing.assert_close(gradient_of(value, network), gradient_of(expected, network))


def test_a_way_is_tried_again_when_the_network_takes_another_branch() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.layer(x))
        return net.head(h if net.plain else torch.tanh(F.linear(h, net.layer.weight)))

    network: Any = Wrapped(forward, layer=nn.Linear(4, 4), head=nn.Linear(4, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    network.plain = True
    traces(network, x)
    network.plain = False
    for _ in range(8):
        traces(network, x)
    check_traces(network, x)


class MaskedAttention(nn.Module):
    """Attention with scales of its own, whose mask is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = (x * self.scale.sin()) @ x.mT
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x


def with_mask(net: Any, x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[1], x.shape[1]).bool().tril()
    return net.head(net.attention(x, mask).mean(1))


TIME_MAJOR: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Wrapped(
        lambda net, x: net.head(net.rnn(x.transpose(0, 1))[0][-1]),
        rnn=nn.LSTM(4, 3),
        head=nn.Linear(3, 2),
    ),
    "own parameter": lambda: Wrapped(
        lambda net, x: net.head(torch.tanh(x.transpose(0, 1) * net.scale).mean(0)),
        scale=nn.Parameter(torch.randn(4)),
        head=nn.Linear(4, 2),
    ),
    "mask": lambda: Wrapped(with_mask, attention=MaskedAttention(), head=nn.Linear(4, 2)),
}


@pytest.mark.parametrize("name", TIME_MAJOR)
def test_as_many_samples_as_steps(name: str) -> None:
    """A dimension of the steps looks like that of the samples in a batch as long as the sequence."""
    torch.manual_seed(0)
    network = TIME_MAJOR[name]().double().eval()
    for n in (12, 10):
        check_traces(network, torch.randn(n, 10, 4, dtype=torch.float64))
    x = torch.randn(20, 10, 4, dtype=torch.float64)
    expected = dense_jacobian(network, x).square().sum((1, 2))
    torch.testing.assert_close(per_sample_traces(network, x, None, chunk_size=10)[0], expected)


def switched(net: Any, x: Tensor) -> Tensor:
    result = net.head(torch.tanh(net.layer(x)))
    return result + F.linear(x, net.layer.weight[:2]) if net.flag else result


def for_large_inputs(net: Any, x: Tensor) -> Tensor:
    large = x[:, 0] > 2
    h = net.layer(x)
    if large.any():
        h = h + torch.where(large[:, None], F.linear(x, net.layer.weight.T), 0)
    return net.head(torch.tanh(h))


@pytest.mark.parametrize("n", [6, 12])
@pytest.mark.parametrize("forward", [switched, for_large_inputs])
def test_another_use_of_a_weight_in_the_same_calls_is_seen_at_once(forward: Any, n: int) -> None:
    torch.manual_seed(0)
    network: Any = Wrapped(forward, layer=nn.Linear(4, 4), head=nn.Linear(4, 2)).double()
    x = torch.randn(n, 4, dtype=torch.float64).clamp(max=1.5)
    network.flag = False
    check_traces(network, x)
    network.flag = True
    x[3, 0] = 5.0
    check_traces(network, x)


def test_a_projected_kernel_sees_another_use_in_a_later_chunk() -> None:
    torch.manual_seed(0)
    layers = {"layer": nn.Linear(4, 4), "head": nn.Linear(4, 2)}
    network = Wrapped(for_large_inputs, **layers).double().eval()
    x = torch.randn(24, 4, dtype=torch.float64).clamp(max=1.5)
    x[20, 0] = 5.0
    with pytest.raises(NotMeasurable, match="use the weights alike"):
        projected_kernel(network, x, None, seed=0, chunk_size=12)
    x[3, 0] = 5.0
    x[20, 0] = 0.0
    rows = dense_jacobian(network, x).flatten(1)
    actual = projected_kernel(network, x, None, seed=0, chunk_size=12)
    torch.testing.assert_close(actual, rows @ rows.T)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
def test_a_traced_network_and_a_compiled_one() -> None:
    plain, x = CASES["linear"].make()
    expected = dense_jacobian(plain, x).square().sum((1, 2))
    compiled: Any = torch.compile(plain, backend="eager")
    compiled(x)
    torch.testing.assert_close(traces(compiled, x), expected)
    traced: Any = torch.jit.trace(plain, (x,))
    with pytest.warns(SlowGradients):
        torch.testing.assert_close(traces(traced, x), expected)


def test_a_way_that_cannot_be_differentiated_is_left() -> None:
    """A checkpoint runs again in the backward pass what vmap has run."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(checkpoint(net.first, x, use_reentrant=False))
        return net.head(torch.tanh(net.layer(h)) + 0.2 * F.linear(h, net.layer.weight))

    network = Wrapped(
        forward, first=nn.Linear(4, 4), layer=nn.Linear(4, 4), head=nn.Linear(4, 2)
    ).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGradients)
        value = GradientSimilarityPenalty(1.0, method="exact", reduction="sum")(network, x)
    expected = dense_jacobian(network, x, create_graph=True).square().sum()
    torch.testing.assert_close(gradient_of(value, network), gradient_of(expected, network))


def experts(net: Any, x: Tensor) -> Tensor:
    """Samples are sent to one of two layers; at other weights all of them to the first."""
    chosen = (
        (x[:, 0, 0] > 0)
        if bool((net.marker.weight == 1).all())
        else torch.ones(len(x), dtype=torch.bool)
    )
    result = torch.zeros_like(x)
    for expert, mask in ((net.first, chosen), (net.second, ~chosen)):
        result[mask] = expert(x[mask])
    return net.head(result * net.marker.weight[0]).mean(1)


def test_other_routes_at_perturbed_weights_verify_nothing() -> None:
    """One sample of four places reaches a layer as [1, 4, 3], whose second dimension is as long as the batch."""
    layers = {
        "first": nn.Linear(3, 3),
        "second": nn.Linear(3, 3),
        "marker": nn.Linear(1, 1, bias=False),
        "head": nn.Linear(3, 2),
    }
    network = Wrapped(experts, **layers).double()
    nn.init.ones_(layers["marker"].weight)
    x = torch.randn(4, 4, 3, dtype=torch.float64)
    x[:, 0, 0] = torch.tensor([1.0, -1.0, -1.0, -1.0])
    check_traces(network, x)
