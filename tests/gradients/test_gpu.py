"""The same numbers on a GPU, mixed precision with its gradient scaler, and untouched random states."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gradients.reference import CASES, gradient_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", CASES)
def test_kernel_and_penalties_are_those_of_the_cpu(name: str) -> None:
    network, x = CASES[name].make()
    kernel = empirical_ntk(network, x)
    penalties = [
        GradientSimilarityPenalty(1.0, method="exact"),
        GradientSimilarityPenalty(1.0, kind="logdet"),
    ]
    gradients = [gradient_of(penalty(network, x), network) for penalty in penalties]
    network, x = network.cuda(), x.cuda()
    torch.testing.assert_close(empirical_ntk(network, x).cpu(), kernel, rtol=1e-9, atol=1e-9)
    for penalty, gradient in zip(penalties, gradients, strict=True):
        torch.testing.assert_close(
            gradient_of(penalty(network, x), network).cpu(), gradient, rtol=1e-8, atol=1e-8
        )


def test_the_same_probes_are_sampled_on_either_device() -> None:
    network, x = CASES["conv stack"].make()
    on_cpu = ntk_trace(network, x, method="probe", draws=3)
    state = torch.cuda.get_rng_state()
    on_gpu = ntk_trace(network.cuda(), x.cuda(), method="probe", draws=3)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-9)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_log_determinant_in_double_precision_needs_no_tf32() -> None:
    network, x = CASES["conv stack"].make()
    exact = ntk_logdet(network, x)
    assert ntk_logdet(network.float().cuda(), x.float().cuda()) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_with_a_gradient_scaler(dtype: torch.dtype) -> None:
    network, x = CASES["conv stack"].make(n=16)
    network, x = network.float().cuda(), x.float().cuda()
    y = torch.arange(16, device="cuda") % 3
    penalty = GradientSimilarityPenalty(0.5, method="exact")
    plain = gradient_of(F.cross_entropy(network(x), y) + penalty(network, x), network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    with torch.autocast("cuda", dtype=dtype):
        outputs, value = penalty.forward_with_penalty(network, x)
        loss = F.cross_entropy(outputs, y) + value
    assert outputs.dtype == dtype and value.dtype == torch.float32
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    mixed = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    assert float((mixed - plain).norm() / plain.norm()) < 0.05
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
