"""Fixes, and tried advice: what is proposed, what it costs, and what happens where nothing can be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.checks import fixes
from gapscope.checks.fixes import FIXES, Fix, get_setting, with_setting
from gapscope.checks.trials import Trial, TriedAdvice, candidates
from gapscope.results.estimate import IntervalEstimate

SPEC = TrainingSpec(epochs=8, learning_rate=0.05, momentum=0.9, batch_size=16)


def blobs(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(3, 6, generator=g)[y] + 0.4 * torch.randn(n, 6, generator=g)
    return (x - x.mean(0)) / x.std(0), y


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def train_fn(
    x: torch.Tensor, y: torch.Tensor, learning_rate: float = 0.002, epochs: int = 8
) -> nn.Module:
    network = mlp()
    gs.train(network, (x, y), replace(SPEC, learning_rate=learning_rate, epochs=epochs))
    return network


def test_settings_of_a_spec_and_of_a_function() -> None:
    decayed = with_setting(SPEC, "weight_decay", 0.01)
    assert (
        get_setting(decayed, "weight_decay") == pytest.approx(0.01)
        and get_setting(SPEC, "weight_decay") == 0
    )
    assert get_setting(with_setting(decayed, "weight_decay", 0.0), "weight_decay") == 0
    assert (
        with_setting({"epochs": 3}, "epochs", 6) == {"epochs": 6}
        and get_setting({}, "epochs") is None
    )


def test_each_fix_changes_what_it_names() -> None:
    x, y = blobs()
    faulty = torch.cat([x, x[:10]])
    faulty = faulty * torch.tensor([1000.0, 1, 1, 1, 1, 1])
    labels = torch.cat([y, y[:10]])
    data = Samples(faulty, labels)
    assert len(FIXES["drop duplicates"].apply(data, SPEC)[0]) == 120
    assert repr(FIXES["drop duplicates"]) == "Fix('drop duplicates')"
    few = data.subset(torch.arange(121))
    with pytest.raises(InvalidInput):  # GS101 names no samples below 2 %
        FIXES["drop duplicates"].apply(few, SPEC)
    scaled = FIXES["standardize inputs"].apply(data, SPEC)[0].inputs
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(6))
    torch.testing.assert_close(FIXES["standardize inputs"].map_inputs(data, faulty), scaled)
    assert FIXES["balance classes"].apply(data, SPEC)[0].y.bincount().unique().numel() == 1
    noisy = gs.data.inject_label_noise(y, 0.15, 3, torch.Generator().manual_seed(0))
    corrected = FIXES["correct flagged labels"].apply(Samples(x, noisy), SPEC)[0]
    assert (corrected.y != y).sum() < 0.3 * (noisy != y).sum()
    spec = FIXES["learning rate / 3"].apply(data, SPEC)[1]
    assert get_setting(spec, "learning_rate") == pytest.approx(0.05 / 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64, torch.bfloat16])
def test_inputs_of_any_type_are_scaled_by_the_same_numbers(dtype: torch.dtype) -> None:
    fix = FIXES["standardize inputs"]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 3, (60, 4), generator=generator).float()
    inputs[:, 0] = (inputs[:, 0] == 0).float()  # mean and spread below one round to zero
    data = Samples(inputs, torch.arange(60) % 2)
    scaled = fix.map_inputs(data, inputs.to(dtype))
    expected = (inputs - inputs.mean(0)) / inputs.std(0, correction=0)
    assert scaled.is_floating_point()
    torch.testing.assert_close(scaled.float(), expected, atol=0.01, rtol=0.01)
    for wrong in (inputs[:, :3], inputs[0], inputs[:, :1]):
        with pytest.raises(InvalidInput, match=r"\[n, 4\]"):
            fix.map_inputs(data, wrong)


def test_suspected_labels_of_the_same_samples_are_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    search = fixes.find_issues_of_samples

    def count(samples: Samples, **settings: Any) -> Any:
        searched.append(len(samples))
        return search(samples, **settings)

    monkeypatch.setattr(fixes, "find_issues_of_samples", count)
    x, y = blobs()
    samples = Samples(x, gs.data.inject_label_noise(y, 0.15, 3, torch.Generator().manual_seed(0)))
    names = {fix.name for fix in candidates((), samples, TrainingSpec())}
    assert {"drop flagged labels", "correct flagged labels"} <= names
    assert searched == [len(x)]


def test_fixes_that_change_nothing_are_no_candidates() -> None:
    samples = Samples(*blobs())
    names = [fix.name for fix in candidates(["balance classes", "weight decay"], samples, SPEC)]
    assert (
        names[0] == "weight decay"
        and "balance classes" not in names
        and "less weight decay" not in names
    )
    assert {fix.name for fix in candidates([], samples, {})} == set()
    with pytest.raises(InvalidInput, match="nothing"):
        FIXES["balance classes"].apply(samples, SPEC)


@pytest.mark.thorough
def test_a_fix_that_helps_is_found_and_applied() -> None:
    x, y = blobs()
    x = x * torch.tensor([300.0, 1, 1, 1, 1, 1])
    spec = replace(SPEC, learning_rate=0.01, epochs=16)
    result = gs.check(mlp(), (x, y), train_fn=spec, only=["GS105"])
    assert isinstance(result.tried, TriedAdvice) and result.best_fix is FIXES["standardize inputs"]
    assert result.tried.trainings <= 24 and "(tried)" in result.findings[0].action
    best = result.tried.best
    assert (
        best is not None
        and best.gain is not None
        and 0 < best.gain.low < best.gain.value < best.gain.high
    )
    data, changed = result.apply()
    assert changed == spec
    torch.testing.assert_close(data.inputs.std(0, correction=0), torch.ones(6))
    assert result.to_dict()["best_fix"] == "standardize inputs" and "tried: standardize" in repr(
        result
    )


@pytest.mark.thorough
def test_settings_of_a_function_are_tried() -> None:
    result = gs.check(None, blobs(), train_fn=train_fn, only=["GS101"])
    assert result.best_fix is FIXES["learning rate x 3"]
    spec = result.apply()[1]
    assert get_setting(spec, "learning_rate") == pytest.approx(0.006)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "names"),
    [
        (1e-5, {"learning rate x 10", "learning rate x 100"}),
        (300.0, {"learning rate / 10", "learning rate / 100"}),
    ],
)
def test_fixes_are_tried_where_nothing_is_learned_without(rate: float, names: set[str]) -> None:
    network, data = mlp(), blobs()
    spec = replace(SPEC, learning_rate=rate, momentum=0.0)
    gs.train(network, data, spec)
    result = gs.check(network, data, train_fn=spec, only=["GS302"])
    tried = result.tried
    assert isinstance(tried, TriedAdvice) and names <= {trial.name for trial in tried.trials}
    assert "train_fn must return" not in repr(result)


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_a_spec_that_learns_nothing_keeps_what_was_tried(target: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 3, generator=g), torch.randn(80, generator=g)
    labels = torch.arange(80) % 3 if target == "classes" else y
    network = nn.Linear(3, 3 if target == "classes" else 1)
    spec = TrainingSpec(epochs=2, learning_rate=1e-12)
    result = gs.check(network, (x, labels), train_fn=spec, only=["GS101"])
    assert isinstance(result.tried, TriedAdvice) and result.best_fix is None
    if target == "numbers":
        note = " ".join(repr(result).split())
        assert "no training predicts more than the mean, with any of learning rates" in note
        assert "from 1×10⁻¹⁴ to 1×10⁻⁹: pass one outside" in note
    assert "train_fn must return" not in repr(result)


def test_a_learning_rate_that_is_far_too_small_is_found() -> None:
    x, y = blobs()
    centres = torch.stack([x[y == c].mean(0) for c in range(3)])

    def train(x: torch.Tensor, y: torch.Tensor, learning_rate: float = 1e-5) -> nn.Module:
        network = nn.Linear(6, 3)
        with torch.no_grad():
            network.weight.copy_(centres if learning_rate > 5e-3 else torch.zeros(3, 6))
            network.bias.zero_()
        return network

    result = gs.check(train(x, y), (x, y), train_fn=train, only=["GS101"])
    assert result.best_fix is FIXES["learning rate x 1000"]


@pytest.mark.thorough
def test_a_sound_network_is_left_in_peace() -> None:
    result = gs.check(mlp(), blobs(), train_fn=SPEC, only=["GS105"])
    assert (
        isinstance(result.tried, TriedAdvice)
        and result.best_fix is None
        and "no gain" in repr(result)
    )
    with pytest.raises(InvalidInput, match="train_fn"):
        result.apply()


@pytest.mark.thorough
def test_estimators_are_fitted_again() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = blobs()
    noisy = gs.data.inject_label_noise(y, 0.2, 3, torch.Generator().manual_seed(0))
    estimator = linear_model.LogisticRegression().fit(x.numpy(), noisy.numpy())
    result = gs.check(estimator, (x.numpy(), noisy.numpy()), train_fn=True, only=["GS102"])
    assert isinstance(result.tried, TriedAdvice) and {t.name for t in result.tried.trials} <= set(
        FIXES
    )


def raising(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    raise RuntimeError("out of memory")


def untrained(x: torch.Tensor, y: torch.Tensor, epochs: int = 2) -> nn.Module:
    network = nn.Linear(6, 3)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def no_network(x: torch.Tensor, y: torch.Tensor, epochs: int = 2) -> Any:
    return "done"


def interrupted(x: torch.Tensor, y: torch.Tensor, epochs: int = 2) -> nn.Module:
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", [raising, untrained, no_network, interrupted])
def test_functions_that_train_nothing_leave_the_findings(function: Any) -> None:
    x, y = blobs()
    result = gs.check(
        None, (torch.cat([x, x[:20]]), torch.cat([y, y[:20]])), train_fn=function, only=["GS101"]
    )
    assert (
        result.codes == ("GS101",)
        and isinstance(result.tried, str)
        and "tried nothing" in repr(result)
    )
    assert result.interrupted == (function is interrupted)


def test_the_budget_limits_what_is_tried() -> None:
    result = gs.check(mlp(), blobs(), train_fn=SPEC, max_trainings=4.0, only=["GS105"])
    assert (
        isinstance(result.tried, TriedAdvice)
        and result.tried.trainings <= 4
        and "not tried" in repr(result)
    )
    with pytest.raises(InvalidInput, match="train_fn"):
        gs.check(mlp(), blobs(), train_fn=3)


def test_a_diverged_network_has_its_data_checked() -> None:
    x, y = blobs()
    network = mlp()
    with torch.no_grad():
        network[0].weight.fill_(torch.nan)  # pyright: ignore[reportIndexIssue]
    result = gs.check(network, (x * torch.tensor([1e4, 1, 1, 1, 1, 1]), y))
    assert {"GS105", "GS302"} <= set(result.codes) and "diverged" in repr(result)


def test_fixes_of_the_network_change_what_they_name() -> None:
    network = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    network[0].requires_grad_(False)
    assert all(
        FIXES[name].needs(network)
        for name in ("unfreeze", "GroupNorm", "refresh batch norm statistics")
    )
    assert not any(
        FIXES[name].needs(mlp())
        for name in ("unfreeze", "GroupNorm", "refresh batch norm statistics")
    )
    with torch.no_grad():
        network.get_parameter("1.weight").copy_(torch.arange(32.0))
    samples = Samples(*blobs())
    refresh = FIXES["refresh batch norm statistics"].finish_network
    assert refresh is not None
    refresh(network, samples)
    with torch.no_grad():
        torch.testing.assert_close(
            network.get_buffer("1.running_mean"), network[0](samples.inputs).mean(0)
        )
    for name in ("unfreeze", "GroupNorm"):
        change = FIXES[name].change_network
        assert change is not None
        change(network)
    assert all(weight.requires_grad for weight in network.parameters())
    assert isinstance(network[1], nn.GroupNorm) and network[1].num_groups == 2
    torch.testing.assert_close(network.get_parameter("1.weight").detach(), torch.arange(32.0))


@pytest.mark.thorough
def test_frozen_weights_are_found_and_the_fix_is_tried() -> None:
    x, y = blobs()
    network = mlp()
    first = network.get_parameter("0.weight").requires_grad_(False)
    network.get_parameter("0.bias").requires_grad_(False)
    with torch.no_grad():
        first[:, 1:] = 0
    initial = {name: value.clone() for name, value in network.state_dict().items()}
    gs.train(network, (x, y), SPEC)
    result = gs.check(
        network, (x, y), initial_state=initial, train_fn=SPEC, only=["GS303", "GS401"]
    )
    assert "GS303" in result.codes and result.best_fix is FIXES["unfreeze"]
    assert not first.requires_grad
    with pytest.raises(InvalidInput, match="change_network"):
        result.apply()


def test_width_of_a_training_function_is_tried() -> None:
    def train_narrow(inputs: torch.Tensor, targets: torch.Tensor, width: int = 1) -> nn.Module:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        gs.train(network, (inputs, targets), SPEC)
        return network

    result = gs.check(None, blobs(), train_fn=train_narrow, only=["GS101"])
    assert (
        isinstance(result.tried, TriedAdvice)
        and next(trial.name for trial in result.tried.trials) == "wider"
    )
    assert "GroupNorm" not in {trial.name for trial in result.tried.trials}


def line(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=g)
    return x * torch.tensor([300.0, 1, 1, 1]), x[:, 1] - x[:, 2] + 0.1 * torch.randn(n, generator=g)


@pytest.mark.thorough
def test_advice_for_regression_is_tried_in_r2() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    x, y = line()
    result = gs.check(
        network, (x, y), train_fn=replace(SPEC, learning_rate=0.01, epochs=20), only=["GS105"]
    )
    assert isinstance(result.tried, TriedAdvice) and result.best_fix is FIXES["standardize inputs"]
    best = result.tried.best
    assert best is not None and best.gain is not None and 0.2 < best.gain.value <= 1.05
    assert (
        result.tried.score_name == "R^2"
        and "of R^2" in repr(result)
        and "points" not in result.tried_lines[0]
    )
    # the unchanged training fails, and counts as one that predicts the mean
    assert abs(result.tried.score) < 0.2


@pytest.mark.thorough
def test_a_function_gets_regression_targets_as_they_were_passed() -> None:
    shapes: list[tuple[int, ...]] = []

    def fit(x: torch.Tensor, y: torch.Tensor, epochs: int = 2) -> nn.Module:
        shapes.append(tuple(y.shape[1:]))
        torch.manual_seed(0)
        network = nn.Linear(4, 1)
        gs.train(network, (x, y), replace(SPEC, epochs=5 * epochs))
        return network

    x, y = line()
    x = x / torch.tensor([300.0, 1, 1, 1])
    for targets, shape in ((y, ()), (y[:, None], (1,))):
        shapes.clear()
        result = gs.check(None, (x, targets), train_fn=fit, only=["GS101"])
        assert isinstance(result.tried, TriedAdvice) and set(shapes) == {shape}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["multi-label", "positions"])
def test_advice_is_tried_for_other_tasks(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, 4, generator=g)
    torch.manual_seed(0)
    network: nn.Module = nn.Linear(4, 3)
    labels = x[..., :3].argmax(-1)
    if kind == "multi-label":
        x, labels = x[:, 0], (x[:, 0, :3] > 0).long()
    spec = replace(SPEC, learning_rate=0.003, epochs=6)
    result = gs.check(network, (x, labels), train_fn=spec, only=["GS101"])
    # the several labels are learned no better than by chance without
    factor = 100 if kind == "multi-label" else 3
    assert isinstance(result.tried, TriedAdvice)
    assert result.best_fix is FIXES[f"learning rate x {factor}"]


@pytest.mark.thorough
def test_a_fix_that_fails_does_not_end_the_others() -> None:
    def fit(
        x: torch.Tensor, y: torch.Tensor, learning_rate: float = 0.002, batch_size: int = 8
    ) -> nn.Module:
        if batch_size > 8:
            raise MemoryError("batch too large")
        return train_fn(x, y, learning_rate)

    result = gs.check(None, blobs(), train_fn=fit, only=["GS101"])
    assert result.best_fix is FIXES["learning rate x 3"] and "larger batches failed: " in repr(
        result
    )


@pytest.mark.thorough
def test_a_fix_that_changes_nothing_on_a_fresh_half_gains_nothing_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves: list[torch.Tensor] = []

    def repeat(data: Samples, budget: CpuBudget) -> Samples:
        if len(data) < 120:
            halves.append(data.inputs)
        if len(halves) > 2:
            return data
        return Samples(data.inputs.repeat(30, 1), data.y.repeat(30))

    monkeypatch.setattr(
        "gapscope.checks.trials.FIXES", {"repeat": Fix("repeat", change_data=repeat)}
    )
    slow = replace(SPEC, learning_rate=1e-4)
    network = mlp()
    gs.train(network, blobs(), slow)
    result = gs.check(network, blobs(), train_fn=slow, only=["GS302"])
    tried = result.tried
    assert isinstance(tried, TriedAdvice) and len(halves) == 6
    assert tried.trials[0].gain is not None and tried.trials[0].gain.value == 0


@pytest.mark.thorough
@pytest.mark.parametrize("most", [6, 24])
def test_few_samples_are_worth_24_trainings_by_default(most: int) -> None:
    seen: list[int] = []

    def fit(x: torch.Tensor, y: torch.Tensor, learning_rate: float = 0.002) -> nn.Module:
        seen.append(len(x))
        return train_fn(x, y, learning_rate, 8)

    options: dict[str, Any] = {} if most == 24 else {"max_trainings": most}
    tried = gs.check(None, blobs(), train_fn=fit, only=["GS101"], **options).tried
    assert isinstance(tried, TriedAdvice)
    assert tried.trainings <= most and sum(seen) / len(blobs()[0]) <= most
    assert (sum(seen) / len(blobs()[0]) > 6) == (most == 24)


def test_ctrl_c_keeps_the_fixes_that_were_tried() -> None:
    calls: list[int] = []

    def fit(
        x: torch.Tensor, y: torch.Tensor, learning_rate: float = 0.002, epochs: int = 8
    ) -> nn.Module:
        calls.append(1)
        if len(calls) == 7:  # both halves without a fix, and with two
            raise KeyboardInterrupt
        return train_fn(x, y, learning_rate, epochs)

    result = gs.check(None, blobs(), train_fn=fit, only=["GS101"])
    assert (
        result.interrupted
        and isinstance(result.tried, TriedAdvice)
        and len(result.tried.trials) == 2
    )
    assert result.best_fix is None and "interrupted" in repr(result)
    assert "no gain" not in repr(result) and "nothing that was tried" not in repr(result)
    assert "did not run" not in result.headline and "trials" in result.headline


@pytest.mark.parametrize("call", [2, 3, 4, 5, 6, 8])
def test_ctrl_c_at_any_training_is_an_interrupt(call: int) -> None:
    calls: list[int] = []

    def fit(x: torch.Tensor, y: torch.Tensor, epochs: int = 8) -> nn.Module:
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return train_fn(x, y, 0.002, epochs)

    result = gs.check(None, blobs(), train_fn=fit, only=["GS101"])
    assert result.interrupted and "Interrupted" in result.headline
    assert result.to_dict()["interrupted"] and len(calls) == call
    # the first fix begins at the third call; the unchanged training is kept
    assert isinstance(result.tried, TriedAdvice) == (call > 2)


def test_a_pipeline_is_fitted_again_on_its_own_columns() -> None:
    pandas = pytest.importorskip("pandas")
    compose = pytest.importorskip("sklearn.compose")
    linear_model = pytest.importorskip("sklearn.linear_model")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x, y = blobs()
    frame = pandas.DataFrame(x.numpy()[:, :3], columns=["a", "b", "c"])
    frame["kind"] = np.where(y.numpy() == 0, "low", "high")
    encode = compose.ColumnTransformer(
        [("kind", preprocessing.OneHotEncoder(), ["kind"])], remainder="passthrough"
    )
    model = pipeline.make_pipeline(encode, linear_model.LogisticRegression())
    repeated = pandas.concat([frame, frame[:20]], ignore_index=True)
    labels = np.array(["x", "y", "z"])[torch.cat([y, y[:20]]).numpy()]
    result = gs.check(
        model.fit(repeated, labels), (repeated, labels), train_fn=True, only=["GS101"]
    )
    assert (
        isinstance(result.tried, TriedAdvice) and result.tried.trials[0].name == "drop duplicates"
    )
    assert result.tried.score > 0.5


@pytest.mark.thorough
def test_what_was_passed_is_not_advised_again() -> None:
    """Advice of a check names what a check takes: train_fn= until it was passed, and never n_training=."""
    torch.manual_seed(0)
    # nothing to learn: the training labels are memorized
    x, y = (
        torch.randn(120, 30),
        torch.arange(120) % 3,
    )
    network = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 3))
    spec = TrainingSpec(epochs=30, learning_rate=0.1, momentum=0.9, batch_size=16)
    gs.train(network, (x, y), spec)
    test = (torch.randn(60, 30), torch.arange(60) % 3)
    without = gs.check(network, (x, y), test=test, only=["GS402"])
    assert "pass train_fn= to try it" in without.findings[0].action
    assert "train_fn=" not in str(
        gs.check(network, (x, y), test=test, only=["GS402"], train_fn=spec)
    )
    assert "n_training" not in str(gs.check(network, (x, y), only=["GS401", "GS402"]))


def test_a_fresh_interval_with_0_is_printed_beside_the_one_that_decides() -> None:
    pooled = IntervalEstimate(0.06, 0.0, 0.12)
    trial = Trial("wider", 0.1, IntervalEstimate(0.05, -0.02, 0.12), pooled, helps=True, level=0.8)
    assert trial.decisive is not None and trial.decisive.low == pytest.approx(
        0.06 * (1 - 0.779), rel=0.01
    )
    text = TriedAdvice((trial,), 0.8, 13.0).lines[0]
    assert "+5.0 points (90 % interval -2.0 to 12.0; over all splits" in text
    assert "+6.0 points (80 % interval 1.3 to 10.7)" in text
    sure = replace(trial, gain=IntervalEstimate(0.05, 0.01, 0.09))
    assert "splits" not in TriedAdvice((sure,), 0.8, 13.0).lines[0]
