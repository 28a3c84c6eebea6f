from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import UnsupportedLayer
from gapscope.gradients.contractions import KernelSide
from gapscope.gradients.contributions import OuterProductFactors
from gapscope.gradients.kernel import most_similar, ntk_blocks
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.measures.ntk import empirical_ntk
from gradients.reference import CASES, Wrapped, dense_jacobian


def kernel_of(network: nn.Module, x: Tensor, x2: Tensor | None = None, **options: object) -> Tensor:
    settings = {"traced": False, "max_bytes": 2**30, "chunk_size": None} | options
    return ntk_blocks(network, x, x2, **settings)  # type: ignore[arg-type]


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
def test_chunks_and_cross_kernel_agree_with_the_whole(name: str) -> None:
    network, x = CASES[name].make(n=5)
    whole = kernel_of(network, x)
    tolerance = 1e-10 * float(whole.abs().max())
    torch.testing.assert_close(kernel_of(network, x, chunk_size=2), whole, rtol=0, atol=tolerance)
    cross = kernel_of(network, x[:3], x[3:], max_bytes=1)
    torch.testing.assert_close(cross, whole[:3, :, 3:], rtol=0, atol=tolerance)
    traced = torch.einsum("ncmc->nm", whole)
    torch.testing.assert_close(
        kernel_of(network, x, traced=True, chunk_size=2), traced, rtol=0, atol=tolerance
    )
    cross = kernel_of(network, x[:3], x[3:], traced=True, max_bytes=1)
    torch.testing.assert_close(cross, traced[:3, 3:], rtol=0, atol=tolerance)


def test_budget_decides_the_number_of_passes() -> None:
    network, x = CASES["conv stack"].make(n=6)
    passes = []
    for samples in (x, x.repeat(6, 1, 1, 1)):  # the self-check makes a pass of its own, once
        kernel_of(network, samples)
    network.register_forward_hook(lambda module, inputs, outputs: passes.append(len(outputs)))
    kernel_of(network, x)
    assert passes == [6]
    passes.clear()
    kernel_of(network, x, max_bytes=60_000)
    assert passes[0] == 6 and max(passes[1:]) < 6
    passes.clear()
    kernel_of(network, x.repeat(6, 1, 1, 1))
    assert passes == [1, 36]


def test_rows_that_fit_into_memory_are_computed_once() -> None:
    network, x = CASES["conv stack"].make(n=12)
    kernel_of(network, x, chunk_size=3)  # the self-check makes passes of its own, once
    whole, passes = kernel_of(network, x), []
    network.register_forward_hook(lambda module, inputs, outputs: passes.append(len(outputs)))
    chunked = kernel_of(network, x, chunk_size=3)
    assert passes == [12, 1, 3, 3, 3, 3]  # two trials, then every sample once
    torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12)


def routed(net: nn.Module, x: Tensor) -> Tensor:
    """Each sample through one of two layers, by its own sign; a layer without samples is not called at all."""
    result = x.new_zeros(len(x), 4)
    for name, chosen in (("one", x[:, 0] > 0), ("two", x[:, 0] <= 0)):
        if bool(chosen.any()):
            result = result.index_put(
                (chosen.nonzero().squeeze(1),), net.get_submodule(name)(x[chosen])
            )
    return result


@pytest.mark.parametrize("traced", [True, False])
def test_unfolded_images_that_exceed_the_temporary_are_multiplied_in_parts(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)).double()

    def factors(n: int) -> OuterProductFactors:
        tape, outputs = record_forward(network, torch.randn(n, 2, 6, 6).double())
        parts = tape.contributions(outputs, one_hot_cotangents(outputs)).values()
        return next(
            part
            for part in parts
            if isinstance(part, OuterProductFactors) and part.inputs.ndim == 4
        )

    first, second = factors(7), factors(11)
    sizes: list[int] = []
    original = OuterProductFactors.side

    def side(self: OuterProductFactors, samples: slice = slice(None)) -> KernelSide:
        result = original(self, samples)
        sizes.append(result.columns.numel())
        return result

    monkeypatch.setattr(OuterProductFactors, "side", side)
    whole = first.kernel(second, 10**6, traced=traced)
    of_one = max(sizes) // 11
    sizes.clear()
    parts = first.kernel(second, 2 * of_one, traced=traced)
    assert max(sizes) == 2 * of_one
    torch.testing.assert_close(parts, whole)


def test_a_network_that_uses_other_parameters_for_other_samples() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.get_submodule("head")(torch.tanh(routed(net, x)))

    torch.manual_seed(0)
    network = Wrapped(
        forward, one=nn.Linear(3, 4), two=nn.Linear(3, 4), head=nn.Linear(4, 2)
    ).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    x[:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    jacobian = dense_jacobian(network, x)
    for chunk_size in (2, 4):
        torch.testing.assert_close(
            kernel_of(network, x, chunk_size=chunk_size), torch.einsum("ncp,mdp->ncmd", jacobian, jacobian),
            rtol=1e-10, atol=1e-12,
        )  # fmt: skip


def test_samples_that_share_no_parameter_have_no_kernel() -> None:
    network = Wrapped(routed, one=nn.Linear(3, 4), two=nn.Linear(3, 4)).double()
    x = torch.randn(2, 3, dtype=torch.float64).abs() * torch.tensor([[1.0], [-1.0]])
    whole = kernel_of(network, x, chunk_size=1)
    assert not bool(whole[0, :, 1].any())
    expected = (x.square().sum(1) + 1)[:, None, None] * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(torch.stack([whole[n, :, n] for n in range(2)]), expected)


def test_a_network_that_sends_all_samples_where_the_first_one_belongs_raises() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.get_submodule("one" if float(x[0, 0]) > 0 else "two")(x)

    network = Wrapped(forward, one=nn.Linear(3, 4), two=nn.Linear(3, 4)).double()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(UnsupportedLayer, match="sample alone"):
        empirical_ntk(network, x)


@pytest.mark.thorough
def test_the_whole_jacobian_is_never_formed() -> None:
    """Its 64 x 10 x 670,000 numbers would take 1.7 GB."""
    program = """
import resource, torch
from torch import nn
from gapscope.base.errors import UnsupportedLayer
from gapscope.gradients.kernel import ntk_blocks
network = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
settings = {"traced": False, "max_bytes": 2**26, "chunk_size": None}
ntk_blocks(network, torch.randn(1, 784), None, **settings)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ntk_blocks(network, torch.randn(64, 784), None, **settings)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 150  # MB, against a budget of 64 for the factors


def test_similarities_close_to_one_are_told_apart() -> None:
    angles = 2e-5 * torch.arange(40, dtype=torch.float64).square()
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    assert most_similar(rows @ rows.T, 1).flatten().tolist() == [1, *range(39)]
