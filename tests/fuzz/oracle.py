"""Right answers by plain autograd in float64, one sample and one output at a time, against the library's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.grammar import Sentence
from gapscope.base.errors import GapscopeError
from gapscope.gradients.backward import differentiable_kernels, draw_probe, probe_scale
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gradients.reference import dense_jacobian, gradient_of

# Largest error, relative to the largest right entry. Half precision rounds every layer to 3 digits.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-4, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Truth:
    """The right answers."""

    jacobian: Tensor  # [N, C, P]
    input_norms: Tensor  # Frobenius norm of each sample's derivative by its input
    # Gradient of the trace by the weights, value and gradient of log det(I + K), and of the squared norms for the probe
    # that the penalty draws first. None where torch has no second derivative.
    trace: Tensor | None = None
    logdet: tuple[Tensor, Tensor] | None = None
    probed: tuple[Tensor, Tensor] | None = None

    @property
    def kernel(self) -> Tensor:
        rows = self.jacobian.flatten(0, 1)
        n, c, _ = self.jacobian.shape
        return (rows @ rows.T).view(n, c, n, c)


def _input_norms(network: nn.Module, x: Tensor) -> Tensor:
    norms = []
    for sample in x.split(1):
        sample = sample.clone().requires_grad_()
        outputs = network(sample)[0]
        needed = [output for output in outputs if output.requires_grad]
        rows = [
            torch.autograd.grad(o, sample, retain_graph=True, materialize_grads=True)[0]
            for o in needed
        ]
        norms.append(
            torch.stack([x.new_zeros(()), *(row.square().sum() for row in rows)]).sum().sqrt()
        )
    return torch.stack(norms)


def truth(case: Sentence, network: nn.Module, dtype: torch.dtype = torch.float64) -> Truth:
    """Compute the right answers by plain autograd; in another precision than float64, with its rounding."""
    x = case.inputs(dtype)
    norms = _input_norms(network, x).double()
    rows = dense_jacobian(network, x, create_graph=case.second_order).double()
    if not case.second_order:
        return Truth(rows, norms)
    kernel = rows.flatten(0, 1) @ rows.flatten(0, 1).T
    logdet = torch.logdet(torch.eye(len(kernel), dtype=torch.float64) + kernel)
    kind = case.probe
    probe = draw_probe(
        kind, case.n, case.outputs, torch.Generator().manual_seed(case.seed)
    ).double()
    products = torch.einsum("nc,ncp->np", probe, rows)
    products = products.sum(0) if kind == "batch_sum" else products
    probed = probe_scale(kind, case.outputs) * products.square().sum()

    def with_gradient(value: Tensor) -> tuple[Tensor, Tensor]:
        return value.detach(), gradient_of(value, network)

    trace = gradient_of(rows.square().sum(), network)
    return Truth(rows.detach(), norms, trace, with_gradient(logdet), with_gradient(probed))


def _difference(answer: Tensor, right: Tensor) -> float:
    if answer.shape != right.shape or answer.is_complex():
        return float("inf")
    error = (answer.double() - right).abs().max() / right.abs().max().clamp(min=1e-3)
    return float(error) if torch.isfinite(error) else float("inf")


def _state(network: nn.Module) -> list[tuple[str, int, Tensor | None]]:
    """Every tensor and module of a network under every name, by identity, with a copy of what it holds."""
    result: list[tuple[str, int, Tensor | None]] = []
    for prefix, module in network.named_modules(remove_duplicate=False):
        result.append((f"{prefix} {module.training} {sorted(vars(module))}", id(module), None))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            result.append(
                (
                    f"{prefix}.{name}",
                    id(tensor),
                    None if tensor is None else tensor.detach().clone(),
                )
            )
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            result.append((f"{prefix} hooks {list(hooks)}", len(hooks), None))
    return result


@contextmanager
def leaves_no_trace(network: nn.Module) -> Iterator[list[str]]:
    """Yield a list that names, after the body, what the body changed."""
    changed: list[str] = []
    before, random_state = _state(network), torch.get_rng_state()
    gradients = [parameter.grad for parameter in network.parameters()]
    yield changed
    for (name, identity, held), (other, now, holds) in zip(before, _state(network), strict=False):
        same = held is None or (holds is not None and torch.equal(held, holds))
        if name != other or identity != now or not same:
            changed.append(name)
    if len(before) != len(_state(network)):
        changed.append("number of tensors")
    if not torch.equal(random_state, torch.get_rng_state()):
        changed.append("random state")
    if any(p.grad is not g for p, g in zip(network.parameters(), gradients, strict=True)):
        changed.append("gradients")


def _number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


# How to ask, and the right answer.
Questions = dict[str, tuple[Callable[[], Any], Tensor]]


def _measured(case: Sentence, network: nn.Module, right: Truth) -> Questions:
    """Questions to the measures, with their answers."""
    x, chunk = case.inputs(), case.chunk_size
    traced = torch.einsum("ncmc->nm", right.kernel)
    eigenvalues = torch.linalg.eigvalsh(right.kernel.flatten(2).flatten(0, 1))
    half = slice(0, (case.n + 1) // 2)
    return {
        "ntk_trace": (lambda: _number(ntk_trace(network, x, chunk_size=chunk)), traced.trace()),
        "empirical_ntk": (lambda: empirical_ntk(network, x, chunk_size=chunk), right.kernel),
        "empirical_ntk traced": (
            lambda: empirical_ntk(network, x, outputs="traced", chunk_size=chunk),
            traced,
        ),
        "empirical_ntk across": (
            lambda: empirical_ntk(network, x, x[half]),
            right.kernel[:, :, half],
        ),
        "ntk_logdet": (lambda: ntk_logdet(network, x, chunk_size=chunk).eigenvalues, eigenvalues),
        "input_jacobian_norm": (
            lambda: _number(input_jacobian_norm(network, x, chunk_size=chunk or 128)),
            right.input_norms.mean(),
        ),
    }


def _penalized(case: Sentence, network: nn.Module, right: Truth) -> Questions:
    """The same for the penalty: its value, its gradient and the outputs that it shares with the loss, in one row."""
    x = case.inputs()
    if right.trace is None or right.logdet is None or right.probed is None:
        return {}

    def row(**options: Any) -> Tensor:
        outputs, value = GradientSimilarityPenalty(
            1.0, reduction="sum", **options
        ).forward_with_penalty(network, x)
        with torch.no_grad():
            same = float((outputs - network(x)).abs().max() <= TOLERANCE[case.dtype])
        return torch.cat(
            [
                gradient_of(value, network).double(),
                value.detach().double()[None],
                torch.tensor([same]),
            ]
        )

    def expected(value: Tensor, by_weights: Tensor) -> Tensor:
        return torch.cat([by_weights, value[None], torch.ones(1)])

    value = right.jacobian.square().sum()
    return {
        "penalty trace": (lambda: row(method="exact"), expected(value, right.trace)),
        "penalty log det": (lambda: row(kind="logdet", noise=1.0), expected(*right.logdet)),
        "penalty probe": (lambda: row(probe=case.probe, seed=case.seed), expected(*right.probed)),
    }


def _rounding(case: Sentence, network: nn.Module, name: str, right: Tensor) -> float:
    """Return the error of plain autograd in the precision of the network.

    A derivative that is nearly zero is nothing but rounding (the norm of two features is nearly a sign), and so is
    half of a second derivative that is huge.
    """
    if case.dtype == torch.float64:
        return 0.0
    plain = truth(case, network, case.dtype)
    rounded = (_measured(case, network, plain) | _penalized(case, network, plain))[name][1]
    network(case.inputs())
    return _difference(rounded, right)


def _compare(
    name: str,
    ask: Callable[[], Any],
    right: Tensor,
    tolerance: float,
    rounding: Callable[[], float] = lambda: 0.0,
) -> list[str]:
    """Say where an answer is refused, crashes or is off by more than the tolerance and what plain autograd rounds."""
    try:
        error = _difference(ask(), right)
    except GapscopeError as refusal:
        return [f"{name}: refused: {refusal}"]
    except Exception as crash:
        return [f"{name}: {type(crash).__name__}: {str(crash)[:200]}"]
    if error <= tolerance:
        return []
    lost = rounding()
    # where plain autograd loses two digits, another order of the sums may lose all of them
    wrong = lost < 0.01 and error > tolerance + 3 * lost
    return [f"{name}: off by {error:.1e}"] if wrong else []


def _not_refused(name: str, ask: Callable[[], Any]) -> list[str]:
    try:
        ask()
    except GapscopeError:
        return []
    except Exception as crash:
        return [f"{name}: not refused but {type(crash).__name__}: {str(crash)[:200]}"]
    return [f"{name}: not refused"]


def _move(network: nn.Module, exact: nn.Module, seed: int) -> None:
    """Move the weights as a few steps of training would, zero ones included; `exact` gets the very same ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, twin in zip(network.parameters(), exact.parameters(), strict=True):
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(
                    parameter.dtype
                )
                twin.copy_(parameter)


def penalty_of_the_batch_as_run(case: Sentence, *, training: bool) -> list[str]:
    """Compare the exact penalty of a network that mixes samples with the graph of the very pass, in float64."""
    network = case.network(torch.float64).train(training)
    penalty = GradientSimilarityPenalty(1.0, reduction="sum", method="exact")

    def ask() -> Tensor:
        value = penalty(network, case.inputs(torch.float64))
        return torch.cat([gradient_of(value, network), value.detach()[None]])

    if case.refused_by_the_penalty:
        return _not_refused("penalty", ask) if _samples_reach_others(case, network) else []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        with differentiable_kernels(()):
            outputs = network(case.inputs(torch.float64))
        rows = [gradient_of(output, network, create_graph=True) for output in outputs.flatten()]
        value = torch.stack(rows).square().sum()
        right = torch.cat([gradient_of(value, network), value.detach()[None]])
        torch.manual_seed(case.seed)  # the same masks
        return _compare("penalty of the batch as run", ask, right, TOLERANCE[torch.float64])


def _samples_reach_others(case: Sentence, network: nn.Module) -> bool:
    """Return whether more than rounding flows from sample to sample; behind norms of two features nothing does."""
    x = case.inputs(torch.float64).requires_grad_()
    outputs = network(x)
    try:
        rows = [torch.autograd.grad(output.sum(), x, retain_graph=True)[0] for output in outputs]
    except RuntimeError:  # a checkpoint that hides its parameters
        return True
    across = max(float(row[torch.arange(len(x)) != i].norm()) for i, row in enumerate(rows))
    return across > 1e-9 * float(gradient_of(outputs.sum(), network).norm())


def _mixed(case: Sentence) -> list[str]:
    """Say where measures do not refuse a network that mixes samples, and where the penalty is wrong without a word."""
    network = case.network()
    nothing = Truth(torch.zeros(case.n, case.outputs, 1), torch.zeros(1))
    result: list[str] = []
    if _samples_reach_others(case, case.network(torch.float64)):
        for name, (ask, _) in _measured(case, network, nothing).items():
            result += _not_refused(name, ask)
    if not case.second_order:
        return result
    penalty = penalty_of_the_batch_as_run(case, training=False)
    # It may refuse as well, where one of the other constructs sends a parameter one backward pass per sample.
    return result + [
        problem
        for problem in penalty
        if "do not add up to the gradient of the batch" not in problem
        and "Samples must not act on each other" not in problem
    ]


def problems(case: Sentence, *, moved: bool = True) -> list[str]:
    """Measure one network in every way, in half of them again after its weights moved, and say what is not right."""
    if case.refused:
        return _mixed(case)
    network, exact = case.network(), case.network(torch.float64)
    result: list[str] = []
    choices = random.Random(case.seed)
    for time, share in (("", 1.0), (", weights moved", 0.5)):
        tolerance, right = TOLERANCE[case.dtype], truth(case, exact)
        if time and case.features == 2:
            # norms of two features are nearly signs: where verification took place, gradients before them may vanish
            tolerance = max(tolerance, 1e-4)
        network(case.inputs())  # what a pass of the batch writes is no trace
        for who, questions in (("", _measured), (" by the penalty", _penalized)):
            everything = list(questions(case, network, right).items())
            with leaves_no_trace(network) as changed:
                for name, (ask, answer) in choices.sample(
                    everything, round(share * len(everything))
                ):
                    rounding = partial(_rounding, case, network, name, answer)
                    result += _compare(name + time, ask, answer, tolerance, rounding)
            result += [f"trace left{who}{time}: {name}" for name in changed]
        if result or not moved:
            break
        _move(network, exact, case.seed)
    return result
