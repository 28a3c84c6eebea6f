"""What a network must be before it is measured: a module with weights that have values."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.input_checks import has_finite_sum
from gapscope.inspection.network_errors import scripted_message


def _held_by(holder: Any) -> str:
    """Return the attribute with the network of a trainer, pipeline or wrapper; empty if there is none."""
    for name in ("model", "network", "module_", "lightning_module"):
        with suppress(Exception):  # properties of trainers raise before a network is attached
            if isinstance(getattr(holder, name, None), nn.Module):
                return name
    return ""


def is_estimator(value: Any) -> bool:
    """Return whether a value is an estimator with scikit-learn's interface (not a class of them)."""
    if isinstance(value, type | nn.Module):
        return False
    if all(hasattr(value, name) for name in ("fit", "predict", "get_params")):
        return True
    # some get `predict` only when they are fitted, such as StackingClassifier with its own final estimator
    if not all(hasattr(type(value), name) for name in ("fit", "predict", "get_params")):
        return False
    from sklearn.base import is_classifier, is_regressor

    try:
        return bool(is_classifier(value) or is_regressor(value))
    except (AttributeError, TypeError):  # of another library
        return False


def estimator_task(estimator: Any, labels: Any = None) -> str:
    """Return what an estimator predicts: "classifier" or "regressor".

    An object without scikit-learn's tags is a classifier if its labels are words or integers.

    Args:
        estimator: An estimator, see `is_estimator`.
        labels: Its labels or targets; None if they are not known: then `predict_proba` makes a classifier.

    Raises:
        InvalidInput: It predicts no labels: it finds clusters, outliers or densities.
    """
    from sklearn.utils import get_tags

    try:
        kind = get_tags(estimator).estimator_type
    except (AttributeError, TypeError):  # an object of another library
        kind = getattr(estimator, "_estimator_type", None)
    if kind in ("classifier", "regressor"):
        return str(kind)
    if kind is not None:
        raise InvalidInput(
            f"An estimator must predict labels or targets; got {type(estimator).__name__}, of the kind "
            f"{kind.replace('_', ' ')!r}. Pass a classifier or a regressor."
        )
    if labels is None:
        has_classes = hasattr(estimator, "predict_proba")
    else:
        has_classes = numpy.asarray(labels).dtype.kind in "OUSbiu"
    return "classifier" if has_classes else "regressor"


def check_module(network: Any) -> None:
    """Raise InvalidInput unless this is a module (with advice for classes and functions)."""
    if isinstance(network, nn.Module):
        return
    if isinstance(network, type) and issubclass(network, nn.Module):
        got = f"the class {network.__name__}"
        advice = f"Pass an instance, {network.__name__}(...)."
    elif isinstance(network, type):
        got = f"the class {network.__name__}"
        advice = f"Pass an object of it, such as {network.__name__}()."
    elif isinstance(network, str | os.PathLike):
        got = f"the path {str(network)!r}"
        advice = (
            "Build the network, then network.load_state_dict(torch.load(path, weights_only=True))."
        )
    elif isinstance(network, Mapping):
        got = f"a mapping of {len(network)} entries (a state dictionary?)"
        advice = "Build the network and pass it after network.load_state_dict(...)."
    elif is_estimator(network):
        got = f"the estimator {type(network).__name__}, which has no gradients"
        advice = (
            "Pass this estimator to learning_curve (its accuracy on new data), out_of_sample or check, "
            "pred_probs=gapscope.out_of_sample(estimator, data) to find_label_issues, or a network of torch."
        )
    elif _is_exported(network):
        got = f"the {type(network).__name__} of torch.export"
        advice = "Pass the module that was exported."
    elif holder := _held_by(network):
        got = f"a {type(network).__name__}"
        advice = f"Pass the network that it holds, its attribute {holder}."
    elif type(network).__module__.startswith(("gapscope.training.", "gapscope.integrations.")):
        got = f"a {type(network).__name__}, which records a training run and holds no network"
        advice = "Pass the network that was trained."
    elif not callable(network):
        got = type(network).__name__
        advice = "The network comes first, and the data second, such as (x, y)."
    else:
        got = type(network).__name__
        advice = "Wrap it in a module whose forward calls it."
    raise InvalidInput(f"network must be a torch.nn.Module; got {got}. {advice}")


def _is_exported(value: Any) -> bool:
    """Return whether an object is of torch.export, a program or the module of one (which has no other mode)."""
    return any(cls.__module__.startswith("torch.export.") for cls in type(value).__mro__)


def check_whole(network: nn.Module) -> None:
    """Raise InvalidInput for weights of which each process holds a part."""
    # by the place of their classes, which takes long to import. The weights of a sharded module are plain tensors for
    # a while after a pass.
    sharded = [
        f"'{name}'" if name else f"the {type(module).__name__}"
        for name, module in network.named_modules()
        if any(cls.__module__.startswith("torch.distributed.fsdp") for cls in type(module).__mro__)
    ]
    sharded += [
        f"'{name}'"
        for name, tensor in (*network.named_parameters(), *network.named_buffers())
        if type(tensor).__module__.startswith("torch.distributed.")
    ]
    if sharded:
        raise InvalidInput(
            f"Weights must be whole tensors; {sharded[0]} is sharded over processes (fully_shard, "
            "FullyShardedDataParallel or a DTensor). Pass the network from before sharding, with the state dictionary "
            "that torch.distributed.checkpoint.state_dict.get_model_state_dict(..., "
            "options=StateDictOptions(full_state_dict=True)) gathers."
        )


def check_hookable(network: nn.Module) -> None:
    """Raise for layers that run no hooks, and for weights that are in parts, or without sizes or values."""
    if isinstance(network, torch.jit.ScriptModule):
        raise InvalidInput(scripted_message(type(network).__name__))
    if any(map(_is_exported, network.modules())):
        raise InvalidInput(
            f"Got the {type(network).__name__} of a program of torch.export, whose layers run no hooks; network must "
            "be an nn.Module. Pass the module that was exported."
        )
    check_whole(network)
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise NotMeasurable(
                f"Parameters must be initialized; '{name}' belongs to a lazy layer that has not run yet. Run the "
                "network once on a batch."
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise InvalidInput(
                f"Weights must be usable by autograd; '{name}' was created in torch.inference_mode(). Build or load "
                "the network outside it."
            )
        if tensor.is_meta:
            raise InvalidInput(
                f"Weights must have values; '{name}' is on the meta device, which has none. Load the weights first."
            )


def check_finite(network: nn.Module) -> None:
    """Raise InvalidInput if a weight is not finite (buffers may be infinite)."""
    slots = [
        slots for module in network.modules() for slots in (module._parameters, module._buffers)
    ]
    if all(
        has_finite_sum(tensor)
        for tensors in slots
        for tensor in tensors.values()
        if tensor is not None
    ):
        return
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if has_finite_sum(tensor):
            continue
        is_parameter = isinstance(tensor, nn.Parameter)
        invalid = ~torch.isfinite(tensor) if is_parameter else tensor.isnan()
        if bool(invalid.any()):
            raise InvalidInput(
                f"All weights must be finite; '{name}' holds NaN or infinity: training has diverged. Train again with "
                "a smaller learning rate."
            )


def check_trainable(parameters: Collection[Any]) -> None:
    """Raise NotMeasurable if there are no trainable parameters."""
    if not parameters:
        raise NotMeasurable(
            "A network must have trainable parameters; all of its parameters are frozen or it has none. "
            "Use parameter.requires_grad_(True)."
        )


def unwrapped(network: nn.Module) -> nn.Module:
    """Return the network inside wrappers of `torch.compile`, data parallelism and averages of weights."""
    check_module(network)
    while True:
        # `_modules` of a script module is no dict
        inner = dict(vars(network).get("_modules", {}).items()).get("_orig_mod")
        if isinstance(network, DistributedDataParallel | DataParallel | AveragedModel):
            inner = network.module
        if not isinstance(inner, nn.Module):
            return network
        network = inner
