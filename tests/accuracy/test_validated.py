"""`gs.validated_accuracy`: the closed form, coverage on repeated draws, paired differences, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.validated import (
    AdjustedMean,
    adjusted_mean,
    differ_beyond_chance,
    effective_samples,
    labels_per_sample,
)
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.statistics.intervals import paired_difference_interval

Data = tuple[Tensor, Tensor]


def linear(angle: float) -> nn.Linear:
    network = nn.Linear(2, 2)
    direction = torch.tensor([np.cos(angle), np.sin(angle)], dtype=torch.float32)
    with torch.no_grad():
        network.weight.copy_(torch.stack([-direction, direction]))
        network.bias.zero_()
    return network


def blobs(n: int, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    centers = torch.stack([2 * y - 1, torch.zeros(n)], 1)
    return torch.randn(n, 2, generator=generator) + 0.8 * centers, y


def test_the_mean_is_the_regression_estimate() -> None:
    random = np.random.default_rng(0)
    control, rest = random.normal(size=50), random.normal(size=200)
    # explained completely: the mean is that of the line at the mean of all controls
    values = 2 * control + 1
    item = adjusted_mean(values, control, rest)
    assert item.value == pytest.approx(2 * np.concatenate([control, rest]).mean() + 1)
    assert item.correlation == pytest.approx(1)
    slope = 2 * 200 / 250
    expected = ((2 - slope) ** 2 * control.var(ddof=1)) / 50 + slope**2 * rest.var(ddof=1) / 200
    assert item.variance == pytest.approx(expected)


@pytest.mark.thorough
def test_on_repeated_draws_it_errs_less_and_its_interval_covers() -> None:
    network = linear(0.5)
    x, y = blobs(200_000, 10**6)
    truth = float((network(x).argmax(1) == y).double().mean())
    results = []
    for seed in range(200):
        x, y = blobs(150, seed)
        results.append(gs.validated_accuracy(network, (x[:50], y[:50]), (x[50:], y[50:])))
    errors = np.array([[item.score - truth, item.plain.value - truth] for item in results])
    own, plain = np.sqrt((errors**2).mean(0))
    assert own < 0.9 * plain
    assert abs(errors[:, 0].mean()) < 3 * own / 200**0.5 + 0.005
    assert 0.85 <= np.mean([item.low <= truth <= item.high for item in results]) <= 0.96
    assert np.mean([item.effective_samples for item in results]) > 60


def test_the_difference_is_paired() -> None:
    (x, y), better, worse = blobs(300, 0), linear(0.0), linear(1.2)
    data = (x[:100], y[:100]), (x[100:], y[100:])
    result = gs.validated_accuracy(better, *data, baseline=worse)
    assert result.difference is not None
    correct = [(network(x[:100]).argmax(1) == y[:100]) for network in (better, worse)]
    gained, lost = (int((first & ~second).sum()) for first, second in (correct, correct[::-1]))
    ends = paired_difference_interval(gained, lost, 100)
    assert (result.difference.low, result.difference.high) == pytest.approx(ends)
    assert result.difference.value == pytest.approx((gained - lost) / 100)
    same = gs.validated_accuracy(better, *data, baseline=better).difference
    assert (
        same is not None
        and same.value == 0
        and same.low == -same.high == pytest.approx(-0.0263, abs=1e-3)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("m", [12, 20, 40])
def test_the_interval_of_a_difference_covers(m: int) -> None:
    networks = linear(0.3), linear(0.6)
    x, y = blobs(200_000, 10**6)
    first, second = (float((network(x).argmax(1) == y).double().mean()) for network in networks)
    held = []
    for seed in range(200):
        x, y = blobs(m + 60, seed)
        result = gs.validated_accuracy(
            networks[0], (x[:m], y[:m]), (x[m:], y[m:]), baseline=networks[1]
        ).difference
        assert result is not None and result.high > result.low
        held.append(result.low <= first - second <= result.high)
    assert np.mean(held) >= 0.86


def test_the_correlation_is_taken_one_standard_error_below() -> None:
    # a quarter explained by infinitely many training samples
    item = AdjustedMean(0.8, 0.01 * 0.75, 0.75, 0.5)
    lower = np.tanh(np.arctanh(0.5) - 1 / np.sqrt(97))
    assert effective_samples(item, 100, 10**9) == pytest.approx(100 / (1 - lower**2), rel=1e-6)
    assert effective_samples(AdjustedMean(0.8, 0.01, 1.0, 0.0), 100, 100) == 100


def test_the_result_is_a_table_sentences_and_a_plot() -> None:
    x, y = blobs(100, 0)
    result = gs.validated_accuracy(
        linear(0), (x[:30], y[:30]), (x[30:], y[30:]), baseline=linear(1)
    )
    table = result.to_pandas().set_index("estimate")
    assert table.loc["with control variates", "score"] == result.score
    assert (
        result.difference is not None
        and table.loc["minus the baseline", "low"] == result.difference.low
    )
    assert len(result.sentences) == 4 and repr(result) == "\n".join(result.sentences)
    assert result.plot().get_xlabel().startswith("accuracy")


def test_a_perfect_score_is_plotted() -> None:
    network = linear(0.0)
    x, _ = blobs(200, 0)
    y = network(x).argmax(1)
    for m in (60, 61, 62, 63, 64, 65):  # of some of them Wilson's upper end was rounded below 1
        result = gs.validated_accuracy(network, (x[:m], y[:m]), (x[m:], y[m:]))
        assert result.score == result.high == 1
        result.plot()


def test_regression_is_r2() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(200, 1, generator=generator)
    network = nn.Linear(2, 1)
    nn.init.ones_(network.weight)
    nn.init.zeros_(network.bias)
    result = gs.validated_accuracy(network, (x[:60], y[:60]), (x[60:], y[60:]))
    held = y[:60]
    expected = 1 - float((network(x[:60]).detach() - held).square().mean() / held.var(correction=0))
    assert result.task == "regression" and result.plain.value == pytest.approx(expected, abs=1e-6)
    assert result.low < 0.67 < result.high  # signal 2, noise 1


def test_the_names_of_classes_are_those_of_the_training_samples() -> None:
    x, y = blobs(90, 2)
    names = np.array(["left", "right"])[y.numpy()]
    is_right = y[:40] == 1  # a split without one of the classes
    validation = (x[:40][is_right], names[:40][is_right.numpy()])
    result = gs.validated_accuracy(linear(0), validation, (x[40:], names[40:]))
    correct = (linear(0)(validation[0]).argmax(1) == 1).double().mean()
    assert result.plain.value == pytest.approx(float(correct)) and result.plain.value > 0.5


class CountsOnes(nn.Module):
    """Classifies token ids by the number of ones."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        excess = (input_ids * attention_mask).sum(1) - 4.5
        return torch.stack([-excess, excess], 1)


def tokens(n: int, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 2, (n, 20), generator=torch.Generator().manual_seed(seed))
    ids[:, 9:] = 0
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": (ids.sum(1) > 4).long(),
    }


def test_several_inputs_of_two_data_sets_are_compared_by_their_values() -> None:
    validation, train = tokens(80, 1), tokens(120, 0)
    result = gs.validated_accuracy(CountsOnes(), validation, train)
    assert result.score == pytest.approx(1, abs=0.05)
    # 9 bits: 512 different samples
    seen = [tuple(row) for row in torch.cat([validation["input_ids"], train["input_ids"]]).tolist()]
    repeats = len(seen) - len(set(seen)) - (120 - len(set(seen[80:])))
    assert result.duplicates == repeats < 80


X, Y = blobs(60, 3)


@pytest.mark.parametrize(
    ("validation", "train", "facts"),
    [
        (X[:20], (X[20:], Y[20:]), "needs targets"),
        ((X[:5], Y[:5]), (X[20:], Y[20:]), "validation .* 10 .* 5"),
        ((X[:20], Y[:20]), (X[20:24], Y[20:24]), "train .* 10 .* 4"),
        ((X[:20], Y[:20]), (X[20:, :1], Y[20:]), r"must run on the inputs.*\[8, 1\]"),
        ((X[:20], Y[:20]), (X[20:], X[20:]), "targets"),
    ],
)
def test_bad_input_ends_in_one_message(validation: Any, train: Any, facts: str) -> None:
    with pytest.raises(InvalidInput, match=facts):
        gs.validated_accuracy(linear(0), validation, train)


def test_several_labels_per_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(6, 3, generator=generator)

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 6, generator=generator)
        return x, x @ weights + torch.randn(n, 3, generator=generator) > 0

    network = nn.Linear(6, 3, bias=False)
    with torch.no_grad():
        network.weight.copy_(weights.T)
    held_out, train = draw(60), draw(150)
    result = gs.validated_accuracy(network, held_out, train)
    right = ((network(held_out[0]) > 0) == held_out[1]).double().mean()
    assert result.task == "multi-label" and result.plain.value == pytest.approx(float(right))
    assert result.low < result.score < result.high
    assert result.high - result.low < result.plain.high - result.plain.low
    # labels that agree exactly have an interval all the same
    perfect = gs.validated_accuracy(network, (held_out[0], network(held_out[0]) > 0), train)
    assert perfect.plain.value == 1 and perfect.plain.low < 0.995


def test_how_many_labels_a_sample_counts_for() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(4000, 5, generator=generator) < 0.7
    assert labels_per_sample(right.double().mean(1).numpy(), 5) == pytest.approx(5, rel=0.05)
    assert labels_per_sample(right[:, 0].double().numpy(), 5) == pytest.approx(1, rel=0.01)
    assert labels_per_sample(torch.ones(50).double().numpy(), 5) == 5


class _Scaled(nn.Module):
    """Network whose outputs are multiplied by a factor, or probabilities."""

    def __init__(self, factor: float | None, n_outputs: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(2, n_outputs)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.layer(x)
        return outputs.softmax(1) if self.factor is None else outputs * self.factor


def test_outputs_that_are_not_finite_give_no_answer() -> None:
    validation, train = blobs(40, 0), blobs(60, 1)
    result = gs.validated_accuracy(_Scaled(math.nan), validation, train)
    assert "40 of 40 samples" in result.abstained_because and math.isnan(result.score)
    assert "nan" not in str(result)
    with pytest.raises(InvalidInput, match=r"baseline: .*40 of 40"):
        gs.validated_accuracy(linear(0.0), validation, train, baseline=_Scaled(math.nan))
    three = (validation[0], torch.arange(40) % 3), (train[0], torch.arange(60) % 3)
    with pytest.raises(InvalidInput, match=r"baseline: .*output per class"):
        gs.validated_accuracy(_Scaled(1.0, 3), *three, baseline=linear(0.0))
    ranking = gs.rank_networks({"nan": _Scaled(math.nan), "linear": linear(0.0)}, train)
    assert set(ranking.not_ranked) == {"nan"}
    for verb in (gs.learning_curve, gs.out_of_sample):
        with pytest.raises(GapscopeError, match="must be finite"):
            verb(lambda x, y: _Scaled(math.nan), train)


def test_notes_of_the_prepared_network_are_kept() -> None:
    result = gs.validated_accuracy(_Scaled(None), blobs(40, 0), blobs(60, 1))
    assert any("probabilities" in note for note in result.notes)


def test_wrong_training_labels_do_not_move_the_score() -> None:
    x, y = blobs(400, 0)
    z = y.clone()
    z[200:320] = 1 - z[200:320]
    network = linear(0.0)
    result = gs.validated_accuracy(network, (x[:200], y[:200]), (x[200:], z[200:]))
    assert (result.score, result.low, result.high) == (
        result.plain.value,
        result.plain.low,
        result.plain.high,
    )
    assert result.effective_samples == 200
    assert "Control variates are not used" in str(result)
    clean = gs.validated_accuracy(network, (x[:200], y[:200]), (x[200:], y[200:]))
    assert clean.effective_samples > 220
    assert "not used" not in str(clean)
    both = torch.stack([y, y], 1)
    several = gs.validated_accuracy(
        network, (x[:200], both[:200]), (x[200:], torch.stack([z, z], 1)[200:])
    )
    assert several.task == "multi-label"
    assert several.score == several.plain.value


def test_a_few_extreme_training_targets_do_not_move_r2() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(600, 1, generator=generator)
    network = nn.Linear(3, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
        network.bias.zero_()
    for wrong in (2, 25):
        z = y.clone()
        z[100 : 100 + wrong] += 30
        result = gs.validated_accuracy(network, (x[:100], y[:100]), (x[100:], z[100:]))
        assert result.score == result.plain.value
        assert result.effective_samples == 100


@pytest.mark.parametrize("heavy", [False, True])
def test_random_parts_seldom_differ_beyond_chance(heavy: bool) -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        control = (random.random(120) < 0.95).astype(float)
        if heavy:
            control = 1 - random.standard_t(2, size=120) ** 2
        alarms += differ_beyond_chance(control[:30], control[30:])
    assert alarms <= 8  # 3 are expected; more than 8 have a probability of 0.4 %
