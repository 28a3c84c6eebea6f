"""Error model: its parameters, probabilities and interval on labels of known origin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.errors import NotMeasurable
from gapscope.labels import error_model
from gapscope.labels.boosted_trees import out_of_fold_log_probabilities
from gapscope.labels.error_model import (
    confident_errors,
    error_probabilities,
    fit_error_model,
    hidden_errors,
    tempered_loss,
    wilson_high,
)
from gapscope.labels.kernel_views import kernel_class_view
from gapscope.statistics.baselines import RBF, rbf_spectrum, sample_features

NOISE = torch.tensor([[0.6, 0.4, 0.0], [0.05, 0.9, 0.05], [0.0, 0.0, 1.0]], dtype=torch.float64)


def sampled(n: int, temperature: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, true classes drawn from their softmax, and labels drawn from NOISE."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    scores[torch.arange(n), torch.arange(n) % 3] += 0.6
    classes = torch.multinomial((scores / temperature).softmax(1), 1, generator=generator).squeeze(
        1
    )
    labels = torch.multinomial(NOISE[classes], 1, generator=generator).squeeze(1)
    return scores, classes, labels


def test_temperature_and_uneven_noise_are_recovered() -> None:
    scores, _, labels = sampled(8000)
    model = fit_error_model(scores, labels, (0.05, 0.1, 0.2))
    assert model.temperature == 0.1
    assert torch.allclose(model.noise, NOISE, atol=0.04)
    assert torch.allclose(model.noise.sum(1), torch.ones(3, dtype=torch.float64))


def test_probabilities_are_those_of_bayes() -> None:
    scores, classes, labels = sampled(3000)
    result = error_probabilities(scores, labels, (0.1,))
    noise = fit_error_model(scores, labels, (0.1,)).noise
    prior = (scores / 0.1).softmax(1)
    joint = prior * noise[:, labels].T
    expected = 1 - joint.gather(1, labels[:, None]).squeeze(1) / joint.sum(1)
    factor = max(1 - 2 * (1 - result.clean_accuracy), 0)
    assert torch.allclose(result.error, factor * expected, atol=1e-9)
    predicted = scores.argmax(1)
    differs = predicted != labels
    suggestion = factor * joint.gather(1, predicted[:, None]).squeeze(1) / joint.sum(1)
    assert torch.allclose(result.suggestion[differs], suggestion[differs], atol=1e-9)
    # before the factor, the probabilities are calibrated
    wrong = (classes != labels).double()
    likely = expected > 0.8
    assert float(wrong[likely].mean()) == pytest.approx(float(expected[likely].mean()), abs=0.05)


def test_confident_errors_by_hand() -> None:
    """Two classes of ten: of the most confident predictions, one of three in the first class is contradicted."""
    scores = torch.zeros(20, 2, dtype=torch.float64)
    labels = torch.arange(20) // 10
    scores[torch.arange(20), labels] = torch.arange(20, 0, -1).double()
    flipped = labels.clone()
    flipped[[2, 9, 19]] = 1 - flipped[[2, 9, 19]]
    # six of all are confident, or three of each class
    assert confident_errors(scores, flipped) == pytest.approx(1 / 6)
    flipped[[2, 12]] = labels[[2, 12]]
    assert confident_errors(scores, flipped) == 0


@pytest.mark.thorough
def test_upper_end_holds_errors_that_crowd_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 60 % of the labels at the border of two classes are wrong, the predictions follow many of them."""
    cases = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(600, 2, generator=generator)
        y = (x[:, 0] > 0.5).long()
        is_near = (x[:, 0] - 0.5).abs() < 0.13
        wrong = is_near & (torch.rand(600, generator=generator) < 0.6)
        labels = torch.where(wrong, 1 - y, y)
        view = kernel_class_view(
            RBF, rbf_spectrum(sample_features(gs.Samples(x, labels))), labels, 2
        )
        cases.append((view.scores, labels, float(wrong.double().mean())))

    def count_covered() -> int:
        return sum(
            error_probabilities(scores, labels).high >= truth for scores, labels, truth in cases
        )

    assert count_covered() >= 10
    monkeypatch.setattr(error_model, "HIDDEN", 0.0)
    assert count_covered() < 8


def test_errors_spread_evenly_hide_nothing() -> None:
    assert hidden_errors(0.2, 0.2, 2) == hidden_errors(0.1, 0.2, 2) == 0
    assert hidden_errors(0.2, 0.0, 5) == pytest.approx(hidden_errors(0.2, 0.0, 2) / 4)
    # one class is all there is to predict
    assert hidden_errors(0.0, 0.0, 1) == 0


@pytest.mark.thorough
def test_no_precision_is_promised_where_a_hard_problem_is_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 2, generator=generator)
    y = (x[:, 0] + 0.6 * torch.randn(500, generator=generator) > 0).long()
    issues = gs.find_label_issues(None, (x, y))
    assert (
        issues.noise is not None and issues.noise.is_upper_bound and not len(issues.precision_curve)
    )
    assert math.isnan(issues.expected_precision)
    strict = gs.find_label_issues(None, (x, y), precision=0.5)
    assert strict.n_flagged == 0 and "a hard problem is not excluded" in strict.sentences[-1]


def test_the_interval_of_errors_in_two_classes() -> None:
    """Ten clusters, of which four have errors, all in one direction: 10.5 % in all."""
    generator = torch.Generator().manual_seed(0)
    centers = 4 * torch.randn(10, 16, generator=generator)
    y = torch.arange(600) % 10
    x, noisy = centers[y] + torch.randn(600, 16, generator=generator), y.clone()
    for given, (other, rate) in {3: (5, 0.4), 5: (3, 0.3), 1: (9, 0.15), 9: (1, 0.15)}.items():
        noisy[(y == given) & (torch.rand(600, generator=generator) < rate)] = other
    wrong = noisy != y
    truth = float(wrong.double().mean())
    issues = gs.find_label_issues(features=x, labels=noisy)
    assert issues.noise is not None and issues.flagged is not None
    assert issues.noise.low <= truth <= issues.noise.high and abs(issues.noise.rate - truth) < 0.03
    contradicted = float((issues.suggested_labels != issues.given_labels).double().mean())
    assert issues.noise.high >= contradicted
    assert float(wrong[issues.flagged].double().mean()) > 0.8


def test_no_label_of_a_clean_class_of_two_is_flagged() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 100
    x = 5 * torch.randn(100, 16, generator=generator)[y] + 0.1 * torch.randn(
        200, 16, generator=generator
    )
    issues = gs.find_label_issues(None, (x, y))
    assert issues.n_flagged == 0 and issues.noise is not None and issues.noise.low == 0


def test_labels_far_apart_keep_their_values() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = 4 * torch.eye(3)[y] + 0.1 * torch.randn(90, 3, generator=generator)
    y[4] = 2
    issues = gs.find_label_issues(None, (x, y * 30_000_000 + 10_001))
    assert int(issues.indices[0]) == 4
    assert (int(issues.given_labels[0]), int(issues.suggested_labels[0])) == (
        60_010_001,
        30_010_001,
    )


@pytest.mark.parametrize(("fraction", "n"), [(0.0, 50), (0.2, 500), (1.0, 50)])
def test_the_upper_end_solves_wilsons_equation(fraction: float, n: int) -> None:
    high = wilson_high(fraction, n)
    assert high >= fraction
    assert abs(high - fraction) == pytest.approx(math.sqrt(high * (1 - high) / n), abs=1e-9)


def test_the_loss_is_the_cross_entropy_of_the_best_temperature() -> None:
    scores, classes, _ = sampled(500)
    loss, temperature = tempered_loss(scores, classes, (0.05, 0.1, 5.0))
    assert temperature == 0.1
    assert loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(scores / 0.1, classes)), abs=1e-9
    )


def test_probabilities_of_other_models() -> None:
    scores, classes, labels = sampled(400)
    probabilities = (scores / 0.1).softmax(1)
    issues = gs.find_label_issues(labels=labels, pred_probs=probabilities.float().numpy())
    wrong = (classes != labels)[issues.indices]
    assert issues.method == "pred_probs" and float(wrong[:40].double().mean()) > 0.7
    assert torch.equal(issues.suggested_labels, scores.argmax(1)[issues.indices])
    assert any("not looked at" in note for note in issues.notes)


@pytest.mark.thorough
def test_boosted_trees_are_chosen_where_they_predict_best() -> None:
    """Intervals of one of eight columns: easy for trees, hard for kernels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 8, generator=generator)
    y = (4 * x[:, 0]).long() % 2
    noisy = y.clone()
    noisy[::20] = 1 - noisy[::20]
    issues = gs.find_label_issues(None, (x, noisy))
    assert issues.method == "boosted trees" and "five folds" in issues.sentences[2]
    assert float((issues.indices[:20] % 20 == 0).double().mean()) > 0.6


def test_trees_are_for_tables() -> None:
    y = torch.arange(60) % 2
    generator = torch.Generator().manual_seed(0)
    table = gs.Samples(torch.rand(60, 3, generator=generator), y)
    scores = out_of_fold_log_probabilities(table, y, 2, seed=0)
    assert scores is not None and torch.allclose(
        scores.exp().sum(1), torch.ones(60, dtype=torch.float64), atol=1e-3
    )
    large = gs.Samples(torch.rand(2500, 3, generator=generator), torch.arange(2500) % 2)
    with pytest.raises(BudgetSpent, match="omitted"):
        out_of_fold_log_probabilities(large, large.y, 2, seed=0, budget=CpuBudget(0.01))
    images = gs.Samples(torch.rand(60, 1, 4, 4, generator=generator), y)
    assert out_of_fold_log_probabilities(images, y, 2, seed=0) is None
    wide = gs.Samples(torch.rand(60, 101, generator=generator), y)
    assert out_of_fold_log_probabilities(wide, y, 2, seed=0) is None
    rare = torch.zeros(60, dtype=torch.int64).index_fill(0, torch.arange(4), 1)
    assert out_of_fold_log_probabilities(table, rare, 2, seed=0) is None


@pytest.mark.thorough
@pytest.mark.parametrize("n_copies", [1, 2])
def test_labels_of_repeated_inputs_are_not_told_to_be_wrong(n_copies: int) -> None:
    """A copy predicts the label of its copy: errors look correct, and the rate would be too small."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = 4 * torch.eye(2)[y] + 0.3 * torch.randn(120, 2, generator=generator)
    y[:12] = 1 - y[:12]
    data = x.repeat(n_copies, 1), y.repeat(n_copies)
    issues = gs.find_label_issues(None, data)
    if n_copies == 1:
        assert issues.noise is not None
        assert issues.noise.low <= 0.1 <= issues.noise.high
        assert issues.n_flagged >= 10
        return
    assert issues.noise is None
    assert "240 of 240 samples have the same inputs" in issues.note
    assert issues.n_flagged == 0
    assert issues.to_pandas()["error_probability"].isna().all()
    with pytest.raises(NotMeasurable, match="different inputs: 120"):
        gs.estimate_label_noise(None, data)


def test_few_repeats_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = 4 * torch.eye(2)[y] + 0.3 * torch.randn(120, 2, generator=generator)
    x[:20] = x[20:40]
    assert gs.find_label_issues(None, (x, y)).noise is not None
