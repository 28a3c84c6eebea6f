"""Several threads: the numbers of one thread, and restored networks, settings and streams."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import _cur_sdpa_kernel_backends

import gapscope as gs
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats, freeze_batch_stats
from gapscope.inspection.copies import copy_network
from gapscope.inspection.execution import exclusive
from gapscope.inspection.outputs import inspection_mode, precision_of
from gapscope.inspection.substitution import cast_network

WAIT = 60.0  # generous: a thread that hangs fails the test, a slow machine does not


def network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), *more, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    )


def samples(n: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(n) % 3


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Results of calls that begin at the same time."""
    barrier = threading.Barrier(len(calls), timeout=WAIT)

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(WAIT) for future in [pool.submit(one, call) for call in calls]]


def test_one_network_in_several_threads_has_its_own_numbers_and_stays_as_it_was() -> None:
    names = [
        "worst_case_sharpness",
        "input_jacobian_norm",
        "adaptive_sharpness",
        "unit_sparsity",
        "ntk_trace",
    ]
    net, data = network(), samples()
    net.train()
    next(net.children()).eval()
    expected = gs.measure(net, data, names).values()
    modes, hooks = (
        [m.training for m in net.modules()],
        [len(m._forward_hooks) for m in net.modules()],
    )
    for result in in_threads(*[lambda: gs.measure(net, data, names).values()] * 3):
        assert result == {
            name: pytest.approx(value, rel=1e-6, nan_ok=True) for name, value in expected.items()
        }
    assert [m.training for m in net.modules()] == modes
    assert [len(m._forward_hooks) for m in net.modules()] == hooks
    assert all("forward" not in vars(m) for m in net.modules())


@pytest.mark.thorough
def test_other_networks_run_while_a_network_is_traced() -> None:
    other, (x, y) = network().eval(), samples()
    expected, done = other(x).detach(), threading.Event()

    def measure() -> int:
        try:
            for _ in range(5):
                gs.measure(copy.deepcopy(network()), (x, y), ["unit_sparsity"])
        finally:
            done.set()
        return 0

    def infer() -> int:
        calls = 0
        while not done.is_set() or not calls:
            with torch.no_grad():
                assert torch.equal(other(x), expected)
            calls += 1
        return calls

    assert in_threads(measure, infer, measure)[1] > 0
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("threads", [False, True])
def test_draws_of_the_network_itself_are_undone(threads: bool) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=True)

    net, (x, _) = nn.Sequential(Noisy(), network()), samples()
    other = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, WAIT) if threads else None
        torch.manual_seed(7)
        with inspection_mode(net):
            net(x)
        results = torch.rand(3)
        other.set()
        assert waiting is None or waiting.result(WAIT)
    torch.manual_seed(7)
    assert torch.equal(results, torch.rand(3))


def test_trainings_in_threads_end_with_the_weights_that_they_have_alone() -> None:
    settings = gs.TrainingSpec(epochs=3, batch_size=10)

    def train(seed: int) -> list[Tensor]:
        net = copy.deepcopy(start)
        gs.train(net, samples(), settings, seed=seed)
        return list(net.parameters())

    start = network(nn.Dropout(0.5))
    alone = [train(seed) for seed in range(3)]
    together = in_threads(*[lambda seed=seed: train(seed) for seed in range(3)])
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batch_statistics_are_frozen_for_the_thread_that_asks_alone() -> None:
    torch.manual_seed(0)
    layer, x = nn.BatchNorm1d(3), torch.randn(8, 3)

    def gradient() -> Tensor:
        inputs = x.clone().requires_grad_()
        with allow_frozen_stats({"layer": layer}):
            loss = layer(inputs).square().mul(torch.arange(24).reshape(8, 3)).sum()
        return torch.autograd.grad(loss, inputs)[0]

    plain = gradient()
    with freeze_batch_stats(), ThreadPoolExecutor(1) as pool:
        elsewhere, here = pool.submit(gradient).result(WAIT), gradient()
    assert torch.equal(elsewhere, plain) and not torch.allclose(here, plain)


def test_settings_of_torch_are_restored_after_the_last_thread() -> None:
    before = _cur_sdpa_kernel_backends()
    penalty = gs.penalties.InputJacobianPenalty(0.1)
    x, y = samples()
    in_threads(*[lambda: [penalty(copy.deepcopy(network()), x, y) for _ in range(20)]] * 4)
    assert _cur_sdpa_kernel_backends() == before


def test_what_is_read_of_a_network_is_its_own_while_another_thread_runs_it_in_another_precision() -> (
    None
):
    net: Any = network()
    with ThreadPoolExecutor(2) as pool:
        with exclusive(), cast_network(net, torch.float64, torch.zeros_like):
            dtype = pool.submit(precision_of, net)
            made: Future[Any] = pool.submit(copy_network, net)
            wait([dtype, made], timeout=0.05)
            assert net[0].weight.dtype == torch.float64
        assert dtype.result(WAIT) == torch.float32
        assert torch.equal(made.result(WAIT)[0].weight, net[0].weight)
