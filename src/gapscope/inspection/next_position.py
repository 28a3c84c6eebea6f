"""The one rule for labels of the next position: whether outputs at a position are about the label after it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.batches import LABEL_NAMES
from gapscope.base.input_layout import InputLayout
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.inspection.first_pass import TOLERANCE, FirstPass
from gapscope.inspection.network_adapter import call_network
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import inspection_mode, prepare_inputs

_CAUSAL = ("ForCausalLM", "LMHeadModel")
# by how much one difference must exceed the other, by judgment, and rounding of mean losses in single precision
_CLEAR, _ROUNDING = 10, 1e-6
UNDECIDED = (
    "Labels equal the token ids of the inputs, and each was compared with the outputs at its own position: nothing "
    "shows whether the network predicts the next token. If it does, pass the inputs ids[:, :-1] with the labels "
    "ids[:, 1:]."
)


def is_causal(network: nn.Module) -> bool:
    """Return whether a network is a causal language model by its class, or by the class that defines its forward."""
    inner: Any = network
    if hasattr(network, "get_base_model"):  # with an adapter (PEFT)
        inner = inner.get_base_model()
    kind = type(inner)
    defining = next((part for part in kind.__mro__ if "forward" in vars(part)), kind)
    return kind.__name__.endswith(_CAUSAL) or defining.__name__.endswith(_CAUSAL)


def _wraps_causal(network: nn.Module) -> bool:
    """Return whether all weights of a network belong to a causal language model inside it."""
    weights = {id(parameter) for parameter in network.parameters()}
    return any(
        is_causal(module) and {id(parameter) for parameter in module.parameters()} == weights
        for module in network.modules()
    )


def _equal(labels: Tensor, ids: Tensor) -> bool:
    """Return whether the labels that count equal these token ids."""
    counts = labels != IGNORED
    return bool(counts.any()) and bool((labels == ids.to(labels.device))[counts].all())


def _shifted_by_loss(outputs: Tensor | None, labels: Tensor, loss: Tensor | None) -> bool | None:
    """Return whether a network's own loss is that of the next labels; None if it is neither or both."""
    if outputs is None or loss is None or outputs.ndim != 3 or labels.shape[1] < 2:
        return None
    if outputs.shape[1] != labels.shape[1]:
        outputs = outputs.mT
    labels = labels.to(outputs.device)
    in_range = (labels == IGNORED) | ((labels >= 0) & (labels < outputs.shape[2]))
    if outputs.shape[:2] != labels.shape or not bool(in_range.all()):
        return None
    outputs = outputs.detach().float()
    own = float(loss.detach())
    differences = []
    for logits, targets in ((outputs, labels), (outputs[:, :-1], labels[:, 1:])):
        value = float(F.cross_entropy(logits.mT, targets, ignore_index=IGNORED))
        differences.append(abs(own - value))
    smaller, larger = sorted(differences)
    # an untrained network has nearly equal losses of all labels: then the difference must be clear
    is_clear = larger > _CLEAR * max(smaller, _ROUNDING * abs(own))
    if not smaller <= TOLERANCE * abs(own) or not is_clear:
        return None
    return differences[1] < differences[0]


def predicts_next(
    network: nn.Module,
    outputs: Tensor | None,
    labels: Tensor,
    *,
    ids: Tensor | None = None,
    loss: Tensor | None = None,
) -> bool | None:
    """Return whether outputs at a position are about the label of the next one; None if that cannot be decided.

    Labels that are the next token ids already are not shifted again. Else the network's own loss decides, then its
    class. Labels that equal the token ids, of a network without a loss, are undecided.

    Args:
        network: The network, without wrappers of compilation and data parallelism.
        outputs: Its raw outputs [n, positions, classes] (or [n, classes, positions]); None before the first pass.
        labels: Labels [n, positions], with -100 where there is none.
        ids: Token ids of the inputs, of the shape of the labels; None if there are none.
        loss: The network's own loss of these samples, as it computes it from these labels; None without one.
    """
    is_same = False
    if ids is not None and ids.shape == labels.shape and labels.ndim == 2:
        is_same = _equal(labels, ids)
        if not is_same and _equal(labels[:, :-1], ids[:, 1:]):
            return False
    decided = _shifted_by_loss(outputs, labels, loss)
    if decided is not None:
        return decided
    if is_causal(network):
        return True
    if not is_same:
        return False
    return _wraps_causal(network) or None


def own_loss(result: Any) -> Tensor | None:
    """Return the loss in a network's result: its "loss", or a number that comes first; None without one."""
    loss = getattr(result, "loss", None)
    if isinstance(result, Mapping):
        loss = result.get("loss")
    elif is_list_or_tuple(result) and result:
        loss = result[0]
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(())
    return None


def _loss_of(network: nn.Module, samples: Samples, rows: Tensor) -> Tensor | None:
    """Return the loss that a network computes of some samples when it is given their labels."""
    parameters = inspect.signature(unwrapped(network).forward).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    name = next((name for name in LABEL_NAMES if name in parameters), "labels")
    if name not in parameters and not takes_any:
        return None
    form = samples.form
    with inspection_mode(network), torch.no_grad():
        x = prepare_inputs(network, samples.inputs[rows]).clone()
        labels = samples.y[rows].to(x.device)
        if form is not None and form.names is not None:
            return own_loss(call_network(network, form, x, {name: labels}))
        parts = (x,) if form is None else form.unpack(x)
        return own_loss(network(*parts, **{name: labels}))


def token_ids(x: Tensor, form: InputLayout | None) -> Tensor | None:
    """Return the token ids of inputs in a layout ("input_ids", or the first ones); None if they are no integers."""
    ids = x
    if form is not None:
        names = form.names or ()
        ids = form.unpack(x)[names.index("input_ids") if "input_ids" in names else 0]
    return None if ids.is_floating_point() or ids.is_complex() else ids


def shifts_batch(
    network: nn.Module, labels: Tensor | None, x: Tensor, form: InputLayout | None
) -> bool:
    """Return whether a mini-batch's labels are to be shifted by one position, before its first pass.

    Args:
        network: The network, without wrappers of compilation and data parallelism.
        labels: Labels of the batch; those of regression and of whole samples are never shifted.
        x: Inputs of the batch, as one tensor.
        form: Layout of the inputs.
    """
    if labels is None or labels.is_floating_point() or labels.ndim < 2:
        return False
    if not is_causal(network) and not _wraps_causal(network):
        return False
    return bool(predicts_next(network, None, labels, ids=token_ids(x, form)))


def predicts_next_of(network: nn.Module, samples: Samples, first: FirstPass) -> bool | None:
    """Return `predicts_next` of a network and samples with a label per position, from its first pass.

    Args:
        network: The network, without wrappers of compilation and data parallelism.
        samples: The samples.
        first: The first pass over them.
    """
    outputs = first.outputs
    if not samples.is_dense or outputs.ndim != 3 or samples.y.ndim != 2:
        return is_causal(network) if samples.is_dense else False
    labels = samples.y[: len(outputs)]
    # two samples decide it: losses over a large vocabulary take memory
    rows = torch.nonzero((labels[:, 1:] != IGNORED).any(1)).flatten()[:2].cpu()
    try:
        loss = _loss_of(network, samples, rows)
    except Exception:  # what networks raise on labels that they cannot use
        loss = None
    ids = token_ids(samples.inputs[rows], samples.form)
    return predicts_next(network, outputs[rows], labels[rows], ids=ids, loss=loss)
