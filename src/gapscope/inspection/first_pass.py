"""First pass of a network over a few samples: its outputs, and what they show of the network."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gapscope.base.errors import GapscopeError, InvalidInput, OutOfMemory, first_line
from gapscope.base.foreign_data import HASHED, TOKENIZE
from gapscope.base.samples import Samples
from gapscope.inspection.memory import is_out_of_memory, memory_message
from gapscope.inspection.network_adapter import NetworkAdapter, call_network
from gapscope.inspection.outputs import (
    checked_outputs,
    inspection_mode,
    network_outputs,
    prepare_inputs,
    raw_outputs,
)
from gapscope.inspection.timing import TRIAL

# relative difference that rounding does not explain, of two passes over the same inputs, or of a sum of probabilities
# from 1
TOLERANCE = 1e-3
# Outputs are fitted to 0 and 1 if 0.5 is right for five points more of the labels than 0, and their slope is near 1, as
# of every least squares fit with an intercept.
MIN_GAIN_AT_HALF, MAX_SLOPE_ERROR = 0.05, 0.3


@dataclass(frozen=True)
class FirstPass:
    """Raw outputs of the first samples, and what the pass showed of the network.

    Attributes:
        outputs: [n], [n, K] or with positions.
        is_direct: Whether they were returned as a tensor.
        writes_input: Whether the network changed the tensor that it was given.
        is_random: Whether a second pass over the same samples returned other outputs.
        origin: "sigmoid", "log-sigmoid" or "linear" if such a function made the outputs, else empty.
    """

    outputs: Tensor
    is_direct: bool
    writes_input: bool
    is_random: bool
    origin: str


def are_unit_rows(outputs: Tensor) -> bool:
    """Return whether outputs [n, K] are rows of length 1 with both signs, which logits and probabilities are not."""
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not bool((outputs < 0).any()):
        return False
    # half precision rounds a length by up to a thousandth
    return bool(((outputs.double().norm(dim=1) - 1).abs() < 2e-3).all())


# Activations by the names of torch's functions.
_SIGMOIDS = {
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "expit": "sigmoid",
    "logsigmoid": "log-sigmoid",
    "log_sigmoid": "log-sigmoid",
}


LINEAR = "linear"
# Functions whose results are no probabilities; a sum with one of these results is none either.
_LINEAR = frozenset({
    "linear", "bilinear", "matmul", "__matmul__", "mm", "addmm", "bmm", "baddbmm", "einsum", "conv1d", "conv2d",
    "conv3d",
})  # fmt: skip
_SUMS = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})


class _OriginRecorder(TorchFunctionMode):
    """Memory of the results of sigmoid and of linear functions, to recognize outputs that are one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoids: list[tuple[str, Tensor]] = []
        # the last ones only: all of them would hold the memory of every layer
        self.linear: deque[tuple[str, Tensor]] = deque(maxlen=4)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        origin = _SIGMOIDS.get(name)
        is_sum = name in _SUMS and any(self.made(part) == LINEAR for part in args)
        if not isinstance(result, Tensor):
            return result
        if name in _LINEAR or is_sum:
            self.linear.append((LINEAR, result))
        elif origin is not None:
            self.sigmoids.append((origin, result))
        return result

    def made(self, outputs: Any) -> str:
        """Return the function whose whole result the outputs are a view of, else an empty string."""
        if not isinstance(outputs, Tensor):
            return ""
        storage = outputs.untyped_storage().data_ptr()
        # a sigmoid in place writes into the result of a linear function
        for origin, result in [*self.sigmoids, *self.linear]:
            is_whole = result.numel() == outputs.numel()
            if is_whole and result.untyped_storage().data_ptr() == storage:
                return origin
        return ""


def first_pass(network: nn.Module, samples: Samples) -> FirstPass:
    """Run the network on the first samples, twice."""
    with inspection_mode(network), torch.no_grad():
        given = prepare_inputs(network, samples.inputs[:TRIAL])

        def run() -> tuple[Any, bool]:
            x = given.clone()
            if samples.form is None:
                result = network(x)
            else:
                result = call_network(network, samples.form, x)
            return result, not torch.equal(x, given)

        try:
            with _OriginRecorder() as recorder:
                result, writes_input = run()
            again, _ = run()
        except GapscopeError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(
                    memory_message(error, "Pass smaller inputs, or a smaller network.")
                ) from error
            raise InvalidInput(_forward_error(network, samples, error)) from error
    outputs = raw_outputs(result)
    repeated = raw_outputs(again)
    if isinstance(outputs, Tensor) and outputs.shape == () and len(given) == 1:
        outputs = outputs[None]
        repeated = repeated[None]
    outputs = checked_outputs(outputs, len(given), flat=False)
    return FirstPass(
        outputs,
        is_direct=raw_outputs(result) is result,
        writes_input=writes_input,
        is_random=_differ(outputs, repeated),
        origin=recorder.made(outputs),
    )


def _differ(outputs: Tensor, repeated: Tensor) -> bool:
    """Return whether two passes over the same samples differ by more than rounding."""
    if outputs.shape != repeated.shape:
        return True
    if not bool(torch.isfinite(outputs).all()):
        return False
    if not bool(outputs.any()):
        return False
    return bool((outputs - repeated).abs().max() > TOLERANCE * float(outputs.abs().max()))


def _forward_error(network: nn.Module, samples: Samples, error: Exception) -> str:
    """Return the message for an error of the network's own code."""
    message = first_line(error)
    x = samples.inputs
    hint = "Pass inputs that its forward accepts."
    names = samples.form and samples.form.names
    takes = ", ".join(inspect.signature(network.forward).parameters)
    if any(HASHED in note for note in samples.notes):
        return (
            f"The network must run on the inputs; got texts, which were read as frequencies of words, and "
            f"{type(network).__name__} raised {type(error).__name__}. {TOKENIZE}"
        )
    if "required positional argument" in message and not names:
        hint = f"Its forward takes {takes}: pass data as ((x1, x2), y), or as a mapping with these names."
    elif (
        samples.form is None
        and not x.is_floating_point()
        and any(p.is_floating_point() for p in network.parameters())
    ):
        hint = f"The inputs are {x.dtype}, which is for token ids. For images use x.float() / 255."
    elif names:
        hint = f"It was called with {', '.join(names)}; its forward takes {takes}."
        if samples.targets is None and names[-1] not in takes:
            hint += f" If {names[-1]} holds labels, name it 'label'."
    first = x[:TRIAL]
    if samples.form is not None:
        shape = [list(part.shape) for part in samples.form.unpack(first)]
    else:
        shape = list(first.shape)
    result = f"{type(network).__name__} on the first {len(first)} samples, {shape}, raised {type(error).__name__}"
    return f"The network must run on the inputs; {result}: {message}. {hint}"


NOT_FINITE = "Some outputs are NaN or infinite."
RANDOM_OUTPUTS = (
    "Outputs differ between two passes over the same samples (dropout that is always on, or random numbers in "
    "forward): every reading is of one random network. Make evaluation mode deterministic."
)
EMBEDDINGS = (
    "Outputs are rows of length 1, as embeddings are; they were taken for the logits of one class each. If they are no "
    "logits, pass them as features: gs.embed(network, data)."
)
PROBABILITIES = {
    "softmax": "Outputs are probabilities (every row sums to 1): their logarithms are used as logits. Return raw "
    "outputs, without the softmax.",
    "sigmoid": "Outputs are probabilities (a sigmoid): their logits log(p / (1 - p)) are used. Return raw outputs, "
    "without the sigmoid.",
    "log-sigmoid": "Outputs are logarithms of probabilities (a log-sigmoid): their logits log(p / (1 - p)) are used. "
    "Return raw outputs, without the log-sigmoid.",
}


def _sums_to_one(outputs: Tensor) -> bool:
    """Return whether outputs [n, C, ...] are distributions over the classes."""
    if outputs.ndim < 2 or outputs.shape[1] < 2:
        return False
    flat = outputs.movedim(1, -1).flatten(0, -2).double()
    return bool((flat >= 0).all()) and bool(((flat.sum(1) - 1).abs() < TOLERANCE).all())


def _has_one_per_label(outputs: Tensor, samples: Samples) -> bool:
    """Return whether there is one output for two classes, or one for each of several labels."""
    if samples.kind == "classification":
        return outputs.numel() == len(outputs)
    return samples.kind == "multi-label" and outputs.shape[1:] == samples.y.shape[1:]


def activation_of(network: nn.Module, samples: Samples, first: FirstPass) -> str:
    """Return "softmax", "sigmoid" or "log-sigmoid" if outputs for labels are probabilities, else an empty string.

    Args:
        network: The network.
        samples: Samples with targets.
        first: Its first pass over them.
    """
    if samples.kind not in ("classification", "multi-label", "positions"):
        return ""
    outputs = first.outputs
    if samples.kind == "classification" and _sums_to_one(outputs):
        return "softmax"
    if (
        samples.kind == "positions"
        and outputs.ndim > 2
        and (_sums_to_one(outputs) or _sums_to_one(outputs.mT))
    ):
        return "softmax"
    if first.origin:
        # rows of a linear function seldom sum to 1, but single values are often between 0 and 1
        return first.origin.replace(LINEAR, "")
    within = bool(((outputs >= 0) & (outputs <= 1)).all())
    if not within or not _has_one_per_label(outputs, samples):
        return ""
    return "sigmoid" if _half_separates_better(network, samples) else ""


FITTED_NUMBERS = "the network was fitted to the numbers 0 and 1"


def fitted_numbers_reason(network: nn.Module, samples: Samples, first: FirstPass) -> str:
    """Return why outputs for labels are fitted to the numbers 0 and 1, and are no logits; empty if they may be logits.

    A network that was trained on 0 and 1 by its squared error predicts the conditional mean: the labels have slope 1 on
    its outputs and are separated at 0.5. Logits are separated at 0.

    Args:
        network: The network.
        samples: Samples with targets.
        first: Its first pass over them.
    """
    few = first.outputs
    # A fit of 0 and 1 stays near them. This spares most networks another pass.
    if not _has_one_per_label(few, samples) or not bool(((few > -1) & (few < 2)).all()):
        return ""
    outputs, targets = _outputs_of_part(network, samples)
    at_half = (outputs > 0.5) == targets
    at_zero = (outputs > 0) == targets
    gains = (at_half.double() - at_zero.double()).mean(1)
    if float(gains.mean()) < MIN_GAIN_AT_HALF:
        return ""
    variables = torch.stack([outputs.flatten(), targets.double().flatten()])
    covariance = variables.cov()
    slope = float(covariance[0, 1] / covariance[0, 0])
    # 3.3 standard errors: 1 in 2,000 by chance
    is_significant = float(gains.mean()) > 3.3 * float(gains.std()) / len(gains) ** 0.5
    if not is_significant or abs(slope - 1) > MAX_SLOPE_ERROR:
        return ""
    right = [f"{100 * float(part.double().mean()):.0f} %" for part in (at_half, at_zero)]
    return (
        f"a threshold of 0.5 classifies {right[0]} of the samples correctly, and the threshold of logits, 0, "
        f"{right[1]}: {FITTED_NUMBERS}. Subtract 0.5 from its outputs to measure "
        'accuracies, pass gs.Samples(x, y, task="regression"), or train with binary cross-entropy'
    )


def _outputs_of_part(network: nn.Module, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return outputs [n, K] of at most 1,000 samples, and which labels are present."""
    part = samples.subset(torch.arange(min(len(samples), 1000)))
    adapted = NetworkAdapter(network, part.form, squeezed=part.kind == "classification")
    with inspection_mode(adapted):
        outputs = network_outputs(adapted, part.inputs).cpu()
    return outputs.double(), part.y.cpu().reshape(outputs.shape) > 0


def _half_separates_better(network: nn.Module, samples: Samples) -> bool:
    """Return whether all outputs are in [0, 1] and a threshold at 0.5 classifies better than one at 0."""
    outputs, targets = _outputs_of_part(network, samples)
    if not bool(((outputs >= 0) & (outputs <= 1)).all()):
        return False
    return bool(
        ((outputs > 0.5) == targets).double().mean() > ((outputs > 0) == targets).double().mean()
    )
