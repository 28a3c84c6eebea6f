"""Traces and kernels of whole networks against their dense Jacobians."""

from __future__ import annotations

import torch

from cases import CASES, each
from gapscope.measures.ntk import empirical_ntk, ntk_trace
from gradients.reference import dense_jacobian


@each()
def test_trace_and_kernel_are_those_of_the_dense_jacobian(name: str) -> None:
    network, samples = CASES[name].make(4, dtype=torch.float64)
    jacobian = dense_jacobian(network, samples.inputs)
    expected = torch.einsum("ncp,mdp->ncmd", jacobian, jacobian)
    torch.testing.assert_close(empirical_ntk(network, samples.inputs), expected, rtol=1e-9, atol=1e-9)
    trace = ntk_trace(network, samples.inputs)
    assert abs(trace - float(jacobian.square().sum())) <= 1e-9 * float(trace) and float(trace) > 0
