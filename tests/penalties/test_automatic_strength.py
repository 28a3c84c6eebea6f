"""A strength that sets itself: what it measures by hand, how it moves, in training runs, resumed, and its refusals."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.data import inject_label_noise
from gapscope.inspection.validation import ready
from gapscope.labels.class_labels import assess_labels
from gapscope.labels.kernel_views import kernel_class_view, ntk_spectrum
from gapscope.penalties.automatic_strength import (
    FALL,
    KAPPA,
    POWER,
    RISE,
    TOLERANCE,
    AutomaticStrength,
    memorization_stats,
)
from gapscope.penalties.base import LIMITS, Penalty, make_penalty
from support.cases import CASES


def test_memorized_samples_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.1, 0.2], [0.3, 0.5, 0.2], [0.6, 0.3, 0.1]])
    # the first two labels are as predicted; of the third, class 1, class 0 is predicted, and class 2 stands beside
    m, ordinary = memorization_stats(
        probabilities, torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
    )
    assert (m, ordinary) == pytest.approx((0.3 - 0.1, (0.7 + 0.5) / 2))
    assert (
        memorization_stats(probabilities, torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0]))[0] == 0
    )
    assert (
        memorization_stats(probabilities, torch.tensor([1, 0, 1]), torch.tensor([0, 1, 0]))[1] == 0
    )


def test_the_strength_rises_fast_falls_slowly_and_stays_within_its_limits() -> None:
    strength = AutomaticStrength(start=0.001, least=0.001, most=0.01)

    def moved(*errors: float, collapsed: bool = False) -> float:
        for error in errors:
            strength._step_strength(error, collapsed=collapsed)
        return strength.strength

    assert moved() == moved(-1.0, math.nan) == 0.001
    assert moved(0.5) == pytest.approx(0.001 * math.exp(RISE * 0.5))
    assert moved(-0.5) == pytest.approx(0.001 * math.exp(RISE * 0.5 - FALL * 0.5))
    assert moved(*[9.0] * 9) == 0.01 and moved(math.nan) == 0.01
    assert moved(*[-9.0] * 9) == 0.001
    # a penalty that undoes what was learned gives way at once, and comes back step by step
    assert moved(9.0, collapsed=True) == 0.00025
    assert moved(-9.0) == pytest.approx(0.00025 * math.exp(RISE)) and moved(-9.0, -9.0) == 0.001


SETTINGS = gs.TrainingSpec(epochs=20, learning_rate=0.1, momentum=0.9, batch_size=30)


def problem(rate: float, n: int = 240) -> tuple[Tensor, Tensor]:
    train = gs.load_dataset("digits").train.subset(torch.arange(n))
    return train.inputs, inject_label_noise(train.y, rate, 10, torch.Generator().manual_seed(0))


def network(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), *more, nn.ReLU(), nn.Linear(200, 10))


def trained(
    rate: float,
    penalties: list[Penalty],
    net: nn.Module,
    folder: Path | None = None,
    epochs: int = 20,
) -> nn.Module:
    settings = gs.TrainingSpec.from_dict(SETTINGS.to_dict() | {"epochs": epochs})
    gs.train(net, problem(rate), settings, penalties=penalties, folder=folder)
    return net


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("GradientSimilarityPenalty", gs.GradientSimilarityPenalty),
        ("L2Penalty", gs.penalties.L2Penalty),
        ("LossGradientPenalty", gs.penalties.LossGradientPenalty),
        ("AutomaticDropout", gs.penalties.AutomaticDropout),
    ],
)
def test_it_falls_while_nothing_is_memorized_then_rises(name: str, make: Any) -> None:
    penalty = make("auto")
    start, least, most = LIMITS[name]
    assert isinstance(penalty.automatic, AutomaticStrength) and penalty.strength == start
    trained(0.5, [penalty], network(nn.Dropout()))
    shares, allowed, strengths = (
        np.array(column) for column in list(zip(*penalty.automatic.history, strict=True))[1:]
    )
    assert strengths.min() < start < strengths.max() <= most and strengths.min() >= least
    # up at the very looks at which more is known by heart than is allowed
    rising = np.flatnonzero((strengths[1:] > strengths[:-1]) & (strengths[:-1] > 2 * least)) + 1
    assert len(rising) and (shares[rising] > allowed[rising]).all()
    assert penalty.strength == penalty.automatic.strength


@pytest.mark.thorough
def test_it_holds_down_what_is_memorized() -> None:
    held, free = AutomaticStrength(), AutomaticStrength(start=1e-12, least=1e-12, most=1e-12)
    for strength in (held, free):
        trained(0.5, [gs.GradientSimilarityPenalty(strength)], network())
    assert held.history[-1][1] < 0.85 * free.history[-1][1]


def test_clean_labels_may_be_learned_that_the_untrained_network_gets_wrong() -> None:
    penalty = gs.GradientSimilarityPenalty("auto")
    assert isinstance(penalty.automatic, AutomaticStrength)
    trained(0.0, [penalty], network(), epochs=3)
    assert penalty.automatic.history[-1][2] > 0.5  # of kappa + tau, .71
    noisy = gs.GradientSimilarityPenalty("auto")
    assert isinstance(noisy.automatic, AutomaticStrength)
    trained(0.5, [noisy], network(), epochs=3)
    assert noisy.automatic.history[-1][2] < 0.2


def test_a_strength_without_room_is_a_fixed_one() -> None:
    fixed, held = (
        gs.GradientSimilarityPenalty(0.003),
        AutomaticStrength(start=0.003, least=0.003, most=0.003),
    )
    plain = trained(0.5, [fixed], network(nn.Dropout(0.2)), epochs=6)
    automatic = trained(
        0.5, [gs.GradientSimilarityPenalty(held)], network(nn.Dropout(0.2)), epochs=6
    )
    assert len(held.history) > 2 and same(plain, automatic)


@pytest.mark.parametrize(
    ("make", "epochs"),
    [
        (gs.GradientSimilarityPenalty, 1),
        (gs.GradientSimilarityPenalty, 9),
        (gs.penalties.L2Penalty, 9),
        (gs.penalties.LossGradientPenalty, 9),
        (gs.penalties.AutomaticDropout, 9),
    ],
)
def test_a_resumed_training_ends_as_the_unbroken_one(
    tmp_path: Path, make: Any, epochs: int
) -> None:
    whole = make("auto")
    unbroken = trained(0.5, [whole], network(nn.Dropout()), epochs=12)
    # after one epoch samples are still collected, for there are fewer than are watched
    trained(0.5, [make("auto")], network(nn.Dropout()), tmp_path, epochs=epochs)
    penalty = make("auto")
    resumed = trained(0.5, [penalty], network(nn.Dropout()), tmp_path, epochs=12)
    assert (
        same(unbroken, resumed)
        and penalty.strength == whole.strength != LIMITS[type(penalty).__name__][0]
    )


def test_a_second_network_begins_anew() -> None:
    reused, fresh = gs.penalties.L2Penalty("auto"), gs.penalties.L2Penalty("auto")
    trained(0.5, [reused], network(), epochs=3)
    shapes = [nn.Linear(200, 50), nn.ReLU(), nn.Linear(50, 200)]
    assert same(
        trained(0.5, [reused], network(*copy.deepcopy(shapes)), epochs=4),
        trained(0.5, [fresh], network(*copy.deepcopy(shapes)), epochs=4),
    )
    assert reused.strength == fresh.strength != LIMITS["L2Penalty"][0]


@pytest.mark.parametrize("name", ["ResNet-18, narrow", "encoder"])
def test_networks_that_people_have(name: str) -> None:
    net, samples = CASES[name].make(104)
    penalty = gs.GradientSimilarityPenalty(AutomaticStrength(start=1e-4, least=1e-4, most=0.003))
    for start in (0, 52, 0, 52):
        batch = slice(start, start + 52)
        outputs, value = penalty.forward_with_penalty(net, samples.inputs[batch], samples.y[batch])
        assert value.item() > 0 and outputs.shape[0] == 52
    assert (
        isinstance(penalty.automatic, AutomaticStrength)
        and penalty.automatic._predictions is not None
    )
    with pytest.raises(InvalidInput, match="network without normalization layers"):
        make_penalty("gradient_similarity", {"strength": "auto"})(net, samples.inputs, samples.y)
    # weights may be penalized at any strength
    make_penalty("weight", {"strength": "auto"})(net, samples.inputs, samples.y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_samples_of_any_type_are_distinguished(dtype: torch.dtype) -> None:
    strength, x = AutomaticStrength(), torch.randn(60, 4).to(dtype)
    strength.before_pass(nn.Linear(4, 3))
    for _ in range(2):
        strength._add_samples((x,), torch.arange(60) % 3)
    assert len(strength._labels) == 60 and torch.equal(strength._monitored_inputs(), x)


@pytest.mark.filterwarnings("ignore:The value of GradientSimilarityPenalty")  # one linear layer
def test_messages() -> None:
    net, x = nn.Linear(4, 3), torch.randn(60, 4)
    y = torch.arange(60) % 3
    with pytest.raises(InvalidInput, match=r"needs class labels.*for regression"):
        gs.GradientSimilarityPenalty("auto")(net, x, torch.randn(60, 3))
    with pytest.raises(InvalidInput, match="every call; got none"):
        gs.GradientSimilarityPenalty("auto")(net, x)
    penalty = gs.GradientSimilarityPenalty("auto")
    penalty(net, x, y)
    with pytest.raises(InvalidInput, match="different samples; got 60"):
        penalty(net, x, y)
    unequal = AutomaticStrength()
    gs.penalties.L2Penalty(unequal)(net, x, y)
    with pytest.raises(InvalidInput, match=r"got \[5\] after \[4\]"):
        gs.penalties.L2Penalty(unequal)(nn.Linear(5, 3), torch.randn(60, 5), y)
    for name, options in (("input_jacobian", {}), ("gamma_decay", {"batch_size": 10})):
        with pytest.raises(InvalidInput, match="larger; got 'auto'"):
            make_penalty(name, {"strength": "auto", **options})


def test_outputs_of_classes_without_samples_change_no_allowance() -> None:
    x, y = problem(0.2)
    codes = y % 3
    strength = AutomaticStrength(start=0.001, least=0.001, most=0.01)
    strength._untrained = network()
    strength._inputs = [(row,) for row in x]
    strength._labels = list(3 * codes)
    strength._predict_samples()
    view = kernel_class_view(
        "NTK", ntk_spectrum(ready(network(), (x, 3 * codes)), seed=0), codes, 3
    )
    contradicted = float((view.predictions != codes).double().mean())
    wrong = min(1.0, assess_labels(view, codes)[1].rate / contradicted)
    assert strength._allowed == pytest.approx(TOLERANCE + KAPPA * (1 - wrong) ** POWER)
    assert strength._predictions is not None
    assert torch.equal(strength._predictions, 3 * view.predictions)
