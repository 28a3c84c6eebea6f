"""Weights and training states as safetensors: never pickle, atomically."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from gapscope.base.errors import DamagedFile, UnreadableFile
from gapscope.base.files import check_file, write_atomically

CHECKSUM = "crc32"


def as_safetensors(tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> bytes:
    """Encode tensors (shared ones once per name) and JSON values as one safetensors file.

    A checksum of the tensors goes with them, so that a file corrupted by a power cut or a bad disk is noticed.
    """
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # one key alone: safetensors writes several in an order of its own, and equal networks shall give equal files
    content = json.dumps({**(facts or {}), CHECKSUM: _checksum(copies)}, sort_keys=True)
    return save(copies, metadata={"facts": content})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
    """Write what `as_safetensors` makes of tensors and facts, atomically."""
    write_atomically(path, as_safetensors(tensors, facts))


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return total


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote.

    Raises:
        DamagedFile: The file is no safetensors file, is truncated or corrupted.
        UnreadableFile: There is no such file, or it cannot be read.
    """
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UnreadableFile(
            f"{path} must be a safetensors file that can be read; reading it failed: {error.strerror or error}. "
            "Check the path."
        ) from None
    except (SafetensorError, ValueError, RecursionError, TypeError, AttributeError) as error:
        # no safetensors file: a zip archive of torch.save, or a bare pickle
        if path.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
            raise UnreadableFile(
                f"{path} must be weights that a pool wrote; it is a file of torch.save, which gapscope never "
                "unpickles. Write a function that builds the network and loads it: pass my_models:build, or gapscope "
                f"pool add POOL --load my_models:load {path.name}."
            ) from None
        raise DamagedFile(
            f"{path} must be a whole safetensors file; reading it failed: {error}. Name another file, or train "
            "the network again."
        ) from None
    if not isinstance(facts, dict):
        raise DamagedFile(f"{path} must contain a table of facts; got {str(facts)[:60]!r}. Name another file.")
    if facts.pop(CHECKSUM, _checksum(tensors)) != _checksum(tensors):  # older files have none
        raise DamagedFile(
            f"{path} must be a whole safetensors file; its numbers are corrupted. Train the network again."
        )
    return tensors, facts


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy a state dictionary into `network`, or raise UnreadableFile."""
    own = network.state_dict()
    for name, tensor in own.items():
        if name not in weights:
            raise UnreadableFile(f"{source} must fit the network; it lacks '{name}'. Use the spec it was trained with.")
        if weights[name].shape != tensor.shape:
            raise UnreadableFile(
                f"{source} must fit the network; '{name}' has shape {list(weights[name].shape)}, the network needs "
                f"{list(tensor.shape)}. Use the spec it was trained with."
            )
        if weights[name].dtype != tensor.dtype:
            raise UnreadableFile(
                f"{source} must fit the network; '{name}' is of type {weights[name].dtype}, the network's of "
                f"{tensor.dtype}. Bring the network to the type it was saved in, network.to(...), or save it again."
            )
    unknown = sorted(set(weights) - set(own))
    if unknown:
        raise UnreadableFile(
            f"{source} must fit the network; the network has no '{unknown[0]}'. Use the spec it was trained with."
        )
    with torch.no_grad():
        network.load_state_dict(dict(weights))
