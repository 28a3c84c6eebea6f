"""Mends of what the outside review found, taken out one by one: the fuzzer must find each finding again.

Where a mend has a second one behind it (a self-check, a slower way), both are taken out: what is left is the code as it
was. Left out are findings that no measure of a network in evaluation mode shows: W9 (a compiled network, whose hooks
are skipped), W10 and W11 (layers in training mode), W12 (resumption) and W13 (docs). Their own tests find them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from gapscope.gradients import backward, broadcasts, kernel, per_sample, tape, verification
from gapscope.gradients.contributions import Contribution, DenseJacobian
from gapscope.gradients.layer_rules import Call
from gapscope.gradients.tape import Tape
from gapscope.inspection import independence, outputs, restoring
from gapscope.inspection.substitution import ParameterSubstitution
from gapscope.measures.ntk import ntk_logdet

Patch = pytest.MonkeyPatch


@contextmanager
def _placed_by_every_name(self: ParameterSubstitution, module: nn.Module) -> Iterator[None]:
    """As torch.func.functional_call does it: a module with two names is restored to what its first name put there."""
    slots = [
        (values, name)
        for _, child in module.named_modules(remove_duplicate=False)
        for values in (child._parameters, child._buffers)
        for name, tensor in values.items()
        if tensor is not None
    ]
    before = []
    for values, name in slots:
        before.append(values[name])
        values[name] = self[values[name]]  # type: ignore[index]
    try:
        yield
    finally:
        for (values, name), tensor in zip(slots, before, strict=True):
            values[name] = tensor


def _lets_not_a_number_pass(network: nn.Module, x: Tensor, together: Tensor) -> bool:
    alone = network(x)
    return not bool((alone - together).abs().max() > 1e-3 * together.abs().max())


def _two_names(patch: Patch) -> None:
    patch.setattr(ParameterSubstitution, "install", _placed_by_every_name)
    patch.setattr(restoring._Attributes, "restore", lambda self: None)


def _check_at_the_weights_as_they_are(patch: Patch) -> None:
    patch.setattr(verification, "_PERTURBATION", 0.0)


def _check_in_single_precision(patch: Patch) -> None:
    patch.setattr(verification, "_PERTURBATION", 0.0)
    patch.setattr(verification, "highest_precision_dtype", lambda device: torch.float32)
    patch.setattr(verification, "_TOLERANCE", {torch.float32: 1e-3})


def _no_check(patch: Patch) -> None:
    patch.setattr(verification, "_find_routing", lambda tape, outputs, ways, *rest, **options: ways)


def _vmap_of_derivatives(
    repeated: per_sample._ReplayableCall, gradients: Sequence[Tensor], *, create_graph: bool
) -> list[Tensor]:
    """The derivatives themselves vectorized, not the forward pass alone: torch loses the second one of layer_norm."""

    def of_one(leaves: Sequence[Any], parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pull: Any = vjp(lambda *sources: repeated.own_outputs(leaves, sources), *repeated.sources)[1]
        return vmap(pull)(tuple(part.unsqueeze(dim + 1) for part, dim in zip(parts, repeated.output_dims, strict=True)))

    dims = repeated.dims, [dim + 1 for dim in repeated.output_dims]
    # Past the substitution of the rehearsal, under which vjp finds no graph; the modules hold what is substituted.
    with torch._C.DisableTorchFunction():
        return [rows.transpose(0, 1) for rows in vmap(of_one, in_dims=dims)(repeated.leaves, list(gradients))]


def _second_derivative_lost(patch: Patch) -> None:
    patch.setattr(per_sample, "_vectorized", _vmap_of_derivatives)
    patch.setattr(verification, "_second_derivative_differs", lambda *arguments: False)


def _copied(patch: Patch) -> None:
    def of_a_copy(network: nn.Module, x: Tensor, **options: Any) -> Tensor:
        return ntk_logdet(copy.deepcopy(network).double(), x.double(), **options)

    patch.setattr("fuzz.oracle.ntk_logdet", of_a_copy)


def _scalars_are_flattened(patch: Patch) -> None:
    def combined(parts: Sequence[Contribution]) -> dict[tuple[int, ...], Contribution]:
        sums: dict[int, tuple[Tensor, Tensor]] = {}
        for part in parts:
            for parameter, values in zip(part.parameters, part.dense(), strict=True):
                flat = values.flatten(2)
                sums[id(parameter)] = parameter, flat + sums.get(id(parameter), (parameter, torch.zeros_like(flat)))[1]
        return {(key,): DenseJacobian((parameter,), values) for key, (parameter, values) in sums.items()}

    patch.setattr(tape, "dense_contribution", lambda parameter, rows: DenseJacobian((parameter,), rows.flatten(2)))
    patch.setattr(
        per_sample, "dense_contribution", lambda parameter, rows: DenseJacobian((parameter,), rows.flatten(2))
    )
    patch.setattr(broadcasts, "densely_combined", combined)


def _memory_of_the_calls_alone(patch: Patch) -> None:
    def bytes_of(recorded: Tape, results: Tensor) -> int:
        return sum(leaf.numel() for call in recorded.calls for leaf, _ in call.versions) * results.element_size()

    patch.setattr(kernel, "_bytes", bytes_of)


def _errors_of_one_call_go_through(patch: Patch) -> None:
    def unguarded(call: Call, gradients: Sequence[Tensor]) -> list[Contribution]:
        try:
            return per_sample.per_sample_jacobian(call, gradients)
        except Exception as error:
            raise SystemError(str(error)) from error

    patch.setattr(tape, "per_sample_jacobian", unguarded)


def _sparse_gradients_as_they_are(patch: Patch) -> None:
    patch.setattr(backward, "_dense", lambda gradient: gradient)


def _outputs_must_depend_on_the_inputs(patch: Patch) -> None:
    def unguarded_input_gradient(
        network: nn.Module, outputs: Tensor, inputs: Tensor, cotangent: Tensor | None = None, **options: Any
    ) -> Tensor:
        return torch.autograd.grad(outputs, inputs, cotangent, **options)[0]

    patch.setattr("gapscope.measures.input_jacobian_norm.input_gradient", unguarded_input_gradient)


def _errors_of_torch_as_they_are(patch: Patch) -> None:
    for module in (outputs, backward, tape):
        patch.setattr(module, "explain_torch_errors", nullcontext)
    for module in (backward, verification):
        patch.setattr(module, "check_no_reentrant_checkpoint", lambda results: None)


def _buffers_keep_their_size(patch: Patch) -> None:
    patch.setattr(restoring._Values, "restore", lambda self: self.buffer.copy_(self.copy))


def _squares_of_complex_numbers(patch: Patch) -> None:
    patch.setattr(per_sample, "as_real", lambda tensor: tensor)


def _complex_numbers_as_they_are(patch: Patch) -> None:
    for module in (per_sample, backward, verification):
        patch.setattr(module, "as_real", lambda tensor: tensor)


def _no_refusal(patch: Patch) -> None:
    patch.setattr(independence, "is_sample_independent", lambda network, x: True)
    patch.setattr(independence, "check_no_batch_statistics", lambda modules: None)
    patch.setattr(verification, "_check_mixing", lambda tape, ways: None)


def _check_in_half_precision(patch: Patch) -> None:
    patch.setattr(verification, "highest_precision_dtype", lambda device: torch.bfloat16)
    patch.setattr(verification, "_TOLERANCE", {torch.bfloat16: 0.2})


def _not_a_number(patch: Patch) -> None:
    patch.setattr(independence, "_close", _lets_not_a_number_pass)
    patch.setattr(verification, "_check_mixing", lambda tape, ways: None)


# name of the finding -> what takes its mend out
REVERTS: dict[str, Callable[[Patch], None]] = {
    "W1 a module with two names loses its parameter": _two_names,
    "W2 checked while the gradient was zero": _check_at_the_weights_as_they_are,
    "W2 checked while the gradient was tiny": _check_in_single_precision,
    "W2 checked while the read-out was zero": _check_at_the_weights_as_they_are,
    "W3 a second derivative is lost": _second_derivative_lost,
    "W4 rows in another order": _no_check,
    "W5 complex weights": _squares_of_complex_numbers,
    "W6 a copy that still calls the original": _copied,
    "W7 mixed batches not refused": _no_refusal,
    "W8 tolerance of half precision": _check_in_half_precision,
    "W14 not a number where it must be refused": _not_a_number,
    "C1 scalar parameters": _scalars_are_flattened,
    "C1 scalar parameter at the output": _scalars_are_flattened,
    "C2 no called layer owns parameters": _memory_of_the_calls_alone,
    "C3 sizes that coincide": _errors_of_one_call_go_through,
    "C4 sparse gradients": _sparse_gradients_as_they_are,
    "C5 networks that cannot be copied": _copied,
    "C5 constants of single precision": _copied,
    "C6 complex weights of single precision": _complex_numbers_as_they_are,
    "C7 batch norm without statistics": _no_refusal,
    "C8 outputs that do not depend on the inputs": _outputs_must_depend_on_the_inputs,
    "C9 a checkpoint that hides its parameters": _errors_of_torch_as_they_are,
    "C10 a buffer of another size": _buffers_keep_their_size,
}
