from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.gradients.kernel import ntk_blocks
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import one_hot_cotangents, square_norms
from gapscope.gradients.verification import verify
from gradients.reference import Wrapped, dense_jacobian, gradient_of


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(shape) + 0.5)


# A map of h [n, 5, 4] by a bare parameter p, and the parameter's shape.
USES: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...]]] = {
    "positions": (lambda net, h: h + net.p, (5, 4)),
    "positions of one": (lambda net, h: net.p + h, (1, 5, 4)),
    "some of the positions": (lambda net, h: h + net.p[:, :5], (1, 7, 4)),
    "subtracted": (lambda net, h: h - net.p, (5, 1)),
    "subtracted from": (lambda net, h: torch.sub(net.p, h, alpha=2), (4,)),
    "added with a factor": (lambda net, h: torch.add(h, net.p, alpha=3), (4,)),
    "scale": (lambda net, h: net.p * h, (4,)),
    "scale of all": (lambda net, h: h * net.p, ()),
    "scale by an exponential": (lambda net, h: net.p.exp() * h, ()),
    "expanded": (lambda net, h: torch.cat([net.p.expand(len(h), -1, -1), h[:, 1:]], 1), (1, 1, 4)),
    "unsqueezed": (lambda net, h: h * net.p[None, :, None], (5,)),
    "several uses": (lambda net, h: (h + net.p) * net.p - net.p.exp(), (5, 4)),
    "places first": (lambda net, h: (h.transpose(0, 1) + net.p).transpose(0, 1), (5, 1, 4)),
}


def _network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    function, shape = USES[name]
    network = Wrapped(
        lambda net, x: net.head(function(net, net.layer(x)).tanh().flatten(1)),
        layer=nn.Linear(3, 4),
        p=_parameter(*shape),
        head=nn.Linear(20, 2),
    )
    return network.double(), torch.randn(6, 5, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", USES)
def test_bare_parameters_need_no_other_pass(name: str) -> None:
    network, x = _network(name)
    tape, outputs = record_forward(network, x)
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs), create_graph=True)
    assert not tape.whole_network and not tape.per_sample
    assert not tape.contributions_per_call(
        outputs, one_hot_cotangents(outputs), create_graph=False
    )[1]
    rows = dense_jacobian(network, x, create_graph=True)
    torch.testing.assert_close(norms, rows.square().sum((1, 2)), rtol=1e-10, atol=0)
    right = gradient_of(rows.square().sum(), network)
    torch.testing.assert_close(
        gradient_of(norms.sum(), network), right, rtol=0, atol=1e-10 * float(right.abs().max())
    )
    torch.testing.assert_close(
        ntk_blocks(network, x, None, traced=False, max_bytes=2**20, chunk_size=4),
        torch.einsum("ncp,mdp->ncmd", rows, rows).detach(),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_a_table_of_positions_is_read_once_for_all_samples(shape: tuple[int, ...]) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        positions = net.norm(net.table(torch.arange(5).view(shape)))
        return net.head((net.layer(x) + positions).tanh().flatten(1))

    torch.manual_seed(0)
    parts = {
        "layer": nn.Linear(3, 4),
        "table": nn.Embedding(7, 4),
        "norm": nn.Linear(4, 4),
        "head": nn.Linear(20, 2),
    }
    network, x = Wrapped(forward, **parts).double(), torch.randn(6, 5, 3, dtype=torch.float64)
    tape, outputs = record_forward(network, x)
    verify(tape, outputs)
    rows = dense_jacobian(network, x)
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs))
    torch.testing.assert_close(norms, rows.square().sum((1, 2)), rtol=1e-10, atol=0)
    assert not any(
        call.lacks_batch_dim and call.owned & tape.whole_network
        for call in tape.calls
        if call.name == "norm"
    )


def test_a_use_that_is_not_known_goes_another_way() -> None:
    network, x = _network("scale")
    network.function = lambda net, x: net.head((net.layer(x).abs() ** net.p).flatten(1))  # type: ignore[attr-defined]
    tape, outputs = record_forward(network, x)
    assert not tape._broadcasts(outputs)
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs))
    torch.testing.assert_close(
        norms, dense_jacobian(network, x).square().sum((1, 2)), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("n", [3, 6, 12])
@pytest.mark.parametrize("leading", [(), (1,)])
def test_a_table_of_as_many_positions_as_samples_is_read_once(
    n: int, leading: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    places = torch.arange(12 if n > 6 else 6).expand(*leading, -1)
    network = Wrapped(
        lambda net, x: net.head((net.layer(x) + net.positions(places)).tanh().mean(1)),
        layer=nn.Linear(3, 4),
        positions=nn.Embedding(12, 4),
        head=nn.Linear(4, 2),
    ).double()
    x = torch.randn(n, places.shape[-1], 3, dtype=torch.float64)
    tape, outputs = record_forward(network, x)
    verify(tape, outputs)
    assert not tape.whole_network and not tape.per_sample
    assert not tape.contributions_per_call(
        outputs, one_hot_cotangents(outputs), create_graph=False
    )[1]
    rows = dense_jacobian(network, x, create_graph=True)
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs), create_graph=True)
    torch.testing.assert_close(norms, rows.square().sum((1, 2)), rtol=1e-10, atol=0)
    right = gradient_of(rows.square().sum(), network)
    torch.testing.assert_close(
        gradient_of(norms.sum(), network), right, rtol=0, atol=1e-10 * float(right.abs().max())
    )
