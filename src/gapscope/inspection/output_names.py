"""Classes of a network's outputs by name (`config.label2id`), and named labels numbered as these outputs are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.columns import naming_note
from gapscope.base.errors import join_names
from gapscope.base.samples import Samples
from gapscope.base.second_data import with_order_of_targets
from gapscope.base.targets import SIGN_NAMES
from gapscope.base.type_guards import is_mapping
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.network_checks import unwrapped

# names that transformers gives to outputs without names
_DEFAULT = re.compile(r"LABEL_\d+")


def output_names(network: Any) -> tuple[str, ...]:
    """Return the names of the classes of a network's outputs, in their order; empty if it has none.

    They are those of `config.label2id`, or else `config.id2label`, as networks of Hugging Face have.

    Args:
        network: The network, also in wrappers.
    """
    if not isinstance(network, nn.Module):
        return ()
    network = unwrapped(network)
    if isinstance(network, NetworkAdapter):
        return output_names(network.network)
    config: Any = getattr(network, "config", None)
    numbers: Any = getattr(config, "label2id", None)
    names: Any = getattr(config, "id2label", None)
    pairs: list[tuple[Any, Any]] = []
    if is_mapping(numbers):
        pairs = [(number, name) for name, number in numbers.items()]
    if (not pairs or _are_default(pairs)) and is_mapping(names):
        pairs = list(names.items())
    if not pairs or _are_default(pairs):
        return ()
    try:
        by_number = {int(number): str(name) for number, name in pairs}
    except (TypeError, ValueError):
        return ()
    found = tuple(by_number.get(k, "") for k in range(len(pairs)))
    if "" in found or len(set(found)) < len(found):
        return ()
    return found


def _are_default(pairs: Sequence[tuple[Any, Any]]) -> bool:
    return all(_DEFAULT.fullmatch(str(name)) is not None for _, name in pairs)


def numbered_as_outputs(network: Any, samples: Samples) -> Samples:
    """Return samples whose named labels have the numbers of the network's outputs of these names.

    Labels that were numbers keep these, also if their data set names them. So do labels of which the network knows
    none or some alone, see `unknown_labels`. Columns of several labels, or of one-hot classes, get the order of the
    outputs if they have their names.

    Args:
        network: The network; anything else numbers nothing.
        samples: The samples.
    """
    known = output_names(network)
    if samples.target_columns:
        return _in_order_of_outputs(samples, known)
    if not known or not _are_named(samples) or samples.class_names == known:
        return samples
    if unknown_labels(known, samples):
        return samples
    codes = torch.tensor([_place(name, known) for name in samples.class_names])
    old = set(naming_note(samples.class_names))
    listed = join_names(f"{code} = {name!r}" for code, name in enumerate(known))
    note = f"Labels are numbered as the outputs of the network (config.label2id): {listed}."
    targets, unsettled = (
        None if values is None else _renumbered(values, codes)
        for values in (samples.targets, samples.unsettled)
    )
    return replace(
        samples, targets=targets, unsettled=unsettled, class_names=known,
        notes=(*(text for text in samples.notes if text not in old), note),
    )  # fmt: skip


def _in_order_of_outputs(samples: Samples, known: tuple[str, ...]) -> Samples:
    """Return samples whose columns of labels have the order of the outputs, if they are named as these."""
    names = samples.target_columns
    if names == known or sorted(names) != sorted(known) or samples.kind == "regression":
        return samples
    targets = samples.targets
    if samples.class_names == names and targets is not None and targets.ndim == 1:
        places = torch.tensor([known.index(name) for name in names])
        samples = replace(samples, targets=_renumbered(targets, places), class_names=known)
    note = "The columns of the labels were brought into the order of the network's outputs (config.label2id)."
    return replace(with_order_of_targets(samples, known), notes=(*samples.notes, note))


def unknown_labels(known: Sequence[str], samples: Samples) -> list[str]:
    """Return the names of labels that occur and that no output of a network has.

    Args:
        known: Names of the outputs.
        samples: The samples.
    """
    if not known or samples.targets is None or not _are_named(samples):
        return []
    labels = samples.y
    occurring = [int(label) for label in labels[labels >= 0].unique()]
    names = [samples.class_names[label] for label in occurring]
    return [name for name in names if _place(name, known) < 0]


def unknown_labels_reason(network: Any, samples: Samples, n_outputs: int) -> str:
    """Return why named labels cannot be compared with the named outputs of a network (empty if they can).

    Args:
        network: The network.
        samples: The samples.
        n_outputs: Number of outputs per sample, also of positions.
    """
    known = output_names(network)
    unknown = unknown_labels(known, samples)
    n_positions = samples.y[0].numel() if samples.is_dense else 1
    # with a new head the names are those of another task
    if not unknown or n_outputs != len(known) * n_positions:
        return ""
    return (
        f"labels are {join_names(map(repr, unknown))}, and the outputs of the network are "
        f"{join_names(map(repr, known))} (config.label2id); pass labels with these names, or the numbers of the outputs"
    )


def _are_named(samples: Samples) -> bool:
    """Return whether labels were names, which the data do not number."""
    if not samples.class_names or samples.names_are_own or samples.target_columns:
        return False
    has_classes = samples.is_classification or samples.is_dense  # without targets neither
    return has_classes and samples.class_names != SIGN_NAMES


def _place(name: str, known: Sequence[str]) -> int:
    """Return the number of the output of this name, in any case, or of this number as text; -1 if there is none."""
    if name in known:
        return known.index(name)
    folded = [each.casefold() for each in known]
    if folded.count(name.casefold()) == 1:
        return folded.index(name.casefold())
    if name.isdecimal() and int(name) < len(known):
        return int(name)
    return -1


def _renumbered(labels: Tensor, codes: Tensor) -> Tensor:
    return torch.where(labels >= 0, codes.to(labels.device)[labels.clamp(min=0)], labels)
