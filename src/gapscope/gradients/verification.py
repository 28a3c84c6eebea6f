r"""Verification of layer-wise gradients against autograd, with fallbacks.

                     recorded pass (tape, outputs)
                                  |
        key known? --yes--> cached routing (verified again at every power of two of its uses, from the eighth on)
                                  | no
        proven by the graph? --yes--> rules of the layers (gapscope.gradients.evidence)
                                  | no
        replay in float64 at perturbed weights, on three samples or on all in another order
                                  |
        sum_n s_n (layer-wise row n)  ==  autograd's gradient of sum_n s_n u_n . f(x_n)  ?
                                  |
           for each parameter:    |
        1  rules of its layers ---+-- equal --> use them
               | different
        2  the same, if a size of its layer's input equals n by chance -- equal --> use them
               | different
        3  whole network, vectorized over samples -- equal --> use it
               | different
        4  one backward pass per sample: correct by definition; raise if samples interact

With random weights u of the outputs and s of the samples, correct rows $J_n^\top u_n$ satisfy

$$\sum_n s_n J_n^\top u_n = \nabla_\theta \sum_n s_n u_n \cdot f(x_n).$$

The left side comes from a backward pass weighted by u alone. So the sides differ if a parameter is used outside a call
of its own module, if rows belong to no sample or to another one (no two s are equal), or if samples interact. For
differentiable rows, the gradient of one sample's squared norm is compared with that of plain autograd as well: at once
where parameters bypass the rules or the user wrote a derivative, else when the routing is verified again.

Perturbed weights reveal branches after a zero-initialized layer. Three samples suffice if the samples of a batch
do not interact and the layers receive them in the same form. Otherwise all samples are compared, in another order.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from gapscope.base.errors import GapscopeError, NeverSupported
from gapscope.gradients.backward import gradients_at
from gapscope.gradients.broadcasts import is_function_of_gapscope, merge_contributions
from gapscope.gradients.evidence import is_proven
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape, join_names
from gapscope.inspection.checkpoints import check_no_reentrant_checkpoint, graph_nodes
from gapscope.inspection.independence import (
    Perturbation,
    find_dependence,
    highest_precision_dtype,
)
from gapscope.inspection.mixing import check_not_mixing
from gapscope.inspection.outputs import as_real, check_has_gradient
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import NOTHING_SUBSTITUTED, cast_like, cast_network
from gapscope.results.progress import notify

# Largest relative difference of two correct gradients. Half precision has none: a tolerance above its rounding errors
# would hide a use of a weight that no layer records.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
# Batches of at most this size are compared whole, in two orders.
_SMALL_BATCH = 8


@dataclass
class _Routing:
    """Parameters (by identity) that bypass their layers' rules, and the uses of this routing."""

    whole_network: frozenset[int] = frozenset()
    per_sample: frozenset[int] = frozenset()
    # parameters of layers whose input is the same for all samples
    shared: frozenset[int] = frozenset()
    uses: int = 0

    def escalate(self, failing: set[int], shareable: frozenset[int]) -> _Routing:
        """Escalate failing parameters: another reading first, then the whole network, then one pass per sample."""
        further = failing - shareable
        return _Routing(
            self.whole_network | further,
            self.per_sample | (self.whole_network & further),
            self.shared | shareable,
        )

    def reroute(self, parameters: Set[int]) -> _Routing:
        """Use one backward pass per sample for these parameters."""
        return _Routing(self.whole_network | parameters, self.per_sample | parameters, self.shared)

    def apply(self, tape: Tape) -> None:
        """Set the routing of a tape."""
        tape.route(self.whole_network, self.per_sample, self.shared)


_ROUTING_CACHE: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _Routing]] = (
    weakref.WeakKeyDictionary()
)


def _key(tape: Tape, outputs: Tensor, *, twice: int) -> Hashable:
    parameters = tuple(id(parameter) for parameter in tape.parameters.values())
    modes = tuple(module.training for module in tape.modules.values())
    layout = getattr(tape.network, "form", None)
    if layout is None:
        columns = ()
    else:
        columns = tuple(column.shape[1:] for column in layout.columns)
    # Large batches are compared by three samples, whatever n is: the pattern shows whether layers receive them in one
    # form.
    n = min(tape.n, _SMALL_BATCH + 1)
    shapes = tape.inputs.shape[1:], outputs.shape[1:]
    return n, shapes, columns, outputs.dtype, parameters, modes, tape.pattern(outputs), twice


def _orders(n: int, seed: int) -> list[Tensor]:
    """Return orders with no sample in its old position, to detect networks that sort samples."""
    if n == 1:
        return [torch.zeros(1, dtype=torch.int64)]
    # A random cycle: every sample takes the position of its predecessor. In small batches this may be the order into
    # which the network sorts, so that the original order is compared as well.
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cycle = torch.empty_like(shuffled)
    cycle[shuffled] = shuffled.roll(1)
    return [cycle, torch.arange(n)] if n <= _SMALL_BATCH else [cycle]


@contextmanager
def _perturbed_replay(
    tape: Tape, order: Tensor, seed: int, perturbation: float, *, twice: bool
) -> Iterator[tuple[Tape, Tensor]]:
    """Record a second pass in high precision, at perturbed weights, reordered."""
    x = tape.inputs[order.to(tape.inputs.device)]
    dtype = highest_precision_dtype(x.device)
    with (
        preserve_state(tape.network),
        torch.autocast(x.device.type, enabled=False),
        cast_network(
            tape.network, dtype, Perturbation(seed, perturbation), tape.substituted
        ) as substituted,
    ):
        yield record_forward(
            tape.network, cast_like(x, dtype), substituted, tape.outputs_of, twice=twice
        )


def _few_samples(tape: Tape, seed: int) -> list[Tensor] | None:
    """Return the indices of samples that may suffice for the comparison (None if all are needed).

    At the first use the replay alone looks behind zero weights: it differs from autograd where its samples interact.
    """
    if tape.n <= _SMALL_BATCH:
        return None
    with preserve_state(tape.network):
        tape.network.eval()
        if find_dependence(tape.network, tape.inputs, perturbed=seed > 0):
            return None
    # Enough to show a failing gradient of individual samples; comparing a whole batch costs tens of training steps.
    return [torch.randperm(tape.n, generator=torch.Generator().manual_seed(seed))[:3]]


def _failing_parameters(
    tape: Tape, outputs: Tensor, seed: int, *, zero_is_failure: bool
) -> tuple[set[int], set[int]]:
    """Return the parameters whose layer-wise sums differ from autograd, or cannot be verified, and those unreached."""
    generator = torch.Generator().manual_seed(seed)
    by_output = torch.randn(outputs.shape, generator=generator).to(outputs)
    by_sample = torch.randn(tape.n, generator=generator).to(outputs)
    parts, uncovered = tape.contributions_per_call(outputs, by_output[None], create_graph=False)
    failing = {id(parameter) for parameter in uncovered.values()} - tape.per_sample
    # sum_n s_n J_n^T u_n per parameter, from the layer-wise rows J_n^T u_n
    sums: dict[int, Tensor] = {}
    for part in parts:
        weights = by_sample.to(part.sources()[0])
        for parameter, total in zip(part.parameters, part.weighted_sum(weights), strict=True):
            sums[id(parameter)] = sums.get(id(parameter), 0) + total.to(outputs.dtype)
    compared = [p for p in tape.parameters.values() if id(p) not in failing | tape.per_sample]
    # the gradient of sum_n s_n u_n . f(x_n), by autograd
    weighted = (by_sample[:, None] * by_output)[None]
    expected = gradients_at(
        [outputs], [tape.substituted[p] for p in compared], [weighted], create_graph=False
    )
    zero = outputs.new_zeros(())
    expected_by_key = {
        id(p): zero if g is None else as_real(g[0]) for p, g in zip(compared, expected, strict=True)
    }
    norm = torch.stack([zero, *(gradient.norm() for gradient in expected_by_key.values())]).norm()
    tolerance = _TOLERANCE[outputs.dtype]
    for key, gradient in expected_by_key.items():
        difference = (gradient - sums.get(key, zero)).norm()
        unverified = zero_is_failure and bool(gradient.norm() <= tolerance * norm)
        if unverified or not bool(
            difference <= tolerance * (gradient.norm() + 1e-2 * norm)
        ):  # NaN fails
            failing.add(key)
    return failing, {
        id(p) for p, gradient in zip(compared, expected, strict=True) if gradient is None
    }


def _squares(gradients: list[Tensor | None]) -> Tensor:
    return torch.stack([as_real(g).square().sum() for g in gradients if g is not None]).sum()


def _second_derivative_differs(tape: Tape, outputs: Tensor, seed: int, n_cotangents: int) -> bool:
    """Return whether the gradient of one sample's squared norm differs from plain autograd's."""
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(outputs.shape, generator=generator).to(outputs)
    # multiples m u of one cotangent: the squares |m J^T u|^2 are those of u, times m^2, in a single pass of autograd
    multiples = torch.arange(1, n_cotangents + 1).to(outputs)
    cotangents = multiples[:, None, None] * cotangent
    sample = int(torch.randint(tape.n, (1,), generator=generator))
    parts, uncovered = tape.contributions_per_call(outputs, cotangents, create_graph=True)
    sources = [tape.substituted[parameter] for parameter in tape.parameters.values()]
    compared = [tape.substituted[p] for name, p in tape.parameters.items() if name not in uncovered]
    selected = torch.zeros_like(cotangent)
    selected[sample] = cotangent[sample]
    # |J_i^T u_i|^2 of sample i by autograd and by layers, and the gradient of each
    by_autograd = gradients_at([outputs], compared, [selected[None]], create_graph=True)
    if not parts or all(gradient is None for gradient in by_autograd):
        return False
    squares = [part.square_norms()[sample] for part in merge_contributions(parts).values()]
    by_layers = torch.stack(squares).sum() / multiples.square().sum()
    try:
        expected = _gradient(_squares(by_autograd), sources)
    except RuntimeError:  # torch cannot differentiate this network twice
        return False
    try:
        actual = _gradient(by_layers, sources)
    except RuntimeError:
        # In a replay the error may come from the substitution: the caller tries another one. In the pass itself the
        # strategy is not differentiable, for example because a checkpoint recomputes what vmap has run.
        if tape.substituted is not NOTHING_SUBSTITUTED:
            raise
        return True
    difference = (actual - expected).norm()
    tolerance = 10 * _TOLERANCE[outputs.dtype]
    return not bool(
        difference <= tolerance * (expected.norm() + 1e-6 * _squares(by_autograd).detach())
    )


def _gradient(value: Tensor, sources: list[Tensor]) -> Tensor:
    if not value.requires_grad:
        return value.new_zeros(())
    gradients = torch.autograd.grad(value, sources, retain_graph=True, materialize_grads=True)
    return torch.cat([as_real(gradient.to_dense()).flatten() for gradient in gradients])


def _are_composed(tape: Tape, outputs: Tensor) -> bool:
    """Return whether equal first derivatives imply equal second ones.

    Rules compose differentiable operations of torch, so that the derivative of an equal function is equal. Parameters
    that bypass the rules, and derivatives written by the user (or by a compiler), promise nothing.
    """
    if (
        tape.whole_network
        or tape.per_sample
        or any(call.rule is None and call.parameters for call in tape.calls)
    ):
        return False
    written = [node for node in graph_nodes(outputs) if isinstance(node, BackwardCFunction)]
    return all(map(is_function_of_gapscope, written))


def _escalate_until_correct(
    tape: Tape,
    outputs: Tensor,
    routing: _Routing,
    seed: int,
    *,
    twice: int,
    zero_is_failure: bool,
) -> tuple[_Routing, set[int]]:
    """Escalate failing parameters until all pass, then verify second derivatives (returns unreached ones as well)."""
    while True:
        routing.apply(tape)
        failing, unreached = _failing_parameters(
            tape, outputs, seed, zero_is_failure=zero_is_failure
        )
        if not failing:
            break
        untried = failing - routing.shared - routing.whole_network - routing.per_sample
        routing = routing.escalate(failing, tape.shareable(outputs, untried))
    # The first use has no time for what is known; the comparison is made up for when the routing is verified again.
    if not twice or (seed == 0 and _are_composed(tape, outputs)):
        return routing, unreached
    everything = {id(parameter) for parameter in tape.parameters.values()}
    without_rule = {
        id(p) for call in tape.calls if call.rule is None for p in call.parameters.values()
    }
    for candidates in (routing.whole_network | without_rule, everything):
        if not _second_derivative_differs(tape, outputs, seed, twice):
            break
        routing = routing.reroute(candidates)
        routing.apply(tape)
    return routing, unreached


class _OtherCalls(Exception):
    """Exception for replays that call other layers than the recorded pass, and so verify nothing."""


def _verify_replays(
    tape: Tape, outputs: Tensor, orders: Sequence[Tensor], initial: _Routing, seed: int, size: float, *,
    twice: int, zero_is_failure: bool,
) -> _Routing | None:  # fmt: skip
    """Verify in replays at weights perturbed by `size` (None if their outputs are not finite)."""
    routing = initial
    unreached: set[int] = set()
    for number, order in enumerate(orders):
        # the second derivative of one sample is the same in every order
        compared = twice if number == 0 else 0
        with _perturbed_replay(tape, order, seed, size, twice=compared > 0) as (replayed, results):
            # code that routes rows may call other layers for other weights or samples
            same = size == 0 and len(order) == tape.n
            if not same and replayed.pattern(results) != tape.pattern(outputs):
                raise _OtherCalls
            if not bool(torch.isfinite(results).all()):
                return None
            routing, missing = _escalate_until_correct(
                replayed,
                results,
                routing,
                seed,
                twice=compared,
                zero_is_failure=zero_is_failure,
            )
            unreached |= missing
    # Parameters that the replay could not substitute, such as those of compiled code, are unverified.
    if unreached:
        unverified = unreached - _unreached(tape, outputs)
    else:
        unverified = unreached
    return routing.reroute(unverified)


def _find_routing(
    tape: Tape,
    outputs: Tensor,
    initial: _Routing,
    seed: int,
    perturbation: float,
    *,
    twice: int,
) -> _Routing:
    """Verify in replays at perturbed, then at current weights, else in the pass."""
    few = _few_samples(tape, seed)
    sizes = tuple(dict.fromkeys((perturbation, 0.0)))
    attempts = [(size, few) for size in sizes]
    while attempts:
        size, samples = attempts.pop(0)
        try:
            routing = _verify_replays(
                tape, outputs, samples or _orders(tape.n, seed), initial, seed, size,
                twice=twice, zero_is_failure=size == 0 and perturbation > 0,
            )  # fmt: skip
        except _OtherCalls:
            routing = None
            if samples is not None:  # all samples may be received in the recorded form
                attempts = [(size, None) for size in sizes]
        except GapscopeError:
            raise
        except Exception:  # the network's code requires a precision or a batch size
            if samples is None:
                break  # verify the recorded pass itself
            routing = None
            attempts = [(size, None) for size in sizes]
        if routing is not None:
            return routing
    if outputs.dtype not in _TOLERANCE:
        return _Routing(
            per_sample=frozenset(id(parameter) for parameter in tape.parameters.values())
        )
    return _escalate_until_correct(tape, outputs, initial, seed, twice=twice, zero_is_failure=True)[
        0
    ]


def _unreached(tape: Tape, outputs: Tensor) -> set[int]:
    """Return the parameters on which the outputs do not depend, according to their graph."""
    parameters = list(tape.parameters.values())
    cotangents = torch.ones_like(outputs)[None]
    gradients = gradients_at(
        [outputs], [tape.substituted[p] for p in parameters], [cotangents], create_graph=False
    )
    return {id(p) for p, gradient in zip(parameters, gradients, strict=True) if gradient is None}


def _check_mixing(tape: Tape, routing: _Routing) -> None:
    """Raise NeverSupported if samples interact, so that they have no gradients of their own."""
    check_not_mixing(tape.network, tape.inputs)
    with preserve_state(tape.network):
        tape.network.eval()
        dependence = find_dependence(tape.network, tape.inputs)
    if not dependence:
        return
    names = [
        name for name, parameter in tape.parameters.items() if id(parameter) in routing.per_sample
    ]
    raise NeverSupported(
        f"Gradients of individual samples by {join_names(names)} do not add up to the gradient of the batch. "
        f"{dependence}"
    )


def verify(tape: Tape, outputs: Tensor, *, differentiated: int = 0) -> None:
    """Verify the tape's contributions, and reroute parameters that are wrong.

    Sets the tape's `whole_network` and `per_sample`. The result is cached per network, parameters, modes and batch
    shape, and verified again at increasing intervals, at the current weights and samples.

    Args:
        tape: The recorded pass.
        outputs: Its outputs [n, k].
        differentiated: Number of cotangents whose rows will be differentiated (0 for none).

    Raises:
        NeverSupported: Samples interact.
        NotMeasurable: The outputs have no gradient.
    """
    check_has_gradient(outputs)
    if tape.chain:  # known layers
        return
    cache = _ROUTING_CACHE.setdefault(getattr(tape.network, "adapted_from", tape.network), {})
    # several cotangents take another path through autograd than one
    twice = min(differentiated, 2)
    key = _key(tape, outputs, twice=twice)
    routing = cache.get(key)
    uses = 0 if routing is None else routing.uses + 1
    # From this use on, a routing is verified again at every power of two, at the current weights.
    retry = uses >= 8 and uses & (uses - 1) == 0
    if routing is None and is_proven(tape, outputs):
        routing = cache[key] = _Routing()
    # outputs of a diverged network cannot be compared
    if (routing is None or retry) and bool(torch.isfinite(outputs).all()):
        check_no_reentrant_checkpoint(outputs)
        start = time.monotonic()
        # large against rounding, small against weights of the usual initializations: by judgment
        perturbation = 0.0 if retry else 0.3
        routing = _find_routing(
            tape, outputs, routing or _Routing(), uses, perturbation, twice=twice
        )
        if routing.per_sample:
            _check_mixing(tape, routing)
        cache[key] = routing
        # shorter waits need no message
        if (seconds := time.monotonic() - start) > 1.0:
            notify(
                f"Verified the network's gradients against autograd in {seconds:.1f} s, once per batch shape."
            )
    if routing is not None:
        routing.uses = uses
        routing.apply(tape)
