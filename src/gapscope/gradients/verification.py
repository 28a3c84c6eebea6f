r"""Compare the layer-wise gradients with plain autograd once, and find the way that is right for every parameter.

With random weights u of the outputs and s of the samples, the layer-wise rows must add up to what autograd gives,

$$\sum_n s_n J_n^\top u_n = \nabla_\theta \sum_n s_n u_n \cdot f(x_n).$$

The left side is taken from a backward pass weighted by u alone. So the two differ where a parameter is used outside a
call of its own module, where rows were taken for samples that are none or for other samples (no two s are equal), and
where samples are mixed. If the rows are to be differentiated, the gradient of one sample's squared norm is compared
with that of plain autograd's as well.

The comparison is made in a second pass in float64, at perturbed weights, so that a branch behind a zero-initialized
layer is seen. A few samples suffice, if the samples of a batch do not interact (a forward pass in other batches shows
it) and their calls of layers have the form of the batch's. Else all samples are compared, in another order.

    layers of the parameter --wrong--> whole network, vectorized over samples --wrong--> one backward pass per sample
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, NeverSupported, NotMeasurable
from gapscope.gradients.backward import gradients_at
from gapscope.gradients.contributions import merge_contributions
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.inspection.independence import Perturbation, highest_precision_dtype, is_sample_independent
from gapscope.inspection.outputs import as_real, check_no_reentrant_checkpoint
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import cast_like, cast_network
from gapscope.results.progress import notify

# Largest relative difference of two right gradients; in half precision none that is large enough would show a use
# of a weight that was overlooked.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
_PERTURBATION = 0.3
# From the eighth use on, a way is tried again at the second, fourth, eighth ... multiple, at the weights as they are.
_TRIED_AGAIN_FROM = 8
_FEW = 8
# Enough to show a wrong gradient of individual samples; comparing a whole batch costs tens of training steps.
_COMPARED = 3
_SAID_FROM_SECONDS = 1.0


@dataclass
class _Routing:
    """Which parameters (by identity) do not go through their layers, and how often that has been used."""

    whole_network: frozenset[int] = frozenset()
    per_sample: frozenset[int] = frozenset()
    uses: int = 0

    def escalate(self, wrong: set[int]) -> _Routing:
        """The next ways for the parameters that are wrong: the whole network, then one backward pass per sample."""
        return _Routing(self.whole_network | wrong, self.per_sample | (self.whole_network & wrong))


_ROUTING_CACHE: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _Routing]] = weakref.WeakKeyDictionary()


def _key(tape: Tape, outputs: Tensor, *, create_graph: bool) -> Hashable:
    parameters = tuple(id(parameter) for parameter in tape.parameters.values())
    modes = tuple(module.training for module in tape.modules.values())
    calls = tuple(_calls(tape))
    layout = getattr(tape.network, "form", None)
    columns = () if layout is None else tuple(column.shape[1:] for column in layout.columns)
    return tape.inputs.shape, columns, outputs.dtype, outputs.shape, parameters, modes, calls, create_graph


def _calls(tape: Tape) -> list[tuple[str, int | None]]:
    """Which layers were called, and along which dimension each takes the samples."""
    return [(call.name, call.sample_dim if call.rule else None) for call in tape.calls]


def _orders(n: int, seed: int) -> list[Tensor]:
    """Orders of the samples in which it shows that a network sorts them: with no sample in its old place."""
    if n == 1:
        return [torch.zeros(1, dtype=torch.int64)]
    # Of few samples that may be the very order into which the network sorts them, so that the old one is looked at too.
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    moved = torch.empty_like(shuffled)
    moved[shuffled] = shuffled.roll(1)
    return [moved, torch.arange(n)] if n <= _FEW else [moved]


@contextmanager
def _perturbed_replay(tape: Tape, order: Tensor, seed: int, perturbation: float) -> Iterator[tuple[Tape, Tensor]]:
    """A second recorded pass in the highest precision, with other weights and the samples in another order."""
    x = tape.inputs[order.to(tape.inputs.device)]
    dtype = highest_precision_dtype(x.device)
    with (
        preserve_state(tape.network),
        torch.autocast(x.device.type, enabled=False),
        cast_network(tape.network, dtype, Perturbation(seed, perturbation), tape.substituted) as substituted,
    ):
        yield record_forward(tape.network, cast_like(x, dtype), substituted, tape.outputs_of)


def _few_samples(tape: Tape, seed: int) -> list[Tensor] | None:
    """Indices of samples that are enough to compare; None if all are needed."""
    if tape.n <= _FEW:
        return None
    few = torch.randperm(tape.n, generator=torch.Generator().manual_seed(seed))[:_COMPARED]
    try:
        with _perturbed_replay(tape, few, seed, _PERTURBATION) as (part, _):
            alike = _calls(part) == _calls(tape)
    except GapscopeError:
        raise
    except Exception:  # code of the network that insists on a precision or a batch size
        return None
    with preserve_state(tape.network):
        tape.network.eval()
        alike = alike and is_sample_independent(tape.network, tape.inputs)
    return [few] if alike else None


def _failing_parameters(tape: Tape, outputs: Tensor, seed: int, *, blind_is_wrong: bool) -> set[int]:
    """Parameters whose layer-wise sums are not what autograd gives, or cannot be told."""
    generator = torch.Generator().manual_seed(seed)
    by_output = torch.randn(outputs.shape, generator=generator).to(outputs)
    by_sample = torch.randn(tape.n, generator=generator).to(outputs)
    parts, left = tape.contributions_per_call(outputs, by_output[None], create_graph=False)
    wrong = {id(parameter) for parameter in left.values()} - tape.separate
    sums: dict[int, Tensor] = {}
    for part in parts:
        weights = by_sample.to(part.sources()[0])
        for parameter, total in zip(part.parameters, part.weighted_sum(weights), strict=True):
            sums[id(parameter)] = sums.get(id(parameter), 0) + total.to(outputs.dtype)
    compared = [p for p in tape.parameters.values() if id(p) not in wrong | tape.separate]
    weighted = (by_sample[:, None] * by_output)[None]
    expected = gradients_at([outputs], [tape.source(p) for p in compared], [weighted], create_graph=False)
    zero = outputs.new_zeros(())
    rights = {id(p): zero if g is None else as_real(g[0]) for p, g in zip(compared, expected, strict=True)}
    norm = torch.stack([zero, *(right.norm() for right in rights.values())]).norm()
    tolerance = _TOLERANCE[outputs.dtype]
    for key, right in rights.items():
        difference = (right - sums.get(key, zero)).norm()
        unseen = blind_is_wrong and bool(right.norm() <= tolerance * norm)
        if unseen or not bool(difference <= tolerance * (right.norm() + 1e-2 * norm)):  # NaN is wrong
            wrong.add(key)
    return wrong


def _squares(gradients: list[Tensor | None]) -> Tensor:
    return torch.stack([as_real(g).square().sum() for g in gradients if g is not None]).sum()


def _second_derivative_is_wrong(tape: Tape, outputs: Tensor, seed: int) -> bool:
    """Whether the gradient of one sample's squared norm is not what plain autograd gives."""
    generator = torch.Generator().manual_seed(seed)
    cotangents = torch.randn(outputs.shape, generator=generator).to(outputs)[None]
    sample = int(torch.randint(tape.n, (1,), generator=generator))
    parts, left = tape.contributions_per_call(outputs, cotangents, create_graph=True)
    sources = [tape.source(parameter) for parameter in tape.parameters.values()]
    compared = [tape.source(p) for name, p in tape.parameters.items() if name not in left]
    own = torch.zeros_like(cotangents)
    own[:, sample] = cotangents[:, sample]
    plain = gradients_at([outputs], compared, [own], create_graph=True)
    if not parts or all(gradient is None for gradient in plain):
        return False
    by_layers = torch.stack([part.square_norms()[sample] for part in merge_contributions(parts).values()]).sum()
    try:
        right = _gradient(_squares(plain), sources)
    except RuntimeError:  # torch cannot differentiate this network twice, and will say so when it is asked to
        return False
    try:
        given = _gradient(by_layers, sources)
    except RuntimeError:
        # In a rehearsal that is its own matter. Else the way cannot be differentiated: a checkpoint runs again what
        # vmap has run.
        if tape.substituted is not None:
            raise
        return True
    difference = (given - right).norm()
    tolerance = 10 * _TOLERANCE[outputs.dtype]
    return not bool(difference <= tolerance * (right.norm() + 1e-6 * _squares(plain).detach()))


def _gradient(value: Tensor, sources: list[Tensor]) -> Tensor:
    if not value.requires_grad:
        return value.new_zeros(())
    gradients = torch.autograd.grad(value, sources, retain_graph=True, materialize_grads=True)
    return torch.cat([as_real(gradient.to_dense()).flatten() for gradient in gradients])


def _escalate_until_correct(
    tape: Tape, outputs: Tensor, ways: _Routing, seed: int, *, create_graph: bool, blind: bool
) -> _Routing:
    """Send parameters the next way until none is wrong."""
    while True:
        tape.irregular, tape.separate = ways.whole_network, ways.per_sample
        wrong = _failing_parameters(tape, outputs, seed, blind_is_wrong=blind)
        if not wrong:
            break
        ways = ways.escalate(wrong)
    everything = {id(parameter) for parameter in tape.parameters.values()}
    without_rule = {id(p) for call in tape.calls if call.rule is None for p in call.parameters.values()}
    for suspects in (ways.whole_network | without_rule, everything):
        if not create_graph or not _second_derivative_is_wrong(tape, outputs, seed):
            break
        ways = _Routing(ways.whole_network | suspects, ways.per_sample | suspects)
        tape.irregular, tape.separate = ways.whole_network, ways.per_sample
    return ways


def _find_routing(
    tape: Tape, outputs: Tensor, ways: _Routing, seed: int, perturbation: float, *, create_graph: bool
) -> _Routing:
    few = _few_samples(tape, seed)
    for size in dict.fromkeys((perturbation, 0.0)):
        try:
            found, blind = ways, size == 0 and perturbation > 0
            unreached: set[int] = set()
            for number, order in enumerate(few or _orders(tape.n, seed)):
                with _perturbed_replay(tape, order, seed, size) as (rehearsed, results):
                    if not bool(torch.isfinite(results).all()):
                        break
                    # one sample's second derivative is the same in every order
                    twice = create_graph and number == 0
                    found = _escalate_until_correct(rehearsed, results, found, seed, create_graph=twice, blind=blind)
                    unreached |= _unreached(rehearsed, results)
            else:
                # What the rehearsal could not replace, such as weights of compiled code, it has not seen either.
                unseen = unreached - _unreached(tape, outputs) if unreached else unreached
                return _Routing(found.whole_network | unseen, found.per_sample | unseen)
        except GapscopeError:
            raise
        except Exception:  # code of the network that insists on a precision: the pass itself is looked at
            break
    if outputs.dtype not in _TOLERANCE:
        return _Routing(per_sample=frozenset(id(parameter) for parameter in tape.parameters.values()))
    return _escalate_until_correct(tape, outputs, ways, seed, create_graph=create_graph, blind=True)


def _unreached(tape: Tape, outputs: Tensor) -> set[int]:
    """Parameters on which the outputs do not depend, as far as their graph shows."""
    parameters = list(tape.parameters.values())
    cotangents = torch.ones_like(outputs)[None]
    found = gradients_at([outputs], [tape.source(p) for p in parameters], [cotangents], create_graph=False)
    return {id(p) for p, gradient in zip(parameters, found, strict=True) if gradient is None}


def _check_mixing(tape: Tape, ways: _Routing) -> None:
    """Raise where gradients of individual samples are not what they seem, because samples act on each other."""
    with preserve_state(tape.network):
        tape.network.eval()
        if is_sample_independent(tape.network, tape.inputs):
            return
    names = [name for name, parameter in tape.parameters.items() if id(parameter) in ways.per_sample]
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise NeverSupported(
        "Every output must depend on its own sample alone and be repeatable; the gradients of individual samples by "
        f"{listed} do not add up to the gradient of the batch, and the same samples have other outputs in another "
        "batch. Take out what mixes samples (statistics or a scale of the whole batch), and let random layers such "
        "as dropout follow the evaluation mode."
    )


def verify(tape: Tape, outputs: Tensor, *, create_graph: bool = False) -> None:
    """Make sure that the tape's contributions are right, sending parameters another way where they are not.

    The outcome is remembered for the network as long as its parameters, modes and the batch's shape stay the same, and
    tried again, ever more rarely, at the weights and samples of the day.

    Args:
        tape: The tape; its `irregular` and `separate` are set.
        outputs: What the recorded pass returned.
        create_graph: Whether the contributions are to be differentiated.

    Raises:
        NeverSupported: Samples are mixed.
        NotMeasurable: The outputs have no gradient.
    """
    if not outputs.requires_grad:
        raise NotMeasurable(
            "A network's outputs must depend on its trainable parameters with gradients enabled; these have no "
            "gradient. Look for torch.no_grad or detach in its forward pass."
        )
    known = _ROUTING_CACHE.setdefault(getattr(tape.network, "adapted_from", tape.network), {})
    key = _key(tape, outputs, create_graph=create_graph)
    ways = known.get(key)
    uses = 0 if ways is None else ways.uses + 1
    again = uses >= _TRIED_AGAIN_FROM and uses & (uses - 1) == 0
    # The outputs of a network that has diverged cannot be compared with anything.
    if (ways is None or again) and bool(torch.isfinite(outputs).all()):
        check_no_reentrant_checkpoint(outputs)
        start = time.monotonic()
        perturbation = 0.0 if again else _PERTURBATION
        ways = _find_routing(tape, outputs, ways or _Routing(), uses, perturbation, create_graph=create_graph)
        if ways.per_sample:
            _check_mixing(tape, ways)
        known[key] = ways
        if (seconds := time.monotonic() - start) > _SAID_FROM_SECONDS:
            notify(f"Compared the network's gradients with autograd in {seconds:.1f} s, once per shape of a batch.")
    if ways is not None:
        ways.uses = uses
        tape.irregular, tape.separate = ways.whole_network, ways.per_sample
