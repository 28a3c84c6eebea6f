"""What is compared, task by task: a name and a function without arguments that returns the numbers it computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.penalties.base import Penalty
from gapscope.penalties.gradient_norms import LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from networks import batch, make

Candidate = Callable[[], Any]
STRENGTH, RATE = 1e-4, 1e-6


class Work:
    """A network with a batch, and plain training steps on it."""

    def __init__(self, name: str, n: int, device: str) -> None:
        self.network, (self.x, self.y) = make(name, device), batch(name, n, device)
        self.parameters: list[Tensor] = list(self.network.parameters())
        self.named: dict[str, Tensor] = dict(self.network.named_parameters())

    def step(self, loss: Tensor) -> None:
        """One step of gradient descent, so small that every candidate sees the same weights."""
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, list(gradients), alpha=-RATE)  # type: ignore[reportPrivateImportUsage]

    def plain(self) -> None:
        """A training step."""
        self.step(F.cross_entropy(self.network(self.x), self.y))

    def penalized(self, penalty: Penalty, calls: int = 1) -> None:
        """Training steps with a penalty that shares the forward pass."""
        for _ in range(calls):
            outputs, value = penalty.forward_with_penalty(self.network, self.x, self.y)
            self.step(F.cross_entropy(outputs, self.y) + value)

    def jacobian(self, parameters: dict[str, Tensor]) -> Tensor:
        """[N, C, P] by torch.func, the tutorial's way."""

        def one(p: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.network, p, (x[None],))[0]

        jacobians = vmap(jacrev(one), (None, 0))(parameters, self.x)
        return torch.cat([jacobian.flatten(2) for jacobian in jacobians.values()], 2)

    def step_by_torch_func(self, value: Callable[[Tensor], Tensor]) -> None:
        """A training step with a function of the whole Jacobian as its penalty."""

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            outputs = functional_call(self.network, parameters, (self.x,))
            return F.cross_entropy(outputs, self.y) + STRENGTH * value(self.jacobian(parameters))

        gradients = grad(loss)(self.named)
        with torch.no_grad():
            steps = list(gradients.values())
            torch._foreach_add_(self.parameters, steps, alpha=-RATE)  # type: ignore[reportPrivateImportUsage]

    def backward(self) -> None:
        """A forward and a backward pass."""
        torch.autograd.grad(self.network(self.x).sum(), self.parameters)


def _log_determinant(jacobian: Tensor) -> Tensor:
    rows = jacobian.flatten(0, 1)
    return torch.logdet(torch.eye(len(rows), device=rows.device) + rows @ rows.T)


def kernel(work: Work) -> dict[str, Candidate]:
    network, x = work.network, work.x

    def by_torch_func(pattern: str) -> Tensor:
        with torch.no_grad():
            jacobian = work.jacobian(work.named)
        return torch.einsum(pattern, jacobian, jacobian)

    return {
        "gapscope full": lambda: empirical_ntk(network, x),
        "gapscope traced": lambda: empirical_ntk(network, x, outputs="traced"),
        "torch.func full": lambda: by_torch_func("ncp,mdp->ncmd"),
        "torch.func traced": lambda: by_torch_func("ncp,mcp->nm"),
    }


def trace(work: Work) -> dict[str, Candidate]:
    network, x = work.network, work.x

    def by_torch_func() -> Tensor:
        with torch.no_grad():
            return work.jacobian(work.named).square().sum()

    probe = partial(ntk_trace, network, x, method="probe")
    return {
        "plain forward and backward": work.backward,
        "gapscope exact": lambda: ntk_trace(network, x),
        "gapscope class probe": lambda: probe(probe="class"),
        "gapscope random signs": lambda: probe(probe="rademacher"),
        "torch.func exact": by_torch_func,
    }


def penalty(work: Work) -> dict[str, Candidate]:
    ours = partial(GradientSimilarityPenalty, STRENGTH, reduction="sum")
    lazy = ours(every=4)
    return {
        "plain": work.plain,
        "gapscope class probe": partial(work.penalized, ours()),
        "gapscope random signs": partial(work.penalized, ours(probe="rademacher")),
        "gapscope class probe, every=4 (4 steps)": partial(work.penalized, lazy, 4),
        "gapscope exact": partial(work.penalized, ours(method="exact")),
        "batch-sum probe (Hutchinson)": partial(work.penalized, ours(probe="batch_sum")),
        "loss gradient": partial(work.penalized, LossGradientPenalty(STRENGTH)),
        "torch.func exact": lambda: work.step_by_torch_func(
            lambda jacobian: jacobian.square().sum()
        ),
    }


def logdet(work: Work) -> dict[str, Candidate]:
    ours = partial(GradientSimilarityPenalty, STRENGTH, kind="logdet", reduction="sum")
    return {
        "plain": work.plain,
        "gapscope value, float32 gradients": lambda: ntk_logdet(work.network, work.x, dtype=None),
        "gapscope value, float64": lambda: ntk_logdet(work.network, work.x),
        "gapscope step, log det(I + K)": partial(work.penalized, ours()),
        "gapscope step, log det K": partial(work.penalized, ours(noise=None)),
        "torch.func step, log det(I + K)": lambda: work.step_by_torch_func(_log_determinant),
    }


TASKS: dict[str, tuple[str, Callable[[Work], dict[str, Candidate]]]] = {
    "kernel": ("gapscope full", kernel),
    "trace": ("plain forward and backward", trace),
    "penalty": ("plain", penalty),
    "logdet": ("plain", logdet),
}
