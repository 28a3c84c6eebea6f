"""Named labels and a network that names its outputs in another order (config.label2id)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.subset_problems import NetworkProblem
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.inspection.output_names import output_names
from gapscope.inspection.validation import ready

ORDER = ["lost", "arrived", "paid"]


class Named(nn.Linear):
    """Linear classifier whose configuration names its outputs, as networks of Hugging Face do."""

    def __init__(self, names: list[str] | None = None) -> None:
        names = names or ORDER
        super().__init__(3, len(names))
        self.config = SimpleNamespace(
            label2id={name: k for k, name in enumerate(names)}, id2label=dict(enumerate(names))
        )
        with torch.no_grad():
            self.weight.copy_(4 * torch.eye(len(names), 3))
            self.bias.zero_()


@pytest.fixture(scope="module")
def named() -> tuple[Tensor, list[str]]:
    numbers = torch.arange(90) % 3
    x = torch.eye(3)[numbers] + 0.3 * torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    return x, [ORDER[k] for k in numbers.tolist()]


def test_numbers_are_those_of_the_outputs(named: Any) -> None:
    x, _ = named
    expected = (Named()(x).argmax(1) == torch.arange(90) % 3).double().mean().item()
    readings = gs.measure(Named(), named, ["accuracy"])
    assert readings["accuracy"].value == pytest.approx(expected)
    assert expected > 0.9
    prepared = ready(Named(), named)
    assert any("config.label2id" in note for note in prepared.notes)
    assert not any("sorted names" in note for note in prepared.notes)


def test_every_verb_uses_them(named: Any) -> None:
    x, names = named
    assert gs.validated_accuracy(Named(), (x[:45], names[:45]), (x[45:], names[45:])).score > 0.9
    result = gs.check(Named(), named, test=(x[:30], names[:30]), only=["GS101", "GS102"])
    assert "GS101" in [finding.code for finding in result.findings]
    monitor = gs.Monitor(named, ["accuracy"], max_time_fraction=None)
    monitor.begin(Named())
    assert monitor.observe(Named(), 1)["accuracy"] > 0.9
    assert monitor.samples.class_names == tuple(ORDER)
    held = gs.out_of_sample(Named(), named)
    assert held.classes == tuple(ORDER)
    assert any("may have been trained" in note for note in held.notes) or held.score > 0.9
    issues = gs.find_label_issues(Named(), named)
    assert set(issues.to_pandas()["given"]) == set(ORDER)


def test_a_network_is_trained_with_the_numbers_of_its_outputs(named: Any) -> None:
    network = Named()
    nn.init.zeros_(network.weight)
    training = gs.TrainingSpec(epochs=10, optimizer="adam", learning_rate=0.05)
    gs.train(network, named, training)
    x, names = named
    found = network(x).argmax(1).tolist()
    agreed = [ORDER[k] == name for k, name in zip(found, names, strict=True)]
    assert sum(agreed) > 80


def test_a_training_function_gets_numbers_and_is_scored_by_them(named: Any) -> None:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        network = Named()
        with torch.no_grad():
            network.weight.copy_(torch.stack([x[y == k].mean(0) for k in range(3)]))
        return network

    problem = NetworkProblem(train_fn, as_samples(named), None)
    network = problem.train(np.arange(60), seed=0, steps=1.0)
    assert problem.score(network, np.arange(60, 90)).values.mean() > 0.9


def test_subsets_of_the_names_and_other_cases_are_matched(named: Any) -> None:
    x, names = named
    upper = [name.upper() for name in names]
    assert gs.measure(Named(), (x, upper), ["accuracy"])["accuracy"].value > 0.9
    two = [k for k, name in enumerate(names) if name != "lost"]
    part = x[two], [names[k] for k in two]
    assert gs.measure(Named(), part, ["accuracy"])["accuracy"].value > 0.9


def test_labels_that_the_network_does_not_know_are_refused(named: Any) -> None:
    x, names = named
    other = ["stolen" if name == "lost" else name for name in names]
    with pytest.raises(InvalidInput, match=r"'stolen'.*'lost', 'arrived', 'paid'"):
        ready(Named(), (x, other), needs=("outputs",))
    # a new head: the names are those of another task
    assert (
        ready(Named([*ORDER, "new"]).requires_grad_(), (x, names)).samples.class_names[0] == "lost"
    )
    network = Named()
    network.config.label2id = {"a": 0, "b": 1}
    network.config.id2label = {}
    assert not ready(network, (x, names)).mismatch


def test_numbers_and_default_names_are_left_alone(named: Any) -> None:
    x, names = named
    numbers = torch.arange(90) % 3
    assert torch.equal(ready(Named(), (x, numbers)).samples.y, numbers)
    assert output_names(Named(["LABEL_0", "LABEL_1", "LABEL_2"])) == ()
    default = ready(Named(["LABEL_0", "LABEL_1", "LABEL_2"]), (x, names)).samples
    assert default.class_names == ("arrived", "lost", "paid")

    class OwnNames(torch.utils.data.TensorDataset):
        classes = ("paid", "lost", "arrived")

    samples = as_samples(OwnNames(x, numbers))
    assert torch.equal(ready(Named(), samples).samples.y, numbers)


def test_tokens_with_named_labels() -> None:
    class Tagger(Named):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).movedim(-1, 1)

    numbers = torch.arange(80).reshape(20, 4) % 3
    x = torch.eye(3)[numbers]
    tags = [[ORDER[k] for k in row] for row in numbers.tolist()]
    assert gs.measure(Tagger(), (x, tags), ["accuracy"])["accuracy"].value == 1


def test_columns_of_labels_are_matched_by_name(named: Any) -> None:
    x, names = named
    frame = pandas.DataFrame(
        {name: [int(each == name) for each in names] for name in sorted(ORDER)}
    )
    assert gs.measure(Named(), (x, frame), ["accuracy"])["accuracy"].value > 0.9
    several = frame.assign(paid=1 - frame["lost"])
    expected = torch.tensor(several[ORDER].to_numpy()) > 0
    assert torch.equal(ready(Named(), (x, several)).samples.y, expected)
    numbered = frame[ORDER].set_axis(range(3), axis=1)
    assert gs.measure(Named(), (x, numbered), ["accuracy"])["accuracy"].value > 0.9


def test_numbers_as_text_are_numbers_of_outputs(named: Any) -> None:
    x, names = named
    text = [str(ORDER.index(name)) for name in names]
    assert gs.measure(Named(), (x, text), ["accuracy"])["accuracy"].value > 0.9
