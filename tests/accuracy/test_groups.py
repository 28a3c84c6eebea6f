"""`groups=` of forecasts, estimates and label errors: explicit refits, shared errors, labels that copies give away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.functional import kernel_leave_one_out
from gapscope.measures.ntk import empirical_ntk
from gapscope.statistics.baselines import RIDGES, feature_matrix, rbf_spectrum
from gapscope.statistics.kernel_ridge import loo_predictions, spectrum
from gapscope.statistics.leave_group_out import LeaveGroupOut, select_held_out

COPIES = 4


def grouped_wine(noise: float = 0.05) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return four near copies of each wine in random order, their classes, and the number of their wine."""
    wine: Any = load_wine(return_X_y=True)
    x, y = wine
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(len(x)), COPIES))
    x = (x - x.mean(0)) / x.std(0)
    copies = x[groups] + noise * rng.normal(size=(len(groups), x.shape[1]))
    return torch.tensor(copies).float(), torch.tensor(y[groups]), groups


def small_network() -> nn.Module:
    """Return a network for the wines."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Linear(16, 3))


def test_labels_that_only_copies_give_away_are_not_predicted() -> None:
    x, _, groups = grouped_wine()
    coins = torch.randint(0, 2, (178,), generator=torch.Generator().manual_seed(0))[groups]
    assert gs.forecast_accuracy(None, (x, coins)).score > 0.95
    held = gs.forecast_accuracy(None, (x, coins), groups=groups)
    assert held.abstained_because or held.low < 0.5
    assert all(row.score < 0.65 for row in held.rows)


def test_forecast_says_what_it_held_out_and_its_interval_is_wider() -> None:
    x, y, groups = grouped_wine()
    alone = gs.forecast_accuracy(None, (x, y))
    held = gs.forecast_accuracy(None, (x, y), groups=[f"wine {i}" for i in groups])
    assert held.groups == 178
    assert "on new groups like these 178" in held.headline
    assert held.high - held.low > 1.5 * (alone.high - alone.low)
    assert not any("near copies" in note for note in held.notes)
    assert held.to_dict()["groups"] == 178


def test_network_rows_are_those_of_refits_without_the_group() -> None:
    x, y, groups = grouped_wine()
    part = groups < 15
    x, y, groups = x[torch.tensor(part)].double(), y[torch.tensor(part)], groups[part]
    y = y + torch.arange(len(y)) % 2  # two classes
    network = small_network().double()
    found = kernel_leave_one_out(network, x, y, groups=torch.tensor(groups))
    kernel = empirical_ntk(network, x, outputs="traced")
    targets = nn.functional.one_hot(y, 3).double()
    ridge = found.ridge * float(spectrum(kernel).mean)
    n = len(x)
    for name in np.unique(groups):
        inside = torch.tensor(groups == name)
        rest = ~inside
        system = torch.zeros(int(rest.sum()) + 1, int(rest.sum()) + 1, dtype=torch.float64)
        system[:-1, :-1] = kernel[rest][:, rest] + ridge * torch.eye(int(rest.sum())).double()
        system[-1, :-1] = system[:-1, -1] = 1
        right = torch.cat([targets[rest], torch.zeros(1, 3).double()])
        solved = torch.linalg.solve(system, right)
        expected = kernel[inside][:, rest] @ solved[:-1] + solved[-1]
        torch.testing.assert_close(found.predictions[inside], expected, rtol=1e-8, atol=1e-8)
    assert found.ridge in RIDGES
    assert found.effective_dimension == pytest.approx(
        loo_predictions(spectrum(kernel), targets, ridge).effective_dimension
    )
    assert n == len(found.predictions)


def test_groups_of_one_sample_change_no_prediction() -> None:
    x, y, _ = grouped_wine()
    x, y = x[:60], y[:60]
    network = small_network()
    alone = gs.forecast_accuracy(network, (x, y))
    held = gs.forecast_accuracy(network, (x, y), groups=np.arange(60))
    assert {row.method: row.score for row in held.rows} == pytest.approx(
        {row.method: row.score for row in alone.rows}
    )
    assert held.score == pytest.approx(alone.score)


@pytest.mark.thorough
def test_estimate_without_groups_believes_copies() -> None:
    x, y, groups = grouped_wine()
    wrong = np.random.default_rng(1).random(178) < 0.3
    y = torch.where(torch.tensor(wrong[groups]), (y + 1) % 3, y)
    part = torch.tensor(groups < 100)
    network = small_network()
    initial_state = {name: value.clone() for name, value in network.state_dict().items()}
    gs.train(network, (x[part], y[part]), gs.TrainingSpec(epochs=60, learning_rate=0.2))
    given: dict[str, Any] = {"initial_state": initial_state, "label_noise": 0.0}
    alone = gs.estimate_accuracy(network, (x[part], y[part]), **given)
    held = gs.estimate_accuracy(network, (x[part], y[part]), groups=groups[part.numpy()], **given)
    truth = float((network(x[~part]).argmax(1) == y[~part]).double().mean())
    assert abs(held.score - truth) < abs(alone.score - truth)
    assert held.low <= truth <= held.high
    assert held.readings["samples"] == 100


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.0, 0.15])
def test_errors_that_all_copies_share_are_found(share: float) -> None:
    x, y, groups = grouped_wine()
    wrong = (np.random.default_rng(3).random(178) < share)[groups]
    given = torch.where(torch.tensor(wrong), (y + 1) % 3, y)
    issues = gs.find_label_issues(None, (x, given), groups=groups)
    noise = gs.estimate_label_noise(None, (x, given), groups=groups)
    assert noise.low <= wrong.mean() <= noise.high
    if not share:
        assert issues.n_flagged == 0
        return
    rank = np.empty(len(x))
    rank[issues.indices.numpy()] = -np.arange(len(x))
    assert roc_auc_score(wrong, rank) > 0.97
    alone = gs.find_label_issues(None, (x, given))
    rank[alone.indices.numpy()] = -np.arange(len(x))
    assert roc_auc_score(wrong, rank) < 0.8


def test_shared_errors_in_several_labels_and_in_targets() -> None:
    x, y, groups = grouped_wine()
    labels = nn.functional.one_hot(y, 3).bool()
    wrong = (np.random.default_rng(4).random(178) < 0.1)[groups]
    flipped = labels.clone()
    flipped[:, 0] ^= torch.tensor(wrong)
    issues = gs.find_label_issues(None, gs.Samples(x, flipped), groups=groups)
    first = issues.places.flatten() == 0
    top = issues.indices[first][: int(wrong.sum())]
    assert wrong[top.numpy()].mean() > 0.8

    target = x[:, 12].clone()
    inputs = x[:, :12]
    target[torch.tensor(wrong)] += 8.0
    issues = gs.find_label_issues(None, (inputs, target), groups=groups)
    assert wrong[issues.indices[: int(wrong.sum())].numpy()].mean() > 0.9


VERBS: dict[str, Callable[..., Any]] = {
    "forecast": lambda data, groups: gs.forecast_accuracy(None, data, groups=groups),
    "held out": lambda data, groups: gs.out_of_sample(None, data, groups=groups),
    "labels": lambda data, groups: gs.find_label_issues(None, data, groups=groups),
    "noise": lambda data, groups: gs.estimate_label_noise(None, data, groups=groups),
    "estimate": lambda data, groups: gs.estimate_accuracy(small_network(), data, groups=groups),
}


@pytest.mark.parametrize("verb", VERBS)
def test_bad_groups_are_refused(verb: str) -> None:
    x, y, groups = grouped_wine()
    x, y, groups = x[:80], y[:80], groups[:80]
    with pytest.raises(InvalidInput, match="2 groups"):
        VERBS[verb]((x, y), np.zeros(80))
    with pytest.raises(InvalidInput, match="got 79"):
        VERBS[verb]((x, y), groups[:79])
    with pytest.raises(InvalidInput, match="Pass the column"):
        VERBS[verb]((x, y), "patient")
    missing = pandas.Series(groups.tolist(), dtype="Int64")
    missing[3] = pandas.NA
    with pytest.raises(InvalidInput, match="of 80 are missing"):
        VERBS[verb]((x, y), missing)
    texts: list[Any] = [f"patient {number}" for number in groups]
    texts[3], texts[4] = float("nan"), " "
    with pytest.raises(InvalidInput, match="of 80 are missing"):
        VERBS[verb]((x, y), texts)
    with pytest.raises(InvalidInput, match="in one group alone"):
        VERBS[verb]((x, y), y)
    shuffled = pandas.Series(groups).sample(frac=1, random_state=0)
    with pytest.raises(InvalidInput, match="another order"):
        VERBS[verb]((x, y), shuffled)


def test_groups_follow_rows_that_are_dropped() -> None:
    x, y, groups = grouped_wine()
    labels = y.clone()
    labels[::7] = -100
    kept = labels >= 0
    dropped = gs.forecast_accuracy(None, (x, labels), groups=groups)
    passed = gs.forecast_accuracy(None, (x[kept], y[kept]), groups=groups[kept.numpy()])
    assert dropped.score == pytest.approx(passed.score)


def test_what_groups_cannot_change_is_refused() -> None:
    x, y, groups = grouped_wine()
    probabilities = torch.full((len(x), 3), 1 / 3)
    with pytest.raises(InvalidInput, match="Omit groups"):
        gs.find_label_issues(None, (x, y), pred_probs=probabilities, groups=groups)


@pytest.mark.thorough
def test_a_class_of_one_group_is_no_error() -> None:
    x, y, groups = grouped_wine()
    groups[(y == 2).numpy()] = 999
    issues = gs.find_label_issues(None, (x, y), groups=groups)
    table = issues.to_pandas()
    lone = y[torch.tensor(table["sample"].to_numpy())] == 2
    assert not table["flagged"][lone.numpy()].any()
    assert table["error_probability"][lone.numpy()].isna().all() and bool(lone[-1])
    assert issues.noise is not None and issues.noise.samples == int((y != 2).sum())
    assert "Class 2 occurs in one group alone" in repr(issues)
    for verb in (gs.forecast_accuracy, gs.out_of_sample):
        assert "Class 2 occurs in one group alone. Such samples" in repr(
            verb(None, (x, y), groups=groups)
        )
    held = gs.out_of_sample(LogisticRegression(), (x, y.numpy()), groups=groups)
    assert "Class 2 occurs in one group alone" in repr(held)


def test_clean_labels_of_small_classes_are_no_errors_with_groups_either() -> None:
    rng = np.random.default_rng(2)
    centres = 1.6 * rng.normal(size=(40, 6))
    labels = np.repeat(np.arange(40), 8)
    x = centres[labels] + rng.normal(size=(320, 6))
    groups = rng.integers(0, 20, 320)
    issues = gs.find_label_issues(None, (x, labels), groups=groups)
    assert issues.noise is None or issues.noise.low == 0
    assert not issues.expected_precision > 0


def test_every_ridge_of_few_samples_is_tried() -> None:
    x, y, groups = grouped_wine()
    features = feature_matrix(x[:200])
    targets = nn.functional.one_hot(y[:200], 3).double()
    numbers = torch.tensor(np.unique(groups[:200], return_inverse=True)[1])
    kernel = rbf_spectrum(features)
    solver = LeaveGroupOut(kernel, targets, numbers)
    errors = [
        float((solver.predictions(ridge * kernel.mean) - targets).square().sum())
        for ridge in RIDGES
    ]
    assert select_held_out(kernel, targets, RIDGES, numbers)[0] == RIDGES[int(np.argmin(errors))]


def test_too_few_groups_for_an_estimate_are_named() -> None:
    x, y, groups = grouped_wine()
    part = torch.tensor(groups % 6 == 0)
    found = gs.estimate_accuracy(
        small_network(), (x[part], y[part]), groups=groups[part.numpy()], label_noise=0.0
    )
    assert "30 groups are fewer than 100" in found.abstained_because


def test_groups_of_the_kernel_may_be_a_list() -> None:
    x, y, groups = grouped_wine()
    x, y, groups = x[:60], y[:60], groups[:60]
    of_list = kernel_leave_one_out(small_network(), x, y, groups=groups.tolist())
    of_tensor = kernel_leave_one_out(small_network(), x, y, groups=torch.tensor(groups))
    assert torch.equal(of_list.predictions, of_tensor.predictions)


@pytest.mark.thorough
def test_groups_of_positions_vary_as_they_do() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 20, 5, generator=generator)
    noise = 0.4 * torch.randn(60, 20, generator=generator)
    labels = (x[..., 0] + noise > 0).long() + (x[..., 1] > 1.5).long()
    forecast = gs.forecast_accuracy(None, (x, labels), groups=torch.arange(60) // 6)
    assert forecast.score > 0.8 and not forecast.abstained_because
