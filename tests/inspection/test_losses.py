"""Loss and accuracy against scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.batch_norm.advice.batch_norm import DropoutLoss
from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.batch_norm.gamma_decay.measured_excess import batch_norm_excess
from gapscope.inspection.losses import default_loss, evaluate, sample_losses


def test_classification_agrees_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 4, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    result = evaluate(network, Samples(x, y), chunk_size=7)
    with torch.no_grad():
        logits = network[0](x).double()
    assert result["accuracy"] == accuracy_score(y, logits.argmax(1))
    assert result["loss"] == pytest.approx(log_loss(y, logits.softmax(1).numpy()), rel=1e-6)
    assert network.training


def test_regression_agrees_with_scikit_learn() -> None:
    x, y = torch.randn(20, 4), torch.randn(20, 2)
    network = nn.Linear(4, 2)
    result = evaluate(network, Samples(x, y))
    assert result.keys() == {"loss"}
    assert result["loss"] == pytest.approx(mean_squared_error(y, network(x).detach()), rel=1e-5)


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(InvalidInput, match="needs targets"):
        evaluate(nn.Identity(), Samples(torch.zeros(3, 2)))
    with pytest.raises(InvalidInput, match="classes, 2; got 2"):
        evaluate(nn.Identity(), Samples(torch.zeros(3, 2), torch.tensor([0, 1, 2])))


@pytest.mark.parametrize("loss", [default_loss, sample_losses])
def test_regression_targets_are_never_broadcast(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    for outputs, targets in (
        ((3, 2), (3, 1)),
        ((3, 2), (3,)),
        ((3, 1), (3, 2)),
        ((3,), (3, 2)),
        ((3, 1), (1,)),
    ):
        with pytest.raises(InvalidInput, match=r"outputs, \[3.*; got \["):
            loss(torch.zeros(outputs), torch.zeros(targets))


@pytest.mark.parametrize("outputs_shape", [(3,), (3, 1)])
@pytest.mark.parametrize("targets_shape", [(3,), (3, 1)])
def test_one_number_a_sample_may_come_with_or_without_its_axis(
    outputs_shape: tuple[int, ...], targets_shape: tuple[int, ...]
) -> None:
    outputs, targets = (
        torch.tensor([1.0, 2.0, 4.0]),
        torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
    )
    outputs, targets = outputs.view(outputs_shape), targets.view(targets_shape)
    assert sample_losses(outputs, targets).tolist() == [0, 4, 9]
    assert default_loss(outputs, targets).item() == pytest.approx(13 / 3)


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5)])
@pytest.mark.parametrize("labels", [True, False])
def test_the_losses_of_samples_have_the_loss_as_their_mean(
    shape: tuple[int, ...], labels: bool
) -> None:
    outputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = outputs.roll(1, 1)
    if labels:
        targets = targets.argmax(1)
    each = sample_losses(outputs, targets)
    assert each.shape == (6,)
    torch.testing.assert_close(each.mean(), default_loss(outputs, targets))
    torch.testing.assert_close(each[2:3], sample_losses(outputs[2:3], targets[2:3]))


def test_labels_that_do_not_fit_raise() -> None:
    outputs = torch.zeros(3, 2)
    with pytest.raises(InvalidInput, match="classes, 2; got 5"):
        default_loss(outputs, torch.tensor([0, 5, 1]))
    with pytest.raises(InvalidInput, match=r"shape \[3\]; got torch.int64"):
        default_loss(outputs, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(InvalidInput, match=r"shape \[3\]; got torch.int32"):
        sample_losses(outputs, torch.zeros(3, dtype=torch.int32))


CALLERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "loss": gs.functional.loss,
    "train": lambda network, x, y: gs.train(network, Samples(x, y), TrainingSpec(epochs=1)),
    "by the weights": lambda network, x, y: gs.penalties.LossGradientPenalty(1.0)(network, x, y),
    "gamma decay": lambda network, x, y: gamma_decay(network, (x, y), batch_size=2),
    "gamma decay penalty": lambda network, x, y: gs.penalties.GammaDecayPenalty(batch_size=2)(
        network, x, y
    ),
    "batch norm excess": lambda network, x, y: batch_norm_excess(network, (x, y), batch_sizes=(2,)),
    "advice": lambda network, x, y: gs.advise_batch_norm(network, (x, y), batch_size=2),
    "dropout": lambda network, x, y: DropoutLoss(network, Samples(x, y), ["1"]),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("outputs", "columns"), [(2, 1), (1, 2)])
def test_every_caller_refuses_targets_of_another_width(
    caller: str, outputs: int, columns: int
) -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, outputs))
    x, y = torch.randn(8, 3), torch.randn(8, columns)
    sentence = rf"Regression targets must have the shape of the outputs, \[[\dn], {outputs}\]; got \[\d, {columns}\]"
    with pytest.raises(InvalidInput, match=sentence):
        CALLERS[caller](network, x, y)


class WithoutNumbers(nn.Module):
    """Linear network with NaN outputs for samples whose first input is above 0.7."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 0.7, float("nan"), self.layer(x))


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
N_INVALID = int((X[:, 0] > 0.7).sum())


@pytest.mark.parametrize(
    "verb",
    [
        lambda network: gs.measure(network, (X, Y), ["accuracy"]),
        lambda network: gs.measure(network, (X, Y), ["loss"]),
        lambda network: gs.measure(network, (X, Y), ["output_margin"]),
        lambda network: gs.measure(network, (X, X[:, :3]), ["loss"]),
        lambda network: gs.measure(network, (X, Y), ["davies_bouldin_mixup"]),
        lambda network: gs.estimate_accuracy(network, (X.repeat(2, 1), Y.repeat(2))),
        lambda network: gs.Monitor((X, Y), ["accuracy"], n_samples=60).observe(network, 0),
        lambda network: gs.out_of_sample(network, (X, Y)),
    ],
)
def test_nothing_is_computed_from_outputs_that_are_not_finite(
    verb: Callable[[nn.Module], Any],
) -> None:
    assert N_INVALID > 3
    with pytest.raises(NotMeasurable, match=r"[0-9]+ of (60|120) samples"):
        verb(WithoutNumbers())


def test_a_monitored_training_goes_on() -> None:
    monitor = gs.Monitor((X, Y), ["accuracy"], n_samples=60)
    monitor.observe(nn.Linear(4, 3), 0)
    with pytest.warns(UserWarning, match=f"those of {N_INVALID} of 60 samples"):
        row = monitor.observe(WithoutNumbers(), 1)
    assert math.isnan(row["accuracy"])


def test_scores_may_be_missing() -> None:
    scores = evaluate(WithoutNumbers(), Samples(X, Y), missing=True)
    assert list(scores) == ["loss", "accuracy"] and all(map(math.isnan, scores.values()))


def test_a_pool_refuses_a_network_without_test_scores(tmp_path: Path) -> None:
    with pytest.raises(NotMeasurable, match=f"those of {N_INVALID} of 60 samples"):
        gs.Pool(tmp_path).add(
            WithoutNumbers(), (X[X[:, 0] < 0.7], Y[X[:, 0] < 0.7]), test=(X, Y), name="a"
        )


def test_compare_has_no_accuracy_of_such_a_network() -> None:
    networks = {"a": WithoutNumbers(), "b": nn.Linear(4, 3)}
    result = gs.compare(networks, (X, Y), measures=["accuracy", "parameter_norm"])
    assert f"those of {N_INVALID} of 60 samples" in str(result)
