"""Label noise from one monitored run with canaries: planted, resumed, and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import scipy.stats
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.data import inject_label_noise as with_wrong_labels
from gapscope.labels.monitored import MonitoredLabels
from gapscope.statistics.baselines import feature_matrix, rbf_ridge
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.monitor import Monitor

SETTINGS = gs.TrainingSpec(epochs=16, optimizer="adam", learning_rate=0.003, batch_size=64)


class Watched:
    """A small network trained on digits with flipped labels and canaries."""

    def __init__(
        self, rate: float, settings: gs.TrainingSpec = SETTINGS, folder: Path | None = None
    ) -> None:
        train = gs.load_dataset("digits").train.subset(torch.arange(600))
        generator = torch.Generator().manual_seed(0)
        self.truth, self.x = train.y, train.inputs
        self.labels = with_wrong_labels(train.y, rate, 10, generator)
        self.canaries = Canaries(self.labels, number=48)
        self.network = gs.build_network(
            "fully_connected",
            input_shape=(1, 8, 8),
            n_outputs=10,
            generator=generator,
            n_hidden=2,
            width=64,
        )
        self.alarm = alarm = CanaryAlarm(self.canaries, restore=False)
        self.monitor = Monitor((self.x, self.canaries.labels), [], n_samples=600, alarm=alarm)
        gs.train(
            self.network,
            (self.x, self.canaries.labels),
            settings,
            on_epoch=self.monitor,
            folder=folder,
        )

    @property
    def wrong(self) -> Tensor:
        return self.labels != self.truth

    @property
    def ordinary(self) -> Tensor:
        return ~torch.isin(torch.arange(600), self.canaries.positions)


@pytest.fixture(scope="module")
def noisy() -> Iterator[Watched]:
    yield Watched(0.2)


@pytest.mark.thorough
def test_wrong_labels_stand_first(noisy: Watched) -> None:
    result = gs.find_label_issues(noisy.monitor)
    order = result.indices
    assert len(order) == 552 and not torch.isin(order, noisy.canaries.positions).any()
    assert torch.equal(result.given_labels, noisy.labels[order])
    assert roc_auc_score(noisy.wrong[order].numpy(), -result.margin.numpy()) > 0.97
    flagged = noisy.wrong[order][: result.n_flagged].double()
    assert float(flagged.sum() / noisy.wrong[order].sum()) > 0.7
    assert float(flagged.mean()) > max(0.8, result.expected_precision - 0.1)
    right = result.suggested_labels[: result.n_flagged] == noisy.truth[order][: result.n_flagged]
    assert float(right.double().mean()) > 0.8
    assert torch.equal(result.suggested_labels[-100:], result.given_labels[-100:])


def test_the_ranking_averages_the_ranks_of_a_training_run_and_a_kernel(noisy: Watched) -> None:
    alone, both = gs.find_label_issues(noisy.monitor.alarm), gs.find_label_issues(noisy.monitor)
    canary = torch.isin(torch.arange(600), noisy.canaries.positions)
    kernel = rbf_ridge(feature_matrix(noisy.x), noisy.canaries.labels, n_classes=10).predictions
    own = kernel.gather(1, noisy.canaries.labels[:, None]).squeeze(1)
    margins = own - kernel.scatter(1, noisy.canaries.labels[:, None], -torch.inf).amax(1)
    ranks = scipy.stats.rankdata(margins.numpy()) + scipy.stats.rankdata(
        noisy.alarm.margins.numpy()
    )
    expected = torch.as_tensor((ranks - 2) / 1200 - 0.5)
    order = both.indices
    assert torch.allclose(both.margin, expected[order]) and not canary[order].any()
    assert not torch.equal(alone.indices, order) and both.noise is not None
    assert both.noise.accuracy > 0.6


@pytest.mark.thorough
def test_a_training_that_is_resumed_is_identical(noisy: Watched, tmp_path: Path) -> None:
    Watched(0.2, gs.TrainingSpec.from_dict(SETTINGS.to_dict() | {"epochs": 5}), tmp_path)
    resumed = Watched(0.2, folder=tmp_path)
    assert (
        gs.find_label_issues(resumed.monitor).to_json()
        == gs.find_label_issues(noisy.monitor).to_json()
    )
    again = Monitor(
        (noisy.x, noisy.canaries.labels),
        [],
        n_samples=600,
        alarm=CanaryAlarm(noisy.canaries, restore=False),
    )
    again.load_state_dict(json.loads(json.dumps(noisy.monitor.state_dict())))
    callback = SimpleNamespace(monitor=again)
    assert gs.find_label_issues(callback).to_json() == gs.find_label_issues(noisy.monitor).to_json()


def test_a_part_of_the_samples_has_its_positions(noisy: Watched) -> None:
    monitor = Monitor(
        (noisy.x, noisy.canaries.labels),
        [],
        n_samples=200,
        alarm=CanaryAlarm(noisy.canaries, restore=False),
    )
    monitor.observe(noisy.network, 1)
    result = gs.find_label_issues(monitor)
    assert 150 < len(result.indices) <= 200 and torch.equal(
        result.given_labels, noisy.labels[result.indices]
    )


def test_margins_and_rivals_by_hand() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    canaries = Canaries(labels, n_classes=3, number=2)
    alarm = CanaryAlarm(canaries, restore=False)
    alarm.set_indices(torch.arange(4))
    false = torch.isin(torch.arange(4), canaries.positions)
    # margins of class 0: 1, -6, -2; baselines 1, 2, 2
    looks = [
        [2.0, 1.0, 0.0],
        [0.0, 5.0, 6.0],
        [1.0, 0.0, 3.0],
    ]
    for epoch, row in enumerate(looks, start=1):
        alarm.update(torch.tensor([row] * 4, dtype=torch.float64), labels, false, epoch)
    seen = alarm.monitored_labels()
    assert torch.allclose(seen.margins, torch.full((4,), -7 / 3, dtype=torch.float64))
    assert seen.runner_up.tolist() == [2] * 4 and torch.equal(seen.is_canary, false)
    canaries.restore()  # what is learned from here on says nothing of wrong labels
    alarm.update(torch.zeros(4, 3, dtype=torch.float64), labels, false, 4)
    assert torch.equal(alarm.margins, seen.margins)


def test_a_network_that_knows_nothing_gives_no_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(0, 5, (200,), generator=generator)
    runner_up = (given + torch.randint(1, 5, (200,), generator=generator)) % 5
    weak = MonitoredLabels(
        torch.arange(200),
        given,
        runner_up,
        torch.randn(200, generator=generator).double(),
        torch.arange(200) < 40,
        5,
    )

    class Alarm:
        def monitored_labels(self) -> MonitoredLabels:
            return weak

    with pytest.raises(NotMeasurable, match="cannot be estimated"):
        gs.estimate_label_noise(Alarm())
    result = gs.find_label_issues(Alarm())
    assert (
        result.noise is None
        and math.isnan(result.expected_precision)
        and len(result.indices) == 160
    )


def test_many_wrong_labels_are_not_distinguished_from_a_network_that_knows_little() -> None:
    generator = torch.Generator().manual_seed(0)
    given, canary = torch.randint(0, 5, (400,), generator=generator), torch.arange(400) < 50
    # six in ten look like the canaries, and the canaries' own labels are predicted at 36 %
    runner_up = torch.where(torch.arange(400) < 18, given, (given + 1) % 5)
    margins = torch.where(torch.arange(400) < 260, -1.0, 1.0).double() + 0.1 * torch.randn(
        400, generator=generator
    )
    seen = MonitoredLabels(torch.arange(400), given, runner_up, margins, canary, 5)
    result = seen.noise(generator)
    assert (
        result.rate > 0.5
        and result.clean_accuracy == pytest.approx(0.36)
        and result.abstained_because
    )


def test_messages(noisy: Watched) -> None:
    with pytest.raises(InvalidInput, match="CanaryAlarm; got Monitor"):
        gs.find_label_issues(Monitor((noisy.x, noisy.labels), [], alarm="joint"))
    with pytest.raises(InvalidInput, match="CanaryAlarm without observations"):
        gs.estimate_label_noise(
            Monitor((noisy.x, noisy.canaries.labels), [], alarm=CanaryAlarm(noisy.canaries))
        )
    with pytest.raises(InvalidInput, match="well as a Monitor"):
        gs.estimate_label_noise(noisy.monitor, (noisy.x, noisy.labels))
    with pytest.raises(InvalidInput, match="well as a Monitor"):
        gs.find_label_issues(noisy.monitor, features=noisy.x.flatten(1))
    with pytest.raises(InvalidInput, match="Got no training data"):
        gs.estimate_label_noise(nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match=r"class labels.*got torch\.float"):
        Canaries(torch.randn(100, 1))
