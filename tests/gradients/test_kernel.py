from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gapscope.gradients.kernel import kernel
from gradients.reference import CASES, Wrapped, dense_jacobian


def kernel_of(network: nn.Module, x: Tensor, x2: Tensor | None = None, **options: object) -> Tensor:
    settings = {"traced": False, "max_bytes": 2**30, "chunk_size": None} | options
    return kernel(network, x, x2, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_kernel_is_exact_for_every_layer(name: str) -> None:
    network, x = CASES[name].make()
    jacobian = dense_jacobian(network, x)
    expected = torch.einsum("ncp,mdp->ncmd", jacobian, jacobian)
    tolerance = 1e-10 * float(expected.abs().max())
    torch.testing.assert_close(kernel_of(network, x), expected, rtol=0, atol=tolerance)
    traced = torch.einsum("ncmc->nm", expected)
    torch.testing.assert_close(kernel_of(network, x, traced=True), traced, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("traced", [False, True])
def test_chunks_and_cross_kernel_agree_with_the_whole(name: str, traced: bool) -> None:
    network, x = CASES[name].make(n=5)
    whole = kernel_of(network, x, traced=traced)
    tolerance = 1e-10 * float(whole.abs().max())
    torch.testing.assert_close(kernel_of(network, x, traced=traced, chunk_size=2), whole, rtol=0, atol=tolerance)
    cross = kernel_of(network, x[:3], x[3:], traced=traced, max_bytes=1)
    torch.testing.assert_close(cross, whole[:3, 3:] if traced else whole[:3, :, 3:], rtol=0, atol=tolerance)


def test_budget_decides_the_number_of_passes() -> None:
    network, x = CASES["conv stack"].make(n=6)
    passes = []
    network.register_forward_hook(lambda module, inputs, outputs: passes.append(len(outputs)))
    kernel_of(network, x)
    assert passes == [1, 6]
    passes.clear()
    kernel_of(network, x, max_bytes=60_000)
    assert max(passes) < 6


def test_a_network_that_uses_other_parameters_for_other_samples() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        layer = net.get_submodule("one" if float(x[0, 0]) > 0 else "two")
        return net.get_submodule("head")(torch.tanh(layer(x)))

    torch.manual_seed(0)
    network = Wrapped(forward, one=nn.Linear(3, 4), two=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    x[:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    jacobian = dense_jacobian(network, x)
    torch.testing.assert_close(
        kernel_of(network, x, chunk_size=2), torch.einsum("ncp,mdp->ncmd", jacobian, jacobian), rtol=1e-10, atol=1e-12
    )
