"""`gs.learning_curve`: designs in closed form, training configurations of every form, resuming, messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.continued_runs import continued_predictions
from gapscope.accuracy.subset_designs import DESIGNS, folds, quarter_and_halves
from gapscope.accuracy.subset_problems import equal_steps, sample_scores
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.groups import group_numbers
from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.grouped_scores import variance_of_mean
from support.door_networks import bert_classifier


def two_blobs(n: int, seed: int = 0, apart: float = 1.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    return torch.randn(n, 2, generator=generator) + apart * y[:, None], y


def least_squares(x: Tensor, y: Tensor) -> nn.Module:
    """A training configuration in closed form: regression of one-hot targets, or of the targets themselves."""
    targets = y if y.is_floating_point() else nn.functional.one_hot(y, 2).float()
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    solution = torch.linalg.lstsq(design, targets).solution
    network = nn.Linear(x.shape[1], targets.shape[1])
    with torch.no_grad():
        network.weight.copy_(solution[:-1].T)
        network.bias.copy_(solution[-1])
    return network


def test_the_score_is_what_new_samples_give() -> None:
    result = gs.learning_curve(least_squares, two_blobs(1000), design="half and quarter")
    network, (x, y) = least_squares(*two_blobs(1000)), two_blobs(20000, seed=1)
    truth = float((network(x).argmax(1) == y).double().mean())
    assert result.low <= truth <= result.high and abs(result.score - truth) < 0.03
    assert (result.design, result.cost, result.samples) == ("half and quarter", 2, 1000)
    assert [item.trained_on for item in result.trainings] == [250, 500]


@pytest.mark.parametrize("design", list(DESIGNS))
def test_every_design_has_the_stated_cost(design: str) -> None:
    def train_fn(x: Tensor, y: Tensor, steps_fraction: float = 1.0) -> nn.Module:
        return least_squares(x, y)

    result = gs.learning_curve(train_fn, two_blobs(200), design=design)
    assert result.design == design and result.cost == DESIGNS[design].cost
    assert result.low < result.score < result.high


def test_folds_agree_with_cross_validation_done_by_hand() -> None:
    x, y = two_blobs(120)
    result = gs.learning_curve(least_squares, (x, y), design="five folds and quarter")
    from gapscope.accuracy.subset_designs import folds
    from gapscope.base.randomness import derive_seed

    splits = folds(np.arange(120), 5, np.random.default_rng(derive_seed(0, "5 folds")))
    by_hand = []
    for split in splits:
        rest, held = torch.from_numpy(split.trained), torch.from_numpy(split.scored)
        by_hand.append(
            float((least_squares(x[rest], y[rest])(x[held]).argmax(1) == y[held]).double().mean())
        )
    assert [item.score for item in result.trainings[1:]] == pytest.approx(by_hand, abs=1e-12)


def test_regression_is_r2() -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[1.0], [2.0], [0.0]]) + torch.randn(
        400, 1, generator=torch.Generator().manual_seed(1)
    )
    result = gs.learning_curve(least_squares, (x, y))
    assert result.task == "regression" and result.low < 5 / 6 < result.high
    scores = sample_scores(
        least_squares(x, y), gs.Samples(x, y), np.array([float(y.std(correction=0))])
    )
    residual = (least_squares(x, y)(x) - y).detach().square().mean()
    assert scores.mean() == pytest.approx(float(1 - residual / y.var(correction=0)), abs=1e-6)


def test_a_narrow_interval_takes_more_trainings() -> None:
    data = two_blobs(800)
    wide, narrow = (
        gs.learning_curve(least_squares, data, max_interval_width=0.2),
        gs.learning_curve(least_squares, data, max_interval_width=0.08),
    )
    assert wide.cost == 2 and narrow.cost > 2
    assert narrow.high - narrow.low <= 0.08 and not narrow.notes


def test_an_interval_out_of_reach_is_reported_and_costs_nothing_more() -> None:
    result = gs.learning_curve(least_squares, two_blobs(200), max_interval_width=0.001)
    note = result.notes[-1]
    assert result.cost == 2 and "needs more samples" in note and "ten folds" in note


def test_many_samples_are_held_out_plainly() -> None:
    x, y = two_blobs(21000)
    assert gs.learning_curve(least_squares, (x, y)).design == "hold-out"
    assert "hold-out of a tenth" in " ".join(
        gs.learning_curve(least_squares, (x, y), design="half and quarter").notes
    )


def test_groups_are_never_on_both_sides() -> None:
    """Samples of a group are copies: by samples the twin would see what scores it."""
    x = torch.randn(30, 400, generator=torch.Generator().manual_seed(0)).repeat_interleave(8, 0)
    y = torch.randint(2, (30,), generator=torch.Generator().manual_seed(1)).repeat_interleave(8)
    by_sample, by_group = (
        gs.learning_curve(least_squares, (x, y)),
        gs.learning_curve(least_squares, (x, y), groups=np.arange(30).repeat(8)),
    )
    assert by_sample.score > 0.9 and by_group.low < 0.5
    assert by_group.standard_error > 2 * by_sample.standard_error


def test_classes_of_one_group_are_named_before_training() -> None:
    x, y = two_blobs(120)
    labels = torch.where(torch.arange(120) < 6, 2, y)
    groups = np.arange(120) // 6
    names = np.array(["a", "b", "c"])[labels.numpy()]
    for curve in (
        gs.learning_curve(least_squares, (x, labels), groups=groups),
        gs.learning_curve(LogisticRegression(), (x.numpy(), names), groups=groups),
    ):
        assert "occurs in one group alone. Such samples" in repr(curve)
    assert "Class c occurs" in repr(curve)
    config = Counted()
    with pytest.raises(GapscopeError, match="in one group alone"):
        gs.learning_curve(config, (x, torch.arange(120) // 6), groups=np.arange(120) // 6)
    assert config.calls == 0


class Counted:
    """A training configuration that counts its training runs and fails at one of them."""

    def __init__(self, fails_at: int = 0) -> None:
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, x: Tensor, y: Tensor) -> nn.Module:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("no power")
        return least_squares(x, y)


def test_a_stopped_curve_resumes(tmp_path: Path) -> None:
    broken, data = Counted(fails_at=4), two_blobs(120)
    with pytest.raises(GapscopeError, match="no power"):
        gs.learning_curve(broken, data, design="five folds and quarter", cache_dir=tmp_path)
    result = gs.learning_curve(broken, data, design="five folds and quarter", cache_dir=tmp_path)
    assert broken.calls == 6 + 1
    assert result == gs.learning_curve(least_squares, data, design="five folds and quarter")


def test_another_curve_is_not_mixed_in(tmp_path: Path) -> None:
    gs.learning_curve(least_squares, two_blobs(100), cache_dir=tmp_path)
    with pytest.raises(InvalidInput, match="its data differ"):
        gs.learning_curve(least_squares, two_blobs(100, seed=1), cache_dir=tmp_path)
    with pytest.raises(InvalidInput, match="recipe and seed differ"):
        gs.learning_curve(Counted(), two_blobs(100), cache_dir=tmp_path, seed=1)


@dataclass
class Shrunk:
    """Least squares with weights that are multiplied by a factor."""

    factor: float

    def __call__(self, x: Tensor, y: Tensor) -> nn.Module:
        return shrunk(x, y, self.factor)


def shrunk(x: Tensor, y: Tensor, factor: float = 1.0) -> nn.Module:
    network = least_squares(x, y)
    with torch.no_grad():
        next(network.parameters()).mul_(factor)
    return network


def closure(factor: Any) -> Any:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        return shrunk(x, y, float(torch.as_tensor(factor)))

    return train_fn


def default(factor: float) -> Any:
    def train_fn(x: Tensor, y: Tensor, by: float = factor) -> nn.Module:
        return shrunk(x, y, by)

    return train_fn


FACTOR = 1.0


def of_global(x: Tensor, y: Tensor) -> nn.Module:
    return shrunk(x, y, FACTOR)


OTHER_SETTINGS = {
    "closure": (closure(1.0), closure(-1.0)),
    "array in a closure": (closure(np.array(1.0)), closure(np.array(-1.0))),
    "tensor in a closure": (closure(torch.tensor(1.0)), closure(torch.tensor(-1.0))),
    "default": (default(1.0), default(-1.0)),
    "partial": (partial(shrunk, factor=1.0), partial(shrunk, factor=-1.0)),
    "object": (Shrunk(1.0), Shrunk(-1.0)),
    "code": (lambda x, y: shrunk(x, y, 1.0), lambda x, y: shrunk(x, y, -1.0)),
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_a_function_with_other_settings_gets_no_runs_of_the_first(
    name: str, tmp_path: Path
) -> None:
    first, second = OTHER_SETTINGS[name]
    curve = gs.learning_curve(first, two_blobs(100), cache_dir=tmp_path)
    assert gs.learning_curve(first, two_blobs(100), cache_dir=tmp_path) == curve
    with pytest.raises(InvalidInput, match="its recipe differ"):
        gs.learning_curve(second, two_blobs(100), cache_dir=tmp_path)


def test_a_global_setting_and_another_score_are_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gs.learning_curve(of_global, two_blobs(100), cache_dir=tmp_path / "global")
    monkeypatch.setitem(of_global.__globals__, "FACTOR", -1.0)
    with pytest.raises(InvalidInput, match="its recipe differ"):
        gs.learning_curve(of_global, two_blobs(100), cache_dir=tmp_path / "global")
    scores = [lambda model, x, y, constant=constant: constant for constant in (0.5, 0.7)]
    folder = tmp_path / "score"
    gs.learning_curve(least_squares, two_blobs(100), score=scores[0], cache_dir=folder)
    with pytest.raises(InvalidInput, match="its score differ"):
        gs.learning_curve(least_squares, two_blobs(100), score=scores[1], cache_dir=folder)


def test_a_mapping_of_inputs_keeps_its_form() -> None:
    seen: list[dict[str, tuple[int, ...]]] = []

    def recipe(x: dict[str, Tensor], y: Tensor) -> nn.Module:
        seen.append({name: tuple(part.shape) for name, part in x.items()})
        return bert_classifier()

    ids = torch.randint(20, (48, 6), generator=torch.Generator().manual_seed(0))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 2}
    assert 0 <= gs.learning_curve(recipe, data).score <= 1
    assert seen[0] == {"input_ids": (24, 6), "attention_mask": (24, 6)}


@pytest.mark.parametrize(
    ("recipe", "data", "options", "message"),
    [
        (least_squares, None, {}, "without data"),
        (least_squares, two_blobs(20), {}, "A learning curve needs 40 samples or more; got 20"),
        (least_squares, two_blobs(60), {"design": "halfs"}, "half and quarter"),
        (least_squares, two_blobs(60), {"design": "short continued halves"}, "steps_fraction"),
        (
            least_squares,
            two_blobs(60),
            {"design": "continued halves", "groups": list(range(20)) * 3},
            "groups",
        ),
        (
            least_squares,
            two_blobs(60),
            {"max_interval_width": 0.0},
            "max_interval_width must be",
        ),
        (
            lambda x, y: "network",
            two_blobs(60),
            {},
            "the trained network, a torch.nn.Module; it returned str",
        ),
        (
            least_squares,
            (torch.randn(60, 2), torch.ones(60, 1) * 3.0),
            {},
            "got the same target for all samples",
        ),
    ],
)
def test_messages(recipe: Any, data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GapscopeError, match=message):
        gs.learning_curve(recipe, data, **options)


def _biased_to_large(x: Tensor, y: Tensor) -> nn.Module:
    """A training configuration that learns from more than 60 samples only, as one of few epochs does."""
    if len(x) > 60:
        return least_squares(x, y)
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([1.0, 0.0]))
    return network


def test_under_trained_subsets_give_no_prediction() -> None:
    curve = gs.learning_curve(
        _biased_to_large, two_blobs(200, apart=3.0), design="half and quarter"
    )
    quarter, half = curve.trainings
    assert quarter.training_score < half.training_score
    for run in curve.trainings:
        assert f"{run.training_score:.3f}" in curve.abstained_because
    assert not gs.learning_curve(
        least_squares, two_blobs(200, apart=3.0), design="half and quarter"
    ).abstained_because


class _Constant:
    """Training function that returns networks of constant outputs, as one that takes no step does."""

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def __call__(self, x: Tensor, y: Tensor, steps_fraction: float = 1.0) -> nn.Module:
        network = nn.Linear(x.shape[1], self.n_outputs)
        nn.init.zeros_(network.weight)
        nn.init.zeros_(network.bias)
        return network


def _blobs_with_targets() -> tuple[Tensor, Tensor]:
    x, _ = two_blobs(200)
    return x, 10 + x.sum(1, keepdim=True)


@pytest.mark.parametrize("data", [two_blobs(200, apart=4.0), _blobs_with_targets()])
def test_a_refitted_layer_is_not_the_score_of_networks_that_do_not_fit(data: Any) -> None:
    is_regression = data[1].is_floating_point()
    train_fn = _Constant(1 if is_regression else 2)
    truth = -100.0 if is_regression else float((data[1] == 0).double().mean())
    result = gs.learning_curve(train_fn, data)
    assert result.design == "half and quarter" and result.cost == 2.5
    assert "refitted" in result.notes[-1] and "half and quarter" in result.notes[-1]
    assert is_regression or result.low <= truth <= result.high
    assert result.score <= max(run.training_score for run in result.trainings)
    named = gs.learning_curve(train_fn, data, design="continued halves")
    assert "half and quarter" in named.abstained_because and not named.interrupted
    trained = gs.learning_curve(least_squares, data)
    assert trained.design == "continued halves" and trained.cost == 2 and not trained.notes


def test_outputs_must_fit_what_was_trained_on() -> None:
    x = torch.randn(90, 4)
    y = torch.arange(90) % 3
    for data, n_outputs in (((x, y), 2), ((x, x[:, :2]), 1), ((x, x[:, :1]), 2)):
        for verb in (gs.learning_curve, gs.out_of_sample):
            with pytest.raises(InvalidInput, match="one output per"):
                verb(_Constant(n_outputs), data)


def test_a_falling_curve_is_named() -> None:
    def forgets(x: Tensor, y: Tensor) -> nn.Module:
        return least_squares(x, y if len(x) <= 60 else 1 - y)

    curve = gs.learning_curve(forgets, two_blobs(200, apart=3.0), design="half and quarter")
    assert all(f"{run.score:.3f}" in curve.notes[0] for run in curve.trainings[:2])


@pytest.mark.parametrize("part", [100, 50, 25, 20])
def test_a_part_of_a_spec_takes_as_many_steps(part: int) -> None:
    spec = gs.RunSpec.from_dict({
        "data": {"train_size": 100, "test_size": 20}, "training": {"epochs": 2, "batch_size": 16}
    })  # fmt: skip
    recipe = equal_steps(spec, 100, part)
    assert isinstance(recipe, gs.RunSpec)
    steps = recipe.training.epochs * -(-part // 16)
    assert abs(steps - 2 * 7) <= -(-part // 16) / 2  # as near as whole epochs come
    assert equal_steps(least_squares, 100, part) is least_squares


def test_continued_halves_are_the_formula_written_out() -> None:
    """Oracle: every unseen sample refitted without it, by normal equations with an unpenalized intercept."""
    x, y = two_blobs(60, apart=1.0)
    network, samples = least_squares(x[:30], y[:30]), gs.Samples(x[30:], y[30:])
    with torch.no_grad():  # outputs that sum to 1 would be taken for probabilities
        for parameter in network.parameters():
            parameter.mul_(3)
    result = continued_predictions(network, samples)
    probabilities = network(x[30:]).detach().double().softmax(1) - 0.5
    expected = nn.functional.one_hot(y[30:], 2).double() - 0.5
    scaled = (probabilities * expected).sum() / probabilities.square().sum() * probabilities
    features = x[30:].double() - x[30:].double().mean(0)
    unit = float(features.square().sum()) / 30

    def refitted(ridge: float) -> Tensor:
        rows = []
        for i in range(30):
            rest = torch.arange(30) != i
            design = torch.cat([features[rest], torch.ones(29, 1, dtype=torch.float64)], 1)
            penalty = torch.diag(
                torch.tensor([ridge * unit, ridge * unit, 0.0], dtype=torch.float64)
            )
            solution = torch.linalg.solve(
                design.T @ design + penalty, design.T @ (expected - scaled)[rest]
            )
            rows.append(torch.cat([features[i], torch.ones(1, dtype=torch.float64)]) @ solution)
        return torch.stack(rows)

    of_ridges = [refitted(ridge) for ridge in RIDGES]
    best = min(of_ridges, key=lambda rest: float((expected - scaled - rest).square().mean()))
    torch.testing.assert_close(result, scaled + best + 0.5, atol=1e-6, rtol=1e-6)


def test_outputs_of_classes_without_samples_change_nothing() -> None:
    x, y = two_blobs(60, apart=1.0)
    network = least_squares(x[:30], y[:30])
    wide = nn.Linear(x.shape[1], 6)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
        assert isinstance(network, nn.Linear)
        wide.weight[[0, 5]], wide.bias[[0, 5]] = network.weight, network.bias
    dense = continued_predictions(network, gs.Samples(x[30:], y[30:]))
    gaps = continued_predictions(wide, gs.Samples(x[30:], 5 * y[30:]), torch.tensor([0, 5]))
    torch.testing.assert_close(gaps[:, [0, 5]], dense, atol=1e-6, rtol=1e-6)
    assert not gaps[:, 1:5].any()


def test_an_interruption_returns_what_is_finished(tmp_path: Path) -> None:
    calls = 0

    def stopped(x: Tensor, y: Tensor) -> nn.Module:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return least_squares(x, y)

    data = two_blobs(120)
    part = gs.learning_curve(stopped, data, design="five folds and quarter", cache_dir=tmp_path)
    assert [run.name for run in part.trainings] == ["quarter", "fold 1 of 5"] and part.cost == 2
    assert "interrupted" in part.abstained_because and "No answer: interrupted" in repr(part)
    assert part.score == part.trainings[1].score and part.interrupted
    whole = gs.learning_curve(stopped, data, design="five folds and quarter", cache_dir=tmp_path)
    assert calls == 3 + 4 and not whole.abstained_because
    assert whole == gs.learning_curve(least_squares, data, design="five folds and quarter")
    calls = 2
    with pytest.raises(KeyboardInterrupt):
        gs.learning_curve(stopped, data)


def test_variance_of_a_mean_is_that_of_the_textbook() -> None:
    scores = np.random.default_rng(0).normal(size=50)
    assert variance_of_mean(scores, np.arange(50)) == pytest.approx(
        scores.var(ddof=1) / 50, rel=1e-12
    )
    assert math.isinf(variance_of_mean(scores, np.zeros(50, dtype=int)))
    # no wrong one among a few is no certainty
    assert variance_of_mean(np.ones(10), np.arange(10)) == pytest.approx((12 / 14) * (2 / 14) / 10)


@pytest.mark.parametrize(
    "groups", [*map(np.arange, (40, 53, 97)), group_numbers([f"{i % 17}" for i in range(200)], 200)]
)
def test_splits_partition_the_samples_and_keep_groups_whole(groups: np.ndarray) -> None:
    random, n = np.random.default_rng(0), len(groups)
    quarter, half, other = quarter_and_halves(groups, random)
    parts = folds(groups, 5, random)
    for split in (quarter, half, other, *parts):
        assert sorted([*split.trained, *split.scored]) == list(range(n))
        assert not set(groups[split.trained]) & set(groups[split.scored])
    assert set(quarter.trained) < set(half.trained) and set(half.trained) == set(other.scored)
    assert sorted(np.concatenate([split.scored for split in parts])) == list(range(n))
    if len(set(groups)) == n:
        assert abs(len(quarter.trained) - n / 4) <= 1 and abs(len(half.trained) - n / 2) <= 1
        assert {len(split.scored) for split in parts} <= {n // 5, n // 5 + 1}


def test_names_of_groups_change_nothing() -> None:
    numbers = np.arange(200) // 9
    for names in (
        [f"p{i}" for i in numbers],
        -numbers,
        0.5 * numbers,
        [(i * 7) % 101 for i in numbers],
    ):
        assert (group_numbers(names, 200) == numbers).all()


def test_one_label_per_sample_is_required() -> None:
    with pytest.raises(InvalidInput, match="groups"):
        group_numbers([1, 2, 3], 4)
    with pytest.raises(InvalidInput, match=r"got shape \[2, 2\]"):
        group_numbers([[1, 2], [3, 4]], 4)


def test_own_scores_are_advised_for_rows_that_are_no_numbers_alone() -> None:
    labels = np.arange(60) % 2
    frame = pandas.DataFrame({"size": np.arange(60.0), "town": ["a", "b", "c"] * 20})
    with pytest.raises(InvalidInput, match="With score="):
        gs.learning_curve(least_squares, (frame, labels))
    for data in ((torch.randn(60, 2), labels[:50]), (np.full((60, 2), np.nan), labels)):
        with pytest.raises(InvalidInput) as error:
            gs.learning_curve(least_squares, data)
        assert "score=" not in str(error.value)
