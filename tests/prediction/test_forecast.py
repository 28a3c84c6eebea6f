"""Expected accuracy before training: its parts by hand, and beside networks that were trained on real digits."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.specs import DataSpec, TrainingSpec
from gapscope.data import prepare
from gapscope.data.problem import Problem
from gapscope.inspection.losses import evaluate
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.networks import build_network
from gapscope.prediction.forecast import extrapolate_power_law, forecast_accuracy


def untrained(problem: Problem) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    return build_network(
        "fully_connected", input_shape=problem.input_shape, n_outputs=10, width=64, generator=generator
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_says_what_the_trained_network_reaches_on_equally_noisy_labels(noise: float) -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=300, label_noise=noise))
    network = untrained(problem)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = forecast_accuracy(network, problem.train)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    gs.train(network, problem.train, TrainingSpec(optimizer="adam", learning_rate=0.003, epochs=40))
    clean = evaluate(network, problem.test)["accuracy"]
    # a wrong prediction meets a wrong label that happens to be the same with probability noise / 9
    like_training = clean * (1 - noise) + (1 - clean) * noise / 9
    assert found.score == pytest.approx(like_training, abs=0.12)
    assert found.standard_error == pytest.approx((found.score * (1 - found.score) / 300) ** 0.5)


def test_the_continued_curve_is_near_the_left_out_accuracy_of_more_samples() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=600))
    network, half = untrained(problem), problem.train.subset(torch.arange(300))
    found = forecast_accuracy(network, half)
    assert [point.samples for point in found.curve] == [75, 150, 300, 600]
    assert [point.extrapolated for point in found.curve] == [False, False, False, True]
    assert problem.train.targets is not None
    real = kernel_leave_one_out(network, problem.train.inputs, problem.train.targets).accuracy
    assert found.curve[-1].score == pytest.approx(real, abs=0.04) and found.gain_from_doubling_data > 0


def test_planted_wrong_labels_come_first() -> None:
    problem, _ = prepare(DataSpec(name="digits", train_size=300))
    assert problem.train.targets is not None
    labels = problem.train.targets.clone()
    wrong = torch.arange(0, 300, 30)
    labels[wrong] = (labels[wrong] + 1) % 10
    found = forecast_accuracy(untrained(problem), (problem.train.inputs, labels))
    assert len(set(found.disagreeing_indices[:15].tolist()) & set(wrong.tolist())) >= 8


def test_regression_gives_the_explained_share() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    found = forecast_accuracy(nn.Linear(3, 1), (x, x @ torch.tensor([[1.0], [2.0], [0.5]])))
    assert found.task == "regression" and found.score > 0.99 and found.standard_error is None
    assert len(found.disagreeing_indices) == 0 and "explained share of variance" in repr(found)


def test_shows_sentences_and_plain_values() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    found = forecast_accuracy(nn.Linear(1, 2), (x, (x[:, 0] > 0).long()))
    assert repr(found).startswith("expected accuracy on data like these 40 samples: ")
    assert json.loads(found.to_json())["curve"][-1]["samples"] == 80


def test_more_data_do_not_hurt() -> None:
    assert extrapolate_power_law([(100, 0.8), (200, 0.7)], 400) == pytest.approx(0.7)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="data must hold targets; got inputs alone"):
        forecast_accuracy(nn.Linear(2, 2), torch.ones(20, 2))
    with pytest.raises(InvalidInput, match="expected_accuracy needs 12 samples or more; got 4"):
        forecast_accuracy(nn.Linear(2, 2), (torch.ones(4, 2), torch.tensor([0, 1, 0, 1])))
