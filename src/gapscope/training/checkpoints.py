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
from gapscope.base.files import as_word, check_file, write_atomically
from gapscope.data.file_text import NOT_TEXT

CHECKSUM = "crc32"


def encode_tensors(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> bytes:
    """Encode tensors, JSON values and a checksum as a safetensors file."""
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # a single key: safetensors does not fix the order of several, and equal networks must result in equal files
    content = json.dumps({**(metadata or {}), CHECKSUM: _checksum(copies)})
    return save(copies, metadata={"facts": content})


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write tensors and JSON values to a safetensors file, atomically."""
    write_atomically(path, encode_tensors(tensors, metadata))


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1)
        content = b""
        if flat.numel():
            content = flat.view(torch.uint8).numpy().tobytes()
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return total


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and JSON values of a file that `save_tensors` wrote.

    Raises:
        DamagedFile: The file is not a safetensors file, is truncated or corrupted.
        UnreadableFile: There is no such file, or it cannot be read.
    """
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("facts", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UnreadableFile(
            f"{path} must be a safetensors file that can be read; got {error.strerror or error}. Check the path."
        ) from None
    except (SafetensorError, ValueError, RecursionError, TypeError, AttributeError) as error:
        content = path.read_bytes()
        is_zip = content.startswith(b"PK") and b"data.pkl" in content[30:300]
        if is_zip or content[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05"):
            raise UnreadableFile(
                f"{path} must be a safetensors file; got one of torch.save, which gapscope never unpickles. "
                f"Load it in a function of the path: gapscope check {as_word(path)} --load my_models:load, or gapscope "
                f"pool add POOL --load my_models:load {as_word(path)}."
            ) from None
        kind = next(
            (kind for start, (kind, _) in NOT_TEXT.items() if content.startswith(start)), ""
        )
        if kind:
            raise UnreadableFile(
                f"{path} must be a safetensors file; it is {kind}. Pass the weights of a network, or a table as CSV."
            ) from None
        if path.suffix == ".safetensors":
            advice = ", or train the network again"
        else:
            advice = ""
        raise DamagedFile(
            f"{path} must be a whole safetensors file; reading it failed: {error}. Pass another file{advice}."
        ) from None
    if not isinstance(metadata, dict):
        raise DamagedFile(
            f"{path} must hold a table of metadata; got {str(metadata)[:60]!r}. Pass another file."
        )
    if metadata.pop(CHECKSUM, _checksum(tensors)) != _checksum(tensors):  # older files have none
        raise DamagedFile(
            f"{path} must be a whole safetensors file; its numbers are corrupted. Retrain the network."
        )
    return tensors, metadata


def _mismatch(state: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Return why weights do not fit a state dictionary, and what to do (empty if they fit)."""
    advice = "Use the spec it was trained with."
    for name, tensor in state.items():
        if name not in weights:
            return f"it lacks '{name}'. {advice}"
        weight = weights[name]
        if weight.shape != tensor.shape:
            return f"'{name}' has shape {list(weight.shape)}, the network needs {list(tensor.shape)}. {advice}"
        if weight.dtype != tensor.dtype:
            return (
                f"'{name}' is of type {weight.dtype}, the network's of {tensor.dtype}. Bring the network to the saved "
                "type, network.to(...), or save it again."
            )
    unknown = sorted(set(weights) - set(state))
    if unknown:
        return f"the network has no '{unknown[0]}'. {advice}"
    return ""


def set_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy a state dictionary into `network`, or raise UnreadableFile."""
    if mismatch := _mismatch(network.state_dict(), weights):
        raise UnreadableFile(f"{source} must fit the network; {mismatch}")
    with torch.no_grad():
        network.load_state_dict(dict(weights))
