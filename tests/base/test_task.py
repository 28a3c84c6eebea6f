"""The task follows from targets and outputs; its losses and scores are those of torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import as_samples
from gapscope.base.task import task_of
from gapscope.inspection.validation import ready

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, :4] > 0).long()
LABELS[0] = torch.tensor([1, 1, 0, 0])
ONE_HOT = F.one_hot(X[:, :4].argmax(1), 4)
IDS = torch.randint(0, 30, (40, 5), generator=torch.Generator().manual_seed(1))


def linear(n_outputs: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, n_outputs)


def tagger(n_classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, n_classes))


@pytest.mark.parametrize(
    "convert", [Tensor.float, Tensor.bool, Tensor.long, Tensor.int, Tensor.double, Tensor.numpy]
)
def test_multi_label_targets_of_any_type_have_binary_cross_entropy(convert: object) -> None:
    readings = gs.measure(linear(), (X, convert(LABELS)), ["loss", "accuracy"])  # type: ignore[operator]
    outputs = linear()(X).detach()
    expected = F.binary_cross_entropy_with_logits(outputs.double(), LABELS.double())
    assert readings["loss"].value == pytest.approx(expected.item(), rel=1e-12)
    assert readings["accuracy"].value == pytest.approx(
        ((outputs > 0) == LABELS.bool()).double().mean().item()
    )
    assert any("multi-label" in note for note in readings.notes)


def test_multi_label_gradients_are_those_of_autograd() -> None:
    network = linear()
    readings = gs.measure(network, (X, LABELS), ["gradient_norm"], strict=True)
    loss = F.binary_cross_entropy_with_logits(network(X), LABELS.float())
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert readings["gradient_norm.whole"].value == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("convert", [Tensor.float, Tensor.bool, Tensor.long])
def test_one_hot_targets_are_class_labels(convert: object) -> None:
    readings = gs.measure(linear(), (X, convert(ONE_HOT)), ["loss", "accuracy"])  # type: ignore[operator]
    assert (
        readings.values()
        == gs.measure(linear(), (X, ONE_HOT.argmax(1)), ["loss", "accuracy"]).values()
    )
    assert any("one-hot" in note for note in readings.notes)


@pytest.mark.parametrize("one_per_row", [True, False])
def test_a_matrix_of_zeros_and_ones_can_be_tags(one_per_row: bool) -> None:
    tags = (
        (IDS.amax(1, keepdim=True) == IDS).long()
        if not one_per_row
        else F.one_hot(IDS.argmax(1), 5)
    )
    samples = ready(tagger(3), (IDS, tags)).samples
    assert samples.kind == "positions" and torch.equal(samples.y, tags)
    logits = tagger(3)(IDS).detach().double()
    expected = F.cross_entropy(logits.movedim(-1, 1), tags)
    assert gs.measure(tagger(3), (IDS, tags), ["loss"])["loss"].value == pytest.approx(
        expected.item(), rel=1e-6
    )


def test_integers_beside_as_many_outputs_are_regression_targets() -> None:
    y = torch.arange(160).reshape(40, 4)
    prepared = ready(linear(), (X, y), needs=("outputs",))
    assert prepared.samples.kind == "regression" and any(
        "regression" in note for note in prepared.notes
    )


def test_as_many_positions_as_classes_need_the_task() -> None:
    tags = IDS % 5
    with pytest.raises(InvalidInput, match="which axis holds"):
        ready(tagger(5), (IDS, tags), needs=("outputs",))
    tokens = gs.measure(tagger(5), gs.Samples(IDS, tags, task="tokens"), ["loss"])["loss"].value
    logits = tagger(5)(IDS).detach().double()
    assert tokens == pytest.approx(F.cross_entropy(logits.movedim(-1, 1), tags).item(), rel=1e-6)
    pixels = gs.measure(tagger(5), as_samples((IDS, tags), task="pixels"), ["loss"])["loss"].value
    assert pixels == pytest.approx(F.cross_entropy(logits, tags).item(), rel=1e-6)


def test_the_named_task_overrides_the_inferred_one() -> None:
    assert as_samples((X, LABELS.float())).kind == "multi-label"
    assert as_samples((X, LABELS.float()), task="regression").kind == "regression"
    assert gs.Samples(X, LABELS, task="multilabel").kind == "multi-label"
    assert gs.Samples(X, ONE_HOT, task="classification").kind == "classification"
    for y, task in (
        (X, "classification"),
        (X, "multi-label"),
        (LABELS, "binary"),
        (LABELS[:, 0], "positions"),
    ):
        with pytest.raises(InvalidInput):
            gs.Samples(X, y, task=task)
    with pytest.raises(InvalidInput, match="Did you mean"):
        as_samples((X, LABELS), task="multilabels")


def test_losses_of_all_tasks_are_means_over_samples() -> None:
    outputs = torch.randn(40, 4)
    for y in (LABELS.bool(), ONE_HOT.argmax(1), X[:, :4]):
        task = task_of(y)
        each = task.sample_losses(outputs, y)
        assert each.shape == (40,)
        assert each.mean().item() == pytest.approx(task.loss(outputs, y).item(), rel=1e-5)
        assert task.encode(y).shape == (40, 4) and task.encode(y).dtype == torch.float64


class Probabilities(nn.Module):
    """A network whose forward ends in a function."""

    def __init__(self, function: object, n_outputs: int) -> None:
        super().__init__()
        self.body, self.function = linear(n_outputs), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))  # type: ignore[operator]


FUNCTIONS = {
    "sigmoid [n, 1]": (torch.sigmoid, 1),
    "sigmoid [n]": (lambda z: torch.sigmoid(z).squeeze(1), 1),
    "by hand": (lambda z: 1 / (1 + torch.exp(-z)), 1),
    "module": (nn.Sigmoid(), 1),
    "softmax": (lambda z: z.softmax(1), 2),
    "two sigmoids": (torch.sigmoid, 2),
    "object": (lambda z: {"out": torch.sigmoid(z)}, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_probabilities_are_scored_as_probabilities(name: str) -> None:
    function, n_outputs = FUNCTIONS[name]
    network = Probabilities(function, n_outputs)
    logits = network.body(X).detach()
    y = (X[:, 0] > 0).long() if n_outputs == 2 else (logits[:, 0] > 0.1).long()
    readings = gs.measure(network, (X, y), ["loss", "accuracy"])
    expected = gs.measure(network.body, (X, y), ["loss", "accuracy"])
    assert readings["accuracy"].value == expected["accuracy"].value
    assert readings["loss"].value == pytest.approx(expected["loss"].value, rel=1e-4)
    assert any("probabilities" in note for note in readings.notes) and not expected.notes


def test_probabilities_of_several_labels() -> None:
    network = Probabilities(torch.sigmoid, 4)
    expected = gs.measure(network.body, (X, LABELS), ["loss", "accuracy"]).values()
    assert gs.measure(network, (X, LABELS), ["loss", "accuracy"]).values() == pytest.approx(
        expected, rel=1e-4
    )


def test_logits_in_the_unit_interval_and_regression_stay_as_they_are() -> None:
    constant = nn.Linear(6, 1)
    nn.init.zeros_(constant.weight)
    nn.init.constant_(constant.bias, 0.4)
    assert not gs.measure(constant, (X, torch.ones(40).long()), ["loss"]).notes
    target = torch.rand(40, 1)
    network = Probabilities(torch.sigmoid, 1)
    loss = gs.measure(network, (X, target), ["loss"])["loss"].value
    assert loss == pytest.approx(F.mse_loss(network(X), target).item(), rel=1e-5)


def test_raw_outputs_between_0_and_1_are_no_probabilities() -> None:
    torch.manual_seed(9)
    x = torch.rand(200, 5)
    y = (x[:, 0] > 0.5).long()
    weight = torch.tensor([0.4, 0.1, 0.0, 0.0, 0.05])

    class Linear(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ weight + 0.2

    class Squashed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ weight + 0.2).clamp(0, 1)

    for network in (Linear(), nn.Sequential(Linear(), nn.Identity())):
        loss = F.binary_cross_entropy_with_logits(network(x), y.float())
        assert gs.measure(network, (x, y), ["loss"])["loss"].value == pytest.approx(float(loss))
    probabilities = gs.measure(Squashed(), (x, y), ["loss"])
    loss = F.binary_cross_entropy(Squashed()(x), y.float())
    assert probabilities["loss"].value == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("stated", "targets", "task"),
    [
        ("regression", torch.tensor([0.0, 1.0] * 6), "regression"),
        ("regression", torch.tensor([1, 2, 3, 4] * 3), "regression"),
        ("multi_label_classification", torch.eye(3).repeat(4, 1), "multi-label"),
        ("single_label_classification", torch.eye(3).repeat(4, 1), "classification"),
        (None, torch.eye(3).repeat(4, 1), "classification"),
    ],
)
def test_the_problem_type_of_a_model_decides(
    stated: str | None, targets: torch.Tensor, task: str
) -> None:
    network: Any = nn.Linear(5, 1 if targets.ndim == 1 else 3)
    network.config = SimpleNamespace(problem_type=stated)
    prepared = ready(network, (torch.rand(12, 5), targets))
    assert prepared.samples.kind == task
    assert any("problem_type" in note for note in prepared.notes) == (
        task in ("regression", "multi-label")
    )


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        # a class may be excluded by minus infinity, not all of them
        ([[0.0, -INF], [0.0, INF], [NAN, 0.0], [-INF, -INF]], [0, 0, 0, 0], [0, 1, 1, 1]),
        ([[-INF], [NAN], [INF], [1.0]], [0, 0, 0, 0], [0, 1, 1, 0]),
        ([[-INF, 1.0], [NAN, 1.0]], [[False, True], [False, True]], [0, 1]),
        ([[0.0], [-INF], [NAN]], [[0.0], [0.0], [0.0]], [0, 1, 1]),
        # the second position of the first sample does not count
        ([[0.0, NAN, 1.0, NAN], [0.0, NAN, 1.0, NAN]], [[0, -100], [0, 1]], [0, 1]),
    ],
)
def test_outputs_that_predict_nothing_are_counted(
    outputs: Any, targets: Any, expected: list[int]
) -> None:
    values, labels = torch.tensor(outputs), torch.tensor(targets)
    task = task_of(labels)
    assert task.is_invalid(values, labels).tolist() == [bool(item) for item in expected]
    with pytest.raises(NotMeasurable, match=f"those of {sum(expected)} of {len(expected)} samples"):
        task.check_finite(values, labels)
