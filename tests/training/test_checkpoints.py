"""Weights as safetensors: round trips, tied weights, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gapscope.base.errors import GapscopeError, UnreadableFile
from gapscope.training.checkpoints import load_tensors, save_tensors, set_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), Tied]
)
def test_weights_survive_the_disk(tmp_path: Path, make: type) -> None:
    first, second = make(), make()
    save_tensors(tmp_path / "w.safetensors", first.state_dict(), {"seed": 3})
    set_weights(second, load_tensors(tmp_path / "w.safetensors")[0], "w")
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert load_tensors(tmp_path / "w.safetensors")[1] == {"seed": 3}


def test_channels_last_weights_are_kept(tmp_path: Path) -> None:
    network = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save_tensors(tmp_path / "w.safetensors", network.state_dict())
    assert torch.equal(load_tensors(tmp_path / "w.safetensors")[0]["weight"], network.weight)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Linear(3, 4), r"'weight' has shape \[2, 3\], the network needs \[4, 3\]"),
        (nn.Linear(3, 2, bias=False), "the network has no 'bias'"),
        (nn.Sequential(nn.Linear(3, 2)), "it lacks '0.weight'"),
        (
            nn.Linear(3, 2).double(),
            r"'weight' is of type torch.float32, the network's of torch.float64. Bring the",
        ),
        (
            nn.Linear(3, 2).bfloat16(),
            r"'weight' is of type torch.float32, the network's of torch.bfloat16",
        ),
    ],
)
def test_weights_of_another_network_raise(other: nn.Module, message: str) -> None:
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(UnreadableFile, match=message):
        set_weights(other, nn.Linear(3, 2).state_dict(), "w")
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_a_header_of_any_length_is_no_pickle(tmp_path: Path) -> None:
    """A file of safetensors begins with the length of its header, which may spell PK or the mark of a pickle."""
    for length in range(0x80, 0x80 + 8):
        tensors = {"x" * (length - 60): torch.ones(3)}
        save_tensors(tmp_path / "w.safetensors", tensors)
        assert load_tensors(tmp_path / "w.safetensors")[0].keys() == tensors.keys()
    path = tmp_path / "w.safetensors"
    for start in (b"\x80\x02", b"PK"):
        size = int.from_bytes(start, "little")
        entry = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
        header = (entry + " " * (size - len(entry) - 1) + "}").encode()
        path.write_bytes(size.to_bytes(8, "little") + header + b"\0\0\0\0")
        assert path.read_bytes()[:2] == start and load_tensors(path)[0]["a"].tolist() == [0.0]


@pytest.mark.parametrize("content", [b"", b"garbage garbage garbage", b"\x80\x04\x95"])
def test_foreign_files_raise_and_are_never_unpickled(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"must be a whole safetensors file|never unpickles"):
        load_tensors(path)
    with pytest.raises(UnreadableFile, match="safetensors file"):
        load_tensors(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("data.xlsx", b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml", "it is a spreadsheet"),
        ("net.pt", b"PK\x03\x04" + bytes(26) + b"net/data.pkl", "never unpickles"),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(30), "it is a picture"),
        ("weights.safetensors", b"\xff" * 30, "or train the network again"),
    ],
)
def test_other_files_are_named(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GapscopeError, match=match):
        load_tensors(tmp_path / name)
