"""Squared norms of per-sample gradients, exact and by random probes."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from gapscope.gradients.backward import draw_probe, probe_scale, stratified_classes
from gapscope.gradients.recording import record_calls, record_forward
from gapscope.gradients.traces import one_hot_cotangents, square_norms
from gradients.reference import CASES, check_traces, dense_jacobian, gradient_of


@pytest.mark.parametrize("name", CASES)
def test_trace_of_every_sample_is_exact(name: str) -> None:
    check_traces(*CASES[name].make())


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_squared_norms_is_exact(name: str) -> None:
    network, x = CASES[name].make()
    jacobian = dense_jacobian(network, x, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    with record_calls(network, x) as tape:
        outputs = network(x)
    random = torch.randn(1, *outputs.shape, generator=generator, dtype=outputs.dtype)
    for weights in (random, one_hot_cotangents(outputs)):
        expected = torch.einsum("wnc,ncp->wnp", weights, jacobian).square().sum()
        value = square_norms(tape, outputs, weights, create_graph=True).sum()
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        gradient = gradient_of(expected, network)
        torch.testing.assert_close(
            gradient_of(value, network),
            gradient,
            rtol=1e-10,
            atol=1e-10 * float(gradient.abs().max()),
        )


def test_the_class_probe_is_exactly_unbiased_over_all_assignments() -> None:
    network, x = CASES["conv stack"].make(n=3)
    tape, outputs = record_forward(network, x)
    exact = square_norms(tape, outputs, one_hot_cotangents(outputs)).sum()
    total, count = 0.0, 0
    for order, first in itertools.product(itertools.permutations(range(3)), range(3)):
        classes = (torch.tensor(order) + first) % 3
        probe = torch.nn.functional.one_hot(classes, 3).double()
        total += float(probe_scale("class", 3) * square_norms(tape, outputs, probe[None]).sum())
        count += 1
    assert math.isclose(total / count, float(exact), rel_tol=1e-12)


def test_random_signs_are_exactly_unbiased_over_all_signs() -> None:
    network, x = CASES["linear on tokens"].make(n=2)
    tape, outputs = record_forward(network, x)
    exact = square_norms(tape, outputs, one_hot_cotangents(outputs)).sum()
    signs = [
        torch.tensor(s, dtype=torch.float64).view(2, 3)
        for s in itertools.product((-1.0, 1.0), repeat=6)
    ]
    mean = sum(float(square_norms(tape, outputs, sign[None]).sum()) for sign in signs) / len(signs)
    assert math.isclose(mean, float(exact), rel_tol=1e-12)


@pytest.mark.parametrize(("n", "n_outputs"), [(4, 3), (2, 5), (6, 3)])
def test_every_sample_gets_every_output_equally_often(n: int, n_outputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([stratified_classes(n, n_outputs, generator) for _ in range(6000)])
    for sample in drawn.T:
        counts = torch.bincount(sample, minlength=n_outputs).double()
        chi_square = ((counts - 6000 / n_outputs) ** 2 / (6000 / n_outputs)).sum()
        assert float(chi_square) < 30  # 4 degrees of freedom at most: p < 1e-5


def test_classes_are_stratified_over_the_batch() -> None:
    classes = stratified_classes(25, 10, torch.Generator().manual_seed(1))
    assert sorted(Counter(classes.tolist()).values()) == [2] * 5 + [3] * 5


def test_entries_are_exact_in_half_precision() -> None:
    for kind in ("class", "rademacher"):
        probe = draw_probe(kind, 5, 7, torch.Generator().manual_seed(0))
        assert torch.equal(probe, probe.bfloat16().float())
