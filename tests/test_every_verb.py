"""Every public function on every form of data and kind of network: the plain-tensor call's numbers, or one message.

The reference of a network of several inputs is the same network behind a wrapper, written by hand, that takes one
tensor. Every function meets every form on a network of one input and on one of several; on other kinds of network,
every function meets few forms and few functions meet every form. Most combinations are thorough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import gapscope as gs
from gapscope.base.errors import GapscopeError
from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.inspection.copies import copy_network
from support.door_networks import TokensAlone, bert_classifier

# trees give the same numbers for every form of the same data, few as well as many
pytestmark = pytest.mark.usefixtures("few_trees")

N = 60
Numbers = Mapping[str, float]


class ByKeyword(nn.Module):
    """Multiplies its inner network's input by one keyword, and returns its logits in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 3)
        )

    def forward(self, *, values: Tensor, times: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(values * times)}


class SideBySide(nn.Module):
    """The same network on one tensor that holds both inputs side by side."""

    def __init__(self, network: ByKeyword) -> None:
        super().__init__()
        self.inner = network.inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, :5] * x[:, 5:])


@dataclass(frozen=True)
class Subject:
    """A network with its data: what it takes itself, and the plain-tensor call of the same function.

    Attributes:
        network: The network.
        inputs: Its inputs: a tensor, or tensors by keyword.
        plain: The network on one tensor.
        x: That tensor.
        y: Labels.
    """

    network: nn.Module
    inputs: Tensor | dict[str, Tensor]
    plain: nn.Module
    x: Tensor
    y: Tensor


def _of_tensor(network: nn.Module, *shape: int) -> Subject:
    x = torch.randn(N, *shape, generator=torch.Generator().manual_seed(3))
    y = x.flatten(1)[:, :3].argmax(1)
    return Subject(network, x, network, x, y)


def _of_tokens(network: nn.Module) -> Subject:
    ids = torch.randint(1, 20, (N, 6), generator=torch.Generator().manual_seed(3))
    ids[: N // 2, 4:] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    return Subject(network, inputs, TokensAlone(network), ids, (ids[:, 0] > 10).long())


def _build(name: str, shape: tuple[int, ...], **options: Any) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    return gs.build_network(name, input_shape=shape, n_outputs=3, generator=generator, **options)


def _keyword() -> Subject:
    torch.manual_seed(0)
    network, generator = ByKeyword(), torch.Generator().manual_seed(3)
    values = torch.randn(N, 5, generator=generator)
    times = (torch.rand(N, 5, generator=generator) < 0.8).float()
    y = (values * times)[:, :3].argmax(1)
    return Subject(
        network,
        {"values": values, "times": times},
        SideBySide(network),
        torch.cat([values, times], 1),
        y,
    )


def _cnn() -> Subject:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return _of_tensor(nn.Sequential(*layers), 1, 8, 8)


def _lora() -> Subject:
    peft: Any = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        r=2, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    torch.manual_seed(0)
    return _of_tokens(peft.get_peft_model(bert_classifier(), settings))


def _mlp() -> Subject:
    torch.manual_seed(0)
    return _of_tensor(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)), 5)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "mlp": _mlp,
    "lenet5": lambda: _of_tensor(_build("lenet5", (1, 12, 12)), 1, 12, 12),
    "batch norm": _cnn,
    "resnet18": lambda: _of_tensor(_build("resnet18", (3, 8, 8), width_multiplier=0.0625), 3, 8, 8),
    "bert": lambda: _of_tokens(bert_classifier()),
    "keyword": _keyword,
    "lora": _lora,
}
OF_TOKENS = ("bert", "lora")
HAS_BATCH_NORM = ("batch norm", "resnet18", "keyword")


def numbers(values: Mapping[str, Any]) -> Numbers:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _trained(network: nn.Module, data: Any) -> Numbers:
    result = gs.train(network, data, gs.TrainingSpec(epochs=2, batch_size=20), test=data)
    return {
        name: float(row[name]) for row in result.history[-1:] for name in row if name != "seconds"
    }


def _estimated(network: nn.Module, data: Any) -> Numbers:
    own = network.state_dict()
    state = {name: 1.01 * part if part.is_floating_point() else part for name, part in own.items()}
    return numbers(
        gs.estimate_accuracy(network, data, initial_state=state, label_noise=0.0).readings
    )


def _forecast(network: nn.Module, data: Any) -> Numbers:
    result = gs.forecast_accuracy(network, data)
    return {"NTK": next(row.score for row in result.rows if row.method == "NTK")}


def _label_noise(network: nn.Module, data: Any) -> Numbers:
    issues = gs.find_label_issues(network, data)
    result = {"first": float(issues.indices[0]), "last": float(issues.indices[-1])}
    try:
        return result | {"rate": gs.estimate_label_noise(network, data).rate}
    except GapscopeError:
        return result


def _curve(network: nn.Module, data: Any) -> Numbers:
    def train(x: Any, y: Tensor) -> nn.Module:
        trained = copy_network(network)
        gs.train(trained, (x, y), gs.TrainingSpec(epochs=2, batch_size=10))
        return trained

    return {"score": gs.learning_curve(train, data).score}


def _gamma_decay(network: nn.Module, data: Any) -> Numbers:
    result = gamma_decay(network, data, batch_size=10)
    return {str(i): float(layer.decay) for i, layer in enumerate(result.values())}


def _penalized(network: nn.Module, data: Any) -> Numbers:
    x, y = data if isinstance(data, tuple) else (data, None)
    if not isinstance(x, Tensor | dict | tuple) or isinstance(
        y, numpy.ndarray | pandas.Series | list
    ):
        pytest.skip("a training loop has tensors")
    penalty = gs.GradientSimilarityPenalty(0.1, method="exact")
    return {"value": penalty.forward_with_penalty(network.eval(), x, y)[1].item()}


FUNCTIONS: dict[str, Callable[[nn.Module, Any], Numbers]] = {
    "measure": lambda n, d: gs.measure(
        n, d, ["loss", "accuracy", "ntk_trace"], strict=True
    ).values(),
    "forecast_accuracy": _forecast,
    "estimate_accuracy": _estimated,
    "estimate_label_noise": _label_noise,
    "out_of_sample": lambda n, d: numbers(vars(gs.out_of_sample(n, d))),
    "validated_accuracy": lambda n, d: {"score": gs.validated_accuracy(n, d, d).score},
    "learning_curve": _curve,
    "rank_networks": lambda n, d: numbers(
        dict(gs.rank_networks({"a": n}, d, by="output_sensitivity").to_pandas().iloc[0])
    ),
    "train": _trained,
    "Monitor": lambda n, d: gs.Monitor(d, ["loss", "ntk_trace"], n_samples=N).observe(n, 1),
    "compare": lambda n, d: {
        "rows": float(len(gs.compare({"a": n, "b": copy_network(n)}, d, ["ntk_trace"]).to_pandas()))
    },
    "check": lambda n, d: {"findings": float(len(gs.check(n, d).findings))},
    "record_network": lambda n, d: numbers(
        gs.record_network(n, d, name="a", measures=["ntk_trace"]).scores
    ),
    "penalty": _penalized,
    "advise_batch_norm": lambda n, d: {
        "excess": float(gs.advise_batch_norm(n, d, batch_size=10).total.excess)
    },
    "gamma_decay": _gamma_decay,
}
OF_BATCH_NORM = ("advise_batch_norm", "gamma_decay")
SLOW = (
    "check",
    "compare",
    "learning_curve",
    "rank_networks",
    "advise_batch_norm",
    "estimate_label_noise",
)


class Samples(Dataset):
    """A Dataset of whatever `item` makes of an index."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def _mapping(subject: Subject) -> dict[str, Tensor]:
    return dict(subject.inputs) if isinstance(subject.inputs, dict) else {"x": subject.inputs}


def _rows(subject: Subject, rows: Any) -> dict[str, Tensor]:
    return {name: part[rows] for name, part in (_mapping(subject) | {"labels": subject.y}).items()}


def _row_and_label(subject: Subject, row: int) -> Any:
    inputs = subject.inputs
    part = (
        inputs[row]
        if isinstance(inputs, Tensor)
        else {name: tensor[row] for name, tensor in inputs.items()}
    )
    return part, subject.y[row]


def _pair(subject: Subject, y: Any) -> Any:
    return subject.inputs, y


def _names(y: Tensor) -> list[str]:
    return [f"class {label}" for label in y.tolist()]


def _tabular(subject: Subject) -> Any:
    if not isinstance(subject.inputs, Tensor) or subject.inputs.ndim > 2:
        pytest.skip("images and sentences are no tables")
    frame = pandas.DataFrame(subject.inputs.numpy(), columns=list("abcde"))
    return frame, pandas.Series(_names(subject.y), dtype="category")


def _by_position(subject: Subject) -> Any:
    if not isinstance(subject.inputs, dict) or isinstance(subject.network, ByKeyword):
        pytest.skip("has one input, or takes none by position")
    return tuple(subject.inputs.values()), subject.y


def _numpy(subject: Subject) -> Any:
    parts = {name: part.numpy() for name, part in _mapping(subject).items()}
    return (parts if isinstance(subject.inputs, dict) else parts["x"]), subject.y.numpy()


def _batches_of_few_classes(subject: Subject) -> list[Tensor]:
    """Batches that lack classes: each would number its own classes otherwise; their order is that of the samples."""
    return [torch.arange(start, start + 3) for start in range(0, N, 3)]


BATCHES = (slice(0, 25), slice(25, 50), slice(50, N))
FORMS: dict[str, Callable[[Subject], Any]] = {
    "pair": lambda s: _pair(s, s.y),
    "numpy": _numpy,
    "pandas, categorical labels": _tabular,
    "dataset": lambda s: Samples(lambda i: _rows(s, i)),
    "tensor dataset": lambda s: (
        TensorDataset(s.inputs, s.y)
        if isinstance(s.inputs, Tensor)
        else pytest.skip("has several inputs")
    ),
    "loader": lambda s: DataLoader(Samples(lambda i: _rows(s, i)), batch_size=25),
    "loader of pairs": lambda s: DataLoader(Samples(lambda i: _row_and_label(s, i)), batch_size=25),
    "mapping": lambda s: _mapping(s) | {"labels": s.y},
    "list of samples": lambda s: [_rows(s, i) for i in range(N)],
    "list of batches": lambda s: [_rows(s, part) for part in BATCHES],
    "string labels": lambda s: _pair(s, numpy.array(_names(s.y))),
    "list of samples, string labels": lambda s: [
        _rows(s, i) | {"labels": f"class {s.y[i]}"} for i in range(N)
    ],
    "list of batches, string labels": lambda s: [
        _rows(s, part) | {"labels": numpy.array(_names(s.y[part]))}
        for part in _batches_of_few_classes(s)
    ],
    "one-hot labels": lambda s: _pair(s, nn.functional.one_hot(s.y, 3)),
    "tuple": _by_position,
    "samples": lambda s: (
        gs.Samples(s.inputs, s.y) if isinstance(s.inputs, Tensor) else pytest.skip("-")
    ),
}


@cache
def reference(subject: str, function: str) -> Numbers:
    """The numbers of the plain-tensor call."""
    made = SUBJECTS[subject]()
    return dict(FUNCTIONS[function](made.plain, (made.x, made.y)))


def check_equal(subject: str, function: str, form: str) -> None:
    made = SUBJECTS[subject]()
    data = FORMS[form](made)
    result, expected = FUNCTIONS[function](made.network, data), reference(subject, function)
    assert len(result) == len(expected) > 0
    for (name, value), right in zip(result.items(), expected.values(), strict=True):
        # rounding of another form may flip one of the 120 samples that a kernel classifies
        close = 0.0085 if function == "learning_curve" else 1e-5
        assert value == pytest.approx(right, rel=2e-3, abs=close, nan_ok=True), name
        assert math.isnan(right) == math.isnan(value)


def applies(subject: str, function: str) -> bool:
    # these also look at the inputs themselves, which are others for the wrapper of tokens
    if function in ("estimate_label_noise", "rank_networks"):
        return subject not in OF_TOKENS
    return function not in OF_BATCH_NORM or subject in HAS_BATCH_NORM


def differs(subject: str, function: str, form: str) -> bool:
    """Whether no other cases cover this one: a form is read before, and apart from, what a function does with it."""
    return (
        subject in ("mlp", "keyword")
        or function in ("measure", "train")
        or form in ("mapping", "loader", "tuple")
    )


def is_quick(subject: str, function: str, form: str) -> bool:
    """Every function with every form on a small network; every kind of network with every quick function once."""
    if subject == "mlp":
        return function not in SLOW or form in ("numpy", "list of samples")
    if subject == "keyword":
        return form == "mapping" or (form in ("list of batches", "loader") and function not in SLOW)
    return form == "mapping" and function in ("measure", "train", "penalty", "Monitor")


CASES = [
    pytest.param(
        subject, function, form, id=f"{subject}-{function}-{form}",
        marks=() if is_quick(subject, function, form) else pytest.mark.thorough,
    )
    for subject in SUBJECTS
    for function in FUNCTIONS
    for form in FORMS
    if applies(subject, function) and differs(subject, function, form)
]  # fmt: skip


@pytest.mark.parametrize(("subject", "function", "form"), CASES)
@pytest.mark.filterwarnings("ignore::gapscope.base.errors.SlowGradients")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.filterwarnings("ignore:S before training does not depend:UserWarning")
def test_every_function_takes_every_form_of_data(subject: str, function: str, form: str) -> None:
    check_equal(subject, function, form)


FAULTS: dict[str, tuple[Callable[[Subject], Any], str]] = {
    "labels of positions": (
        lambda s: (s.x, torch.stack([s.y, s.y + 1, s.y, s.y], 1)),
        r"positions|[Rr]egression",
    ),
    "float labels": (
        lambda s: (s.x, s.y.float()),
        r"y\.long\(\)|[Rr]egression targets|class labels",
    ),
    "a label too large": (
        lambda s: (s.x, s.y + 7),
        r"smaller than the (network's )?number of (classes|outputs), 3",
    ),
    "a label of 10^9": (lambda s: (s.x, torch.where(s.y == 0, 10**9, s.y)), r"1000000000"),
    "a missing label": (
        lambda s: (s.x, numpy.array([None, *_names(s.y)[1:]], object)),
        "1 of 60 are missing",
    ),
    "sparse": (lambda s: (s.x.to_sparse(), s.y), r"Use x\.to_dense\(\)"),
    "other width": (lambda s: (s.x[:, :4], s.y), r"\[\d+, 4\]"),
    "empty": (lambda s: (s.x[:0], s.y[:0]), "at least one sample"),
    "a missing value": (
        lambda s: (s.x.where(s.x != s.x[0, 0], math.nan), s.y),
        "1 of 60 samples hold NaN",
    ),
    "no targets": (lambda s: s.x, "targets?|labels?"),
}
OF_INPUTS = ("compare", "rank_networks")  # here they need no labels
FAULTS_OF_INPUTS = ("sparse", "other width", "empty", "a missing value")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in OF_BATCH_NORM])
def test_every_function_refuses_a_fault_in_one_sentence(function: str, fault: str) -> None:
    make, sentence = FAULTS[fault]
    subject = SUBJECTS["mlp"]()
    if function == "penalty" or (function in OF_INPUTS and fault not in FAULTS_OF_INPUTS):
        pytest.skip("needs no labels, or takes a training loop's tensors")
    if function == "out_of_sample" and fault in ("float labels", "a label too large"):
        pytest.skip("the features of a network serve for any targets")
    with pytest.raises(GapscopeError, match=sentence) as error:
        FUNCTIONS[function](subject.network, make(subject))
    assert len(str(error.value)) < 600
